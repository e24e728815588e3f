"""Warnings are errors in the tests, but for what torch says of TorchScript, which the scripted backend needs."""

import warnings

import pytest


@pytest.mark.parametrize("kind", [DeprecationWarning, FutureWarning])
@pytest.mark.parametrize("text", ["`torch.jit.script` is deprecated. Please switch", "torch.jit.trace_method is deprecated."])
def test_torchscripts_are_let_through(kind, text):
    warnings.warn(text, kind, stacklevel=1)


def test_others_are_errors():
    with pytest.raises(FutureWarning, match="torch"):
        warnings.warn("torch.load will change", FutureWarning, stacklevel=1)
    with pytest.raises(UserWarning, match="torch"):
        warnings.warn("`torch.jit.script` is deprecated", UserWarning, stacklevel=1)

"""Sums over a few entries stay sums in Inductor's hands."""

import pytest
import torch

import sandbox
from tests.light import light
from tests.problem import Problem


@pytest.mark.slow
def test_sums_are_not_written_out_one_inside_the_other(monkeypatch):
    """Of three pairs RES has a chain of sums over six entries: written out, 6ⁿ terms, which took twenty minutes."""
    from torch._inductor.ir import Reduction

    monkeypatch.setattr(Reduction, "_unroll_reduction_fn", staticmethod(lambda *a, **k: pytest.fail("a sum is written out")))
    monkeypatch.setenv("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")
    params = Problem(shapes=[(4, 3)]).tensors(torch.float32)
    optimizer = sandbox.Optimizer(params, light("res", 1), lr=0.01, backend="compiled")

    def closure():
        params[0].grad = torch.ones_like(params[0])
        return torch.tensor(0.0)

    optimizer.step(closure)
    assert params[0].isfinite().all()

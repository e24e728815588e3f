"""The header of Inductor's kernels is compiled beside the trace."""

import gc

import pytest
import torch

import sandbox
from sandbox.backends.inductor import headers, instructions
from sandbox.blocks import Rectifier, block


def test_it_is_the_one_that_kernels_ask_for(monkeypatch):
    from torch._inductor import codecache

    monkeypatch.setattr(codecache.CppPythonBindingsCodeCache, "cache", {})  # as in a new process
    asked, real = [], codecache._precompile_header
    monkeypatch.setattr(codecache, "_precompile_header", lambda *a, **k: asked.append((a, k)) or real(*a, **k))
    with headers.ahead():
        pass
    assert len(asked) == 1
    torch.compiler.reset()
    with instructions.of_torch(), torch._inductor.config.patch(fx_graph_cache=False):
        torch.compile(lambda x: x.sin() + 0.123)(torch.ones(100))
    assert len(asked) > 1
    assert all(each == asked[0] for each in asked)


SEEN = []


@block
class Noting(Rectifier):
    """D = B, and notes whether garbage is collected while it is traced."""

    def read(self, B):
        SEEN.append(gc.isenabled())
        raise ZeroDivisionError


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_collection_is_off_while_compiling_and_then_as_before(enabled):
    p = torch.ones(3, requires_grad=True)
    p.grad = torch.ones(3)
    optimizer = sandbox.Optimizer([p], sandbox.Recipe(rectifier=Noting()), backend="compiled")
    SEEN.clear()
    (gc.enable if enabled else gc.disable)()
    try:
        with pytest.raises(ValueError, match="has no graph: ZeroDivisionError"):
            optimizer.step()
        assert gc.isenabled() == enabled
    finally:
        gc.enable()
    assert SEEN[-1] is False


def test_what_fails_there_is_told_where_it_is_needed(monkeypatch):
    from torch._inductor import codecache, cpu_vec_isa

    def refuse(*args, **kwargs):
        raise TypeError("no such entry")

    before = cpu_vec_isa.valid_vec_isa_list
    monkeypatch.setattr(codecache.CppPythonBindingsCodeCache, "load_async", refuse)
    with headers.ahead():
        pass
    with pytest.raises(ZeroDivisionError), headers.ahead():
        raise ZeroDivisionError
    assert cpu_vec_isa.valid_vec_isa_list is before

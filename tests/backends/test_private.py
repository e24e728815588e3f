"""Private names of the compiler: a step does without each of them, and the detours that they save give the same."""

import contextlib
import functools
import gc
import importlib
import types
import warnings

import numpy as np
import pytest
import torch

import sandbox
import variants
from sandbox.backends.inductor import kernels, private
from sandbox.backends.tracing import graph, selfcheck

NAMES = [
    "torch._dynamo:mark_dynamic",
    "torch._dynamo:mark_static_address",
    "torch._guards:TracingContext",
    "torch._guards:tracing",
    "torch._inductor.compile_fx:compile_fx_inner",
    "torch._inductor.cpu_vec_isa:VecAVX2",
    "torch._inductor.cpu_vec_isa:VecAVX512",
    "torch._inductor.cpu_vec_isa:valid_vec_isa_list",
    "torch._inductor.decomposition:select_decomp_table",
    "torch._inductor.ir:Pointwise",
    "torch._inductor.lowering:register_lowering",
    "torch._inductor.virtualized:V",
    "torch._inductor.virtualized:ops",
    "torch.utils._config_module:ConfigModule.patch",
    "torch.utils._sympy.functions:FloorDiv",
    "torch.utils._sympy.functions:ModularIndexing",
]
TRACER = {"torch._guards:TracingContext", "torch.utils._config_module:ConfigModule.patch"}  # torch's own tracer needs them
OFTEN = "torch._inductor.cpu_vec_isa:valid_vec_isa_list"  # in `make test`, where torch misses it too: a second


def owner_of(path):
    module, _, names = path.partition(":")
    *outer, name = names.split(".")
    return functools.reduce(getattr, outer, importlib.import_module(module)), name


@pytest.fixture
def empty(own_cache, monkeypatch):
    """Nothing compiled before, in this process or on disk."""
    private._lower_places.cache_clear()


def three_steps(backend="compiled"):
    """θ after three steps, and what was said about how they run."""
    p = torch.linspace(-1, 1, 700, dtype=torch.float64).requires_grad_()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer = sandbox.Optimizer([p], "sgd", lr=0.1, backend=backend)
        for _ in range(3):
            p.grad = 3 * p.detach() + 1
            optimizer.step()
    return p.detach(), [str(w.message) for w in caught if "; steps " in str(w.message)]


def assert_right(values):
    torch.testing.assert_close(values, three_steps("reference")[0], rtol=1e-12, atol=1e-14)


@pytest.mark.slow
@pytest.mark.usefixtures("empty")
@pytest.mark.parametrize("path", NAMES)
def test_a_name_that_torch_has_renamed(path, monkeypatch):
    """It is gone for this package, and torch itself works: one warning, and the step goes through torch.compile."""
    owner, name = owner_of(path)
    original = private._internals

    @contextlib.contextmanager
    def internals():
        with pytest.MonkeyPatch.context() as patch, original():
            patch.delattr(owner, name, raising=False)
            yield

    monkeypatch.setattr(private, "_internals", internals)
    values, said = three_steps()
    assert_right(values)
    assert len(said) == 1
    assert "steps go through torch.compile" in said[0]


@pytest.mark.usefixtures("empty")
@pytest.mark.parametrize(
    "path", [OFTEN, *(pytest.param(name, marks=pytest.mark.slow) for name in NAMES if name not in {OFTEN, *TRACER})]
)
def test_a_name_that_torch_itself_misses(path, monkeypatch):
    """Then torch.compile may fail too: one warning, and the step runs all the same."""
    monkeypatch.delattr(*owner_of(path))
    values, said = three_steps()
    assert_right(values)
    assert len(said) == 1


@pytest.mark.usefixtures("empty")
def test_all_of_them_turned_off(monkeypatch):
    """Documented functions alone, as the user asks: no warning, and nothing private is used, in one piece or in phases."""

    def refuse(*arguments):
        raise AssertionError(f"{arguments} was asked for")

    monkeypatch.setenv("APOLLO_SANDBOX_INDUCTOR", "public")
    for name in ("_lower_places", "_instructions", "_compile_header", "source_of", "load_source"):
        monkeypatch.setattr(private, name, refuse)
    values, said = three_steps()
    assert_right(values)
    assert said == []
    recipe = variants.get("apollo")
    _, structure = graph.numbers_of(recipe, 4.0, 0.01, {"lr": 0.01, "rectifier.sigma": 0.01}, evaluated=True)
    double = torch.float64
    signature = graph.Signature(structure, "whole", 0, recipe.scope, double, double, double, "cpu", True)
    kernel = kernels.Kernel(recipe, signature, step_only=False, phased=True, mode=None)

    def run(*inputs):
        phases, sums = kernel.bind(inputs[1]), []
        phases.begin(inputs)
        for number, kinds in enumerate(kernel.reductions):
            outputs = phases.phase(number, sums)
            sums += [x for x, kind in zip(outputs, kinds, strict=True) if kind.over != "check"]

    assert len(kernel.reductions) == 2
    selfcheck.check(recipe, signature, run)
    with pytest.raises(graph.NoGraph):
        selfcheck.check(recipe, signature, lambda *inputs: None)


@pytest.mark.slow
@pytest.mark.usefixtures("empty")
@pytest.mark.parametrize("switch", ["public", None])
def test_a_grid_without_them(switch, monkeypatch):
    """It goes through torch.compile: as asked for in silence, else with a warning; float64, sums in another order."""
    import torch._inductor

    if switch:
        monkeypatch.setenv("APOLLO_SANDBOX_INDUCTOR", switch)
    else:
        monkeypatch.delattr(torch._inductor, "standalone_compile")
    task = sandbox.tasks.get("quadratic", dtype=torch.float64)
    options = {"lr": [1e-3, 1e-2], "seeds": 2, "steps": 5}
    with pytest.warns(UserWarning, match="the grid goes through") if not switch else contextlib.nullcontext():
        fast = sandbox.ensemble.run("apollo", task, compiled=True, **options)
    np.testing.assert_allclose(fast.loss, sandbox.ensemble.run("apollo", task, **options).loss, rtol=1e-12)


# -- what they save ----------------------------------------------------------------------------------------------------


def test_the_header_made_ahead_is_the_one_that_kernels_ask_for(monkeypatch):
    from torch._inductor import codecache

    monkeypatch.setattr(codecache.CppPythonBindingsCodeCache, "cache", {})  # as in a new process
    asked, real = [], codecache._precompile_header
    monkeypatch.setattr(codecache, "_precompile_header", lambda *a, **k: asked.append((a, k)) or real(*a, **k))
    with private.header_ahead():
        pass
    assert len(asked) == 1
    torch.compiler.reset()
    with private._instructions(), torch._inductor.config.patch(fx_graph_cache=False):
        torch.compile(lambda x: x.sin() + 0.123)(torch.ones(100))
    assert len(asked) > 1
    assert all(each == asked[0] for each in asked)


def test_a_header_that_fails_is_left_to_who_needs_it(monkeypatch):
    from torch._inductor import codecache, cpu_vec_isa

    def refuse(*args, **kwargs):
        raise TypeError("no such entry")

    before = cpu_vec_isa.valid_vec_isa_list
    monkeypatch.setattr(codecache.CppPythonBindingsCodeCache, "load_async", refuse)
    with private.header_ahead():
        pass
    with pytest.raises(ZeroDivisionError), private.header_ahead():
        raise ZeroDivisionError
    assert cpu_vec_isa.valid_vec_isa_list is before


def test_garbage_collection_is_off_while_compiling_and_then_as_before(monkeypatch):
    seen = []

    def refuse(*args, **kwargs):
        seen.append(gc.isenabled())
        raise ZeroDivisionError

    monkeypatch.setattr(kernels.graph, "trace", refuse)
    monkeypatch.setattr(kernels.disk_cache, "path_of", lambda *args, **kwargs: None)
    signature = types.SimpleNamespace(device="cpu", kind="whole")
    for enabled in (True, False):
        (gc.enable if enabled else gc.disable)()
        try:
            with pytest.raises(ZeroDivisionError):
                kernels.Kernel(None, signature, step_only=False, phased=False, mode=None)
            assert gc.isenabled() == enabled
        finally:
            gc.enable()
    assert seen == [False, False]

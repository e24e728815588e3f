"""What compiles, how often, and what of it may change later."""

import re

import pytest
import torch

import sandbox
import variants
from sandbox.backends.inductor import kernels
from sandbox.blocks import ClipValue, L2Decay
from tests.backends.trajectories import assert_backends_agree
from tests.problem import MIXED as SHAPES
from tests.problem import Torchs

pytestmark = pytest.mark.usefixtures("both_ways")


def graphs():
    """Graphs that Inductor has been given in this process, by whatever way."""
    seen = torch._dynamo.utils.counters["inductor"]
    return sum(seen[f"fxgraph_cache_{answer}"] for answer in ("hit", "miss", "bypass"))


@pytest.mark.usefixtures("own_cache")
def test_one_structure_compiles_once():
    """20 steps with lr, β and σ changed by hand and by a scheduler, a second model of other shapes, a second optimizer: no graph
    more than one for the arena and one for large tensors, and no specialisation to static sizes; nor for those that often
    specialise: one row, one owner, equal sizes, a single entry."""
    recipe = variants.get("apollo").replace(gradient=(ClipValue(max_value=50.0), L2Decay(weight_decay=0.01)))  # only here
    before, known = graphs(), len(kernels.compilations)
    for seed, shapes in enumerate([SHAPES, [(33, 5), (2,), (1,), (1, 1), (64, 3), (9, 9), (300,)], SHAPES[::-1]]):
        problem = Torchs(torch.float64, seed, shapes)
        optimizer = sandbox.Optimizer(problem.params, recipe, lr=0.01, backend="compiled")
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
        for step in range(20):
            optimizer.param_groups[0]["momentum"] = 0.5 + step / 100
            optimizer.param_groups[0]["rectifier.sigma"] = 0.01 + step / 1000
            optimizer.zero_grad()
            problem.loss(step, problem.params).backward()
            optimizer.step()
            schedule.step()
        if seed == 0:
            assert len(kernels.compilations) - known == 2
            assert graphs() - before == 2
    for shapes in ([(3,), (4, 5)], [(1,)], [(5,)], [(5,), (5,)], [(1, 1), (1,), (1, 1, 1)], [(200, 200)], [(2, 5), (5, 2)]):
        params = [torch.ones(s, dtype=torch.float64, requires_grad=True) for s in shapes]
        optimizer = sandbox.Optimizer(params, recipe, lr=0.01, backend="compiled")
        for p in params:
            p.grad = torch.ones_like(p)
        optimizer.step()
    assert len(kernels.compilations) - known == 2
    assert graphs() - before == 2


@pytest.mark.slow
@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("name", ["apollo", "channel-secant", "global-secant"])
def test_what_inductor_takes_for_granted_is_harmless(name):
    """Without its cache, it says: the count of numbers, and whether a sum is long enough for chunks; nothing else."""
    params = [torch.ones(50, 30), torch.ones(3)]
    for p in params:
        p.grad = torch.ones_like(p)
    sandbox.Optimizer(params, name, backend="compiled").step()
    guards = [guard for kernel in kernels._COMPILED.values() for guard in kernel.guards]
    assert any("4096" in guard for guard in guards)
    assert all(re.fullmatch(r"Eq\(s\d+, \d+\)|s\d+ (<=|>) 4096", guard) for guard in guards), guards


@pytest.mark.slow
def test_gradients_that_change_their_precision():
    """bfloat16 parameters whose gradients are bfloat16, then float32 (`grad_dtype`), then bfloat16 again: as eager.

    At a rate at which gradient steps do not grow what one of them rounds to another side.
    """
    paths = []
    for backend in ("eager", "compiled"):
        params = [torch.linspace(-1, 1, 600).reshape(30, 20).to(torch.bfloat16).requires_grad_() for _ in range(2)]
        optimizer = sandbox.Optimizer(params, "apollo", lr=0.001, backend=backend)
        for step in range(6):
            dtype = torch.float32 if step in (2, 3) else torch.bfloat16
            for p in params:
                p.grad = None
                p.grad_dtype = dtype
                p.grad = (3 * p.detach().float() + 0.1 * step).to(dtype)
            optimizer.step()
        paths.append([p.detach().float() for p in params])
    for a, b in zip(*paths, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0.01)  # a unit or two in the last place of bfloat16


@pytest.mark.slow
def test_a_recipe_that_is_exchanged():
    """Another block of the same state in the group, after three steps; and numbers of its own."""

    def exchange(step, problem, optimizer):
        if step == 3:
            optimizer.param_groups[0]["recipe"] = variants.get("soft-absolute")

    assert_backends_agree("apollo", 6, exchange, first=15)


@pytest.mark.usefixtures("own_cache")
@pytest.mark.slow
def test_without_inductors_direct_entry(monkeypatch):
    """A version of torch that has no such entry, or another form of it: one warning, and the same numbers."""
    import torch._inductor.compile_fx

    def refuse(*args, **kwargs):
        raise TypeError("unexpected keyword argument 'is_inference'")

    monkeypatch.setattr(torch._inductor.compile_fx, "compile_fx_inner", refuse)
    p, q = (torch.linspace(-1, 1, 7, dtype=torch.float64).requires_grad_() for _ in range(2))
    compiled, eager = (sandbox.Optimizer([x], "apollo", lr=0.1, backend=b) for x, b in ((p, "compiled"), (q, "eager")))
    for step in range(4):
        p.grad, q.grad = 3 * p.detach() + 1, 3 * q.detach() + 1
        if step == 0:
            with pytest.warns(UserWarning, match="Inductor's direct entry failed"):
                compiled.step()
        else:
            compiled.step()
        eager.step()
    torch.testing.assert_close(p, q, rtol=1e-11, atol=1e-13)

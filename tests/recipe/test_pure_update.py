"""`update` is pure: under vmap, grad and make_fx, on any tree; any composition that is allowed runs."""

import dataclasses
import itertools
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

import sandbox
import variants
from sandbox import blocks
from sandbox.blocks import (
    EMA,
    AbsoluteFloor,
    Monotone,
    SoftAbsolute,
    WeakSecant,
)
from sandbox.forms import toml
from sandbox.recipe import Recipe
from sandbox.recipe.parts import SLOTS
from sandbox.schedules import Geometric, InverseSquareRoot, InverseTime
from tests.light import KINDS, MECHANISMS, each, inputs_of, light
from tests.problem import SHAPES, Problem


def start(recipe, seed=0, shapes=SHAPES):
    params = [torch.tensor(x) for x in Problem(seed, shapes=shapes).start]
    return recipe.init(params), params


@pytest.mark.parametrize("name", variants.names())
def test_update_is_pure(name):
    recipe = light(name)
    state, params = start(recipe)
    grads = [torch.tensor(g) for g in Problem(1).start]
    given = inputs_of(recipe, grads)
    names = [list(one) for one in state]
    state, params = recipe.update(state, params, grads, **given)  # a state that is not all zero
    assert [list(one) for one in state] == names  # in this order too: programs take leaves by their places
    kept = pytree.tree_map(torch.clone, (state, params, grads))
    once = recipe.update(state, params, grads, **given)
    for a, b in zip(pytree.tree_leaves(kept), pytree.tree_leaves((state, params, grads)), strict=True):
        assert torch.equal(a, b)
    again = recipe.update(state, params, grads, **given)
    for a, b in zip(pytree.tree_leaves(once), pytree.tree_leaves(again), strict=True):
        assert torch.equal(a, b)


# one for each kind of scope and input: what is inside a block is traced with each graph of a backend, too
TRACED = {
    (variants.get(name).scope, variants.get(name).analysis.inputs, variants.get(name).analysis.needs_norm): name
    for name in MECHANISMS
}


@pytest.mark.parametrize("name", each(variants.names(), few=TRACED.values()))
def test_update_traces_with_make_fx(name):
    """The graph, replayed on other numbers, equals the update bitwise: nothing was baked in."""
    recipe = light(name)

    def two_steps(state, params, grads, lr):
        for _ in range(2):
            state, params = recipe.update(state, params, grads, lr=lr, **inputs_of(recipe, grads))
        return state, params

    state, params = start(recipe)
    grads = [torch.tensor(g) for g in Problem(1).start]
    lr = torch.tensor(0.01, dtype=torch.float64)
    graph = make_fx(two_steps)(state, params, grads, lr)
    state, params = graph(state, params, grads, lr)
    other = [torch.tensor(g) for g in Problem(2).start]
    traced, direct = graph(state, params, other, lr / 3), two_steps(state, params, other, lr / 3)
    for a, b in zip(pytree.tree_leaves(traced), pytree.tree_leaves(direct), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-15, atol=0)


@pytest.mark.parametrize("name", each(variants.names(), few=KINDS))
def test_update_under_vmap_equals_single_runs(name):
    """Every number of the recipe, and η, as a batch of four: the same as four runs (1e-12: other kernels, 10 steps)."""
    base = light(name)
    factors = torch.tensor([1.0, 0.7, 0.5, 0.9], dtype=torch.float64)
    names = [n for n in base.hyperparameters() if n != "lr" and np.isfinite(base.hyperparameters()[n])]
    # RAdam's ρ_∞ > 4 bounds its β from below
    change = {n: base.hyperparameters()[n] * (factors if "beta" not in n or name != "radam" else factors**0.01) for n in names}
    stacked = base.replace(**change, name=base.name)
    singles = [base.replace(**{n: float(v[i]) for n, v in change.items()}) for i in range(4)]
    # SOAP goes on from the eigenvectors of the first g gᵀ, which are arbitrary in its null space: none where g is square
    shapes = [(4, 4), (7,), (), (3, 3), (2, 2, 1)] if isinstance(base.basis, blocks.SOAPBasis) else SHAPES
    grads = [[torch.tensor(g) for g in Problem(k, shapes=shapes).start] for k in range(10)]
    rates = 0.01 * factors

    def train(recipe, lr):
        state, params = start(recipe, shapes=shapes)
        for g in grads:
            moved = [x + 0.1 * p for x, p in zip(g, params, strict=True)]
            state, params = recipe.update(state, params, moved, lr=lr, **inputs_of(base, g))
        return params

    leaves, spec = pytree.tree_flatten(stacked)
    axes = pytree.tree_unflatten([0 if isinstance(v, torch.Tensor) else None for v in leaves], spec)
    together = torch.func.vmap(train, in_dims=(axes, 0))(stacked, rates)
    for i, single in enumerate(singles):
        for a, b in zip(together, train(single, float(rates[i])), strict=True):
            torch.testing.assert_close(a[i], b, rtol=1e-12, atol=1e-13)


def test_gradient_through_training():
    """d(final loss)/dη, d/dσ and d/dε through five steps, against central differences (relative error 1e-6)."""
    h = torch.tensor([0.5, 3.0, 12.0], dtype=torch.float64)

    def final(lr, sigma, eps):
        recipe = Recipe(curvature=WeakSecant(eps=eps), rectifier=SoftAbsolute(sigma=sigma))
        theta = torch.ones(3, dtype=torch.float64)
        state = recipe.init(theta)
        for _ in range(5):
            state, theta = recipe.update(state, theta, h * theta, lr=lr)
        return (h * theta.square()).sum()

    at = tuple(torch.tensor(v, dtype=torch.float64) for v in (0.05, 0.3, 0.1))
    slopes = torch.func.grad(final, argnums=(0, 1, 2))(*at)
    for i, slope in enumerate(slopes):
        step = 1e-6 * at[i]
        up, down = (tuple(v + s * step * (j == i) for j, v in enumerate(at)) for s in (1, -1))
        assert float(slope) == pytest.approx(float((final(*up) - final(*down)) / (2 * step)), rel=1e-6)
        assert float(slope) != 0


def test_numbers_as_functions_of_t():
    """β_t = β λ^{t-1} and η_t = η/√t equal the same numbers given by hand."""
    theta = [torch.tensor(x) for x in Problem().start]
    moving = Recipe(lr=InverseSquareRoot(first=0.1), moment=EMA(beta=Geometric(first=0.9, ratio=0.8), bias_correction=False))
    state, other_state, other = moving.init(theta), moving.init(theta), theta
    for t in range(1, 8):
        fixed = Recipe(lr=0.1 / t**0.5, moment=EMA(beta=0.9 * 0.8 ** (t - 1), bias_correction=False))
        state, theta = moving.update(state, theta, [0.3 * x + 1 for x in theta])
        other_state, other = fixed.update(other_state, other, [0.3 * x + 1 for x in other])
        for a, b in zip(theta, other, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-13, atol=0)


def test_a_function_of_t_inside_a_block_inside_another():
    """A floor 1, ½, ⅓, … within `Monotone`, which at a falling rate lets it through."""
    recipe = Recipe(rectifier=Monotone(inner=AbsoluteFloor(sigma=InverseTime(first=1.0, decay=1.0))))
    theta = torch.ones(2, dtype=torch.float64)
    state = recipe.init(theta)
    for t in range(1, 5):
        state, theta = recipe.update(state, theta, 1e-6 * theta, lr=0.1**t)
        torch.testing.assert_close(state["rectifier.D"], torch.full_like(theta, 1 / t), rtol=1e-14, atol=0)


def test_a_function_of_t_that_leaves_its_range_is_caught():
    recipe = Recipe(moment=EMA(beta=lambda t: 0.6 * t, bias_correction=False))
    optimizer = sandbox.Optimizer([torch.ones(2, requires_grad=True)], recipe, nonfinite="pass")
    optimizer.param_groups[0]["params"][0].grad = torch.ones(2)
    optimizer.step()
    with pytest.raises(ValueError, match=re.escape("EMA: beta must lie in [0, 1), got 1.2")):
        optimizer.step()


def test_trees_and_bad_input():
    recipe = variants.get("apollo")
    tree = {"a": torch.ones(2), "b": [torch.ones(3), torch.ones(())]}
    state = recipe.init(tree)
    grads = {"a": torch.ones(2), "b": [None, torch.ones(())]}
    new, moved = recipe.update(state, tree, grads)
    assert set(new["b"][1]) == {"step", "lr", "rectifier.sigma", "moment.m", "curvature.B"}
    assert torch.equal(moved["b"][0], torch.ones(3))
    assert int(new["b"][0]["step"]) == 0
    assert int(new["a"]["step"]) == 1
    with pytest.raises(ValueError, match=re.escape("gradient of shape (3,) for a parameter of (2,)")):
        recipe.update(recipe.init(torch.ones(2)), torch.ones(2), torch.ones(3))
    with pytest.raises(ValueError, match="needs `hessian`"):
        hungry = variants.get("adahessian")
        hungry.update(hungry.init(torch.ones(2)), torch.ones(2), torch.ones(2))


REFUSED = [
    r"take moment=EMA\(beta=0\)",
    "allows no gradient block",
    "no block may ask for a third",
    "must come first in `gradient`",
    "takes eigenvalues of a basis",
    "not known in a basis other",
    "do not go together",
    "scope 'global' makes one vector of all tensors",
    "moves θ after the projection",
]


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_random_compositions_run(data):
    """Any block in its slot composes, or the recipe says why not; and what composes steps, in float32 too."""
    chosen = {}
    for slot in SLOTS:
        fitting = [getattr(blocks, n) for n in blocks.__all__ if slot in getattr(getattr(blocks, n), "slots", ())]
        fitting = [b for b in fitting if dataclasses.is_dataclass(b)]
        block = data.draw(st.sampled_from(sorted(fitting, key=lambda b: b.__name__)))()
        chosen[slot] = (block,) if slot == "gradient" else block
    try:
        recipe = Recipe(**chosen, scope=data.draw(st.sampled_from(["parameter", "global", "channel", "coordinate"])))
    except ValueError as error:
        assert re.search("|".join(REFUSED), str(error))  # noqa: PT017
        return
    # a basis or a solve of matrices may have no step for vectors
    takes = [x.ndim > 1 or not recipe.analysis.matrix for x in Problem().start]
    params = [torch.tensor(x, dtype=torch.float32) for x in itertools.compress(Problem().start, takes)]
    state = recipe.init(params)
    for step in range(3):
        grads = [torch.tensor(g, dtype=torch.float32) for g in itertools.compress(Problem(step).start, takes)]
        state, params = recipe.update(state, params, grads, lr=1e-3, **inputs_of(recipe, grads))
    assert toml.loads(toml.dumps(recipe)) == recipe
    assert [p.dtype for p in params] == [torch.float32] * len(params)

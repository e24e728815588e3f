"""L-BFGS's two loops against dense BFGS in NumPy, and what holds of it whatever the pairs are.

Tolerances: the same numbers in another order, 1e-16 an operation; the longest runs (60 steps on a stiff function) come to 1e-14.
"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import sandbox
import variants
from sandbox.blocks import EMA, Divide, NoRectifier, TwoLoop, Unit, UnitLength
from sandbox.forms import toml
from sandbox.recipe import Recipe
from tests.blocks import dense

CLOSE = dict(rtol=1e-10, atol=1e-12)


def flat(tensors):
    return dense.flat([x.detach().numpy() for x in tensors])


def follow(recipe, direction, lr, steps=60, backend="eager"):
    """The recipe beside θ ← θ - η_t direction(t, g, s), s the last step: the largest distance of both paths."""
    problem, theta = dense.problem_and_start()
    params, s, away = problem.tensors(), None, 0.0
    optimizer = sandbox.Optimizer(params, recipe, lr=lr, backend=backend)
    for t in range(1, steps + 1):
        problem.set_gradients(t - 1, params)
        optimizer.step()
        s = -lr * direction(t, dense.gradient(problem, t - 1, theta), s)
        theta = theta + s
        away = max(away, float(np.abs(flat(params) - theta).max()))
    return away


class Sdlbfgs:
    """The public SdLBFGS code's recursion: γ = 1, pairs of successive batches, all kept, direction at length 1/√t."""

    def __init__(self, memory):
        self.pairs, self.memory = [], memory

    def __call__(self, t, g, s):
        if s is not None:
            self.pairs = [*self.pairs, (s, dense.wang(s, g - self.g, np.ones_like(g)))][-self.memory :]
        d = dense.inverse(self.pairs, np.eye(len(g))) @ g
        self.g = g
        return d / np.linalg.norm(d) / np.sqrt(t)


@pytest.mark.parametrize(
    ("memory", "backend"),
    [
        (7, "eager"),
        (7, "scripted"),
        (100, "eager"),
        pytest.param(12, "scripted", marks=pytest.mark.slow),
    ],  # a hundred: a minute
)
def test_sdlbfgs_is_its_published_codes_recursion(memory, backend):
    recipe = variants.get("sdlbfgs").replace(solve=UnitLength(inner=TwoLoop(memory=memory, damped=True, tiny=1e-30)))
    assert follow(recipe, Sdlbfgs(memory), 0.5, 60 if backend == "eager" else 20, backend) < 1e-11


def test_sdlbfgs_does_not_see_the_scale_of_the_loss():
    """f → cf with γ = 1 is another method (H₀ = 1), but the first step and lengths stay: |θ_t - θ_{t-1}| = η/√t."""
    problem = dense.problem_and_start()[0]
    params = problem.tensors()
    optimizer = sandbox.Optimizer(params, "sdlbfgs", lr=0.3)
    for t in range(1, 8):
        before = flat(params)
        problem.set_gradients(t - 1, params)
        optimizer.step()
        assert np.linalg.norm(flat(params) - before) == pytest.approx(0.3 / np.sqrt(t), rel=1e-12)


@pytest.mark.parametrize("base", ["apollo", "adam", "sgd"])
@pytest.mark.parametrize("scope", ["parameter", "global", "channel", "coordinate"])
def test_no_memory_is_division_bitwise(base, scope):
    recipe = variants.get(base)
    moment = EMA(beta=0.9) if base == "sgd" else recipe.moment
    ends = []
    for solve in (TwoLoop(memory=0), Divide()):
        problem = dense.problem_and_start()[0]
        params = problem.tensors()
        optimizer = sandbox.Optimizer(params, recipe.replace(solve=solve, moment=moment, scope=scope), lr=0.01)
        for step in range(8):
            problem.set_gradients(step, params)
            optimizer.step()
        ends.append(flat(params))
    assert np.array_equal(*ends)


def observed(recipe, steps, lr, seed=0):
    """What each step saw, and the state after it, for one vector of 12 under drawn gradients."""
    draw = np.random.default_rng(seed)
    theta = torch.tensor(draw.standard_normal(12))
    state, seen = recipe.init(theta), []
    for _ in range(steps):
        g = torch.tensor(draw.standard_normal(12))
        state, theta = recipe.update(state, theta, g, lr=lr, observe=lambda i, x: seen.append(x))
    return seen


def plain(**solve):
    return Recipe(moment=EMA(beta=0.0), curvature=Unit(), rectifier=NoRectifier(), solve=TwoLoop(**solve))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), memory=st.integers(1, 5), rate=st.floats(0.01, 2.0))
def test_damping_keeps_every_pair_and_its_curvature(seed, memory, rate):
    """sᵀȳ ≥ ¼ sᵀDs, with equality where y was damped (1e-12 for rounding); a pair of every step from the second on."""
    seen = observed(plain(memory=memory, damped=True, tiny=0.0), 8, rate, seed)
    for x in seen[1:]:
        s, y = x.after["solve.s0"], x.after["solve.y0"]
        assert torch.equal(s, x.s)
        bound = 0.25 * float((s * x.D * s).sum())
        assert float((s * y).sum()) >= bound * (1 - 1e-12)
        assert float(x.after["solve.rho0"]) == pytest.approx(1 / float((s * y).sum()), rel=1e-12)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), memory=st.integers(1, 5), corrected=st.booleans())
def test_the_secant_equation(seed, memory, corrected):
    """H y = s for the newest pair: the step on u = y, from the state that another step left, is s."""
    recipe = plain(memory=memory, damped=True, stepsize_correction=corrected)
    x = observed(recipe, 6, 0.5, seed)[-1]
    y, s = x.after["solve.y0"], x.after["solve.s0"]
    pairs = [(x.after[f"solve.s{k}"].numpy(), x.after[f"solve.y{k}"].numpy()) for k in reversed(range(memory))]
    pairs = [pair for pair in pairs if np.any(pair[0])]
    H = dense.inverse(pairs, np.diag(1 / x.D.numpy()))
    np.testing.assert_allclose(H @ y.numpy(), s.numpy(), rtol=1e-9, atol=1e-9 * float(s.abs().max()))
    np.testing.assert_allclose(x.d.numpy(), H @ x.u.numpy(), rtol=1e-9, atol=1e-9 * float(x.d.abs().max()))


def test_pairs_of_little_curvature_are_left_out():
    seen = observed(plain(memory=3, least=0.5), 12, 0.3)
    kept = [float(x.after["solve.rho0"]) for x in seen]
    for k, x in enumerate(seen[1:], 1):
        sy, ss = float((x.s * x.y).sum()), float(x.s.square().sum())
        if sy > 1e-10 + 0.5 * ss:
            assert kept[k] == pytest.approx(1 / sy)
            assert torch.equal(x.after["solve.s0"], x.s)
        else:
            assert kept[k] == kept[k - 1]
    assert len(set(kept)) > 2
    assert len(set(kept)) < len(kept)


@pytest.mark.parametrize("memory", [1, 10, 13])
def test_products_move_with_their_pairs(memory):
    """Kept products are those of the kept pairs, and the direction is H u, also after steps whose pair was left out."""
    seen = observed(plain(memory=memory, least=0.5), 40, 0.3)
    accepted = [float(x.after["solve.rho0"]) for x in seen]
    assert 13 < len(set(accepted)) < len(accepted)
    for x in seen:
        s, y = ([x.after[f"solve.{name}{k}"] for k in range(memory)] for name in "sy")
        products = {(k, j): f"solve.s{k}y{j}" for k in range(memory) for j in range(k) if f"solve.s{k}y{j}" in x.after}
        assert len(products) == {1: 0, 10: 45, 13: 48}[memory]
        for (k, j), name in products.items():
            assert float(x.after[name]) == pytest.approx(float(s[k] @ y[j]), rel=1e-12, abs=1e-14)
        pairs = [(a.numpy(), b.numpy()) for a, b in zip(reversed(s), reversed(y), strict=True) if a.any()]
        H = dense.inverse(pairs, np.diag(1 / x.D.numpy()))
        np.testing.assert_allclose(x.d.numpy(), H @ x.u.numpy(), rtol=1e-9, atol=1e-9 * float(x.d.abs().max()))


def test_forms():
    recipe = variants.get("sdlbfgs")
    assert recipe.analysis.state_elements == 202
    assert toml.loads(toml.dumps(recipe)) == recipe
    assert "p = H m, H from 1/D by BFGS with the last 100 pairs (s, θy + (1-θ)Ds ≥ ¼sᵀDs along s);  p = t⁻ᵏ p/‖p‖₂" in str(
        recipe
    )
    assert "pairs" not in str(variants.get("apollo"))
    assert "pairs" not in toml.dumps(variants.get("apollo"))
    with pytest.raises(ValueError, match="memory must be a whole number of at least 0, got -1"):
        TwoLoop(memory=-1)
    with pytest.raises(TypeError, match="inner must be a block for slot 'solve', got Unit"):
        UnitLength(inner=Unit())
    with pytest.raises(ValueError, match="UnitLength in slot 'solve' compares averages of the gradient"):
        variants.get("sdlbfgs").replace(moment=sandbox.blocks.NoMoment())

"""The exact properties of Apollo (coupling, scale invariance, the weak secant equation, quadratics) on the pure update."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import variants
from sandbox.blocks import (
    EMA,
    AbsoluteFloor,
    Decoupled,
    L2Decay,
    Stable,
    WeakSecant,
)
from sandbox.recipe import Recipe
from tests.blocks.paths import run

quick = settings(max_examples=25, deadline=None)


seeds = st.integers(0, 2**31)


powers = st.integers(-6, 6)


def over_floor(state, floor):
    return sum(int((s["curvature.B"].abs() > floor).sum()) for s in state)


def assert_same_path(a, b):
    for x, y in zip(a, b, strict=True):
        for p, q in zip(x, y, strict=True):
            assert torch.equal(p, q)


def coupled(base, k):
    """(cη, cσ, ε/c) and γ as the decay asks, c = 2^k."""
    c = 2.0**k
    changes = {"curvature.eps": base.curvature.eps / c, "rectifier.sigma": base.rectifier.sigma * c}
    if type(base.decay) is Decoupled:
        changes["decay.weight_decay"] = base.decay.weight_decay / c
    return base.with_hyperparameters(changes), c


@quick
@given(
    seed=seeds, k=powers, eps=st.sampled_from([0.0, 1e-4, 0.5]), decay=st.sampled_from(["none", "decoupled", "l2", "stable"])
)
def test_coupling_is_bitwise_for_powers_of_two(seed, k, eps, decay):
    """Theorem 1: θ is the same, B is multiplied by c.  Bitwise: only multiplications by powers of two differ."""
    change = {
        "none": {},
        "decoupled": {"decay": Decoupled(weight_decay=0.25)},
        "l2": {"gradient": (L2Decay(weight_decay=0.1),)},
        "stable": {"decay": Stable(weight_decay=0.02)},
    }[decay]
    base = Recipe(curvature=WeakSecant(eps=eps)).replace(**change)
    other, c = coupled(base, k)
    rates = [0.003 * (j + 1) / 5 for j in range(5)]  # a warm-up, every rate of which scales
    one, state = run(base, 12, seed, lr_of=lambda j: rates[min(j, 4)])
    two, scaled = run(other, 12, seed, lr_of=lambda j: c * rates[min(j, 4)])
    assert_same_path(one, two)
    for s, q in zip(state, scaled, strict=True):
        assert torch.equal(s["curvature.B"] * c, q["curvature.B"])


def test_coupling_leaves_the_floor_somewhere():
    _, state = run(Recipe(), 12, lr=0.003)
    assert over_floor(state, 0.01) > 0


def test_coupling_is_false_with_the_same_epsilon():
    base = Recipe(curvature=WeakSecant(eps=0.5))
    other = base.replace(**{"rectifier.sigma": 4 * 0.01})
    one, state = run(base, 12, lr=0.003)
    two, _ = run(other, 12, lr=4 * 0.003)
    assert over_floor(state, 0.01) > 0
    assert max(float((p - q).abs().max()) for p, q in zip(one[-1], two[-1], strict=True)) > 1e-6


def third_iterate(eta, sigma, eps, gamma):
    """CE3: f = ½(θ₁² + 4θ₂²) from (1, 1), β = .5."""
    decay = {"decay": Decoupled(weight_decay=gamma)} if gamma else {}
    recipe = Recipe(moment=EMA(beta=0.5), curvature=WeakSecant(eps=eps), rectifier=AbsoluteFloor(sigma=sigma), **decay)
    theta = torch.ones(2, dtype=torch.float64)
    state = recipe.init(theta)
    for _ in range(3):
        state, theta = recipe.update(state, theta, theta * torch.tensor([1.0, 4.0], dtype=torch.float64), lr=eta)
    return theta


def test_counterexample_3():
    """The numbers of mathematics, section 5, given to six decimals."""
    close = dict(rtol=0, atol=6e-7)
    expected = torch.tensor([-0.285714, 1.379917], dtype=torch.float64)
    torch.testing.assert_close(third_iterate(1, 1, 0.5, 0), expected, **close)
    torch.testing.assert_close(third_iterate(4, 4, 0.5, 0), torch.tensor([-0.285714, -1.857143], dtype=torch.float64), **close)
    assert torch.equal(third_iterate(1, 1, 0.0, 0), third_iterate(4, 4, 0.0, 0))
    assert torch.equal(third_iterate(1, 1, 0.5, 0), third_iterate(4, 4, 0.125, 0))
    torch.testing.assert_close(third_iterate(1, 1, 0, 0.1), torch.tensor([-0.231476, 2.676910], dtype=torch.float64), **close)
    torch.testing.assert_close(third_iterate(4, 4, 0, 0.1), torch.tensor([-0.037333, 1.461150], dtype=torch.float64), **close)
    assert torch.equal(third_iterate(1, 1, 0, 0.1), third_iterate(4, 4, 0, 0.025))


@quick
@given(seed=seeds, k=st.integers(-20, 20), eps=st.sampled_from([0.0, 1e-4]), gamma=st.sampled_from([0.0, 0.1]))
def test_scale_invariance_is_bitwise_for_powers_of_two(seed, k, eps, gamma):
    recipe = variants.get("scale-invariant").replace(curvature=WeakSecant(eps=eps), decay=Decoupled(weight_decay=gamma))
    one, state = run(recipe, 12, seed, lr=0.01)
    two, _ = run(recipe, 12, seed, lr=0.01, scale=2.0**k)
    assert_same_path(one, two)


def test_scale_invariance_fails_where_it_must():
    for recipe in (
        variants.get("belief"),
        variants.get("scale-invariant").replace(gradient=(L2Decay(weight_decay=0.1),)),
        variants.get("apollo"),
    ):
        one, _ = run(recipe, 12, lr=0.01)
        two, _ = run(recipe, 12, lr=0.01, scale=1024.0)
        assert any(not torch.equal(p, q) for p, q in zip(one[-1], two[-1], strict=True)), recipe.name


def test_counterexample_4():
    """The published θ after three steps, to all digits printed (1e-15)."""
    H = torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=torch.float64)
    expected = torch.tensor([0.0728498148691841, -0.6496150930532144], dtype=torch.float64)
    recipe, ends = variants.get("scale-invariant"), []
    for scale in (1.0, 1024.0):
        theta = torch.tensor([1.0, -1.0], dtype=torch.float64)
        state = recipe.init(theta)
        for _ in range(3):
            state, theta = recipe.update(state, theta, scale * (H @ theta), lr=0.1)
        ends.append(theta)
    assert torch.equal(*ends)
    torch.testing.assert_close(ends[0], expected, rtol=1e-14, atol=0)


@pytest.mark.parametrize("scope", ["parameter", "global", "channel", "coordinate"])
@quick
@given(seed=seeds)
def test_weak_secant_equation(scope, seed):
    """ε = 0: dᵀB'd = -dᵀy per scope.  Residual at rounding: 1e-12 of the terms summed, each of which has its error."""
    recipe = Recipe(curvature=WeakSecant(eps=0.0), scope=scope)
    checked = 0

    def watch(before, after, grads):
        nonlocal checked
        (state, _), (new, _) = before, after
        sums, sizes = [], []
        for s, n in zip(state, new, strict=True):
            d = s["moment.m"] / s["curvature.B"].abs().clamp(min=0.01)
            y = n["moment.m"] - s["moment.m"]
            residual = d * n["curvature.B"] * d + d * y
            size = (d * n["curvature.B"] * d).abs() + (d * y).abs() + (d * s["curvature.B"] * d).abs()
            if scope == "coordinate" or (scope == "channel" and d.ndim < 2):
                pass
            elif scope == "channel":
                residual, size = residual.reshape(len(d), -1).sum(1), size.reshape(len(d), -1).sum(1)
            else:
                residual, size = residual.sum(), size.sum()
            sums.append(residual.reshape(-1))
            sizes.append(size.reshape(-1))
        if scope == "global":
            sums, sizes = [torch.cat(sums).sum()], [torch.cat(sizes).sum()]
        for residual, size in zip(sums, sizes, strict=True):
            assert bool((residual.abs() <= 1e-12 * size + 1e-300).all())
            checked += 1

    run(recipe, 8, seed, lr=0.003, watch=watch)
    assert checked


@quick
@given(seed=seeds, eps=st.sampled_from([0.0, 1e-4, 0.1]), eta=st.sampled_from([1e-3, 1e-2, 0.1]))
def test_distance_to_the_curvature_never_grows(seed, eps, eta):
    """Diagonal quadratic, β = 0, fixed η: ‖B - ηh‖₂ never increases (a Kaczmarz projection).  Tolerance: rounding of y,
    which is a difference of gradients and is divided by ‖d‖."""
    rng = np.random.default_rng(seed)
    h = torch.tensor(np.exp(rng.uniform(np.log(0.01), np.log(10), 12)))
    theta = torch.tensor(rng.standard_normal(12))
    recipe = Recipe(moment=EMA(beta=0.0), curvature=WeakSecant(eps=eps), rectifier=AbsoluteFloor(sigma=0.5))
    state = recipe.init(theta)
    distance = math.inf
    for _ in range(40):
        state, theta = recipe.update(state, theta, h * theta, lr=eta)
        now = float(torch.linalg.vector_norm(state["curvature.B"] - eta * h))
        assert now <= distance * (1 + 1e-9)
        distance = now
    assert distance < float(torch.linalg.vector_norm(eta * h))  # it did move


def test_one_dimension_second_step_lands_on_the_minimiser():
    """h = 3, η = .5, σ = 1, β = 0: 1 → -.5 → 0, B₂ = ηh."""
    recipe = Recipe(moment=EMA(beta=0.0), curvature=WeakSecant(eps=0.0), rectifier=AbsoluteFloor(sigma=1.0))
    theta = torch.tensor(1.0, dtype=torch.float64)
    state, path = recipe.init(theta), []
    for _ in range(2):
        state, theta = recipe.update(state, theta, 3 * theta, lr=0.5)
        path.append(float(theta))
    assert path == [-0.5, 0.0]
    assert float(state["curvature.B"]) == 1.5


def test_one_dimension_on_the_floor_with_momentum():
    """B_∞ = σ(1-r), r the larger root of r² - (1+β-c(1-β)h) r + β = 0.  β = .5, η = .01, h = 3, σ = 1: B/η → 3.0991."""
    recipe = Recipe(
        moment=EMA(beta=0.5, bias_correction=False), curvature=WeakSecant(eps=0.0), rectifier=AbsoluteFloor(sigma=1.0)
    )
    theta = torch.tensor(1.0, dtype=torch.float64)
    state = recipe.init(theta)
    for _ in range(200):
        state, theta = recipe.update(state, theta, 3 * theta, lr=0.01)
    r = max(np.roots([1, -(1 + 0.5 - 0.01 * 0.5 * 3), 0.5]))
    assert float(state["curvature.B"]) == pytest.approx(1 - r, rel=1e-8)  # the other root decays as (β/r²)^t: far below 1e-8
    assert float(state["curvature.B"]) / 0.01 == pytest.approx(3.0991, abs=5e-5)

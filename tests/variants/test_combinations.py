"""Combinations of blocks that have no name: each one line, in every backend, and each what its blocks say it is."""

import functools

import numpy as np
import pytest
import torch

import sandbox
import variants
from sandbox.blocks import (
    AbsoluteFloor,
    Bound,
    ClipEach,
    Product,
    SameBatch,
    ScaleInvariantFloor,
    TwoLoop,
    UnitLength,
)
from sandbox.forms import toml
from tests.blocks import dense
from tests.problem import Torchs

APOLLO, SDLBFGS = variants.get("apollo"), variants.get("sdlbfgs")
SHORT = UnitLength(inner=TwoLoop(memory=4, damped=True))

COMBINED = {
    "sdlbfgs from the scale-invariant floor": SDLBFGS.replace(solve=SHORT, rectifier=ScaleInvariantFloor()),
    "sdlbfgs by tensor": SDLBFGS.replace(solve=SHORT, scope="parameter"),
    "l-bfgs from apollo's D": APOLLO.replace(solve=TwoLoop(memory=4, stepsize_correction=True)),
    "apollo, y of one batch": APOLLO.replace(pairs=SameBatch()),
    "apollo, y = Hs": APOLLO.replace(pairs=Product()),
    "adabound's bounds round apollo's D": variants.get("adabound").replace(
        curvature=APOLLO.curvature, rectifier=Bound(inner=AbsoluteFloor(), beta=0.9)
    ),
    "sophia's clip on apollo": APOLLO.replace(solve=ClipEach(limit=1.0)),
}


@functools.cache
def trained(name, backend, steps=10):
    """The parameters after some steps by the optimizer, and what the last step saw of each tensor."""
    recipe, problem = COMBINED[name], Torchs(torch.float64)
    optimizer = sandbox.Optimizer(problem.params, recipe, lr=0.02, backend=backend)
    for step in range(steps):

        def closure(step=step):
            optimizer.zero_grad()
            loss = problem.loss(step, problem.params)
            if not recipe.analysis.second_order:
                loss.backward()
            return loss

        optimizer.step(closure)
    return [p.detach().clone() for p in problem.params]


@pytest.mark.parametrize("backend", [pytest.param("compiled", marks=pytest.mark.slow), "scripted"])
@pytest.mark.parametrize("name", COMBINED)
def test_every_backend_that_can(name, backend):
    """As eager, to rounding that ten steps amplify (1e-9); and back from TOML it is the same recipe."""
    for p, q in zip(trained(name, backend), trained(name, "eager"), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-9, atol=1e-10)
    assert toml.loads(toml.dumps(COMBINED[name])) == COMBINED[name]


def flows(recipe, steps=8, n=9, seed=0):
    """The flows of steps on a noisy quadratic of one vector."""
    draw = np.random.default_rng(seed)
    half = draw.standard_normal((n, n))
    H = torch.tensor(half @ half.T / n + 0.3 * np.eye(n))
    theta, seen = torch.tensor(draw.standard_normal(n)), []
    state = recipe.init(theta)
    for _ in range(steps):
        xi = torch.tensor(0.2 * draw.standard_normal(n))
        given = {"product": H @ recipe.product_vector(state, theta)} if recipe.analysis.inputs else {}
        state, theta = recipe.update(state, theta, H @ theta - xi, lr=0.05, observe=lambda i, x: seen.append(x), **given)
        if recipe.analysis.second_gradient:
            state = recipe.with_second_gradient(state, H @ theta - xi)
    return H, seen


@pytest.mark.parametrize("name", [n for n in COMBINED if "bfgs" in n])
def test_the_direction_is_that_of_dense_bfgs_from_the_rectifiers_D(name):
    recipe = COMBINED[name]
    inner = getattr(recipe.solve, "inner", recipe.solve)
    _, seen = flows(recipe)
    for t, x in enumerate(seen, 1):
        pairs = [(x.after[f"solve.s{k}"].numpy(), x.after[f"solve.y{k}"].numpy()) for k in reversed(range(inner.memory))]
        pairs = [pair for pair in pairs if pair[0].any()]
        D = np.broadcast_to(x.D.numpy(), (9,))
        p = dense.inverse(pairs, np.diag(1 / D)) @ x.u.numpy()
        p = p / np.linalg.norm(p) / np.sqrt(t) if inner is not recipe.solve else p
        np.testing.assert_allclose(x.d.numpy(), p, rtol=1e-9, atol=1e-9 * abs(p).max())
    assert len(pairs) == inner.memory
    if name == "l-bfgs from apollo's D":  # H and D are on one scale, that of ηH
        s, y = pairs[-1]
        np.testing.assert_allclose(y, 0.05 * seen[-1].y.numpy(), rtol=1e-12)


@pytest.mark.parametrize("name", ["apollo, y of one batch", "apollo, y = Hs"])
def test_the_secant_equation_holds_for_the_true_curvature_along_the_step(name):
    """dᵀBd = η dᵀHd, in spite of noise and momentum (ε = 0, 1e-9: cancellation in y)."""
    H, seen = flows(COMBINED[name].replace(**{"curvature.eps": 0.0}))
    for x in seen[1:]:
        d = x.d_old
        assert float((x.B * d * d).sum()) == pytest.approx(0.05 * float(d @ H @ d), rel=1e-9)
    _, seen = flows(APOLLO.replace(**{"curvature.eps": 0.0}))
    x = seen[-1]
    assert float((x.B * x.d_old**2).sum()) != pytest.approx(0.05 * float(x.d_old @ H @ x.d_old), rel=0.01)


def test_the_bounds_close_round_apollos_D():
    """Of the step η/D: from all to one value, as AdaBound's."""
    recipe = COMBINED["adabound's bounds round apollo's D"]
    spread = []
    for gamma in (1e-8, 1e8):
        _, seen = flows(recipe.replace(**{"rectifier.gamma": gamma}))
        spread.append(float(seen[-1].D.amax() / seen[-1].D.amin()))
        if gamma < 1:
            assert torch.equal(seen[-1].D, seen[-1].B.abs().clamp(min=0.01))
    assert spread[1] == pytest.approx(1, rel=1e-6)
    assert spread[0] > 1.5


def test_no_step_of_the_clipped_apollo_is_longer_than_the_limit():
    _, seen = flows(COMBINED["sophia's clip on apollo"])
    for x in seen:
        assert torch.equal(x.d, (x.u / x.D).clamp(-1, 1))
    assert any(bool(((x.u / x.D).abs() > 1).any()) for x in seen)

"""`frozen`, the momentum SGD that Apollo is on its floor: against a literal recursion, and against Apollo with B held at 0."""

import numpy as np
import pytest
import torch

import sandbox
import variants
from tests.problem import Problem, rate

BETA, SIGMA = 0.9, 0.01


def paths(recipe, lr, steps=60):
    """θ after each step, of six tensors of different shapes, in float64."""
    problem = Problem()
    params = problem.tensors()
    optimizer = sandbox.Optimizer(params, recipe, lr=lr)
    for step in range(steps):
        problem.set_gradients(step, params)
        optimizer.param_groups[0]["lr"] = rate(lr, step)
        optimizer.step()
        yield [p.detach().numpy().copy() for p in params]


def literal(lr, steps=60):
    """θ ← θ - η m/σ with the uncorrected sum s = β s + (1-β) g and m = s/(1-β^t)."""
    problem = Problem()
    theta = [x.copy() for x in problem.start]
    s = [np.zeros_like(x) for x in theta]
    for step in range(steps):
        g = problem.gradient(step, theta)
        s = [BETA * a + (1 - BETA) * b for a, b in zip(s, g, strict=True)]
        theta = [x - rate(lr, step) / SIGMA * a / (1 - BETA ** (step + 1)) for x, a in zip(theta, s, strict=True)]
        yield theta


@pytest.mark.parametrize("lr", [1e-4, 1e-3])
def test_it_is_bias_corrected_momentum_sgd(lr):
    for ours, theirs in zip(paths("frozen", lr), literal(lr), strict=True):
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13)  # roundings of 60 contracting steps in float64


def test_it_is_apollo_whose_estimate_cannot_move():
    """With ε = 1e9 the secant step is 1e-36 of its size, so B stays below any floor."""
    still = variants.get("apollo").replace(**{"curvature.eps": 1e9})
    for ours, theirs in zip(paths("frozen", 1e-3), paths(still, 1e-3), strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_apollo_itself_leaves_it():
    *_, ours = paths("frozen", 3e-3)
    *_, apollo = paths("apollo", 3e-3)
    assert max(float(np.abs(a - b).max()) for a, b in zip(ours, apollo, strict=True)) > 1e-2


def test_it_keeps_no_curvature():
    p = torch.ones(3, requires_grad=True)
    optimizer = sandbox.Optimizer([p], "frozen")
    p.grad = torch.ones(3)
    optimizer.step()
    assert sum(v.numel() for v in optimizer.state[p].values() if v.shape == p.shape) == 3  # m alone

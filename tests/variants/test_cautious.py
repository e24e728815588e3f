"""Cautious updates and Grams against recursions in NumPy: six tensors in float64, 60 steps, the rate cut at 30.

Tolerance: the same numbers in another order of operations, 1e-16, of which 60 steps of a stiff function make less than 1e-9.
"""

import collections

import numpy as np
import pytest
import torch

import variants
from sandbox.blocks import Cautious, ClipRMS, NoDecay
from sandbox.recipe import Recipe
from tests.problem import Problem
from tests.variants.test_adaptive import follow


def masked(p, g, count=False):
    """p where it agrees with g, over the share of such entries, or times n/(k + 1)."""
    agree = (p * g > 0).astype(float)
    return p * agree * (agree.size / (agree.sum() + 1) if count else 1 / max(agree.mean(), 1e-3))


def adam(s, t, g, eps):
    s["m"] = 0.9 * s["m"] + 0.1 * g
    s["v"] = 0.999 * s["v"] + 0.001 * g**2
    return s["m"] / (1 - 0.9**t) / (np.sqrt(s["v"] / (1 - 0.999**t)) + eps)


def cautious_adamw(s, t, x, g, lr):
    return (1 - lr * 0.1) * x - lr * masked(adam(s, t, g, 1e-8), g)


def cautious_lion(s, t, x, g, lr):
    p = np.sign(0.9 * s["m"] + 0.1 * g)
    s["m"] = 0.99 * s["m"] + 0.01 * g
    return (1 - lr * 0.1) * x - lr * masked(p, g, count=True)


def grams(s, t, x, g, lr):
    return (1 - lr * 0.1) * x - lr * np.abs(adam(s, t, g, 1e-6)) * np.sign(g)


def cautious_apollo(s, t, x, g, lr):
    """Algorithm 1 whose d is what was taken."""
    a = 0.1 / (1 - 0.9**t)
    m = (1 - a) * s["m"] + a * g
    y, d = m - s["m"], np.asarray(s["d"] + np.zeros_like(g))
    if np.any(d):
        alpha = ((d * y).sum() + (d * s["B"] * d).sum()) / (np.sum(d**4) ** 0.25 + 1e-4) ** 4
        s["B"] = s["B"] - alpha * d**2
    s["m"] = m
    s["d"] = masked(m / np.maximum(np.abs(s["B"]), 0.01), g)
    return x - lr * s["d"]


@pytest.mark.parametrize(
    ("name", "change", "method", "lr"),
    [
        ("cautious-adamw", {"decay.weight_decay": 0.1}, cautious_adamw, 0.01),
        ("cautious-lion", {"decay.weight_decay": 0.1}, cautious_lion, 0.01),
        ("grams", {"decay.weight_decay": 0.1}, grams, 0.01),
        ("cautious-apollo", {}, cautious_apollo, 0.005),
    ],
)
def test_equal_to_the_recursion(name, change, method, lr):
    states = [collections.defaultdict(float) for _ in Problem().start]

    def step_of(t, theta, grads, lr):
        return [method(s, t, x, g, lr) for s, x, g in zip(states, theta, grads, strict=True)]

    follow(variants.get(name).replace(**change), step_of, lr)


def test_the_mask_is_taken_outside_a_basis():
    """Of SOAP the direction in the parameters' coordinates is masked, not the one in eigenvectors."""
    torch.manual_seed(0)
    soap = variants.get("soap").matrices.replace(decay=NoDecay())
    theta, state = torch.randn(4, 3, dtype=torch.float64), None
    state = soap.init(theta)
    for _ in range(5):
        g = torch.randn(4, 3, dtype=torch.float64)
        after, plain = soap.update(state, theta, g, lr=1.0)
        _, cautious = soap.replace(adjust=Cautious()).update(state, theta, g, lr=1.0)
        expected = masked((theta - plain).numpy(), g.numpy())
        np.testing.assert_allclose((theta - cautious).numpy(), expected, rtol=1e-12, atol=1e-14)
        state, theta = after, plain


def test_several_blocks_run_in_their_order():
    """Clipped and then masked: the mask lengthens what was clipped.  Written and read again as TOML."""
    from sandbox.forms import toml

    recipe = variants.get("sgd").replace(adjust=(ClipRMS(limit=0.5), Cautious()), **{"moment.momentum": 0.0})
    theta, g = torch.zeros(4, dtype=torch.float64), torch.tensor([3.0, -3.0, 3.0, 3.0], dtype=torch.float64)
    assert [path for path, _ in recipe.blocks() if path.startswith("adjust")] == ["adjust.0", "adjust.1"]
    _, after = recipe.update(recipe.init(theta), theta, g, lr=1.0)
    torch.testing.assert_close(after, -0.5 * g.sign(), rtol=1e-15, atol=0)
    assert toml.loads(toml.dumps(recipe)) == recipe
    assert recipe.replace(**{"adjust.0.limit": 0.25}).adjust[0] == ClipRMS(limit=0.25)


def test_what_does_not_fit_is_refused():
    with pytest.raises(TypeError, match=r"slot 'adjust' does not take .*Cautious"):
        Recipe(adjust=NoDecay())
    with pytest.raises(ValueError, match=r"least.*\(0, 1\]"):
        Cautious(least=0.0)


def test_a_secant_recipe_stores_the_direction_that_it_took():
    """The mask cannot be recalled from the state."""
    assert variants.get("cautious-apollo").analysis.stores_direction
    assert not variants.get("apollo").analysis.stores_direction

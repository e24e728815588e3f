"""The recursion written number by number, against the recipe's pure update; balls, against exact rationals."""

import dataclasses
from fractions import Fraction

import numpy as np
import pytest
import torch

import variants
from sandbox.blocks import EMA, AbsoluteFloor, Decoupled, Monotone, NoAveraging, SameBatch, Sign, Stable
from sandbox.schedules import InverseSquareRoot
from theory_checks import problems, record
from theory_checks.proofs import counterexamples, recursion

ROWS = np.random.default_rng(3).standard_normal((8, 3))


def online(box=None):
    rows = torch.tensor(ROWS)

    def gradient(t):
        return rows[0 if t == 1 else 1 + (t - 2) % 7]

    made = problems.periodic("rows", "seven linear losses", gradient, [0.0, 0.0, 0.0])
    return dataclasses.replace(made, box=box)


MONOTONE = Monotone(inner=AbsoluteFloor(sigma=0.4), ceiling=2.0)
RECIPES = {
    "apollo": variants.get("apollo").with_hyperparameters({"rectifier.sigma": 0.5, "moment.beta": 0.2}),
    "no correction": counterexamples.theory_apollo(beta=0.5, sigma=0.7),
    "scale-invariant": variants.get("scale-invariant"),
    "hessian-ema": variants.get("hessian-ema").with_hyperparameters({"rectifier.sigma": 0.5, "moment.beta": 0.2}),
    "monotone": counterexamples.theory_apollo(beta=0.5).replace(rectifier=MONOTONE),
    "decoupled": variants.get("apollow").with_hyperparameters({"rectifier.sigma": 0.5, "moment.beta": 0.2}),
}


@pytest.mark.parametrize("box", [None, (-0.5, 0.5)], ids=["free", "box"])
@pytest.mark.parametrize("name", RECIPES)
def test_equals_the_recipe(name, box):
    """Forty steps in three dimensions, to rounding: 1e-10 of a run that no cycle has drawn apart yet."""
    run = record(RECIPES[name], online(box), 40, lr=InverseSquareRoot(first=0.3))
    assert (run.D.min() < run.D).any()  # the secant rule counts
    steps = list(recursion.walk(recursion.Rule.from_recipe(run.recipe), recursion.linear(ROWS), [0.0] * 3, 40, eta=0.3))
    np.testing.assert_allclose([s.theta for s in steps], run.theta, rtol=0, atol=1e-10)
    np.testing.assert_allclose([s.D for s in steps[:-1]], run.D, rtol=1e-10)
    np.testing.assert_allclose([s.B for s in steps[:-1]], run.B, rtol=1e-8, atol=1e-10)


def test_same_batch_pairs_see_the_curvature_of_one_loss():
    """One dimension, f_t = ½h_t θ²: B_{t+1} = η h_{t+1} exactly, whatever the losses before were."""
    h = [2.0, 3.0, 5.0, 7.0, 11.0]
    rule = recursion.Rule(sigma=100.0, same_batch=True)
    steps = list(recursion.walk(rule, lambda t, x: [h[t - 1] * x[0]], [1.0], 5, eta=0.5, decreasing=False))
    assert [s.B[0] for s in steps[1:5]] == pytest.approx([0.5 * x for x in h[1:]], rel=1e-12)


def test_same_batch_pairs_do_not_see_linear_losses():
    steps = list(recursion.walk(recursion.Rule(same_batch=True), recursion.linear(ROWS), [0.0] * 3, 50, eta=0.3))
    assert all(s.D == [1.0, 1.0, 1.0] for s in steps)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"decay": Stable(weight_decay=0.1)}, "Stable"),
        ({"scope": "coordinate"}, "scope coordinate"),
        ({"solve": Sign()}, "Sign"),
        ({"pairs": SameBatch()}, "SameBatch"),
    ],
)
def test_blocks_that_are_not_written(changes, named):
    with pytest.raises(ValueError, match=f"cannot be run number by number: {named}"):
        recursion.Rule.from_recipe(variants.get("apollo").replace(**changes))
    assert recursion.Rule.from_recipe(variants.get("apollo").replace(decay=Decoupled(weight_decay=0.1))).gamma == 0.1
    assert recursion.Rule.from_recipe(variants.get("apollo").replace(averaging=NoAveraging())).beta_averaging == 0


def test_balls_hold_the_exact_result():
    """Four steps of Apollo, β = ½, σ = 1, constant η = ¼, on dyadic gradients, in rationals."""
    ball_arithmetic = pytest.importorskip("theory_checks.proofs.ball_arithmetic")
    pytest.importorskip("flint", reason="the extra `theory` is not installed")
    rows = [[1.0, -0.5], [-2.0, 0.25], [0.75, 1.5]]

    class Rationals:
        number = Fraction
        largest = max

        @staticmethod
        def quotient(x, y):
            return x / y if y else Fraction(0)

        @staticmethod
        def sqrt(x):
            raise AssertionError("no root is needed here")

    options = {"eta": 0.25, "decreasing": False}
    rule = recursion.Rule(beta=0.5)
    exact = list(recursion.walk(rule, recursion.linear(rows, Rationals()), [0.0, 0.0], 6, kind=Rationals(), **options))
    with ball_arithmetic.precision(100) as kind:
        found = list(recursion.walk(rule, recursion.linear(rows, kind), [0.0, 0.0], 6, kind=kind, **options))
        assert any(abs(s.B[0]) > 1 for s in exact)
        from flint import arb, fmpq

        for one, two in zip(exact, found, strict=True):
            for x, ball in zip(one.theta + one.B + one.D, two.theta + two.B + two.D, strict=True):
                assert (ball - arb(fmpq(x.numerator, x.denominator))).contains(0)
                assert float(ball.rad()) < 1e-20
        assert kind.undecided == 0


def test_the_moment_is_the_recipes():
    rule = recursion.Rule.from_recipe(variants.get("apollo").replace(moment=EMA(beta=0.25)))
    assert (rule.beta, rule.correct) == (0.25, True)

"""Problems, recorded runs, and the reports on coupling, scale invariance and the secant rule."""

import numpy as np
import pytest
import torch

import variants
from sandbox.blocks import EMA, ClipEach
from sandbox.recipe import Recipe
from sandbox.schedules import InverseSquareRoot
from tests.light import each, light
from theory_checks import problems, record
from theory_checks.claims import coupling, regret, scale_invariance, weak_secant
from theory_checks.report import VACUOUS, VERIFIED

VECTORS = [name for name in variants.names() if variants.get(name).evaluations == 1 and not variants.get(name).matrix]


@pytest.mark.parametrize("name", ["logistic-breast-cancer", "ridge-diabetes", "random-quadratic"])
def test_comparators_are_optimal(name):
    problem = problems.get(name)
    best = problem.best(20, problem.start[None])
    assert best.excess < 1e-6
    assert best.margin >= 0
    total = sum(problem.gradient(t, best.theta) for t in range(1, 21)) / 20
    assert float(total.norm()) < 1e-5


def test_smoothness_is_the_largest_eigenvalue():
    problem = problems.random_quadratic(3, 4)
    at = torch.zeros(4, dtype=torch.float64)
    problem.loss(5, at)  # draws the data outside of the transformation
    H = torch.func.hessian(lambda x: sum(problem.loss(t, x) for t in range(1, 6)) / 5)(at)
    assert problems.smoothness(problem, 5, at) == pytest.approx(float(torch.linalg.eigvalsh(H)[-1]), rel=1e-8)


def test_adam_does_not_converge_on_the_three_periodic_losses():
    """Reddi, Kale & Kumar (2018): with β₁ = 0, β₂ = 1/(1+C²) Adam ends at the worst point; AMSGrad does not; no statement of
    Theorem 2's kind applies to Adam, whose D is not monotone, and the report says which condition fails."""
    from sandbox.blocks import SecondMoment, SquareRoot

    C, T = 3.0, 3000
    moment = EMA(beta=0.0, bias_correction=False)
    adam = Recipe(
        name="adam",
        moment=moment,
        curvature=SecondMoment(beta=1 / (1 + C**2), bias_correction=False),
        rectifier=SquareRoot(eps=0.0),
    )
    amsgrad = adam.replace(curvature=SecondMoment(beta=1 / (1 + C**2), bias_correction=False, maximum=True), name="amsgrad")
    reports = {}
    for recipe in (adam, amsgrad):
        run = record(recipe, "three-periodic", T, lr=InverseSquareRoot(first=0.5))
        reports[recipe.name] = regret.check(run, points=8), run.theta[-1, 0]
    assert reports["adam"][1] > 0.9
    assert reports["amsgrad"][1] < 0
    assert reports["adam"][0].measured > T / 2
    assert reports["amsgrad"][0].measured < T / 10
    assert reports["adam"][0].bound("repaired 1").verdict.startswith("not applicable: D_t/η_t non-decreasing")
    assert reports["amsgrad"][0].bound("repaired 1").verdict in (VERIFIED, VACUOUS)


def test_bad_input():
    with pytest.raises(ValueError, match="did you mean 'cycle'"):
        record("apollo", "cycel", 10)
    with pytest.raises(ValueError, match="T must be at least 1, got 0"):
        record("apollo", "cycle", 0)
    with pytest.raises(ValueError, match="the checks replay first-order recipes"):
        record("adahessian", "cycle", 5)
    with pytest.raises(ValueError, match=r"'muon' takes tensors as matrices.*on vectors it is 'adam'"):
        record("muon", "cycle", 5)


@pytest.mark.parametrize("name", each(VECTORS))
def test_any_recipe_can_be_recorded(name):
    run = record(light(name), "ridge-diabetes", 12, lr=InverseSquareRoot(first=0.01))
    report = regret.check(run, points=3)
    assert report.bounds
    assert np.isfinite(run.theta).all()
    assert not report.news


def test_coupling_report():
    """Bitwise with ε/c and γ/c; refuted with both as stated; on a run where the secant rule counts."""
    rate = InverseSquareRoot(first=0.02)
    recipe = variants.get("apollow").replace(**{"curvature.eps": 0.5, "decay.weight_decay": 0.1}, name="x")
    kept = coupling.check(recipe, "ridge-diabetes", 40, lr=rate)
    assert kept.measured == 0.0
    assert all(a.holds for a in kept.assumptions)
    assert kept.facts["share of |B| > σ"] > 0
    stated = coupling.check(recipe, "ridge-diabetes", 40, lr=rate, as_stated=True)
    assert stated.measured > 1e-6
    assert stated.assumption("θ_t the same on both sides").first is not None
    odd = coupling.check(recipe, "ridge-diabetes", 40, lr=rate, c=3.0)
    assert 0 < odd.measured < 1e-9
    with pytest.raises(ValueError, match="no weak secant rule with a constant floor"):
        coupling.check("adam", "ridge-diabetes", 5, lr=rate)
    with pytest.raises(ValueError, match="no weak secant rule with a constant floor"):
        coupling.check("scale-invariant", "ridge-diabetes", 5, lr=rate)
    with pytest.raises(ValueError, match="a direction of ClipEach; Theorem 1 is about d = m/D"):
        coupling.check(recipe.replace(solve=ClipEach(limit=0.1)), "ridge-diabetes", 5, lr=rate)


def test_scale_invariance_report():
    rate = InverseSquareRoot(first=0.1)
    assert scale_invariance.check("scale-invariant", "logistic-breast-cancer", 30, lr=rate).measured == 0.0
    assert 0 < scale_invariance.check("scale-invariant", "logistic-breast-cancer", 30, lr=rate, factor=3.0).measured < 1e-8
    for name in ("apollo", "belief"):
        report = scale_invariance.check(name, "logistic-breast-cancer", 30, lr=rate)
        assert report.measured > 1e-6
        assert not report.assumptions[0].holds


def test_weak_secant_report():
    exact = variants.get("no-momentum").replace(**{"curvature.eps": 0.0, "rectifier.sigma": 0.5}, name="x")
    h = np.array([0.1, 1.0, 3.0, 5.0])
    curvatures = torch.tensor(h)
    quadratic = problems.smooth(
        "still",
        "a quadratic without noise",
        torch.ones(4, dtype=torch.float64),
        lambda _, x: 0.5 * (curvatures * x * x).sum(),
        lambda: None,
    )
    report = weak_secant.check(exact, quadratic, 60, lr=0.1, h=h)
    assert all(a.holds for a in report.assumptions)
    assert report.facts["‖B_T - ηh‖ / ‖ηh‖"] < 0.9
    loose = weak_secant.check(exact.replace(**{"curvature.eps": 1.0}), quadratic, 60, lr=0.1, h=h)
    assert not loose.assumptions[0].holds  # ε = 1 leaves a residual …
    assert loose.assumptions[1].holds  # … and the distance still never grows
    for recipe in ("apollow", exact.replace(solve=ClipEach(limit=0.1))):
        with pytest.raises(ValueError, match="without decay"):
            weak_secant.check(recipe, quadratic, 5, lr=0.1)

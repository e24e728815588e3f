"""Premises that fail where they should, with the worst place named; vacuous bounds that say what would make them not so."""

import math

import numpy as np
import pytest
import torch

import variants
from sandbox.schedules import InverseSquareRoot
from theory_checks import problems, record
from theory_checks.claims import nonconvex, premises, regret, vacuity
from theory_checks.proofs import counterexamples
from theory_checks.report import VACUOUS

APOLLO = counterexamples.theory_apollo()


def checked(loss, start, T=40, eta=0.3, **options):
    run = record(APOLLO, problems.from_losses(loss, start, **options), T, lr=InverseSquareRoot(first=eta))
    return run, regret.check(run, points=4)


def test_a_cosine_is_not_convex():
    run, report = checked(lambda t, x: x.cos().sum(), [0.5])
    found = report.assumption(premises.CONVEX)
    assert not found.holds
    # cos is concave on [0.5, π/2], and the run goes from 0.5 towards π
    assert found.detail.startswith("worst: f_1 at θ_")
    assert found.detail.endswith("against its tangent at θ_1")
    assert found.margin < -0.05
    assert all(premises.CONVEX in b.verdict for b in report.bounds)
    assert not report.news
    point = int(found.detail.split("θ_")[1].split()[0])
    x, p = run.theta[0, 0], run.theta[point - 1, 0]
    gap = math.cos(p) - (math.cos(x) - math.sin(x) * (p - x))
    assert gap / (abs(math.cos(p)) + abs(math.cos(x)) + abs(math.sin(x) * (p - x))) == pytest.approx(found.margin, rel=1e-9)


def test_what_is_convex_passes():
    """Quadratics, their θ* the mean centre, and the absolute value's smooth form."""
    run, report = checked(lambda t, x: (x - t % 3).square().sum() / 2, [2.0, -1.0])
    assert report.assumption(premises.CONVEX).holds
    assert report.assumption(premises.LOWEST).holds
    star = run.problem.comparator(39, torch.zeros(0)).theta
    assert star.numpy() == pytest.approx([1.0, 1.0], abs=1e-8)
    _, report = checked(lambda t, x: (1 + x.square()).sqrt().sum(), [3.0])
    assert report.assumption(premises.CONVEX).holds


def test_a_local_minimum_is_not_taken_for_the_global_one():
    """A double well: from 0.2 the local minimum near 0.96, while that near -1.04 is lower."""
    _, report = checked(lambda t, x: (x.square() - 1).square().sum() + 0.3 * x.sum(), [0.2], eta=0.05)
    assert report.assumption(premises.OPTIMAL).holds
    found = report.assumption(premises.LOWEST)
    assert not found.holds
    assert "from 3θ_1 - 2θ*" in found.detail


def test_the_box_binds_comparator_and_iterates():
    """f = (θ - 3)² on [-1, 1]: θ* = 1 is stationary in the box; an iterate outside of it is seen."""
    run, report = checked(lambda t, x: (x - 3).square().sum(), [0.0], box=(-1.0, 1.0))
    assert run.problem.comparator(5, torch.zeros(0)).theta.item() == 1
    assert report.assumption(premises.OPTIMAL).holds
    assert report.assumption(premises.INSIDE).holds
    run.theta[7] = 1.5
    found = next(a for a in premises.of(run, run.problem.comparator(5, torch.zeros(0))) if a.name == premises.INSIDE)
    assert (found.holds, found.first, found.margin) == (False, (8, 1), pytest.approx(-0.5))


def test_gradients_say_where_the_largest_is():
    run, report = checked(lambda t, x: (5.0 if t == 7 else 1.0) * (x - 1).square().sum() / 2, [0.0], T=20, eta=0.01)
    assert f"G = ‖g_7‖ = {abs(run.g[6, 0]):.6g}" in report.assumption(premises.GRADIENTS).detail
    run.g[3] = np.inf
    assert not premises._bounded(run).holds


def test_the_failing_step_is_named_only_where_it_fails():
    says = "the step of the paper's proof that fails"
    assert says in str(regret.check(counterexamples.cycle_run(60), points=2))
    _, report = checked(lambda t, x: (x - t % 3).square().sum() / 2, [2.0])
    assert says not in str(report)


def test_a_vacuous_bound_says_what_would_make_it_not_so():
    """β = 0, D = 1, G = 1, trace 1: D²√T/(2η) + ηG²(2√T-1) ≤ GDT, solved here by hand for T and for η."""
    numbers = dict(T=4, trace=1.0, G=1.0, diameter=1.0, radius=1.0, sigma=1.0, eta=0.05, beta=0.0, betas=0.0, squares=0.0)
    says = vacuity.remedy(regret.terms, regret.STATED, numbers, 4.0)
    value = 2 / 0.1 + 0.05 * 3
    assert says.startswith(f"{value / 4:.3g} times the trivial bound GDT")
    # (10 + .1)√T - .05 ≤ T
    from_T = ((10.1 + math.sqrt(10.1**2 - 0.2)) / 2) ** 2
    assert float(says.split("T ≈ ")[1].split()[0]) == pytest.approx(from_T, rel=0.06)
    # 3η² - 4η + 1 ≤ 0: η in [1/3, 1]
    low, high = says.split("η in [")[1].split("]")[0].split(", ")
    assert (float(low), float(high)) == (pytest.approx(1 / 3, rel=0.03), pytest.approx(1, rel=0.03))
    # 2GDβT is above GDT for β > 1/2 at every T and η
    stuck = vacuity.remedy(regret.terms, "repaired 1", numbers | {"beta": 0.9, "betas": 3.6}, 4.0)
    assert "so up to T = 4e+12" in stuck
    assert "here for every η" in stuck


def test_the_remedy_is_in_the_report():
    run = record(variants.get("apollo"), "random-quadratic", 10, lr=InverseSquareRoot(first=1e-4))
    report = regret.check(run, points=3)
    vacuous = [b for b in report.bounds if b.verdict == VACUOUS]
    assert all("times the trivial bound" in b.remedy for b in vacuous)
    assert all(b.remedy == "" for b in report.bounds if b.verdict != VACUOUS)
    assert (
        len(vacuous) == str(report).count("times the trivial bound") == report._repr_markdown_().count("times the trivial") > 0
    )


@pytest.mark.parametrize(
    ("start", "box", "says"),
    [
        (1.0, None, "start must have shape"),
        ([[1.0]], None, "start must have shape"),
        ([2.0], (-1.0, 1.0), "must lie in the box"),
    ],
)
def test_bad_problems(start, box, says):
    with pytest.raises(ValueError, match=says):
        problems.from_losses(lambda t, x: x.sum(), start, box=box)


def test_what_is_no_problem():
    with pytest.raises(TypeError, match="a problem is a theory_checks Problem, a sandbox Task"):
        problems.get(3)
    assert problems.get(problems.cycle).name == "cycle"


# -- Theorem 3 ---------------------------------------------------------------------------------------------------------


def of_theorem_3(L=1.0, gap=9.1, **options):
    start = torch.tensor([10.0], dtype=torch.float64)
    numbers = dict(T=60, eta=0.5, L=L, H=2.0, gap=gap, L_D=1.5) | options
    return nonconvex.check(APOLLO, lambda x: (1 + x.square()).sqrt().sum(), start, **numbers)


def test_theorem_3_asks_for_smoothness_and_a_lower_bound():
    """f'' ≤ 1 = L on the way down from 10; with L = 0.01 it fails, as the gap does where D_f is too small."""
    names = [a.name for a in of_theorem_3().assumptions if not a.holds]
    assert "‖∇f(x) - ∇f(y)‖ ≤ L‖x - y‖ between points of the run" not in names
    assert "f(x_1) - f(θ_t) ≤ D_f" not in names
    found = of_theorem_3(L=0.01).assumption("‖∇f(x) - ∇f(y)‖ ≤ L‖x - y‖ between points of the run")
    assert not found.holds
    assert found.detail.startswith("worst: θ_")
    low = of_theorem_3(gap=0.1).assumption("f(x_1) - f(θ_t) ≤ D_f")
    assert not low.holds
    assert low.first is not None


def test_the_noise_is_unbiased_and_uncorrelated():
    """All 2⁸ sequences: exactly; a sample: within four deviations; ten equal sequences: not."""
    exact = of_theorem_3(T=8, noise=0.3)
    sampled = of_theorem_3(T=14, noise=0.3, samples=50)
    for name in ("the noise is unbiased", "the noise of successive steps is uncorrelated"):
        assert exact.assumption(name).holds
        assert sampled.assumption(name).holds
    assert not any(a.holds for a in nonconvex._noise(np.ones((100, 5)), False))

"""Theorem 2 and Theorem 3, as stated, against the published numbers."""

import json
import math

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from theory_checks import problems
from theory_checks.claims import nonconvex, regret
from theory_checks.claims.regret import STATED
from theory_checks.proofs import counterexamples
from theory_checks.report import VERIFIED, VIOLATED


@pytest.fixture(scope="module")
def cycle():
    return counterexamples.cycle_run(2401)


def test_ce1_refutes_theorem_2(cycle):
    """The table of mathematics, section 5, to the digits printed."""
    star = torch.tensor(problems.CYCLE_COMPARATOR, dtype=torch.float64).numpy()
    regrets = np.cumsum(cycle.loss - cycle.g @ star)
    facts = regret.facts_of_run(cycle, star)
    assert facts["G"] == pytest.approx(2.579180, abs=5e-7)
    assert facts["diameter"] == pytest.approx(1.053148, abs=5e-7)
    table = {300: (143.460, 196.962), 601: (285.674, 279.827), 1201: (567.415, 396.615), 2401: (1129.493, 561.828)}
    bounds = [sum(regret.bound_terms(cycle, facts, t)[STATED].values()) for t in range(1, 2402)]
    for T, (measured, bound) in table.items():
        assert regrets[T - 1] == pytest.approx(measured, abs=5e-4)
        assert bounds[T - 1] == pytest.approx(bound, abs=5e-4)
    assert next(t for t in range(1, 2402) if regrets[t - 1] > bounds[t - 1]) == 572


def test_the_report_on_ce1(cycle):
    report = regret.check(cycle, points=24, slope_from=300)
    assert report.bound(STATED).verdict == VIOLATED
    assert report.assumption("‖D_t‖₁/η_t non-decreasing").holds
    assert report.assumption("D_t ≥ 1").holds
    coordinate = report.assumption("D_t/η_t non-decreasing in each coordinate")
    assert not coordinate.holds
    assert coordinate.share == pytest.approx(0.833, abs=5e-4)
    assert coordinate.first is not None
    for name in regret.REPAIRED:
        assert report.bound(name).verdict.startswith("not applicable: D_t/η_t")
    assert not report.news
    failing = [s.name for s in report.steps if not s.holds]
    assert len(failing) == 2
    assert failing[0].startswith("Σ_t Σ_j")
    assert failing[1].endswith("as coordinatewise growth gives")
    certificate = next(s for s in report.steps if s.name.startswith("certificate"))
    assert certificate.holds
    assert report.slope.value == pytest.approx(1.0, abs=0.01)
    assert report.slope.low < report.slope.value < report.slope.high


def test_forms_of_a_report(cycle):
    report = regret.check(cycle, points=6)
    assert "VIOLATED" in str(report)
    assert "| Theorem 2 as stated |" in report._repr_markdown_()
    assert json.loads(report.to_json())["bounds"][0]["verdict"] == VIOLATED
    figure = Figure()
    axes = figure.subplots()
    report.plot(axes)
    assert axes.get_xscale() == axes.get_yscale() == "log"
    assert len(axes.lines) == 1 + len(report.bounds)


@pytest.mark.parametrize(
    ("case", "left", "right", "digits"),
    [
        ("coordinatewise", 3.2426, 1.6569, 5e-5),
        ("β monotone", 13.031, 4.142, 5e-4),
        ("diameter", 199.0, 2.536, 5e-4),
        ("σ < 1", 1.0, 0.1414, 5e-5),
        ("CE2", 0.98494, 0.69, 5e-3),
    ],
)
def test_published_numbers(case, left, right, digits):
    found = counterexamples.CASES[case]()
    assert found.left == pytest.approx(left, abs=5e-6 if case == "CE2" else digits)
    assert found.right == pytest.approx(right, abs=digits)
    assert found.refuted


def test_ce2_repaired():
    report = counterexamples.theorem_3_report(400, 0.05)
    assert report.bound(nonconvex.STATED).verdict == VIOLATED
    assert report.bound(nonconvex.REPAIRED).value == pytest.approx(13.8, abs=0.05)
    assert report.bound(nonconvex.REPAIRED).verdict == VERIFIED


def test_ce2_with_another_rate():
    """The published bounds of this case, .363 and 36.3, take 2 for D's bound where those of the other take 1.5."""
    numbers = dict(T=2500, d=1, L=1.0, L_D=2.0, H=1.0, eta=0.01, sigma=1.0, beta=1e-9, gap=math.sqrt(101) - 1)
    bounds = nonconvex.terms(**numbers)
    assert sum(bounds[nonconvex.STATED].values()) == pytest.approx(0.363, abs=5e-4)
    assert sum(bounds[nonconvex.REPAIRED].values()) == pytest.approx(36.3, abs=0.05)


def test_sum_of_the_corollary():
    """Σ β_t²/η_t·η with β_t = βλ^{t-1}: λ = .9 gives 11.06 ≤ (1-λ²)^{-3/2} = 12.07 ≤ (1-λ²)^{-2} = 27.70."""
    exact = sum(0.9 ** (2 * (t - 1)) * math.sqrt(t) for t in range(1, 500))
    assert exact == pytest.approx(11.06, abs=5e-3)
    assert pytest.approx(12.07, abs=5e-3) == (1 - 0.81) ** -1.5
    assert pytest.approx(27.70, abs=5e-3) == (1 - 0.81) ** -2

"""The frozen case against PEPit: the exact worst case lies below every bound.  Run by `make test-all`, which installs PEPit."""

import itertools
import math
import warnings

import pytest
import torch

from sandbox.blocks import EMA
from sandbox.schedules import InverseSquareRoot
from theory_checks import problems, record
from theory_checks.claims import momentum_worst_case, regret
from theory_checks.proofs import counterexamples


@pytest.mark.slow
@pytest.mark.parametrize(("n", "worst", "stated"), [(2, 1.5000, 2.3284), (4, 2.2594, 3.5), (6, 2.8786, 4.3990)])
def test_worst_case_lies_below_the_bounds(n, worst, stated):
    """Numbers of the issue, to the four digits printed; the solver's tolerance is 1e-5."""
    pytest.importorskip("PEPit", reason="the extra `theory` is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = momentum_worst_case.worst_case(n)
    assert found == pytest.approx(worst, abs=6e-5)
    assert momentum_worst_case.bounds(n)["Theorem 2 as stated"] == pytest.approx(stated, abs=6e-5)
    assert all(found < bound for bound in momentum_worst_case.bounds(n).values())


@pytest.mark.slow
@pytest.mark.parametrize("beta", [0.5, 0.9])
def test_with_momentum_too(beta):
    """Four steps: below every bound, and no smaller than the worst of some sequences of signs, played out by hand."""
    pytest.importorskip("PEPit", reason="the extra `theory` is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = momentum_worst_case.worst_case(4, beta=beta)
    assert all(found < bound for bound in momentum_worst_case.bounds(4, beta=beta).values())
    played = []
    for signs in itertools.product((-1.0, 1.0), repeat=4):
        for start in (0.0, 0.5, 1.0):
            theta, m, total = start, 0.0, 0.0
            for t, g in enumerate(signs, start=1):
                total += g * theta
                m = beta * m + (1 - beta) * g
                theta = min(max(theta - 0.5 / math.sqrt(t) * m, 0.0), 1.0)
            played.append(total - min(0.0, sum(signs)))
    assert max(played) <= found + 1e-4


def test_frozen_apollo_is_gradient_descent_and_its_bounds_are_these():
    """A constant gradient leaves B = 0 and D = σ = 1; the recorded bounds are then the formulas above, at the run's G and D."""
    recipe = counterexamples.theory_apollo().replace(moment=EMA(beta=0.0, bias_correction=False), name="frozen")
    start, slope = torch.zeros(1, dtype=torch.float64), torch.tensor([0.7], dtype=torch.float64)
    constant = problems.linear("constant", "a constant slope", lambda t: slope, (-1.0, 1.0), start)
    run = record(recipe, constant, 6, lr=InverseSquareRoot(first=0.5))
    assert (run.D == 1).all()
    report = regret.check(run, points=3)
    facts = report.facts
    stated = momentum_worst_case.bounds(6, M=facts["G"], D=facts["diameter"])["Theorem 2 as stated"]
    repaired = momentum_worst_case.bounds(6, M=facts["G"], D=facts["radius"])["repaired 1"]
    assert report.bound("Theorem 2 as stated").value == pytest.approx(stated, rel=1e-12)
    assert report.bound("repaired 1").value == pytest.approx(repaired, rel=1e-12)

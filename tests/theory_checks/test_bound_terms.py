"""The slack of each term: what the proof bounds by a term, measured, against regret and against the term."""

import json

import numpy as np
import pytest
from hypothesis import given, settings

from tests.theory_checks.test_random_problems import RANDOM, random_run
from theory_checks import problems
from theory_checks.claims import regret, regret_bounds
from theory_checks.proofs import counterexamples


@settings(max_examples=25, deadline=None)
@given(**RANDOM)
def test_parts_add_up_to_the_linearised_regret(seed, d, T, sigma, kind):
    """Σ g·a is the sum of the parts of bound 1 for any run (unprojected: an odd seed), of bound 3 for constant β; of 2 and 4
    less the square that Young's inequality drops.  Tolerance: rounding of the largest sum, Σ u a²."""
    run = random_run(2 * seed + 1, d, T, sigma, kind, repaired=False)
    star = np.random.default_rng(seed).standard_normal(d)
    a, eta, beta = run.theta[:-1] - star, run.lr[:, None], run.beta[:, None]
    before = np.vstack([np.zeros_like(run.m[:1]), run.m[:-1]])
    linear = float((run.g * a).sum())
    size = (run.D / eta * (1 + a**2)).sum() / (1 - run.beta.max())
    total = {name: sum(parts.values()) for name, parts in regret_bounds.amounts_used(run, star).items()}
    dropped = {
        "repaired 1": 0.0,
        "repaired 2": ((eta**0.5 * (run.g - before) - beta / eta**0.5 * a) ** 2 / 2).sum(),
        "repaired 4": ((eta**0.5 * before + beta / eta**0.5 * a) ** 2 / 2 / (1 - beta)).sum(),
    }
    if kind == "constant":
        dropped["repaired 3"] = 0.0
    for name, square in dropped.items():
        assert abs(total[name] - linear - square) <= 1e-10 * (size + square), name


@settings(max_examples=40, deadline=None)
@given(**RANDOM)
def test_no_slack_is_negative_where_the_assumptions_hold(seed, d, T, sigma, kind):
    """Term by term, projected runs (an even seed) included."""
    report = regret.check(random_run(seed, d, T, sigma, kind, repaired=True), points=2)
    applies = [b for b in report.bounds if not b.verdict.startswith("not applicable")]
    for b in applies:
        assert set(b.slack) == set(b.terms)
        assert min(b.slack.values()) >= -1e-9 * b.value, (b.name, b.slack)


def test_ce1_overdraws_the_term_whose_step_fails():
    """On CE1 the diameter term is exceeded, the others are not: that is where the proof breaks."""
    report = regret.check(counterexamples.cycle_run(1201), points=3)
    stated = report.bound(regret.STATED)
    assert stated.slack["diameter"] < 0 < stated.slack["gradients"]
    # β = 1e-9, linear losses: nothing is lost between the parts and the regret but Young's second term
    assert sum(report.bound("repaired 1").used.values()) == pytest.approx(report.measured, rel=1e-9)
    assert sum(stated.shares.values()) == pytest.approx(1.0)


def test_slack_is_in_every_form_of_a_report():
    report = regret.check(counterexamples.cycle_run(40, problem=problems.get("cycle-box")), points=3)
    entry = json.loads(report.to_json())["bounds"][1]
    assert entry["slack"]["diameter"] == pytest.approx(entry["terms"]["diameter"] - entry["used"]["diameter"])
    assert "slack of each term: diameter" in str(report)
    assert "| repaired 1 | gradients |" in report._repr_markdown_()

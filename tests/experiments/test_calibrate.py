"""Calibration: its counts against SciPy's tests and enumeration, its runs against a plain loop."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from scipy import optimize, stats

import sandbox
import variants
from sandbox.cli import main
from sandbox.experiments.calibrate import Calibration, EventRate, differences, judge


def enumerated(d):
    """The two-sided sign-flip p-value, by all 2ⁿ signs."""
    means = np.array(list(itertools.product((-1, 1), repeat=len(d)))) @ d / len(d)
    return np.mean(np.abs(means) >= abs(d.mean()) * (1 - 1e-9))


def test_counts_are_those_of_independent_tests():
    """A third of the families has a true effect, so that no count is near 0, nor are two of them equal."""
    n = 8
    d = np.random.default_rng(1).normal(size=(60, n))
    d[:20] += 1.0
    result = judge({"loss": d})
    p = np.array([enumerated(row) for row in d])
    n_families = [bool((p[i : i + 4] < 0.05 / 4).any()) for i in range(0, 60, 4)]  # Holm's first step is Bonferroni's
    t, sigma = stats.t.ppf(0.975, n - 1), d.std()

    def power(shift):
        return stats.nct.sf(t, n - 1, shift) + stats.nct.cdf(-t, n - 1, shift)

    # the shift found with 80 % power, from the noncentral t
    shift = optimize.brentq(lambda s: power(s) - 0.8, 0.1, 5) / np.sqrt(n) * sigma
    expected = [
        (stats.ttest_1samp(d, 0, axis=1).pvalue < 0.05).sum(),
        (p < 0.05).sum(),
        sum(n_families),
        (stats.ttest_1samp(d + shift, 0, axis=1).pvalue < 0.05).sum(),
    ]
    assert [r.count for r in result.rates] == expected
    assert [r.of for r in result.rates] == [60, 60, 15, 60]
    assert [r.stated for r in result.rates] == [0.05, 0.05, 0.05, 0.8]
    assert not result.rates[0].holds  # 20 true effects are no A/A


def test_normal_differences_are_calibrated():
    """200 comparisons of independent normal differences: every stated rate lies in its interval (fixed seed)."""
    for rate in judge({"loss": np.random.default_rng(0).normal(size=(200, 10))}).rates:
        low, high = rate.interval
        assert low <= rate.stated <= high


def test_interval_is_clopper_and_pearson():
    """By the quantiles of the beta distribution."""
    rate = EventRate("loss", "found", 0.05, 30, 400)
    assert rate.interval == pytest.approx((stats.beta.ppf(0.025, 30, 371), stats.beta.ppf(0.975, 31, 370)))
    assert not rate.holds
    assert EventRate("loss", "found", 0.05, 29, 400).holds
    assert not Calibration([rate], 10).holds


def test_errors_may_be_rarer_than_stated_and_power_may_not_differ():
    """The level of a test is a bound, its power is not."""
    rare = EventRate("loss", "found", 0.05, 0, 400)
    assert rare.holds
    assert not dataclasses.replace(rare, at_most=False).holds
    assert Calibration([rare], 10).table()[1][0][-1] == "yes, rarer"


def test_runs_are_those_of_a_loop_each_with_its_own_seed():
    """Run i has seed 5 + i; the second half is subtracted from the first.  Rounding apart: float32, three steps."""
    task, recipe = sandbox.tasks.get("logistic-breast-cancer"), variants.get("adamw")
    ends = []
    for seed in range(5, 21):
        params, batches = task.init(seed), task.batches(seed)
        state = recipe.init(params)
        for _ in range(3):
            grads = torch.func.grad(task.loss)(params, next(batches))
            state, params = recipe.update(state, params, grads)
        ends.append([float(task.loss(params, task.full("train"))), float(task.score(params, task.full("validation")))])
    assert len({loss for loss, _ in ends}) == 16
    loss, metric = (np.subtract(*np.reshape(column, (2, 4, 2))) for column in zip(*ends, strict=True))
    found = differences("adamw", task, comparisons=4, pairs=2, steps=3, seed=5)
    np.testing.assert_allclose(found["final loss"], loss, atol=1e-6)
    np.testing.assert_allclose(found["accuracy"], metric, atol=1e-6)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"comparisons": 6}, "multiple of 4"),
        ({"comparisons": 0}, "comparisons must be"),
        ({"pairs": 1}, "pairs must be"),
        ({"seed": -1}, "seed must be"),
        ({"steps": 0}, "steps must be"),
    ],
)
def test_counts_out_of_range(changed, said):
    with pytest.raises(ValueError, match=said):
        differences(**{"comparisons": 4, "pairs": 2, "steps": 1, **changed})


def test_no_difference_and_divergence_are_errors():
    with pytest.raises(ValueError, match="must not all be equal"):
        judge({"loss": np.zeros((4, 3))})
    with pytest.raises(ValueError, match="must not diverge, 16 of 16 did"):
        differences(variants.get("sgd").replace(lr=1e30), "quadratic", comparisons=4, pairs=2, steps=9)


def test_command(capsys):
    """Its table holds what the functions give, and its exit code says whether the rates hold."""
    code = main(["calibrate", "--comparisons", "8", "--pairs", "3", "--steps", "2"])
    said = capsys.readouterr()
    result = judge(differences(comparisons=8, pairs=3, steps=2))
    assert code == (not result.holds)
    for row in result.table()[1]:
        assert row[1] in said.out
        assert row[3] in said.out
    assert "training: " in said.err
    assert "comparing: 8 of 16" in said.err

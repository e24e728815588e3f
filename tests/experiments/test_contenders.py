"""What the choice of rates adds to a comparison: against enumeration, SciPy's t-test, and comparisons of a recipe with itself."""

import itertools
import math

import numpy as np
import polars as pl
import pytest
from scipy import stats

import sandbox
from sandbox.cli import main
from sandbox.experiments.calibrate_tuning import tuned_differences
from sandbox.experiments.compare import compare
from sandbox.experiments.selection import contenders, statistics
from sandbox.experiments.selection.axes import Trial
from sandbox.experiments.selection.statistics import Choice

LOSSES = [(0.30, 0.02, 0.32), (0.20, 0.21, 0.20), (0.22, 0.12, 0.30), (math.inf, 0.0, 0.0)]
TRIALS = [Trial({"lr": 10.0**k}, losses) for k, losses in enumerate(LOSSES)]


def preferred():
    """The trial that each of the 27 resamples prefers, one after the other."""
    chosen = []
    for places in itertools.product(range(3), repeat=3):
        means = [sum(losses[i] for i in places) for losses in LOSSES]
        chosen.append(min(range(4), key=means.__getitem__))
    return chosen


def test_contenders_are_what_other_tuning_seeds_would_choose():
    assert contenders.picks(TRIALS).tolist() == preferred()
    assert set(preferred()) == {0, 1, 2, 3}
    found = contenders.contending(TRIALS, {"lr": 10.0, "other": 1})
    assert found == [TRIALS[0], TRIALS[2]]  # 10 is chosen, and 1000 has diverged
    assert contenders.contending([Trial({"lr": 1.0}, (0.1,))], {"lr": 2.0}) == []  # one seed tells nothing
    assert contenders.picks([Trial({"lr": 2.0}, (1.0, 1.0)), Trial({"lr": 1.0}, (1.0, 1.0))]).tolist() == [1] * 4


def test_many_tuning_seeds_are_drawn_and_the_draws_are_the_same_each_time():
    drawn = contenders.resamples(8)
    assert drawn.shape == (1000, 8)
    assert (drawn == contenders.resamples(8)).all()
    assert drawn.mean() == pytest.approx(3.5, abs=4 * drawn.std() / math.sqrt(drawn.size))  # four standard errors


def test_the_variance_is_that_over_resamples_of_both_variants_together():
    one, other = {0: 0.5, 2: -0.2, 3: 0.1}, {1: 0.3}
    flat = [Trial({"lr": 1.0}, (0.3, 0.1, 0.3)), Trial({"lr": 2.0}, (0.2, 0.2, 0.2))]
    shifts = []
    for places in itertools.product(range(3), repeat=3):
        sums = [sum(t.losses[i] for i in places) for t in flat]
        shifts.append(other.get(int(sums[1] < sums[0]), 0.0))
    d = [one.get(i, 0.0) - s for i, s in zip(preferred(), shifts, strict=True)]
    expected = np.var(d) * 3 / 2
    found = contenders.variance([(TRIALS, one), (flat, other)])
    assert found == Choice(pytest.approx(expected), 2)
    assert contenders.variance([(TRIALS, one), (flat, {})]).variance == pytest.approx(
        np.var([one.get(i, 0.0) for i in preferred()]) * 1.5
    )
    assert contenders.variance([(TRIALS, {}), (flat, {})]) == Choice()
    assert contenders.variance([(TRIALS, {0: math.inf}), (flat, {})]).variance == math.inf


def test_intervals_and_p_values_with_the_choice():
    """A t-test with e² = s²/n + V and Satterthwaite's degrees of freedom; without V what it was."""
    a, b = np.random.default_rng(0).normal(size=(2, 10)) + np.array([[1.0], [0.0]])
    d = a - b
    plain, same = statistics.paired(a.tolist(), b.tolist()), statistics.paired(a.tolist(), b.tolist(), Choice())
    assert plain == same
    variance = d.var(ddof=1) / 10
    for extra in (0.1 * variance, 4 * variance):
        found = statistics.paired(a.tolist(), b.tolist(), Choice(extra, 2))
        freedom = min((variance + extra) ** 2 / (variance**2 / 9 + extra**2 / 2), 9)
        error = math.sqrt(variance + extra)
        low, high = stats.t.interval(0.95, freedom, d.mean(), error)
        assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))
        assert found.p == pytest.approx(max(plain.p, 2 * stats.t.sf(d.mean() / error, freedom)))
        assert found.spread == pytest.approx(error * math.sqrt(10))
        smallest = statistics.smallest_detectable(found.spread, 10, freedom=found.freedom)
        t, shift = stats.t.ppf(0.975, freedom), smallest / error
        assert stats.nct.sf(t, freedom, shift) + stats.nct.cdf(-t, freedom, shift) == pytest.approx(0.8, abs=2e-3)
    nothing = statistics.paired(a.tolist(), b.tolist(), Choice(math.inf, 2))
    assert statistics.smallest_detectable(nothing.spread, 10, freedom=nothing.freedom) == math.inf
    assert (nothing.p, nothing.low, nothing.high) == (1.0, -math.inf, math.inf)
    assert statistics.paired([math.inf, *a[1:]], b.tolist(), Choice(1.0, 2)).p == 1.0


def test_a_comparison_runs_its_contenders(tmp_path):
    """Four runs each, beside the chosen numbers' own; the interval is that of their results, taken from the rows."""
    result = compare(["adamw", "sgd"], "softmax-digits", seeds=6, steps=30, out=tmp_path)
    rows = result.runs.filter(pl.col("step") == 30)
    shifts = []
    for s in result.summaries:
        chosen = result.chosen[s.name]
        tried = rows.filter((pl.col("variant") == s.name) & (pl.col("role") == "contender"))
        assert sorted(set(tried["lr"])) == sorted(t.numbers["lr"] for t in chosen.contenders)
        final = rows.filter((pl.col("variant") == s.name) & (pl.col("role") == "final")).sort("seed")["train_loss"]
        means = {}
        for place, trial in enumerate(chosen.trials):
            own = tried.filter(pl.col("lr") == trial.numbers["lr"]).sort("seed")
            if len(own):
                assert own["seed"].to_list() == [0, 1, 2, 3]
                assert own["test_metric"].is_not_null().all()
                means[place] = float((own["train_loss"] - final[:4]).mean())
        shifts.append((chosen.trials, means))
        assert final.len() == 6
    assert any(means for _, means in shifts)  # something contends here
    one, two = (rows.filter((pl.col("variant") == n) & (pl.col("role") == "final")).sort("seed") for n in ("adamw", "sgd"))
    expected = statistics.paired(
        two["train_loss"].to_list(), one["train_loss"].to_list(), contenders.variance([shifts[1], shifts[0]])
    )
    assert result.summaries[1].train_difference == expected
    assert "other tuning seeds might have chosen" in str(result)
    again = sandbox.load(tmp_path)
    assert [s.train_difference for s in again.summaries] == [s.train_difference for s in result.summaries]

    lost = result.runs.filter(pl.col("role") != "contender")
    lost.write_parquet(tmp_path / "results.parquet")
    assert sandbox.load(tmp_path).summaries[1].train_p == 1.0  # nothing is decided without them


@pytest.mark.slow
def test_a_recipe_against_itself_errs_as_rarely_as_stated():
    """240 comparisons, tuned apart: .05 has a standard error of .014; without the choice of rates .2 of them err."""
    whole = tuned_differences("adamw", "ridge-diabetes", comparisons=240)
    d, choices = whole.differences["final loss"], whole.choices["final loss"]
    p = np.array([statistics.paired(row.tolist(), [0.0] * 10, c).p for row, c in zip(d, choices, strict=True)])
    blind = np.array([statistics.paired(row.tolist(), [0.0] * 10).p for row in d])
    assert 0.02 <= (p < 0.05).mean() <= 0.09
    assert (blind < 0.05).mean() > 0.12


def test_command(capsys):
    assert main(["calibrate", "--tuned", "--comparisons", "4", "--pairs", "3", "--steps", "3"]) in (0, 1)
    said = capsys.readouterr()
    assert "8 of 8 searches" in said.err
    assert "A/A: sign-flip p < 0.05" in said.out


def test_counts_out_of_range():
    for wrong, says in (({"tuning_seeds": 1}, "tuning_seeds must be"), ({"pairs": 1}, "pairs must be")):
        with pytest.raises(ValueError, match=says):
            tuned_differences(**wrong)

"""Searches that end inside: along a line, over coordinates, and in `compare`; against enumeration."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sandbox
import variants
from sandbox.experiments.compare import compare
from sandbox.experiments.selection.axes import Axis, Trial
from sandbox.experiments.selection.bracket import Line, best, outside
from sandbox.experiments.selection.coordinates import Descent


def search(line, loss):
    losses = {}
    while new := line.propose(losses):
        assert not set(new) & set(losses)
        losses |= {p: loss(p) for p in new}
    return losses


CURVES = st.tuples(st.floats(-12, 12), st.floats(0.01, 1), st.floats(0.3, 6))  # optimum, curvature, distance to divergence


@given(curve=CURVES, points=st.sampled_from([2, 3, 4, 5, 7]), refined=st.integers(0, 6))
@settings(max_examples=300, deadline=None)
def test_a_line_ends_inside_and_near_its_optimum(curve, points, refined):
    """Six points beyond the first round reach an optimum 12 positions away; the next even position is at most one away."""
    optimum, curvature, cliff = curve
    line = Line(points, points + refined, points + refined + 14)
    losses = search(line, lambda p: curvature * (p - optimum) ** 2 if p < optimum + cliff else math.inf)
    assert len(losses) >= line.trials
    assert len(losses) <= line.limit
    found = best(losses)
    assert outside(losses) == 0
    assert abs(found - optimum) <= 2  # a gap of the first round; less where divergence does not lie between
    if len(losses) >= points + 4 and len(losses) == line.trials and abs(optimum) < points - 2 and cliff > 2:
        assert abs(found - optimum) <= 0.5 + 1e-9  # one that was bracketed at once has been halved twice


def test_a_line_by_hand():
    """Optimum at the upper end of the first round: two beyond it, then the middles; a diverged neighbour bounds it."""
    line = Line(5, 9, 15)
    assert line.propose({}) == [-4, -2, 0, 2, 4]
    rising = {-4: 5.0, -2: 4.0, 0: 3.0, 2: 2.0, 4: 1.0}
    assert line.propose(rising) == [6, 8]
    assert sorted(line.propose({**rising, 6: 1.5, 8: 2.0})) == [3, 5]
    assert line.propose({**rising, 6: 1.5, 8: 2.0, 3: 2.0, 5: 2.0}) == []
    walled = {-4: 5.0, -2: 4.0, 0: 3.0, 2: math.inf, 4: math.inf}
    assert outside(walled) == 0
    assert line.propose(walled) == [-1, 1]
    assert line.propose({**walled, -1: 3.5, 1: 3.2}) == [-3, 0.5]  # whole gaps first, then the better side of the best
    lost = dict.fromkeys((-4, -2, 0, 2, 4), math.inf)
    assert best(lost) is None
    assert line.propose(lost) == [-6, -8]
    assert best({0: 1.0, 2: 1.0}) == 0  # of equal losses the lower position
    assert Line(5, 9, 15, low=-5, high=3).propose({}) == [-4, -2, 0, 2, 3]
    assert Line(5, 9, 15, low=-4).propose({-4: 0.0, -2: 1, 0: 2, 2: 3, 4: 4}) == [-3, -1]  # the range ends there


@pytest.mark.parametrize("spent", range(0, 12, 3))
def test_coordinates_follow_from_finished_trials_alone(spent):
    """Interrupted anywhere and begun anew from the trials so far, a search makes the same trials."""
    axes = {"lr": Axis(log=True, start=0.1), "decay": Axis(1e-4, 1.0, log=True, start=0.0), "block": Axis(choices=("a", "b"))}

    def loss(n):
        return (np.log10(n["lr"]) + 2.1) ** 2 + 0.3 * (np.log10(n["decay"]) + 1.2) ** 2 + 0.2 * (n["block"] == "a")

    def run(trials):
        descent = Descent(axes, 5, 10**0.5, 40, 46)
        while True:
            new, numbers, on_edge = descent.step(trials)
            if not new:
                return trials, numbers, on_edge
            trials = [*trials, *(Trial(n, (loss(n), loss(n))) for n in new)]

    trials, numbers, on_edge = run([])
    assert not on_edge
    assert len(trials) <= 40
    assert numbers["block"] == "b"
    assert abs(np.log10(numbers["lr"]) + 2.1) <= 0.07  # a quarter of the half gap: 1/16 of a decade
    assert abs(np.log10(numbers["decay"]) + 1.2) <= 0.26
    rounds = run(trials[: 5 + spent])
    assert rounds[1] == numbers


def test_a_change_within_its_noise_is_not_taken():
    axes = {"lr": Axis(choices=(1.0,)), "x": Axis(choices=(0.0, 1.0))}
    trials = [Trial({"lr": 1.0, "x": 0.0}, (1.0, 1.2)), Trial({"lr": 1.0, "x": 1.0}, (1.1, 0.9))]
    descent = Descent(axes, 3, 10**0.5, 2, 2)
    assert descent.step(trials)[1]["x"] == 0.0  # differences -.1 and .3: .1 on average, standard error .2
    trials[1] = Trial({"lr": 1.0, "x": 1.0}, (0.9, 1.1))
    assert descent.step(trials)[1]["x"] == 1.0  # differences .1 and .1
    line = Descent({"lr": Axis(log=True, start=1.0)}, 1, 10**0.5, 3, 3)
    noisy = [Trial({"lr": lr}, losses) for lr, losses in ((1.0, (1.0, 1.2)), (0.1, (3.0, 3.0)), (10.0, (1.1, 0.9)))]
    assert line.step(noisy)[1]["lr"] == 10.0  # of the first number the lowest mean decides


def test_a_comparison_searches_until_its_rates_lie_inside(tmp_path):
    """A default a thousand times too low is found its way; what was tried is told, and read again from the folder."""
    slow = variants.get("sgd").replace(lr=1e-4, name="slow")
    options = dict(seeds=2, tuning_seeds=2, steps=30, out=tmp_path)
    result = compare(["sgd", slow], "logistic-breast-cancer", **options)
    assert not any(s.on_edge for s in result.summaries)
    tried = {name: [t.numbers["lr"] for t in chosen.trials] for name, chosen in result.chosen.items()}
    assert len(tried["sgd"]) == 9
    assert 9 <= len(tried["slow"]) <= 15
    for name, chosen in result.chosen.items():
        lowest = min(chosen.trials, key=lambda t: t.loss)
        assert chosen.numbers == lowest.numbers
        assert min(tried[name]) < chosen.numbers["lr"] < max(tried[name])
        own = result.runs.filter((result.runs["variant"] == name) & (result.runs["role"] == "tuning"))
        assert set(own["lr"]) == set(tried[name])
        rows = own.filter((own["lr"] == chosen.numbers["lr"]) & (own["step"] == 30)).sort("seed")
        assert tuple(rows["validation_loss"]) == lowest.losses
    assert f"Searched further, their best rates being at an end of what was tried: slow ({len(tried['slow'])})." in str(result)
    assert sandbox.load(tmp_path).chosen == result.chosen
    facts = json.loads((tmp_path / "manifest.json").read_text())
    assert (facts["trials"], facts["limit"], facts["tuner"]) == (9, 15, "coordinate")

    told = []
    again = compare(["sgd", slow], "logistic-breast-cancer", **options, callbacks=[told.append])
    assert not [row for row in told if row.get("seconds_a_step") is None]  # nothing is trained again
    assert again.chosen == result.chosen


def test_several_numbers_are_searched_one_after_the_other(tmp_path):
    space = {"lr": (1e-4, 10, "log"), "moment.momentum": (0.0, 0.95)}
    result = compare(
        ["sgd", "adamw"], "logistic-breast-cancer", seeds=2, tuning_seeds=2, steps=20, search=space, rates=3, out=tmp_path
    )
    tried = result.chosen["sgd"].trials
    assert len(tried) <= 3 * 7
    assert {len(set(t.numbers)) for t in tried} == {2}
    assert {tuple(t.numbers) for t in result.chosen["adamw"].trials} == {("lr",)}
    first, chosen = tried[0].numbers["moment.momentum"], result.chosen["sgd"].numbers
    assert all(t.numbers["moment.momentum"] == first for t in tried[:7])
    assert min(t.loss for t in tried) <= next(t.loss for t in tried if {"lr": 1, **t.numbers} == chosen) * 1.01


def test_too_few_trials_and_limits_are_refused(tmp_path):
    for wrong in ({"trials": 3}, {"limit": 7}):
        with pytest.raises(ValueError, match="rates <= trials <= limit"):
            compare(["sgd"], "quadratic", out=tmp_path, **wrong)


def test_where_nothing_survives_the_default_is_kept(tmp_path):
    far = variants.get("sgd").replace(lr=1e30, name="far")
    result = compare(["sgd", far], "quadratic", seeds=2, tuning_seeds=1, steps=5, out=tmp_path)
    assert (result.summaries[1].tuned, result.summaries[1].on_edge) == (False, False)
    assert len(result.chosen["far"].trials) == 15
    assert "Every rate of far diverged in tuning" in str(result)

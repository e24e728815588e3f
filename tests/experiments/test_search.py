"""Searches: equal budgets, ranges, and what they tell, against enumeration."""

import itertools
import math

import numpy as np
import pytest

import variants
from sandbox.blocks import AbsoluteFloor, Decoupled, SoftAbsolute
from sandbox.experiments.compare import compare
from sandbox.experiments.runs.methods import method
from sandbox.experiments.selection import search
from sandbox.experiments.selection.axes import Axis, Trial
from sandbox.experiments.selection.search import Tuner, expected_best, flatness


def trials(losses, rates=None):
    rates = [10.0**k for k in range(len(losses))] if rates is None else rates
    return [Trial({"lr": lr}, (loss,)) for lr, loss in zip(rates, losses, strict=True)]


def test_expected_best_by_enumeration():
    """Over all subsets of each size; a diverged trial counts as the worst of the others."""
    losses = [0.5, math.inf, 0.1, 0.9, 0.3]
    found = expected_best(trials(losses))
    shown = [0.9 if math.isinf(loss) else loss for loss in losses]
    for k in range(1, 6):
        assert found[k - 1] == pytest.approx(np.mean([min(some) for some in itertools.combinations(shown, k)]))
    assert expected_best(trials([math.inf] * 3)) == []


def test_flatness_in_decades():
    """Between 1 and 10 the loss stays; from there it crosses 1.01 after a tenth of the next decade."""
    assert flatness(trials([2.0, 1.0, 1.0, 1.1])) == pytest.approx(0.01 + 1 + 0.1)
    assert flatness(trials([math.inf, 1.0, math.inf])) == 0
    assert flatness([Trial({"lr": 1.0, "x": 1.0}, (0.1,))]) is None
    assert flatness(trials([math.inf, math.inf])) is None


def test_a_grid_uses_its_budget_in_equal_parts():
    axes = {"lr": Axis(1e-3, 1e-1, log=True), "moment.beta": Axis(0.0, 0.8)}
    tuner = Tuner(axes, "grid", 10, 0)
    asked = tuner.ask()
    assert [tuple(a.values()) for a in asked] == [(lr, b) for lr in (1e-3, 1e-2, 1e-1) for b in (0.0, 0.4, 0.8)]
    assert tuner.ask() == []
    with pytest.raises(ValueError, match="needs more trials than 3"):
        Tuner(axes, "grid", 3, 0).ask()


def test_axes():
    apollo, sgd = method("apollo"), method("sgd")
    space = {
        "lr": (0.1, 10, "log", "relative"),
        "rectifier.sigma": (1e-3, 1, "log"),
        "rectifier": [AbsoluteFloor(), SoftAbsolute()],
    }
    found = search.axes_of(space, apollo)
    assert (found["lr"].low, found["lr"].high) == pytest.approx((0.001, 0.1))
    assert set(search.axes_of(space, sgd)) == {"lr", "rectifier"}
    assert found["lr"].on_edge(0.0011)
    assert not found["lr"].on_edge(0.01)
    for wrong in ((1,), (2, 1), (0, 1, "log"), [1], (1, 2, "lg")):
        with pytest.raises((ValueError, TypeError), match="search: 'lr' must be"):
            search.axes_of({"lr": wrong}, apollo)
    assert search.parse_range("lr=1e-4:1:log") == ("lr", (1e-4, 1.0, "log"))
    assert search.parse_range("lr") == ("lr", None)
    widened = search.axes_of({"lr": None, "rectifier.sigma": None}, apollo)
    assert [(a.start, a.low, a.high, a.log) for a in widened.values()] == [(0.01, 0, math.inf, True)] * 2
    with pytest.raises(ValueError, match=r"'decay\.weight_decay' of sgd.* is 0\.0, no number above 0"):
        search.axes_of({"decay.weight_decay": None}, method(variants.get("sgd").replace(decay=Decoupled(weight_decay=0.0))))
    for wrong in ("", "lr=1", "=1:2", "lr=1:2:lg"):
        with pytest.raises(ValueError, match="write --search"):
            search.parse_range(wrong)


SPACE = {"lr": (1e-4, 1, "log"), "rectifier.sigma": (1e-3, 1, "log"), "rectifier": [AbsoluteFloor(), SoftAbsolute()]}


@pytest.mark.parametrize("tuner", ["grid", "random", pytest.param("tpe", marks=pytest.mark.slow)])
def test_every_variant_has_the_same_budget(tuner, tmp_path):
    if tuner != "grid":
        pytest.importorskip("optuna")
    options = dict(seeds=2, tuning_seeds=1, steps=6, evaluations=2, search=SPACE, tuner=tuner, trials=12)
    result = compare(["apollo", "adamw"], "quadratic", out=tmp_path, **options)
    tried = {name: chosen.trials for name, chosen in result.chosen.items()}
    assert len(tried["apollo"]) == (8 if tuner == "grid" else 12)  # 2 blocks × 2² values are the most that fit
    assert len(tried["adamw"]) == 12
    best = min(tried["apollo"], key=lambda t: t.loss)
    assert result.chosen["apollo"].numbers == {"lr": 0.01, **best.numbers}
    final = result.runs.filter(result.runs["role"] == "final")
    assert set(final.filter(final["variant"] == "apollo")["lr"]) == {best.numbers["lr"]}
    again = compare(["apollo", "adamw"], "quadratic", out=tmp_path / "again", **options)
    assert {n: c.trials for n, c in again.chosen.items()} == tried


def test_a_diverged_trial_is_the_worst_and_never_lost(tmp_path):
    pytest.importorskip("optuna")
    options = dict(seeds=2, tuning_seeds=1, steps=20, search={"lr": (1e-2, 1e6, "log")}, tuner="tpe", trials=14)
    result = compare(["sgd"], "quadratic", out=tmp_path, **options)
    found = result.chosen["sgd"].trials
    assert len(found) == 14
    assert any(math.isinf(t.loss) for t in found)
    assert math.isfinite(result.summaries[0].train_loss)


def test_bad_input(tmp_path):
    with pytest.raises(ValueError, match=r"did you mean 'rectifier\.sigma'"):
        compare(["apollo"], "quadratic", search={"rectifier.sigm": (1, 2)}, out=tmp_path)
    with pytest.raises(ValueError, match="did you mean 'random'"):
        compare(["apollo"], "quadratic", search={"lr": (1, 2)}, tuner="randm", out=tmp_path)
    with pytest.raises(ValueError, match="tuner='random' needs a range for 'lr', got None"):
        compare(["apollo"], "quadratic", search={"lr": None}, tuner="random", out=tmp_path)
    with pytest.raises(ValueError, match="needs search="):
        compare(["apollo"], "quadratic", tuner="tpe", out=tmp_path)

"""Time to a target, performance profiles, and AlgoPerf's scores from its published times."""

import json
import math
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from scipy import stats

from sandbox.cli import main
from sandbox.experiments.compare import compare
from sandbox.experiments.selection import targets

DATA = Path(__file__).parent / "data"
HELD_OUT = {
    "criteo1tb_embed_init": "criteo1tb", "fastmri_tanh": "fastmri", "imagenet_resnet_large_bn_init": "imagenet_resnet",
    "librispeech_conformer_layernorm": "librispeech_conformer", "ogbg_model_size": "ogbg", "wmt_glu_tanh": "wmt",
}  # fmt: skip
# mlcommons/submissions_algorithms, leaderboard of version 0.5
PUBLISHED = {
    "external_tuning": {
        "shampoo_submission": 0.7784, "schedule_free_adamw": 0.7077, "generalized_adam": 0.6383, "cyclic_lr": 0.6301,
        "nadamp": 0.5909, "baseline": 0.5707, "amos": 0.4918, "caspr_adaptive": 0.4722, "lawa_queue": 0.3699,
        "lawa_ema": 0.3384, "schedule_free_prodigy": 0.0,
    },
    "self_tuning": {
        "schedule_free_adamw": 0.8542, "baseline": 0.8194, "nadamw_sequential": 0.3308, "sinv6_75": 0.1420, "sinv6": 0.0903,
        "adamg": 0.0,
    },
}  # fmt: skip


@pytest.mark.parametrize("rule", PUBLISHED)
def test_the_published_scores_of_algoperf(rule):
    """All seventeen, to their four digits, from the times alone."""
    raw = json.loads((DATA / f"v05_{rule}.json").read_text())
    times = {s: {w: math.nan if t is None else float(t) for w, t in row.items()} for s, row in raw.items()}
    found = {name: round(value, 4) for name, value in targets.algoperf_scores(times, HELD_OUT).items()}
    assert found == PUBLISHED[rule]


def test_a_profile_by_hand():
    times = {"a": {"x": 1.0, "y": 4.0, "z": math.inf}, "b": {"x": 2.0, "y": 2.0, "z": 8.0}}
    assert targets.profile(times, [1, 1.9, 2, 4]) == {"a": [1 / 3, 1 / 3, 2 / 3, 2 / 3], "b": [2 / 3, 2 / 3, 1.0, 1.0]}
    # a: 1/3 up to τ = 2, then 2/3 up to 4; the grid of 3001 points misplaces each jump by half of .001 at most
    assert targets.score(times, 4.0, 3001)["a"] == pytest.approx((1 / 3 + 2 * 2 / 3) / 3, abs=2e-4)
    with pytest.raises(ValueError, match="each of the same tasks"):
        targets.profile({"a": {"x": 1.0}, "b": {"y": 1.0}}, [1.0])


def rows():
    """Five seeds of two variants, evaluated at 0, 10, 20, 30: one hits at 10, 10, 20, 30 and never, the other never but once."""
    hits = {"a": [10, 10, 20, 30, None], "b": [None, None, 30, None, None]}
    found = []
    for name, each in hits.items():
        for seed, hit in enumerate(each):
            for step in (0, 10, 20, 30):
                value = 0.95 if hit is not None and step >= hit else 0.5
                found.append(
                    {"variant": name, "role": "final", "seed": seed, "steps": 30, "step": step, "validation_metric": value}
                )
    return pl.DataFrame(found)


def test_censored_runs_by_hand():
    a, b = targets.reach(rows(), ["a", "b"], "validation_metric", 0.95, higher=True)
    assert a.times == (10, 10, 20, 30, math.inf)
    assert (a.share, a.median, a.restricted_mean, a.difference) == (0.8, 20, 20.0, None)
    assert a.interval == pytest.approx((stats.beta.ppf(0.025, 4, 2), stats.beta.ppf(0.975, 5, 1)))
    assert (b.share, b.median, b.restricted_mean) == (0.2, math.inf, 30.0)
    d = np.array([20, 20, 10, 0, 0])
    assert b.difference.mean == 10
    assert (b.difference.low, b.difference.high) == pytest.approx(stats.t.interval(0.95, 4, 10, d.std(ddof=1) / math.sqrt(5)))
    low = targets.reach(rows(), ["a"], "validation_metric", 0.5, higher=False)[0]
    assert low.times == (0,) * 5
    for wrong, says in (((math.nan, "validation_metric"), "target must be"), ((0.5, "loss"), "column must be")):
        with pytest.raises(ValueError, match=says):
            targets.reach(rows(), ["a"], wrong[1], wrong[0], higher=True)


def test_of_a_comparison(tmp_path, capsys):
    slow = compare(["sgd", "adamw"], "logistic-breast-cancer", seeds=3, rates=1, steps=40, evaluations=8, out=tmp_path)
    table = slow.to_target(0.9)
    assert "accuracy ≥ 0.9" in str(table)
    sgd = slow.runs.filter((pl.col("variant") == "sgd") & (pl.col("validation_metric") >= 0.9))
    expected = sgd.group_by("seed").agg(pl.col("step").min()).sort("seed")["step"].to_list()
    assert list(table.rows[0].times) == expected
    assert "validation_loss ≤ 1e-09" in str(slow.to_target(1e-9, "validation_loss"))
    with pytest.raises(ValueError, match="higher must say whether higher values of 'gradients'"):
        slow.to_target(10, "gradients")
    assert slow.to_target(10, "gradients", higher=True).rows[0].times == (10.0,) * 3
    assert main(["report", str(tmp_path), "--target", "0.9"]) == 0
    assert "accuracy ≥ 0.9" in capsys.readouterr().out
    assert "not by half" in str(slow.to_target(1e-9, "validation_loss"))

"""Runs that are made together, in a vectorised grid or in processes, are the runs alone; their probes too."""

import json

import numpy as np
import polars as pl
import pytest
import torch

import variants
from sandbox import tasks
from sandbox.blocks import Number, Rectifier, block, number
from sandbox.experiments.compare import compare
from tests.experiments.plans import SMALL


def test_two_processes_give_the_same_numbers(tmp_path):
    one = compare(["apollo", "sgd"], "digits-mlp", out=tmp_path / "one", **SMALL)
    two = compare(["apollo", "sgd"], "digits-mlp", out=tmp_path / "two", jobs=2, **SMALL)
    for a, b in zip(one.summaries, two.summaries, strict=True):
        assert (a.lr, a.train_loss, a.test_metric, a.floor_occupancy) == (b.lr, b.train_loss, b.test_metric, b.floor_occupancy)


def test_probes_have_the_same_rows_together_and_alone(tmp_path):
    """At every step, from the first on; a value that is NaN is a row, a step at which nothing can be said is none."""

    def nothing_over_nothing(v):
        return (v.theta - v.theta).norm() / 0.0

    options = {**SMALL, "rates": 1, "probes": ["path_length", "floor_occupancy", nothing_over_nothing], "every": 1}
    keys = ["variant", "seed", "probe", "step"]
    frames = []
    for vectorised in (True, False):
        options["vectorised"] = vectorised
        found = compare(
            ["apollo", "sgd"], tasks.get("quadratic", dtype=torch.float64), out=tmp_path / str(vectorised), **options
        )
        frames.append(found.probes.sort(keys))
    assert frames[0].select(keys).equals(frames[1].select(keys))
    assert frames[0].filter(pl.col("probe") == "path_length")["step"].min() == 2
    assert len(frames[0].filter(pl.col("value").is_nan())) == 2 * 2 * 20
    np.testing.assert_allclose(*(f["value"] for f in frames), rtol=1e-9, atol=1e-12)


def test_runs_made_together_are_the_runs_alone(tmp_path):
    """Vectorised or not: the same rates chosen, the same rows (float64; 1e-9: other kernels, 20 steps), divergence included."""
    wild = variants.get("sgd").replace(lr=1e4, name="wild")
    decays = variants.get("apollow").replace(lr=5000.0, name="decays")  # rates that its decay does not allow
    names = ["apollo", "adahessian", "sm3", wild, decays]
    task = tasks.get("logistic-breast-cancer", dtype=torch.float64)
    found = [compare(names, task, out=tmp_path / str(v), **{**SMALL, "vectorised": v}) for v in (True, False)]
    keys = ["variant", "role", "lr", "seed", "step"]
    frames = [r.runs.sort(keys) for r in found]
    assert set(frames[0]["way"]) == {"vmap"}
    assert set(frames[1]["way"]) == {"eager"}
    assert frames[0].select(keys).equals(frames[1].select(keys))
    assert frames[0]["diverged"].to_list() == frames[1]["diverged"].to_list()
    assert frames[0]["diverged"].any()
    for name in (
        "train_loss",
        "validation_loss",
        "validation_metric",
        "floor_occupancy",
        "test_loss",
        "test_metric",
        "state_words",
    ):
        a, b = (f[name].cast(pl.Float64).to_numpy() for f in frames)
        np.testing.assert_allclose(a, b, rtol=1e-9, err_msg=name)
    assert [s.lr for s in found[0].summaries] == [s.lr for s in found[1].summaries]
    assert "made together" in str(found[0])
    assert "made together" not in str(found[1])
    # what is there is not made again, and a seed more is made for all
    more = compare(names, task, out=tmp_path / "True", **{**SMALL, "vectorised": True, "seeds": 3})
    tuning = [r.runs.filter(pl.col("role") == "tuning")["run"].to_list() for r in (found[0], more)]
    assert tuning[0] == tuning[1]  # the final runs have other company, on which rounding depends


@pytest.mark.filterwarnings("ignore:recipe 'stubborn' has no graph")
def test_a_recipe_that_cannot_be_batched_runs_alone(tmp_path):
    from tests.experiments.test_ensemble import Stubborn

    stubborn = variants.get("apollo").replace(rectifier=Stubborn(), name="stubborn")
    result = compare(["apollo", stubborn], "quadratic", out=tmp_path, **{**SMALL, "vectorised": True})
    backends = result.runs.group_by("variant").agg(pl.col("way").unique().first())
    assert dict(backends.rows()) == {"apollo": "vmap", "stubborn": "eager"}
    ends = [
        result.runs.filter((pl.col("variant") == n) & (pl.col("role") == "final"))["train_loss"] for n in ("apollo", "stubborn")
    ]
    np.testing.assert_allclose(ends[0], ends[1], rtol=1e-4)  # float32


@pytest.mark.parametrize("vectorised", [True, False])
def test_probes_of_a_comparison(tmp_path, vectorised):
    def step_length(v):
        return (v.theta_new - v.theta).norm()

    options = {**SMALL, "vectorised": vectorised, "probes": ["floor_occupancy", "condition_failures", step_length], "every": 5}
    result = compare(["apollo", "sgd"], "quadratic", out=tmp_path, **options)
    seen = result.probes
    assert set(seen["probe"]) == {"floor_occupancy", "condition_failures", "step_length"}
    assert set(seen.filter(pl.col("variant") == "sgd")["probe"]) == {"condition_failures", "step_length"}
    assert sorted(set(seen["step"])) == [5, 10, 15, 20]
    assert set(seen["run"]) == set(result.runs["run"])
    # the state's own account of the floor at the end of a run
    last = result.runs.filter((pl.col("variant") == "apollo") & (pl.col("step") == 20)).drop_nulls("floor_occupancy")
    mine = seen.filter((pl.col("probe") == "floor_occupancy") & (pl.col("step") == 20)).select("run", "value")
    both = last.join(mine, on="run")
    assert len(both) == len(last) >= 3
    np.testing.assert_allclose(both["value"], both["floor_occupancy"], atol=1e-7)
    written = pl.read_parquet(tmp_path / "probes.parquet")
    assert len(written) == len(seen)
    again = compare(["apollo", "sgd"], "quadratic", out=tmp_path, **options)
    assert len(again.probes) == len(seen)
    # a run that diverges is seen as long as it lives
    wild = variants.get("sgd").replace(lr=1e30, name="wild")
    short = {**options, "every": 1, "rates": 1, "probes": ["direction_norm"]}
    result = compare([wild], tasks.get("quadratic", dtype=torch.float64), out=tmp_path / "wild", **short)
    assert result.summaries[0].diverged == 2
    assert not result.probes["value"].is_nan().any()
    steps = result.probes.group_by("seed").agg(pl.col("step").max())["step"]
    assert all(2 <= step < 20 for step in steps)


def test_a_block_without_an_import_path(tmp_path):
    """As a script or a notebook defines them; there is no TOML for it, and the manifest holds the algorithm."""

    @block
    class Doubled(Rectifier):
        """D = 2 |B| + σ"""

        sigma: Number = number(default=0.01, range="(0, inf)")

        def read(self, B):
            return 2 * B.abs() + self.sigma

    mine = variants.get("apollo").replace(rectifier=Doubled(), name="mine")
    result = compare([mine, mine.replace(**{"rectifier.sigma": 0.5}, name="other")], "quadratic", out=tmp_path, **SMALL)
    ends = [s.train_loss for s in result.summaries]
    assert ends[0] != ends[1]
    assert "D = 2 |B| + σ" in json.loads((tmp_path / "manifest.json").read_text())["recipes"]["mine"]

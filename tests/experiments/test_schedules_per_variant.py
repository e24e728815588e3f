"""Schedules per variant: by name, by import path, by mapping; and recipes that keep a constant rate."""

import json
import math

import polars as pl
import pytest
import torch

import sandbox
import variants
from sandbox import schedules
from sandbox.experiments.compare import compare
from sandbox.experiments.selection.plan import plan
from sandbox.experiments.settings import ComparisonSettings


def halved(optimizer, steps):
    """Half the rate from the start."""
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: 0.5)


def planned(recipes, **settings):
    return plan(recipes, "softmax-digits", ComparisonSettings(steps=20, vectorised=False, **settings))


def test_stable_then_decay_by_hand():
    """20 updates: 16 at the full rate, then 1 - x and 1 - √x for x = 0, ¼, ½, ¾."""
    assert schedules.factors(20, 0, "wsd") == pytest.approx([1.0] * 17 + [0.75, 0.5, 0.25])
    assert schedules.factors(20, 0, "wsd-sqrt") == pytest.approx([1.0] * 17 + [1 - math.sqrt(k / 4) for k in (1, 2, 3)])
    assert schedules.factors(3, 0, "wsd") == [1.0] * 3  # too short for a fifth
    assert schedules.factors(20, 10, "wsd")[10:] == pytest.approx([1.0] * 9 + [0.5])


def test_who_keeps_a_constant_rate():
    moving = variants.get("sgd").replace(lr=lambda t: 0.1 / t, name="moving")
    found = planned(["adamw", "schedule-free-adamw", moving], schedule="cosine", warmup=5)
    runs = {m.name: found.final(m, {"lr": m.lr})[0] for m in found.methods}
    assert {name: run.schedule for name, run in runs.items()} == {
        "adamw": "cosine", "schedule-free-adamw": "constant", "moving": "constant",
    }  # fmt: skip
    assert {name: run.warmup for name, run in runs.items()} == {"adamw": 5, "schedule-free-adamw": 5, "moving": 0}
    assert found.schedules == "cosine, schedule-free-adamw: constant, moving: its own rate without warm-up"


def test_a_schedule_per_variant_and_by_import_path(tmp_path):
    path = "tests.experiments.test_schedules_per_variant:halved"
    found = planned(["adamw", "sgd", "lion"], schedule={"adamw": "wsd", "sgd": path})
    assert [found.schedule(m) for m in found.methods] == ["wsd", halved, "constant"]
    assert found.schedules == "wsd, sgd: halved, lion: constant"
    for wrong, said in (({"adam": "wsd"}, "did you mean 'adamw'"), ({"sgd": "wsdd"}, "did you mean 'wsd'"), ("no:thing", "no")):
        with pytest.raises(ValueError, match=said):
            planned(["adamw", "sgd"], schedule=wrong)

    half = variants.get("sgd").replace(lr=0.05, name="half")
    options = dict(seeds=2, rates=1, warmup=0, steps=10, evaluations=2, vectorised=False, out=tmp_path)
    rows = compare(["sgd", half], "softmax-digits", schedule={"sgd": path}, **options).runs.sort("variant", "seed", "step")
    losses = [rows.filter(pl.col("variant") == name)["train_loss"].to_list() for name in ("sgd", "half")]
    assert losses[0] == losses[1]  # .1 halved is .05
    assert json.loads((tmp_path / "manifest.json").read_text())["schedule"] == "halved, half: constant"
    assert "then halved, half: constant" in str(sandbox.load(tmp_path))

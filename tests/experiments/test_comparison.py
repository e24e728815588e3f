"""The main job: fair, resumable, robust to divergence; also with blocks from outside the package."""

import itertools
import json
import math
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import polars as pl
import pytest
import torch

import sandbox
import variants
from sandbox import tasks
from sandbox.experiments.compare import compare
from sandbox.experiments.runs import batch, training
from sandbox.experiments.runs.store import Store
from sandbox.forms import toml
from tests.experiments.plans import SMALL
from tests.outside_blocks import Halfway, MeanAbsolute


def test_compare_is_what_it_says(tmp_path):
    """Every number of the summary is recomputed by hand from separate runs."""
    result = compare(
        ["adamw", "sgd"], "logistic-breast-cancer", seeds=3, tuning_seeds=2, rates=3, tuner="grid", steps=30, out=tmp_path
    )
    task = tasks.get("logistic-breast-cancer")
    ends = {}
    for summary in result.summaries:
        recipe = variants.get(summary.name)
        grid = result.plan.grid(recipe)
        assert grid == pytest.approx([recipe.lr * 10**e for e in (-0.5, 0, 0.5)], rel=1e-5)

        def by_hand(lr, seed, recipe=recipe):
            params = {k: v.clone().requires_grad_() for k, v in task.init(seed).items()}
            optimizer = sandbox.Optimizer(params.items(), recipe, lr=lr)
            schedule, batches = sandbox.schedules.warmup(optimizer, 3), task.batches(seed)
            for _ in range(30):
                optimizer.zero_grad()
                task.loss(params, next(batches)).backward()
                optimizer.step()
                schedule.step()
            return [task.evaluate(params, split) for split in ("train", "validation", "test")]

        with training.threads():
            validation = {lr: np.mean([by_hand(lr, seed)[1][0] for seed in (10_000, 10_001)]) for lr in grid}
            finals = [by_hand(summary.lr, seed) for seed in range(3)]
        assert summary.lr == min(validation, key=validation.get)
        assert summary.on_edge == (summary.lr in (grid[0], grid[-1]))
        assert summary.train_loss == pytest.approx(np.mean([f[0][0] for f in finals]), rel=1e-6)
        assert summary.test_metric == pytest.approx(np.mean([f[2][1] for f in finals]), rel=1e-6)
        ends[summary.name] = finals
    difference = np.mean([b[0][0] - a[0][0] for a, b in zip(ends["adamw"], ends["sgd"], strict=True)])
    assert result.summaries[1].train_difference.mean == pytest.approx(difference, rel=1e-5)
    assert result.summaries[0].train_difference is None
    # the test split was looked at once a final run, at its end, and never in tuning
    scored = result.runs.filter(pl.col("test_metric").is_not_null())
    assert set(scored["role"]) == {"final"}
    assert set(scored["step"]) == {30}
    assert len(scored) == 6


@pytest.mark.usefixtures("drawn")
def test_files_and_resuming(tmp_path, monkeypatch):
    done = []
    original = batch.train
    monkeypatch.setattr(batch, "train", lambda *a: done.append(a[2]) or original(*a))
    first = compare(["apollo", "sgd"], "quadratic", out=tmp_path, **SMALL)
    assert len(done) == 2 * (3 + 2)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert toml.loads(manifest["recipes"]["apollo"]) == variants.get("apollo")
    assert manifest["seeds"] == {"final": [0, 1], "tuning": [10_000]}
    assert manifest["chosen"]["sgd"]["numbers"]["lr"] == first.summaries[1].lr
    assert {"torch", "numpy"} <= set(manifest["environment"]["versions"])
    assert manifest["environment"]["machine"]["processor"]
    assert os.sep not in manifest["environment"]["command"][0]
    for name in ("curves.png", "rates.png"):
        assert (tmp_path / name).read_bytes()[:4] == b"\x89PNG"
    assert "| apollo |" in (tmp_path / "table.md").read_text()
    again = compare(["apollo", "sgd"], "quadratic", out=tmp_path, **SMALL)
    assert len(done) == 10
    assert str(again) == str(first)
    compare(["apollo", "sgd", "adam"], "quadratic", out=tmp_path, **{**SMALL, "seeds": 3})
    assert len(done) == 10 + 5 + 3  # adam is new, the others get one seed more
    assert not list(tmp_path.glob(".*tmp"))
    frame = pl.read_parquet(tmp_path / "results.parquet")
    assert frame.group_by("role").agg((pl.len() / pl.col("run").n_unique()).alias("rows")).sort("role")["rows"].to_list() == [
        5,
        2,
    ]


def test_an_interrupted_run_loses_only_itself(tmp_path, monkeypatch):
    original, done = batch.train, []

    def interrupted(*arguments):
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(arguments)
        return original(*arguments)

    monkeypatch.setattr(batch, "train", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compare(["apollo", "sgd"], "quadratic", out=tmp_path, **SMALL)
    assert pl.read_parquet(tmp_path / "results.parquet")["run"].n_unique() == 3
    monkeypatch.setattr(batch, "train", lambda *a: done.append(a) or original(*a))
    compare(["apollo", "sgd"], "quadratic", out=tmp_path, **SMALL)
    assert len(done) == 10


def test_a_block_from_outside_goes_everywhere(tmp_path):
    """Ten lines outside the package: through Optimizer, TOML, text and compare."""
    recipe = variants.get("apollo").replace(rectifier=Halfway(sigma=0.02), name="outside")
    assert "D = |B| + σ" in str(recipe)
    other = recipe.replace(curvature=MeanAbsolute(), name="outside-curvature")
    file = tmp_path / "outside.toml"
    file.write_text(toml.dumps(recipe))
    model = torch.nn.Linear(3, 2)
    optimizer = sandbox.Optimizer(model.parameters(), str(file), lr=0.1)
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    m = optimizer.state[model.weight]["moment.m"]
    assert torch.equal(m, torch.ones(2, 3))
    result = compare([str(file), other], "quadratic", out=tmp_path / "results", **SMALL)
    assert [s.name for s in result.summaries] == ["outside", "outside-curvature"]
    assert all(math.isfinite(s.train_loss) for s in result.summaries)


def test_few_seeds_are_exploratory_and_edges_are_flagged(tmp_path):
    slow = variants.get("adamw").replace(lr=1e-6, name="slow")
    result = compare(["adamw", slow], "logistic-breast-cancer", out=tmp_path, **SMALL)
    assert result.exploratory
    assert "Exploratory: 2 seeds are too few" in str(result)
    assert result.summaries[1].on_edge
    assert "lie on the edge of what was tried" in str(result)
    assert "(edge)" in result._repr_markdown_()


WAITS = """
import multiprocessing, os
from sandbox.recipe import Recipe
from sandbox.blocks import EMA

def never(t):
    if multiprocessing.parent_process():
        os.open(os.environ["NOBODY_WRITES"], os.O_RDONLY)  # blocks for ever
    return 0.9

def recipe():
    return Recipe(name="waits", moment=EMA(beta=never, bias_correction=False))
"""


def test_ctrl_c_in_a_terminal(tmp_path):
    """SIGINT to the command and its workers, one of which is at work and never ends: exit code 130, finished runs are kept."""
    (tmp_path / "waiting.py").write_text(WAITS)
    os.mkfifo(tmp_path / "fifo")
    small = ["--task", "quadratic", "--steps", "20", "--rates", "1", "--seeds", "2", "--jobs", "2", "--out", "out"]
    process = subprocess.Popen(
        [sys.executable, "-m", "sandbox", "compare", "sgd", "waiting:recipe", *small],
        cwd=tmp_path,
        env={**os.environ, "NOBODY_WRITES": str(tmp_path / "fifo")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        text=True,
    )
    guard = threading.Timer(900, process.kill)  # a command that does not hear the interrupt fails the test; it does not hang
    guard.start()
    said = list(itertools.takewhile(lambda line: "2 of 4 runs" not in line, process.stderr))  # both of sgd's
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate()
    guard.cancel()
    assert process.returncode == 130, [*said, err]
    assert "Interrupted. Finished runs are kept in out/" in out
    assert "Traceback" not in err
    assert len([*(tmp_path / "out/runs").glob("*.json")]) == 2


def test_a_run_is_kept_once(tmp_path):
    """By whoever was first; a run's file that cannot be read is named, and the run made again."""
    one, two = Store(tmp_path), Store(tmp_path)
    one.add("a", {}, [{"step": 1}], [])
    two.add("b", {}, [{"step": 1}], [])
    one.add("b", {}, [{"step": 2}], [])
    assert [Store(tmp_path).get(k)["rows"] for k in "ab"] == [[{"step": 1}]] * 2
    assert Store(tmp_path).missing("abc") == {"c"}
    (tmp_path / "runs" / "a.json").write_text('{"run": "a", "rows": [')
    other = Store(tmp_path)
    assert other.missing("ab") == {"a"}
    assert [path.name for path in other.unreadable] == ["a.json"]
    other.add("a", {}, [{"step": 3}], [])
    assert Store(tmp_path).get("a")["rows"] == [{"step": 3}]


def test_another_option_of_a_task_is_another_run(tmp_path):
    sgd = variants.get("sgd").replace(lr=0.01, name="sgd")
    same = {**SMALL, "rates": 1, "out": tmp_path}
    calm = compare([sgd], tasks.get("quadratic", noise=0.0), **same).summaries[0].train_loss
    wild = compare([sgd], tasks.get("quadratic", noise=5.0), **same).summaries[0].train_loss
    assert wild > 2 * calm

"""Sweeps: the grid is the ensemble's, on disk and in the picture; Theorem 1's diagonals are there."""

import itertools
import json

import numpy as np
import polars as pl
import pytest
import torch
from matplotlib.figure import Figure

import sandbox
import variants
from sandbox import cli, ensemble, tasks
from sandbox.experiments.sweep import MEASURES, parse_values, sweep


def test_values():
    assert parse_values("rectifier.sigma=0.1,1,10") == ("rectifier.sigma", [0.1, 1.0, 10.0])
    assert parse_values("lr=1e-4:1:5:log")[1] == pytest.approx([1e-4, 1e-3, 1e-2, 1e-1, 1])
    assert parse_values("moment.beta=0:0.9:4:linear")[1] == pytest.approx([0, 0.3, 0.6, 0.9])
    for wrong in ("lr", "lr=", "=1:2:3", "lr=1:2", "lr=a,b", "lr=1:2:3:lin", "lr=0:1:5:log", "lr=1", "lr=1,1", "lr=0,inf"):
        with pytest.raises(ValueError, match=r"vary|logarithmic"):
            parse_values(wrong)


def test_a_sweep_is_its_single_runs_and_goes_on_where_it_was(tmp_path, monkeypatch):
    """Three numbers, two seeds, in float64 against the optimizer; then interrupted after the first block and resumed."""
    task = tasks.get("ridge-diabetes", dtype=torch.float64)
    vary = {"lr": [0.01, 0.1], "rectifier.sigma": [0.5, 1.0, 2.0], "moment.beta": [0.0, 0.9]}
    monkeypatch.setattr("sandbox.experiments.sweep.BLOCK", 8)
    original, calls = ensemble.run, []

    def interrupted(*a, **k):
        if len(calls) == 1:
            raise KeyboardInterrupt
        calls.append(a)
        return original(*a, **k)

    options = dict(seeds=2, steps=15, out=tmp_path)
    monkeypatch.setattr(ensemble, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sweep("apollo", task, vary, **options)
    assert len(pl.read_parquet(tmp_path / "sweep.parquet")) == 8
    monkeypatch.setattr(ensemble, "run", lambda *a, **k: calls.append(a) or original(*a, **k))
    found = sweep("apollo", task, vary, **options)
    assert len(calls) == 1 + 2
    assert len(found.frame) == 24
    sweep("apollo", task, vary, **options)
    assert len(calls) == 3  # nothing was left to do
    sweep("apollo", task, vary, **{**options, "steps": 16, "out": tmp_path / "longer"})
    assert len(calls) == 3 + 3  # other settings, other members
    for row in found.frame.iter_rows(named=True):
        numbers = {name: row[name] for name in vary if name != "lr"}
        params = {n: p.clone().requires_grad_() for n, p in task.init(row["seed"]).items()}
        optimizer = sandbox.Optimizer(params.items(), variants.get("apollo").replace(**numbers), lr=row["lr"])
        batches = task.batches(row["seed"])
        for _ in range(15):
            optimizer.zero_grad()
            task.loss(params, next(batches)).backward()
            optimizer.step()
        assert row["train_loss"] == pytest.approx(task.evaluate(params, "train")[0], rel=1e-9)
    grid = found.grid()
    assert grid.shape == (2, 3, 2)
    some = found.frame.filter((pl.col("lr") == 0.1) & (pl.col("rectifier.sigma") == 2.0) & (pl.col("moment.beta") == 0.9))
    assert grid[1, 2, 1] == pytest.approx(np.median(some["train_loss"]))
    best = found.best()
    assert best["train_loss"] == grid.min()
    with pytest.raises(ValueError, match="one or two"):
        found.plot()


def test_theorem_1s_diagonals():
    """ε = 0: the loss after 100 steps depends on η/σ alone (paper, Theorem 1); 1e-10: members in other lanes."""
    powers = [2.0**k for k in range(-6, 1)]
    base = variants.get("apollo").replace(**{"curvature.eps": 0.0}, name="apollo-0")
    found = sweep(
        base, tasks.get("logistic-breast-cancer", dtype=torch.float64), {"lr": powers, "rectifier.sigma": powers}, steps=100
    )
    values = found.grid()
    for k in range(-6, 7):
        diagonal = np.diagonal(values, k)
        assert np.ptp(diagonal) <= 1e-10 * diagonal.min()
    across = sorted(float(np.diagonal(values, k)[0]) for k in range(-6, 7))
    assert min(b / a for a, b in itertools.pairwise(across)) > 1.001


def test_the_command(tmp_path, capsys):
    command = ["sweep", "sgd", "--task", "quadratic", "--steps", "20", "--out", str(tmp_path)]
    assert cli.main([*command, "--vary", "lr=1e-3:1e3:9:log"]) == 0
    said = capsys.readouterr().out
    assert "train_loss" in said
    assert "sweep.png" in said
    assert (tmp_path / "sweep.png").read_bytes()[:4] == b"\x89PNG"
    frame = pl.read_parquet(tmp_path / "sweep.parquet")
    assert frame.columns == ["lr", "seed", *MEASURES, "diverged"]
    assert frame["diverged"].to_list()[0] == 0
    wild = sweep("sgd", "quadratic", {"lr": [0.01, 1e30]}, steps=20)
    assert np.isfinite(wild.grid()[0])
    assert np.isinf(wild.grid()[1])
    assert np.isnan(wild.grid("validation_metric")[1])
    assert wild.best()["lr"] == 0.01
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["vary"]["lr"][0] == pytest.approx(1e-3)
    assert cli.main([*command, "--vary", "lr=0.1,0.2", "--vary", "moment.momentum=0,0.5"]) == 2
    assert "vary: lr there, lr, moment.momentum here" in capsys.readouterr().err
    command[-1] = str(tmp_path / "two")
    assert cli.main([*command, "--vary", "moment.momentum=0,1.5"]) == 2
    assert "[0, 1" in capsys.readouterr().err
    assert cli.main([*command, "--vary", "lr=0.1,0.2", "--vary", "moment.momentum=0,0.5"]) == 0
    assert cli.main([*command, "--vary", "lr=0.1,0.2", "--vary", "moment.momentm=0,0.5"]) == 2
    assert "moment.momentum" in capsys.readouterr().err
    assert cli.main([*command, "--vary", "lr=0.1,0.2", "--vary", "lr=0,0.5"]) == 2


def test_a_picture_has_its_values_in_order():
    """Whatever order they were given in: the same mesh, the same curve."""
    rates, momenta = [0.03, 0.01, 0.1], [0.9, 0.0, 0.5, 0.7]
    pictures = []
    for order in (list, sorted):
        found = sweep("sgd", "quadratic", {"lr": order(rates), "moment.momentum": order(momenta)}, steps=5)
        axes = Figure().subplots()
        found.draw(axes)
        mesh = axes.collections[0]
        line = Figure().subplots()
        sweep("sgd", "quadratic", {"lr": order(rates)}, steps=5).draw(line)
        pictures.append([mesh.get_coordinates(), mesh.get_array().filled(np.nan), line.lines[0].get_xydata()])
    for given, sorted_ in zip(*pictures, strict=True):
        np.testing.assert_allclose(given, sorted_, rtol=1e-6)  # members in other lanes, float32
    assert found.vary["lr"] == sorted(rates)
    assert (np.diff(pictures[0][0][0, :, 0]) > 0).all()
    # a single value has a picture too, without contours
    sweep("sgd", "quadratic", {"lr": [0.1], "moment.momentum": momenta}, steps=5).plot()


def test_a_member_lost_by_its_last_step_has_diverged_there():
    """Its losses and gradients before the steps were all finite."""
    found = sweep("sgd", "quadratic", {"lr": [1e-2, 1e30]}, steps=1)
    assert found.frame["diverged"].to_list() == [0, 1]
    found = sweep("sgd", "quadratic", {"lr": [1e-2, 1e13, 1e30]}, steps=2)
    assert found.frame["diverged"].to_list() == [0, 2, 2]


def test_no_seeds(tmp_path, capsys):
    command = ["sweep", "sgd", "--task", "quadratic", "--vary", "lr=0.1,0.2", "--out", str(tmp_path), "--seeds"]
    for seeds in ("0", "-1"):
        assert cli.main([*command, seeds]) == 2
        assert f"seeds must be a whole number, at least 1, got {seeds}" in capsys.readouterr().err


def test_each_set_of_numbers_has_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = ["sweep", "sgd", "--task", "quadratic", "--steps", "2", "--vary", "lr=0.1,0.2"]
    assert cli.main(command) == 0
    assert cli.main([*command, "--vary", "moment.momentum=0,0.5"]) == 0
    names = sorted(path.name for path in (tmp_path / "results").iterdir())
    assert names == ["sweep-sgd-quadratic-lr", "sweep-sgd-quadratic-lr-moment.momentum"]


def test_finished_work_is_not_replaced(tmp_path, monkeypatch):
    """By a sweep of other settings, be it begun while this one ran; nor by a comparison, nor a comparison's by a sweep."""
    options = {"steps": 3, "out": tmp_path / "sweep"}
    sweep("sgd", "quadratic", {"lr": [0.01, 0.02]}, **options)
    written = (tmp_path / "sweep" / "sweep.parquet").read_bytes()
    for recipe, task, vary, change, words in [
        ("sgd", "quadratic", [0.01, 0.03], {}, "another vary"),
        ("sgd", "quadratic", [0.01, 0.02], {"steps": 4}, "steps: 3 there, 4 here"),
        ("sgd", "quadratic", [0.01, 0.02], {"seeds": 2, "warmup": 1}, "seeds: 1 there, 2 here; warmup: 0 there, 1 here"),
        ("adam", "rosenbrock", [0.01, 0.02], {}, "another recipe; task: quadratic there, rosenbrock here"),
    ]:
        with pytest.raises(ValueError, match=rf"holds a sweep of other settings \({words}.*\); choose another folder"):
            sweep(recipe, task, {"lr": vary}, **{**options, **change})
    small = dict(seeds=2, tuning_seeds=1, rates=1, steps=2)
    with pytest.raises(ValueError, match="holds results of sweep"):
        sandbox.compare(["sgd"], "quadratic", out=tmp_path / "sweep", **small)
    assert (tmp_path / "sweep" / "sweep.parquet").read_bytes() == written
    sweep("sgd", "quadratic", {"lr": [0.01, 0.02]}, **options)  # the manifest is still its own
    (tmp_path / "sweep" / "manifest.json").unlink()
    with pytest.raises(ValueError, match="no manifest"):
        sweep("sgd", "quadratic", {"lr": [0.01, 0.02]}, **options)
    sandbox.compare(["sgd"], "quadratic", out=tmp_path / "compare", **small)
    with pytest.raises(ValueError, match="holds results of compare"):
        sweep("sgd", "quadratic", {"lr": [0.01, 0.02]}, out=tmp_path / "compare")
    assert "grids" in json.loads((tmp_path / "compare" / "manifest.json").read_text())
    original = ensemble.run

    def overtaken(*a, **k):
        monkeypatch.setattr(ensemble, "run", original)
        sweep("sgd", "quadratic", {"lr": [0.5, 0.6]}, steps=3, out=tmp_path / "both")
        return original(*a, **k)

    monkeypatch.setattr(ensemble, "run", overtaken)
    with pytest.raises(ValueError, match="another vary"):
        sweep("sgd", "quadratic", {"lr": [0.01, 0.02]}, steps=3, out=tmp_path / "both")
    assert pl.read_parquet(tmp_path / "both" / "sweep.parquet")["lr"].to_list() == [0.5, 0.6]


def test_a_search_at_each_value_of_the_grid(tmp_path, monkeypatch):
    """The same members as sweeps of one rate each; the rate that is chosen lies between worse ones, as `compare` chooses it."""
    options = dict(steps=30, seeds=2)
    found = sweep("sgd", "quadratic", {"moment.momentum": [0.0, 0.9]}, search={"lr": None}, out=tmp_path, **options)
    calls, original = [], ensemble.run
    monkeypatch.setattr(ensemble, "run", lambda *a, **k: calls.append(a) or original(*a, **k))
    again = sweep("sgd", "quadratic", {"moment.momentum": [0.0, 0.9]}, search={"lr": None}, out=tmp_path, **options)
    assert not calls
    assert again.frame.equals(found.frame)
    for momentum, chosen, median in zip([0.0, 0.9], found.chosen, found.grid(), strict=True):
        rates = sorted(t.numbers["lr"] for t in chosen.trials)
        alone = sweep("sgd", "quadratic", {"lr": rates, "moment.momentum": [momentum]}, **options)
        losses = (
            alone.frame.group_by("lr", maintain_order=True).agg(pl.col("validation_loss").mean())["validation_loss"].to_list()
        )
        lost = alone.frame.group_by("lr", maintain_order=True).agg(pl.col("diverged").max())["diverged"].to_list()
        losses = [np.inf if gone else loss for loss, gone in zip(losses, lost, strict=True)]
        place = int(np.argmin(losses))
        assert chosen.numbers == {"lr": rates[place]}
        assert 0 < place < len(rates) - 1
        assert not chosen.on_edge
        assert median == pytest.approx(alone.grid()[place, 0], rel=1e-6)  # members in other lanes, float32
    assert found.best()["validation_loss"] == min(t.loss for each in found.chosen for t in each.trials)
    assert "0 of 2" in str(found)
    only = sweep("sgd", "quadratic", {}, search={"lr": (0.01, 0.02)}, **options)
    assert only.chosen[0].on_edge
    assert only.grid().shape == (len(only.axes["lr"]),)
    only.plot()
    for vary, search, says in (
        ({}, None, "vary must name"),
        ({"lr": [0.1]}, {"lr": None}, "both in vary and in search"),
        ({}, {"lr": [0.1, 0.2]}, "must be a range or None"),
        ({}, {"moment.momentm": None}, "moment.momentum"),
    ):
        with pytest.raises(ValueError, match=says):
            sweep("sgd", "quadratic", vary, search=search, **options)


def test_the_command_searches(tmp_path, capsys):
    command = ["sweep", "sgd", "--task", "quadratic", "--steps", "20", "--out", str(tmp_path)]
    assert cli.main([*command, "--vary", "moment.momentum=0,0.5", "--search", "lr", "--rates", "3"]) == 0
    assert "searches that ended on an edge" in capsys.readouterr().out
    assert len(pl.read_parquet(tmp_path / "sweep.parquet").filter("chosen")) == 2
    assert cli.main([*command]) == 2
    assert "name at least one number" in capsys.readouterr().err

"""Trackers: a run of theirs per run here, with the numbers of its rows; with each tracker's own package, where it is installed."""

import math

import polars as pl
import pytest

import sandbox
from sandbox.experiments import callbacks

OPTIONS = {"seeds": 2, "tuning_seeds": 1, "rates": 2, "tuner": "grid", "steps": 6, "evaluations": 3}


class Recorder(callbacks.Tracker):
    """Keeps what it is told."""

    def __init__(self, **options):
        super().__init__(**options)
        self.begun, self.logged, self.ended = {}, {}, {}

    def start(self, row, name, configuration):
        self.begun[row["run"]] = name, configuration
        return row["run"]

    def log(self, run, values, step):
        self.logged.setdefault(run, {})[step] = values

    def finish(self, run, diverged):
        self.ended[run] = diverged


def compare(tracker, out, recipes=("sgd", "adamw"), **more):
    return sandbox.compare(list(recipes), "quadratic", out=out, callbacks=[tracker], **OPTIONS | more)


def test_a_run_of_the_tracker_per_final_run(tmp_path):
    tracker = Recorder()
    result = compare(tracker, tmp_path)
    final = result.runs.filter(pl.col("role") == "final")
    assert set(tracker.begun) == set(tracker.logged) == set(tracker.ended) == set(final["run"])
    assert {name for name, _ in tracker.begun.values()} == {"sgd-0", "sgd-1", "adamw-0", "adamw-1"}
    for row in final.iter_rows(named=True):
        values = tracker.logged[row["run"]][row["step"]]
        assert values["train_loss"] == row["train_loss"]
        assert ("test_metric" in values) == (row["step"] == 6)
        assert tracker.begun[row["run"]][1]["lr"] == row["lr"]
    assert set(tracker.ended.values()) == {False}
    assert tracker.runs == {}


def test_tuning_on_request(tmp_path):
    tracker = Recorder(roles=("final", "tuning"))
    result = compare(tracker, tmp_path)
    assert set(tracker.begun) == set(result.runs["run"])


def test_a_run_that_diverges_and_one_that_is_interrupted(tmp_path):
    tracker = Recorder()
    compare(tracker, tmp_path, [sandbox.Recipe(name="far", lr=1e30), "sgd"], rates=1)
    assert sorted(tracker.ended.values()) == [False, False, True, True]
    assert all(math.isfinite(v) for row in tracker.logged.values() for values in row.values() for v in values.values())
    tracker({"role": "final", "run": "x", "variant": "v", "seed": 0, "step": 0, "train_loss": 1.0, "diverged": None})
    tracker.close()
    assert tracker.ended["x"] is None


@pytest.mark.parametrize(
    ("tracker", "hint"),
    [
        (callbacks.TensorBoard("logs"), r"TensorBoard needs a package: pip install 'apollo-sandbox\[tensorboard\]'"),
        (callbacks.WandB("p"), "WandB needs a package: pip install wandb"),
        (callbacks.MLflow("e"), "MLflow needs a package: pip install mlflow"),
        (callbacks.Trackio("p"), "Trackio needs a package: pip install trackio"),
    ],
)
def test_what_is_missing_says_how_to_install_it(tracker, hint, monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(callbacks.importlib, "import_module", missing)
    row = {"role": "final", "run": "x", "variant": "v", "seed": 0, "step": 0, "diverged": None}
    with pytest.raises(ModuleNotFoundError, match=hint):
        tracker(row)


@pytest.mark.slow
def test_mlflow(tmp_path):
    mlflow = pytest.importorskip("mlflow")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    result = compare(callbacks.MLflow("study", uri), tmp_path / "out")
    client = mlflow.MlflowClient(uri)
    runs = client.search_runs([client.get_experiment_by_name("study").experiment_id])
    assert {r.data.tags["variant"] for r in runs} == {"sgd", "adamw"}
    assert {r.info.status for r in runs} == {"FINISHED"}
    for run in runs:
        mine = result.runs.filter(pl.col("run") == run.data.tags["run"]).sort("step")
        history = client.get_metric_history(run.info.run_id, "train_loss")
        assert [(m.step, m.value) for m in history] == list(zip(mine["step"], mine["train_loss"], strict=True))


@pytest.mark.slow
def test_wandb(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    result = compare(callbacks.WandB("project", mode="offline", dir=str(tmp_path)), tmp_path / "out")
    folders = [path.name for path in (tmp_path / "wandb").glob("offline-run-*")]
    final = result.runs.filter(pl.col("role") == "final")["run"].unique()
    assert {name.rsplit("-", 1)[1] for name in folders} == set(final)


@pytest.mark.slow
def test_trackio(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    pytest.importorskip("trackio")
    compare(callbacks.Trackio("project"), tmp_path / "out")
    assert list((tmp_path / "trackio").glob("*.db"))

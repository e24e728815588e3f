"""A network with batch norm and dropout, and an LSTM, under recipes and torch's optimizers: equal in whatever way they are run."""

from concurrent.futures import ThreadPoolExecutor

import polars as pl
import pytest
import torch
from torch.nn import functional

import sandbox
from sandbox.experiments.compare import compare
from sandbox.experiments.selection import plan as comparison
from sandbox.experiments.settings import ComparisonSettings
from tests.experiments import networks

SMALL = dict(seeds=2, tuning_seeds=1, rates=2, tuner="grid", evaluations=3)
VARIANTS = ["torch.optim:AdamW", "torch.optim:Muon", "apollo"]
TASKS = {"net": networks.Net, "text": networks.Text}


def rows(result):
    keys = ["variant", "role", "lr", "seed", "step"]
    return result.runs.drop("seconds_a_step").sort(keys)


@pytest.fixture(scope="module", params=["net", pytest.param("text", marks=pytest.mark.slow)])
def reference(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("reference")
    return request.param, compare(VARIANTS, TASKS[request.param](), out=folder, **SMALL)


@pytest.mark.parametrize("way", ["again", "another order", "two processes", "threads", "interrupted and resumed"])
def test_equal_calls_give_bitwise_equal_rows(reference, way, tmp_path, monkeypatch):
    name, first = reference
    task = TASKS[name]()
    torch.manual_seed(99)  # whatever the global generator holds
    if way == "again":
        found = compare(VARIANTS, task, out=tmp_path, **SMALL)
    elif way == "another order":
        found = compare(VARIANTS[::-1], task, out=tmp_path, **SMALL)
    elif way == "two processes":
        found = compare(VARIANTS, task, out=tmp_path, jobs=2, **SMALL)
    elif way == "threads":
        with ThreadPoolExecutor(1) as pool:
            found = compare(VARIANTS, task, out=tmp_path, executor=pool, **SMALL)
    else:
        made = []

        def stop(row):
            made.append(row["run"])
            if len(set(made)) == 4:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            compare(VARIANTS, task, out=tmp_path, callbacks=[stop], **SMALL)
        kept = pl.read_parquet(tmp_path / "results.parquet")["run"].n_unique()
        assert 3 <= kept <= 4
        found = compare(VARIANTS, task, out=tmp_path, **SMALL)
    assert rows(found).equals(rows(first))
    assert len(first.runs) == 3 * (2 * 2 + 2 * 4)  # of the search each run's first and last evaluation
    assert not first.failures


def test_what_is_told(reference):
    name, first = reference
    assert {s.name for s in first.summaries} == {"AdamW", "Muon", "apollo"}
    assert "Made one by one: apollo (the network has buffers)." in str(first)
    steps = TASKS[name]().steps
    assert [s.gradients for s in first.summaries] == [steps] * 3
    words = {s.name: s.state_words for s in first.summaries}
    assert words["AdamW"] == words["apollo"] == 2  # B and m; m and v
    assert 1 < words["Muon"] < 2  # one for matrices, two for the rest
    if name == "net":
        assert {"validation_error", "test_error"} <= set(first.runs.columns)
        end = first.runs.filter(pl.col("role") == "final").filter(pl.col("step") == steps)
        for a, b in end.select("test_metric", "test_error").rows():
            assert a + b == pytest.approx(1)


def test_a_run_is_what_it_says():
    """By hand: training mode in steps, evaluation mode in evaluations, the streams of order and noise, two groups."""
    from sandbox.experiments.runs.methods import method
    from sandbox.experiments.runs.run import Run
    from sandbox.experiments.runs.training import train
    from sandbox.tasks.streams import Generators

    task = networks.Net()
    run = Run(task="net", method="", lr=0.01, seed=3, role="final", steps=7, at=(3, 7))
    found = train(task, method("torch.optim:AdamW"), run)
    model, noise, batches = task.start(3), Generators(3, "noise"), task.batches(3)
    groups = [[p for n, p in model.named_parameters() if (p.ndim > 1) == matrix] for matrix in (True, False)]
    optimizer = torch.optim.AdamW([{"params": groups[0]}, {"params": groups[1], "weight_decay": 0.0}], lr=0.01)
    for step in range(1, 8):
        batch = next(batches)
        optimizer.zero_grad()
        with noise:
            loss = functional.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        if step == 3:
            model.eval()
            with torch.no_grad():
                out = model(networks.X[:30])
            model.train()
            assert found[1]["validation_loss"] == pytest.approx(float(functional.cross_entropy(out, networks.Y[:30])), rel=1e-6)
    model.eval()
    with torch.no_grad():
        out = model(networks.X[:30])
    assert found[-1]["test_loss"] == pytest.approx(float(functional.cross_entropy(out, networks.Y[:30])), rel=1e-6)
    assert found[-1]["test_metric"] == pytest.approx(float((out.argmax(-1) == networks.Y[:30]).float().mean()))


def test_a_plain_network_is_made_together():
    """Without buffers and dropout vmap takes it: the same rows to rounding (float32, 10 steps)."""
    task = sandbox.Task(
        name="plain", model=lambda: torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)),
        train=(networks.X, networks.Y), validation=(networks.X[:20], networks.Y[:20]), loss=networks.cross_entropy,
        metrics={"accuracy": networks.accuracy, "error": networks.error}, steps=10, batch_size=10,
    )  # fmt: skip
    plans = []
    for vectorised in (True, False):
        options = dict(seeds=2, tuning_seeds=1, rates=1, spacing=2.0, warmup=0, evaluations=2, vectorised=vectorised, every=1)
        plans.append(comparison.plan(["apollo"], task, ComparisonSettings(**options)))
    assert plans[0].refusals == {}
    from sandbox.experiments.runs.batch import Probing, RunBatch, run_batch, with_batch_ids

    found = []
    for plan in plans:
        runs = [r for _, r in with_batch_ids([(plan.methods[0], r) for r in plan.final(plan.methods[0], {"lr": 0.01})])]
        batches = [runs] if plan is plans[0] else [[r] for r in runs]
        batches = [RunBatch(plan.methods[0], some) for some in batches]
        found.append([rows for batch in batches for rows, _ in run_batch(task, batch, Probing())])
    for together, alone in zip(*found, strict=True):
        for a, b in zip(together, alone, strict=True):
            assert a.keys() == b.keys()
            for name in ("train_loss", "validation_loss", "validation_error", "gradients", "state_words"):
                assert a[name] == pytest.approx(b[name], rel=1e-4), name

"""What recipes say of the Hessian, against the Hessian."""

import numpy as np
import polars as pl
import pytest
import torch

import sandbox
import variants
from sandbox import curvature, probes, tasks
from sandbox.backends.eager import Eager
from sandbox.blocks import Curvature, block
from sandbox.experiments import inspect_report
from sandbox.experiments.inspect import inspect, sample_steps
from sandbox.probes import EVERYTHING


@pytest.mark.parametrize(("name", "least"), [("apollo", 0.99), ("no-stepsize-correction", 0.95)])
def test_on_a_diagonal_quadratic_the_estimate_follows_the_diagonal(name, least):
    """β = 0, η = 1e-3, 2,000 steps from (1, …, 1) on 20 curvatures from 0.01 to 10: B/η, or B without the correction."""
    task = tasks.get("quadratic", dtype=torch.float64, noise=0.0)
    recipe, eta = variants.get(name).replace(**{"moment.beta": 0.0}), 1e-3
    params, batch = {"theta": torch.ones(20, dtype=torch.float64)}, task.full("train")
    state, grad = recipe.init(params), torch.func.grad(task.loss)
    for _ in range(2000):
        state, params = recipe.update(state, params, grad(params, batch), lr=eta)
    truth = curvature.diagonal(task.loss, params, batch).values["theta"]
    np.testing.assert_allclose(truth, np.geomspace(0.01, 10, 20), rtol=1e-12)
    B = state["theta"]["curvature.B"]
    assert bool((B.abs() > 0.01).any())  # not all on the floor, where the rule decides nothing
    estimate = B / eta if recipe.curvature.stepsize_correction else B
    assert np.corrcoef(estimate, truth)[0, 1] >= least


def small(recipes, **options):
    return inspect(recipes, "logistic-breast-cancer", **{"steps": 12, "samples": 3, **options})


def test_truth_estimate_and_files(tmp_path):
    """The pairs of the last sample are B/η after that step and diag H before it; the files hold the same numbers."""
    task, said = tasks.get("logistic-breast-cancer", dtype=torch.float64), []
    result = inspect(
        ["apollo", "adahessian", "adamw"], task, steps=12, samples=3, out=tmp_path, progress=lambda *at: said.append(at)
    )
    assert said[0] == (0, 9, "apollo")
    assert said[-1] == (9, 9, "adamw")
    params = {name: p.clone().requires_grad_() for name, p in task.init(0).items()}
    optimizer = sandbox.Optimizer(params.items(), "apollo")
    batches = task.batches(0)
    for step in range(1, 13):
        if step == 12:
            truth = curvature.diagonal(task.loss, params, task.full("train")).values
        optimizer.zero_grad()
        task.loss(params, next(batches)).backward()
        optimizer.step()
    apollo = result["apollo"]
    assert (apollo.sampled, apollo.lr, apollo.ended) == (12, 0.01, None)
    for name, p in params.items():
        torch.testing.assert_close(apollo.pairs[name].truth, truth[name].reshape(-1))
        estimate = optimizer.state[p]["curvature.B"].reshape(-1) / 0.01
        torch.testing.assert_close(apollo.pairs[name].estimate, estimate)
        assert torch.equal(apollo.params[name], p.detach())
    whole = torch.cat([apollo.pairs[name].truth for name in params])
    assert torch.equal(apollo.pairs[EVERYTHING].truth, whole)
    steps = apollo.frame.filter(pl.col("probe") == "correlation")["step"].unique().sort().to_list()
    assert steps == sample_steps(12, 3) == [4, 8, 12]
    r = np.corrcoef(apollo.pairs[EVERYTHING].estimate.abs(), apollo.pairs[EVERYTHING].truth.abs())[0, 1]
    assert apollo.value("correlation") == pytest.approx(r, rel=1e-10)
    assert result["adamw"].pairs == {}
    assert result["adamw"].value("newton_cosine") is not None
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(inspect_report.FILES)
    assert pl.read_parquet(tmp_path / "probes.parquet").equals(result.frame)
    kept = pl.read_parquet(tmp_path / "diagonal.parquet").filter(pl.col("variant") == "apollo")
    np.testing.assert_array_equal(kept["truth"], whole)
    assert (tmp_path / "scatter.png").read_bytes()[:4] == b"\x89PNG"
    assert "No estimate of the Hessian in adamw" in str(result)
    assert (tmp_path / "table.md").read_text() == result._repr_markdown_() + "\n"


def test_seed_rate_backend_and_vectors_reach_the_run():
    """Against the same run by hand: start, batches, AdaHessian's random vectors, rate, Hutchinson's vectors, training loss."""

    class Counting(Eager):
        steps = 0

        def step(self, cohort, step):
            Counting.steps += 1
            super().step(cohort, step)

    task = tasks.get("logistic-breast-cancer", dtype=torch.float64)
    options = {"steps": 7, "samples": 2, "lr": 0.05, "seed": 3, "method": "hutchinson", "num_vectors": 5}
    one = inspect(["adahessian"], task, backend=Counting(), **options)["adahessian"]
    assert Counting.steps == 7
    assert one.lr == 0.05
    params = {name: p.clone().requires_grad_() for name, p in task.init(3).items()}
    optimizer = sandbox.Optimizer(params.items(), "adahessian", lr=0.05, seed=3)
    batches = task.batches(3)
    for step in range(1, 8):
        if step == 7:
            truth = curvature.diagonal(
                task.loss, params, task.full("train"), "hutchinson", probes=5, seed=3, progress=False
            ).values
        batch = next(batches)
        optimizer.step(lambda batch=batch: task.loss(params, batch))
    for name, p in params.items():
        torch.testing.assert_close(one.params[name], p.detach(), rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(one.pairs[name].truth, truth[name].reshape(-1), rtol=1e-12, atol=1e-14)
    assert one.loss == pytest.approx(float(task.loss(one.params, task.full("train"))), rel=1e-12)


def test_a_start_of_its_own_for_each_seed():
    ends = [
        inspect(["sgd"], "digits-mlp", steps=1, samples=1, seed=seed, method="hutchinson", num_vectors=2)["sgd"].params[
            "0.weight"
        ]
        for seed in (0, 1)
    ]
    assert not torch.allclose(*ends, atol=1e-2)


def test_values_by_step_and_means():
    one = small(["apollo"], steps=11, samples=3)["apollo"]
    assert sample_steps(11, 3) == [5, 8, 11]
    rows = one.frame.filter((pl.col("probe") == "correlation") & (pl.col("tensor") == EVERYTHING)).sort("step")
    assert rows["step"].to_list() == [5, 8, 11]
    assert [one.value("correlation", step=t) for t in (5, 8, 11)] == rows["value"].to_list()
    assert one.value("correlation", step=6) is None
    assert one.mean("correlation") == pytest.approx(np.mean(rows["value"].to_list()), rel=1e-12)
    assert one.mean("nothing") is None


def test_labels_and_scales_of_estimates():
    shown = {name: inspect_report.estimates(variants.get(name)) for name in variants.names()}
    assert shown["apollo"] == shown["scale-invariant"] == "B/η"
    assert shown["no-stepsize-correction"] == "B"
    assert shown["hessian-ema"] == "B̄/η"
    assert shown["adahessian"] == "√B"
    assert shown["adam"] == shown["sgd"] == ""
    for name, text in shown.items():  # a label where there is an estimate, and only there
        recipe = variants.get(name)
        assert bool(text) == (type(recipe.curvature).estimate is not Curvature.estimate)


def test_an_estimate_of_ones_own_and_a_probe_of_ones_own():
    """A block outside the package that is told nothing, estimates 1, and is found out."""

    @block
    class One(Curvature):
        """B = 1, said to be the Hessian."""

        recalls = False
        estimates = "1"

        def step(self, x):
            return torch.ones_like(x.g), {}

        def estimate(self, B, x):
            return torch.ones_like(B)

    @probes.needs("truth")
    def trace(v):
        return v.truth.sum()

    recipe = variants.get("sgd").replace(curvature=One(), name="one")
    one = inspect([recipe], "quadratic", steps=4, samples=2, probes=[trace])["one"]
    assert one.value("trace") == pytest.approx(np.geomspace(0.01, 10, 20).sum(), rel=1e-5)
    truth = np.geomspace(0.01, 10, 20)
    assert one.value("relative_error") == pytest.approx(np.linalg.norm(1 - truth) / np.linalg.norm(truth), rel=1e-4)


def test_hutchinson_is_near_the_exact_truth():
    exact, estimated = small(["apollo"]), small(["apollo"], method="hutchinson", num_vectors=2000)
    a, b = exact["apollo"].pairs[EVERYTHING].truth, estimated["apollo"].pairs[EVERYTHING].truth
    assert 0 < float((a - b).norm() / a.norm()) < 0.1
    assert "by Hutchinson's estimator, 2000 vectors" in str(estimated)
    assert "all 341 rows of the training split, exact" in str(exact)


def test_divergence_is_said_and_kept():
    result = inspect(["sgd", "no-momentum"], "rosenbrock", steps=40, samples=40, lr=1.0)
    assert "diverged at step" in (result["sgd"].ended or "")
    assert result["sgd"].ended in str(result)
    assert len(result["sgd"].frame) > 0


def test_an_interrupt_keeps_what_was_measured(tmp_path):
    def stop(done, total, what):
        if done == 2:
            raise KeyboardInterrupt

    result = small(["apollo", "adahessian"], out=tmp_path, progress=stop)
    assert result.interrupted
    assert [one.recipe.name for one in result.variants] == ["apollo"]
    assert result["apollo"].sampled == 8
    assert len(pl.read_parquet(tmp_path / "diagonal.parquet")) == 31
    assert "Interrupted" in str(result)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"steps": 0}, "steps must be at least 1"),
        ({"samples": 13}, "samples must be at least 1 and at most 12, got 13"),
        ({"method": "exakt"}, "did you mean 'exact'"),
        ({"lr": -1.0}, "lr must be a number above 0"),
        ({"method": "hutchinson", "num_vectors": 1}, "num_vectors must be a whole number of at least 2"),
        ({"backend": "eagre"}, "did you mean 'eager'"),
        ({"probes": ["correlatoin"]}, "did you mean 'correlation'"),
    ],
)
def test_clear_errors(options, says):
    with pytest.raises(ValueError, match=says):
        small(["apollo"], **options)
    for recipes in ("apollo", []):
        with pytest.raises(ValueError, match="needs a list"):
            small(recipes)
    with pytest.raises(ValueError, match="two recipes are called"):
        small(["apollo", "apollo"])
    with pytest.raises(KeyError, match="did you mean 'apollo'"):
        small(["apollo"])["apolo"]

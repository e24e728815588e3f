"""What recipes say of the Hessian, against the Hessian."""

import numpy as np
import polars as pl
import pytest
import torch
from scipy import stats

import sandbox
import variants
from sandbox import curvature, probes, tasks
from sandbox.blocks import Curvature, block
from sandbox.experiments.inspect import inspect
from sandbox.experiments.reports import inspection
from sandbox.experiments.runs import recipe_method
from sandbox.probes import EVERYTHING
from tests.experiments import networks


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
    return inspect(recipes, "logistic-breast-cancer", **{"steps": 12, "samples": 3, "seeds": 1, **options})


def by_hand(task, recipe, seed, steps, lr=None):
    """The same run with a loop of its own: the parameters before the last step and after, and the optimizer."""
    params = {name: p.clone().requires_grad_() for name, p in task.init(seed).items()}
    optimizer, batches = sandbox.Optimizer(params.items(), recipe, lr=lr, seed=seed), task.batches(seed)
    for _ in range(steps):
        before, batch = {name: p.detach().clone() for name, p in params.items()}, next(batches)

        def closure(batch=batch):
            optimizer.zero_grad()
            loss = task.loss(params, batch)
            if recipe != "adahessian":
                loss.backward()
            return loss

        optimizer.step(closure)
    return before, params, optimizer


def test_truth_estimate_and_files(tmp_path):
    """The pairs of the last sample are B/η after that step and diag H before it; the files hold the same numbers."""
    task, said = tasks.get("logistic-breast-cancer", dtype=torch.float64), []
    result = inspect(
        ["apollo", "adahessian", "adamw"],
        task,
        steps=12,
        samples=3,
        seeds=2,
        out=tmp_path,
        progress=lambda *at: said.append(at),
    )
    assert said[0][:2] == (0, 6)
    assert said[-1][:2] == (6, 6)
    apollo = result["apollo"]
    assert (apollo.sampled, apollo.lr, apollo.diverged, apollo.seeds) == (12, 0.01, 0, [0, 1])
    for seed in (0, 1):
        before, params, optimizer = by_hand(task, "apollo", seed, 12)
        truth = curvature.diagonal(task.loss, before, task.full("train")).values
        pairs = apollo.pairs_of(seed)
        for name, p in params.items():
            torch.testing.assert_close(pairs[name].truth, truth[name].reshape(-1))
            torch.testing.assert_close(pairs[name].estimate, optimizer.state[p]["curvature.B"].reshape(-1) / 0.01)
            if seed == 0:
                assert torch.equal(apollo.params[name], p.detach())
        whole = torch.cat([pairs[name].truth for name in params])
        assert torch.equal(pairs[EVERYTHING].truth, whole)
        r = np.corrcoef(pairs[EVERYTHING].estimate.abs(), pairs[EVERYTHING].truth.abs())[0, 1]
        assert apollo.values("correlation")[seed] == pytest.approx(r, rel=1e-10)
        assert apollo.losses[seed] == pytest.approx(task.evaluate(params, "train")[0], rel=1e-12)
        kept = pl.read_parquet(tmp_path / "diagonal.parquet").filter(variant="apollo", seed=seed)
        np.testing.assert_array_equal(kept["truth"], whole)
    steps = apollo.frame.filter(pl.col("probe") == "correlation")["step"].unique().sort().to_list()
    assert steps == result.at == [4, 8, 12]
    assert result["adamw"].pairs == {}
    assert result["adamw"].value("newton_cosine") is not None
    assert {p.name for p in tmp_path.iterdir()} == {*inspection.FILES, "runs"}
    assert pl.read_parquet(tmp_path / "probes.parquet").equals(result.frame)
    assert (tmp_path / "scatter.png").read_bytes()[:4] == b"\x89PNG"
    assert "No estimate of the Hessian in adamw" in str(result)
    assert (tmp_path / "table.md").read_text() == result._repr_markdown_() + "\n"
    result.save(tmp_path / "again")
    assert pl.read_parquet(tmp_path / "again" / "probes.parquet").equals(result.frame)
    assert "<td>apollo</td>" in result._repr_html_()
    assert len(result.plot().axes) == 2 * 2  # apollo and adahessian; weight and bias


def test_mean_and_interval_over_the_seeds():
    """Student's interval, written out with SciPy's quantile."""
    result = small(["apollo"], seeds=4, seed=2, method="hutchinson", num_vectors=2)
    values = result["apollo"].values("relative_error")
    assert len(set(values)) == 4
    half = stats.t.ppf(0.975, 3) * np.std(values, ddof=1) / 2  # √4 seeds
    (row,) = inspection.table(result)[1]
    assert row[5] == f"{np.mean(values):.3g} ± {half:.2g}"
    assert "4 seeds" in str(result)
    assert "One seed" in str(small(["apollo"], method="hutchinson", num_vectors=2))


def test_what_is_there_is_not_made_again(tmp_path):
    """Rows and vectors from the folder are those of the run, also from two processes; another command's folder is refused."""
    told, options = [], {"seeds": 2, "method": "hutchinson", "num_vectors": 2, "out": tmp_path}
    first = small(["apollo", "sgd"], callbacks=[told.append], jobs=2, **options)
    assert sorted((row["variant"], row["seed"], row["step"]) for row in told) == [
        (name, seed, step) for name in ("apollo", "sgd") for seed in (0, 1) for step in (0, 4, 8, 12)
    ]
    again = small(["apollo", "sgd"], callbacks=[told.append], **options)
    assert len(told) == 16
    assert again.frame.equals(first.frame)
    assert again.vectors.equals(first.vectors)
    alone = small(["apollo", "sgd"], **{**options, "out": None})
    assert alone.frame.drop("run").equals(first.frame.drop("run"))
    assert alone.vectors.equals(first.vectors)
    with pytest.raises(ValueError, match="holds results of inspect"):
        sandbox.compare(["sgd"], "quadratic", steps=2, rates=1, seeds=2, out=tmp_path)


def test_seed_rate_backend_and_vectors_reach_the_run(monkeypatch):
    """Against the same run by hand: start, batches, AdaHessian's random vectors, rate, Hutchinson's vectors, training loss."""
    task = tasks.get("logistic-breast-cancer", dtype=torch.float64)
    options = {"steps": 7, "samples": 2, "lr": 0.05, "seed": 3, "seeds": 1, "method": "hutchinson", "num_vectors": 5}
    one = inspect(["adahessian"], task, **options)["adahessian"]
    assert (one.lr, one.seeds) == (0.05, [3])
    before, params, _ = by_hand(task, "adahessian", 3, 7, lr=0.05)
    truth = curvature.diagonal(
        task.loss, before, task.full("train"), "hutchinson", num_vectors=5, seed=3, progress=False
    ).values
    for name, p in params.items():
        torch.testing.assert_close(one.params[name], p.detach(), rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(one.pairs[name].truth, truth[name].reshape(-1), rtol=1e-12, atol=1e-14)
    assert one.losses == [pytest.approx(float(task.loss(one.params, task.full("train"))), rel=1e-12)]
    asked, original = [], recipe_method.Optimizer
    monkeypatch.setattr(
        recipe_method, "Optimizer", lambda *a, backend, **o: asked.append(backend) or original(*a, backend="eager", **o)
    )
    small(["sgd"], backend="scripted", method="hutchinson", num_vectors=2)
    assert asked == ["scripted"]


def test_a_network_without_buffers_is_a_function_of_its_parameters():
    """The truth of a Module by hand, from torch.func on its own functional call; one with buffers is refused."""
    X, y = torch.randn(24, 3, dtype=torch.float64), torch.randn(24, 1, dtype=torch.float64)
    layers = torch.nn.Linear(3, 2), torch.nn.Tanh(), torch.nn.Linear(2, 1)
    task = sandbox.Task(
        name="own", model=lambda: torch.nn.Sequential(*layers).double(), train=(X, y), validation=(X, y), batch_size=8, steps=4,
        loss=lambda model, batch: (model(batch[0]) - batch[1]).square().mean(),
    )  # fmt: skip
    one = inspect(["sgd"], task, samples=4, seeds=1)["sgd"]
    torch.testing.assert_close(one.losses[0], float(task.apply(task.loss, one.params, (X, y))), rtol=1e-12, atol=0)
    again = inspect(["apollo"], task, steps=1, samples=1, seeds=1)["apollo"]
    start = task.init(0)
    hessian = torch.func.hessian(lambda p: task.apply(task.loss, p, (X, y)))(start)
    for name, p in start.items():
        diagonal = hessian[name][name].reshape(p.numel(), p.numel()).diagonal()
        torch.testing.assert_close(again.pairs[name].truth, diagonal, rtol=1e-9, atol=1e-12)
    with pytest.raises(ValueError, match="task 'net': the network has buffers"):
        inspect(["sgd"], networks.Net())
    with pytest.raises(ValueError, match=r"inspect needs recipes, .* not recipes are: AdamW"):
        inspect(["torch.optim:AdamW"], task)


def test_a_start_of_its_own_for_each_seed():
    ends = [
        inspect(["sgd"], "digits-mlp", steps=1, samples=1, seed=seed, seeds=1, method="hutchinson", num_vectors=2)[
            "sgd"
        ].params["0.weight"]
        for seed in (0, 1)
    ]
    assert not torch.allclose(*ends, atol=1e-2)


def test_values_by_step_and_means():
    result = small(["apollo"], steps=11, samples=3)
    assert result.at == [5, 8, 11]
    one = result["apollo"]
    rows = one.frame.filter((pl.col("probe") == "correlation") & (pl.col("tensor") == EVERYTHING)).sort("step")
    assert rows["step"].to_list() == [5, 8, 11]
    assert [one.value("correlation", step=t) for t in (5, 8, 11)] == rows["value"].to_list()
    assert one.value("correlation", step=6) is None
    assert one.mean("correlation") == pytest.approx(np.mean(rows["value"].to_list()), rel=1e-12)
    assert one.mean("nothing") is None


def test_labels_and_scales_of_estimates():
    shown = {name: inspection.estimates(variants.get(name)) for name in variants.names()}
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
    one = inspect([recipe], "quadratic", steps=4, samples=2, seeds=1, probes=[trace])["one"]
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
    result = inspect(["sgd", "no-momentum"], "rosenbrock", steps=10, samples=10, lr=1.0, seeds=2)
    assert result["sgd"].diverged == 2
    assert result["sgd"].losses == [np.inf, np.inf]
    assert "inf (2 diverged)" in str(result)
    assert len(result["sgd"].frame) > 0


def test_an_error_in_a_probe_ends_its_variant_only():
    @probes.needs("truth")
    def picky(v):
        if v.estimate is None:
            raise ZeroDivisionError("not this one")

    result = small(["apollo", "sgd"], probes=[picky], method="hutchinson", num_vectors=2)
    assert [one.recipe.name for one in result.variants] == ["apollo"]
    assert "ZeroDivisionError: not this one" in str(result)


def test_an_interrupt_keeps_what_was_finished(tmp_path):
    def stop(done, total, what):
        if done == 1:
            raise KeyboardInterrupt

    options = {"method": "hutchinson", "num_vectors": 2, "out": tmp_path}
    with pytest.raises(KeyboardInterrupt):
        small(["apollo", "adahessian"], progress=stop, **options)
    assert pl.read_parquet(tmp_path / "probes.parquet")["variant"].unique().to_list() == ["apollo"]
    (kept,) = (tmp_path / "runs").glob("*.json")
    written = kept.stat().st_mtime_ns
    assert [one.recipe.name for one in small(["apollo", "adahessian"], **options).variants] == ["apollo", "adahessian"]
    assert kept.stat().st_mtime_ns == written


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"steps": 0}, "steps must be at least 1"),
        ({"samples": 13}, "samples must be at most 12, the number of steps, got 13"),
        ({"seeds": 0}, "seeds must be at least 1, got 0"),
        ({"method": "exakt"}, "did you mean 'exact'"),
        ({"lr": -1.0}, "lr must be a number above 0"),
        ({"method": "hutchinson", "num_vectors": 1}, "num_vectors must be a whole number, at least 2, got 1"),
        ({"backend": "eagre"}, "did you mean 'eager'"),
        ({"probes": ["correlatoin"]}, "did you mean 'correlation'"),
    ],
)
def test_clear_errors(options, says):
    with pytest.raises(ValueError, match=says):
        small(["apollo"], **options)
    for recipes, wrong in (("apollo", "needs a list"), ([], "needs a list"), (["apollo", "apollo"], "two recipes are called")):
        with pytest.raises(ValueError, match=wrong):
            small(recipes)
    with pytest.raises(KeyError, match="did you mean 'apollo'"):
        small(["apollo"])["apolo"]


def test_rates_that_compare_would_choose(tmp_path):
    """The same search on the same seeds as a comparison without warm-up, and the inspection as one at that rate."""
    options = dict(steps=12, rates=3, tuning_seeds=2)
    found = small(["apollo", "adamw"], **options, out=tmp_path)
    compared = sandbox.compare(["apollo", "adamw"], "logistic-breast-cancer", seeds=2, warmup=0, out=tmp_path / "c", **options)
    for name, chosen in compared.chosen.items():
        assert found.chosen[name] == chosen
        assert found[name].lr == chosen.numbers["lr"]
        assert found[name].losses == small([name], lr=chosen.numbers["lr"])[name].losses
    assert "Numbers chosen on validation loss" in str(found)
    rows = pl.read_parquet(tmp_path / "results.parquet")
    assert set(rows["role"]) == {"inspection"}

"""What an ensemble takes: probes, schedules, rates of t, any task, a bare loss; and what it refuses."""

import warnings

import numpy as np
import pytest
import torch

import variants
from sandbox import ensemble, probes, tasks
from sandbox.experiments.runs import training
from sandbox.experiments.runs.methods import RecipeMethod
from sandbox.experiments.runs.run import Run
from sandbox.schedules import InverseSquareRoot
from tests.experiments.bowl import TASK, alone, close


def test_probes_are_those_of_a_single_run():
    names = [name for name, probe in probes.ALL.items() if "truth" not in getattr(probe, "needs", ())]
    found = ensemble.run(["apollo", "sgd"], TASK, lr=[0.01, 0.05], seeds=2, steps=12, probes=names, every=4)
    assert found.probed == [4, 8, 12]
    for i, row in enumerate(found.members.iter_rows(named=True)):
        watch = probes.Watch(names, every=4, tensors=False)
        alone(variants.get(row["variant"]), row["lr"], row["seed"], 12, watch)
        for name in names:
            values = [r["value"] for r in watch.rows if r["probe"] == name]
            if values:
                np.testing.assert_allclose(found.probes[name][i], values, rtol=1e-9, atol=1e-12)
            else:
                assert np.isnan(found.probes[name][i]).all()


def test_a_probe_that_says_nothing_at_first_or_ever():
    """Step 1 has no D of the step before, and SGD has no floor."""
    found = ensemble.run("sgd", TASK, lr=[0.01, 0.02], steps=3, probes=["path_length", "floor_occupancy"])
    assert found.measured["path_length"].tolist() == [[False, True, True]] * 2
    assert np.array_equal(np.isfinite(found.probes["path_length"]), found.measured["path_length"])
    assert np.isnan(found.probes["floor_occupancy"]).all()
    assert not found.measured["floor_occupancy"].any()


@pytest.mark.parametrize(("schedule", "warmup"), [("constant", 3), ("cosine", 0), ("inverse-sqrt", 4)])
def test_schedules_and_evaluations_are_those_of_a_single_run(schedule, warmup):
    """Against `sandbox.experiments.runs.training.train`, rows and all; logistic regression in float64."""
    task = tasks.get("logistic-breast-cancer", dtype=torch.float64)
    recipe = variants.get("apollo")
    found = ensemble.run(recipe, task, lr=[0.3, 0.03], seeds=[7, 2], steps=12, warmup=warmup, schedule=schedule, evaluations=3)
    for i, row in enumerate(found.members.iter_rows(named=True)):
        settings = Run(
            task=task.name, method="", lr=row["lr"], seed=row["seed"], role="tuning", steps=12, at=(4, 8, 12), warmup=warmup,
            schedule=schedule,
        )  # fmt: skip
        rows = training.train(task, RecipeMethod(recipe), settings)
        assert [r["step"] for r in rows] == found.at
        for name, values in found.evaluations.items():
            expected = [np.nan if r[name] is None else r[name] for r in rows]
            np.testing.assert_allclose(values[i], expected, rtol=1e-10, err_msg=name)


def test_rates_that_are_functions_of_t():
    found = ensemble.run("apollo", TASK, lr=[InverseSquareRoot(first=0.05), 0.01], steps=6)
    assert np.isnan(found.members["lr"][0])
    params, _ = alone(variants.get("apollo"), 0.05, 0, 6, rates=[0.05 / np.sqrt(t + 1) for t in range(6)])
    close(found.params["a"][0], params["a"])


def test_a_bare_loss_of_any_tree():
    start = [torch.tensor([1.0, -2.0], dtype=torch.float64), {"x": torch.tensor(3.0, dtype=torch.float64)}]

    def loss(params, batch):
        return params[0].square().sum() + (params[1]["x"] - batch).square()

    def batches(seed):
        return [torch.tensor(float(seed), dtype=torch.float64)] * 3

    found = ensemble.run("sgd", loss, params=start, batches=batches, lr=[0.1, 0.2], seeds=[0, 5], steps=200)
    assert found.params[1]["x"].shape == (4,)
    assert found.params[1]["x"].tolist() == pytest.approx([0, 5, 0, 5], abs=0.2)
    without = ensemble.run("sgd", lambda p, batch: p.square().sum(), params=torch.ones(3), lr=0.1, steps=3)
    assert without.loss.shape == (1, 3)


def test_a_rate_that_the_decay_does_not_allow_is_lost_alone():
    found = ensemble.run("apollow", TASK, lr=[0.01, 1e5], steps=4)
    assert found.diverged.tolist() == [0, 1]
    assert np.isinf(found.loss[1]).all()
    assert np.isfinite(found.loss[0]).all()


@pytest.mark.parametrize("name", ["digits-mlp", "digits-cnn", "softmax-digits", "ridge-diabetes", "rosenbrock", "quadratic"])
def test_every_task_can_be_batched(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = ensemble.run(["apollo", "adahessian"], name, lr=[1e-3, 1e-2], seeds=2, steps=3, evaluations=1)
    assert not found.looped
    assert np.isfinite(found.loss).all()


def test_clear_errors():
    for wrong, words in [
        ({"lr": -1.0}, "lr must lie"),
        ({"lr": []}, "lr must name at least one rate"),
        ({"steps": 0}, "steps must be"),
        ({"seeds": []}, "at least one seed"),
        ({"warmup": 20, "steps": 10}, "warmup must lie"),
        ({"schedule": "cosin"}, "cosine"),
        ({"probes": ["floor"]}, "floor_occupancy"),
        ({"params": torch.ones(2)}, "bare loss"),
    ]:
        with pytest.raises(ValueError, match=words):
            ensemble.run("apollo", TASK, **wrong)
    with pytest.raises(ValueError, match="needs params"):
        ensemble.run("apollo", lambda p, b: p.sum())
    with pytest.raises(TypeError, match="task must be"):
        ensemble.run("apollo", 3)
    with pytest.raises(ValueError, match="at least one recipe"):
        ensemble.run([], TASK)


def test_clear_errors_about_a_bare_loss():
    def run(**more):
        return ensemble.run("sgd", lambda p, batch: (p - batch).square().sum(), params=torch.ones(3), steps=3, **more)

    with pytest.raises(TypeError, match="batches must be a function of the seed that gives its batches, got a list"):
        run(batches=[torch.ones(3)])
    with pytest.raises(ValueError, match="evaluations must be 0 for a bare loss"):
        run(batches=lambda seed: [torch.ones(3)], evaluations=2)
    with pytest.raises(ValueError, match="batches must be trees of tensors"):
        run(batches=lambda seed: ["text"])
    for of_one in (None, [torch.ones(3)]):  # what a single run says of it
        with pytest.raises(TypeError, match=f"unsupported operand type.*{type(of_one).__name__}"):
            run(batches=lambda seed, of_one=of_one: [of_one if seed else torch.ones(3)], seeds=2)
    with pytest.raises(ValueError, match="batches must give at least one batch each time it is called, got none for seed 4"):
        run(batches=lambda seed: [], seeds=[4])
    used_up = iter([torch.ones(3)] * 2)
    with pytest.raises(ValueError, match="at least one batch each time"):
        run(batches=lambda seed: used_up)

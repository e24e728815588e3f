"""Experiments evaluate the weights that a recipe's readout says, together and alone."""

import numpy as np
import pytest
import torch

import variants
from sandbox import ensemble, tasks
from sandbox.blocks import TailMean
from sandbox.experiments.compare import compare
from sandbox.experiments.runs.torch_optimizer import TorchOptimizer
from tests.experiments.bowl import SHAPES, Bowl
from tests.experiments.plans import SMALL

LOSSES = ["train_loss", "validation_loss"]


def rows(recipes, folder, **options):
    task = tasks.get("logistic-breast-cancer", dtype=torch.float64)
    recipes = [variants.get(r).replace(lr=0.02, name=r) if isinstance(r, str) else r for r in recipes]
    found = compare(recipes, task, out=folder, **{**SMALL, "rates": 1, **options})
    return found.runs.sort("variant", "role", "lr", "seed", "step")


def test_runs_made_together_evaluate_what_runs_alone_do(tmp_path):
    """float64, 20 steps: other kernels' rounding."""
    names = ["schedule-free-adamw", "ema-adamw", "gpa-adamw", "adamw"]
    together, alone = (rows(names, tmp_path / str(v), vectorised=v) for v in (True, False))
    assert set(together["way"]) == {"vmap"}
    assert set(alone["way"]) == {"eager"}
    for name in LOSSES:
        np.testing.assert_allclose(together[name], alone[name], rtol=1e-9)
    # the weights are trained as AdamW trains them, and evaluated elsewhere
    each = {name: alone.filter(alone["variant"] == name)["train_loss"].to_numpy() for name in names}
    assert each["ema-adamw"][-1] > 1.01 * each["adamw"][-1]


def test_schedule_free_is_its_package_in_a_comparison(tmp_path):
    pytest.importorskip("schedulefree", reason="schedulefree (extra bench) is the oracle")
    package = TorchOptimizer("schedulefree:AdamWScheduleFree", name="package", lr=0.02, foreach=False)
    both = rows(["schedule-free-adamw", package], tmp_path, vectorised=False)
    mine, theirs = (both.filter(both["variant"] == name) for name in ("schedule-free-adamw", "package"))
    assert len(mine)
    for name in LOSSES:
        np.testing.assert_allclose(mine[name], theirs[name], rtol=1e-9)


class Stubborn(Bowl):
    """A loss that vmap refuses: it looks at a value."""

    def loss(self, params, batch):
        return super().loss(params, batch) + (1.0 if float(params["b"].detach().sum()) > 1e9 else 0.0)

    score = loss


@pytest.mark.parametrize("task", [Bowl(), Stubborn()])
@pytest.mark.filterwarnings("ignore:.*member by member")
def test_an_ensemble_evaluates_the_mean_of_the_way(task):
    """The mean of θ₁ … θ_t, from the final weights of runs of 1 … t steps."""
    recipe = variants.get("sgd").replace(readout=TailMean(), name="mean")
    way = [ensemble.run(recipe, task, lr=[0.004, 0.002], steps=t).params for t in (1, 2, 3)]
    found = ensemble.run(recipe, task, lr=[0.004, 0.002], steps=3, evaluations=[3])
    assert bool(found.looped) == isinstance(task, Stubborn)
    for k in range(2):
        mean = {name: torch.stack([each[name][k] for each in way]).mean(0) for name in SHAPES}
        expected = float(task.loss(mean, task.full("train")))
        np.testing.assert_allclose(found.evaluations["train_loss"][k, -1], expected, rtol=1e-12)


def test_the_readout_is_named():
    assert "readout" in str(variants.get("ema-adamw"))
    assert "readout" not in str(variants.get("adamw"))

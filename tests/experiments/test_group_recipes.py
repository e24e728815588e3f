"""A parameter group of a task with a recipe of its own, against torch's optimizers side by side; float64."""

import numpy as np
import pytest
import torch
from torch import nn

import sandbox
import variants
from sandbox.experiments.runs import training
from sandbox.experiments.runs.methods import RecipeMethod, method
from sandbox.experiments.runs.run import Run

X = torch.from_numpy(np.random.default_rng(0).standard_normal((24, 4)))
Y = X[:, :2].tanh()


def loss(model, batch):
    return (model(batch[0]) - batch[1]).square().mean()


class Two(sandbox.Task):
    name, steps, batch_size, dtype = "two", 5, 24, torch.float64

    def __init__(self, recipe):
        self.recipe = recipe

    def model(self):
        return nn.Sequential(nn.Linear(4, 3, dtype=torch.float64), nn.Tanh(), nn.Linear(3, 2, dtype=torch.float64))

    def data(self, split):
        return X, Y

    def loss(self, model, batch):
        return loss(model, batch)

    def groups(self, model):
        first, last = ([(n, p) for n, p in model.named_parameters() if n[0] == k] for k in "02")
        return [{"params": first}, {"params": last, "recipe": self.recipe, "lr_factor": 0.5, "weight_decay": 0.3}]


def test_both_recipes_train():
    task = Two("adamw")
    run = Run(task="two", method="", lr=0.02, seed=3, role="tuning", steps=5, at=(1, 2, 3, 4, 5))
    rows = training.train(task, RecipeMethod(variants.get("sgd")), run)
    model = task.start(3)
    optimizers = [
        torch.optim.SGD(model[0].parameters(), lr=0.02, momentum=0.9),
        torch.optim.AdamW(model[2].parameters(), lr=0.01, weight_decay=0.3),
    ]
    for row in rows:
        value = loss(model, (X, Y))
        assert row["train_loss"] == pytest.approx(float(value.detach()), rel=1e-9)
        for optimizer in optimizers:
            optimizer.zero_grad()
        value.backward()
        for optimizer in optimizers:
            optimizer.step()
        # one element of state for 15 parameters, two for 8
        assert row["state_words"] == pytest.approx((15 * 1 + 8 * 2) / 23)


def test_a_comparison_uses_it(tmp_path):
    options = {"rates": 1, "seeds": 2, "tuning_seeds": 1}
    ends = [
        sandbox.compare(["sgd", "apollo"], Two(recipe), out=tmp_path / recipe, **options).summaries[0].train_loss
        for recipe in ("sgd", "adamw")
    ]
    assert ends[0] != ends[1]


def test_what_cannot_be_said_is_refused():
    task = Two("adahessian")
    groups = task.groups(task.start(0))
    with pytest.raises(ValueError, match="recipe 'adahessian', which takes Hessian-vector products: make it the run's recipe"):
        method("sgd").make(groups, 0.1, {})
    assert method("adahessian").make(groups, 0.1, {})
    with pytest.raises(ValueError, match="has a recipe of its own, to which AdamW cannot leave it"):
        method("torch.optim:AdamW").make(groups, 0.1, {})

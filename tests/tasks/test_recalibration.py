"""BatchNorm's running statistics at the weights to evaluate: as torch.optim.swa_utils.update_bn takes them."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

import sandbox

DRAW = torch.Generator().manual_seed(0)
X, Y = 3 * torch.randn(64, 4, generator=DRAW) + 1, torch.randn(64, 1, generator=DRAW)


def network():
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))


def loss(model, batch):
    return functional.mse_loss(model(batch[0]), batch[1])


BATCHES = [(X[k : k + 16], Y[k : k + 16]) for k in (0, 16, 32, 48)]


def task(**options):
    """Its batches are the same ones, in order, in every epoch."""
    source = {"train": lambda seed: BATCHES, "validation": (X[:32], Y[:32])}
    return sandbox.Task(name="normed", model=network, loss=loss, steps=8, **source, **options)


def trained():
    """Twenty steps of schedule-free AdamW, the weights to evaluate in the parameters."""
    torch.manual_seed(1)
    model = network()
    optimizer = sandbox.Optimizer(model.parameters(), "schedule-free-adamw", lr=0.05)
    for k in range(20):
        optimizer.zero_grad()
        loss(model, BATCHES[k % 4]).backward()
        optimizer.step()
    optimizer.eval()
    return model


@pytest.mark.parametrize("batches", [1, 3])
def test_it_is_update_bn_on_training_batches(batches):
    model, recalibrated = trained(), task(recalibrate=batches)
    before = copy.deepcopy(model.state_dict())
    value = recalibrated.evaluate(model, "validation")[0]
    assert all(torch.equal(model.state_dict()[name], x) for name, x in before.items())
    assert model[1].momentum == 0.1
    assert model[1].training
    other = copy.deepcopy(model)
    torch.optim.swa_utils.update_bn(BATCHES[:batches], other)
    other.eval()
    expected = float(loss(other, (X[:32], Y[:32])).detach())
    assert value == pytest.approx(expected, rel=1e-5)  # float32
    assert value != pytest.approx(task().evaluate(model, "validation")[0], rel=1e-3)


def test_without_such_layers_nothing_happens():
    plain = dict(model=lambda: nn.Linear(4, 1), train=(X, Y), validation=(X, Y), loss=loss, batch_size=16, epochs=1)
    model = nn.Linear(4, 1)
    values = [sandbox.Task(name="linear", recalibrate=k, **plain).evaluate(model, "validation") for k in (0, 2)]
    assert values[0] == values[1]


@pytest.mark.parametrize("value", [-1, True, 21, 1.0])
def test_impossible_numbers(value):
    with pytest.raises(ValueError, match="recalibrate"):
        task(recalibrate=value)

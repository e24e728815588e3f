"""Tasks that ranks can share, and such that they cannot."""

import os

import torch
from torch import nn
from torch.nn import functional

import sandbox

X = torch.randn(66, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = (X[:, 0] + X[:, 1] > 0).long()


def accuracy(model, batch):
    return (model(batch[0]).argmax(-1) == batch[1]).float().mean()


def cross_entropy(model, batch):
    return functional.cross_entropy(model(batch[0]), batch[1])


def network(*between):
    return nn.Sequential(nn.Linear(6, 5), *between, nn.Tanh(), nn.Linear(5, 2)).double()


def smooth():
    return network()


def convolutional():
    """Kernels of 2 × 2 over the features as images of 2 × 3."""
    return nn.Sequential(nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(6, 2)).double()


def normed():
    return network(nn.BatchNorm1d(5))


def unkept():
    return network(nn.BatchNorm1d(5, track_running_stats=False))


def dropping():
    return network(nn.Dropout(0.5))


def unseeded():
    """Another network in each process."""
    made = network()
    with torch.no_grad():
        made[0].bias += 1000 / os.getpid()
    return made


def batchwise(model, batch):
    """The largest of the rows' losses."""
    return functional.cross_entropy(model(batch[0]), batch[1], reduction="none").amax()


def failing(model, batch):
    """Raises on the second share of a batch in training."""
    if model.training and len(batch[0]) == 5:
        raise ZeroDivisionError("a wrong share")
    return cross_entropy(model, batch)


def task(model=smooth, loss=cross_entropy, batch_size=11, **options):
    """float64; batches of 11 rows give shares of 6 and 5."""
    data = dict.fromkeys(("train", "validation"), (X, Y))
    return sandbox.Task(
        name="shared",
        model=model,
        **data,
        loss=loss,
        metrics={"accuracy": accuracy},
        steps=12,
        batch_size=batch_size,
        **options,
    )

"""What a task is: parameters, a stream of batches, a loss and a held-out metric, each random stream by its seed alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

Params = dict[str, Tensor]
SPLITS = ("train", "validation", "test")

# Every use of randomness has its own stream, so that none depends on how much another has drawn.
_STREAMS = {"init": 0, "order": 1, "noise": 2}


def stream(seed: int, use: str) -> np.random.Generator:
    """The random stream of one use ("init", "order" or "noise") for one seed."""
    return np.random.default_rng([seed, _STREAMS[use]])


class Task:
    """A problem to train on.  All methods are pure; parameters are a dict of tensors.

    Attributes: name, about (one line), convex, metric (its name), higher_is_better, steps (a sensible number of updates).
    """

    name: str
    about: str
    convex: bool
    metric: str
    higher_is_better: bool
    steps: int
    dtype: torch.dtype = torch.float32

    def init(self, seed: int) -> Params:
        """Initial parameters."""
        raise TypeError(f"{type(self).__name__} must define init")

    def batches(self, seed: int) -> Iterator[Any]:
        """An endless stream of batches, in an order that depends on the seed alone."""
        raise TypeError(f"{type(self).__name__} must define batches")

    def loss(self, params: Params, batch: Any) -> Tensor:
        """The loss of a batch, 0-d."""
        raise TypeError(f"{type(self).__name__} must define loss")

    def full(self, split: str) -> Any:
        """A whole split as one batch; what has no data has one without noise."""
        raise TypeError(f"{type(self).__name__} must define full")

    def score(self, params: Params, batch: Any) -> Tensor:
        """The metric on a batch, 0-d."""
        raise TypeError(f"{type(self).__name__} must define score")

    @torch.no_grad()
    def evaluate(self, params: Params, split: str) -> tuple[float, float]:
        """(loss, metric) on a whole split.  Raises ValueError for an unknown split."""
        if split not in SPLITS:
            raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
        batch = self.full(split)
        return float(self.loss(params, batch)), float(self.score(params, batch))


class DataTask(Task):
    """A task on (X, y) rows: standardised on the training split, split 60/20/20 once and for all, shuffled every epoch."""

    batch_size: int = 64

    def __init__(self, X: np.ndarray, y: np.ndarray, *, stratify: bool, dtype: torch.dtype = torch.float32) -> None:
        from sklearn.model_selection import train_test_split

        self.dtype = dtype
        rows = np.arange(len(X))
        train, rest = train_test_split(rows, train_size=0.6, random_state=0, stratify=y if stratify else None)
        validation, test = train_test_split(rest, train_size=0.5, random_state=0, stratify=y[rest] if stratify else None)
        mean, deviation = X[train].mean(axis=0), X[train].std(axis=0)
        X = (X - mean) / np.where(deviation > 0, deviation, 1.0)
        target = torch.int64 if stratify else dtype
        self.splits = {
            name: (torch.as_tensor(X[index], dtype=dtype), torch.as_tensor(y[index], dtype=target))
            for name, index in zip(SPLITS, (train, validation, test), strict=True)
        }

    def full(self, split: str) -> Any:
        """All rows of a split."""
        return self.splits[split]

    def batches(self, seed: int) -> Iterator[Any]:
        """Minibatches of `batch_size` rows, without replacement within an epoch; a rest too small for one is dropped."""
        X, y = self.splits["train"]
        order = stream(seed, "order")
        while True:
            shuffled = torch.as_tensor(order.permutation(len(X)))
            for rows in shuffled.split(self.batch_size):
                if len(rows) == min(self.batch_size, len(X)):
                    yield X[rows], y[rows]

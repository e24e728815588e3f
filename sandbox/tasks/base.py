"""Tasks whose loss is a pure function of a dict of parameters, and those on rows of data.

`PureTask` is a `Task` whose `loss(params, batch)` takes the parameters themselves: what vmap and the theory like best.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sandbox.recipe import find_roles
from sandbox.recipe.find_roles import Role
from sandbox.tasks.streams import Generators, draws, stream
from sandbox.tasks.task import SPLITS, Params, Task
from sandbox.utils.private_torch import pytree

__all__ = ["SPLITS", "DataTask", "Params", "PureTask", "stream"]


class PureTask(Task):
    """A problem in parameters alone: a dict of tensors takes the place of the model, and all methods are pure.

    Attributes: name, about (one line), convex, metric (its name), higher_is_better, steps (a sensible number of updates).
    A subclass defines init, batches, loss, full and score; or, in place of loss and score, output(params, batch) with
    criterion(output, batch) and grade(output, batch), so that an evaluation needs one forward pass.
    """

    metric: str
    higher_is_better: bool
    steps: int
    epoch = None
    dtype: torch.dtype = torch.float32
    pure = True
    grade: Callable[[Any, Any], Tensor] | None = None

    def __init__(self) -> None:
        """Takes nothing."""

    def init(self, seed: int) -> Params:
        """Returns the initial parameters."""
        raise TypeError(f"{type(self).__name__} must define init")

    def _find_roles(self) -> dict[str, Role]:
        """Returns what `roles` says of each parameter; otherwise "hidden" for tensors with two axes or more."""
        start = self.init(0)
        given, found = find_roles.match(start, self.roles), {}
        for name, p in start.items():
            by_shape = "hidden" if p.ndim > 1 else "bias" if name.endswith("bias") else "scalar"
            found[name] = Role(given[name], "given") if name in given else Role(by_shape, f"{p.ndim} axes, no module")
        return found

    def batches(self, seed: int) -> Iterator[Any]:
        """Yields batches without end, in an order that depends on the seed alone."""
        raise TypeError(f"{type(self).__name__} must define batches")

    def loss(self, params: Params, batch: Any, /) -> Tensor:
        """Returns the loss of a batch, 0-d, at `params`."""
        if self.output is None or self.criterion is None:
            raise TypeError(f"{type(self).__name__} must define loss")
        return self.criterion(self.output(params, batch), batch)

    def full(self, split: str) -> Any:
        """Returns a whole split as one batch; a problem without data, a batch without noise."""
        raise TypeError(f"{type(self).__name__} must define full")

    def score(self, params: Params, batch: Any) -> Tensor:
        """Returns the metric on a batch, 0-d."""
        if self.output is None or self.grade is None:
            raise TypeError(f"{type(self).__name__} must define score")
        return self.grade(self.output(params, batch), batch)

    def scores(self) -> dict[str, Callable[[Any, Any], Any]]:
        """Returns the one metric, of (output, batch) where the task has `output` and `grade`, else of (params, batch)."""
        return {self.metric: self.grade or self.score}

    def measure(self, params: Params, batch: Any) -> tuple[Any, ...]:
        """Returns loss and metric of a batch; from one forward pass where the task has `output`."""
        if self.output is None or self._overrides("score", "grade"):
            return self.loss(params, batch), self.score(params, batch)
        return super().measure(params, batch)

    def start(self, seed: int) -> Params:
        """Returns the initial parameters as leaves that take gradients."""
        with Generators(seed, "init", held=self.generators()):
            return {name: p.clone().requires_grad_() for name, p in self.init(seed).items()}

    @functools.cached_property
    def stochastic(self) -> bool:  # type: ignore[override]
        """Whether the loss draws random numbers, tried on one batch; a run then lends it a stream of its own."""
        params, batch = self.start(0), next(self.stream(0, {}))
        return draws(lambda: self.loss(params, batch), self.generators())

    def stream(self, seed: int, model: Params) -> Iterator[Any]:
        """Returns `batches(seed)`."""
        return iter(self.batches(seed))

    def groups(self, params: Params, /) -> list[dict[str, Any]]:
        """Returns one group."""
        return [{"params": list(params.items())}]

    @functools.cached_property
    def training_sample(self) -> list[Any] | None:
        """As many rows of the training split as the validation split has, the same for all runs; None where it has no more.

        A split has rows where all of its tensors have equally many.
        """
        if self._overrides("evaluate", "training_sample"):
            return None
        with Generators(0, "evaluation", held=self.generators()):
            train, validation = self.full("train"), self.full("validation")
        rows, most = _rows(train), _rows(validation)
        if rows is None or most is None or rows <= most:
            return None
        some = torch.randperm(rows, generator=torch.Generator().manual_seed(0))[:most].sort().values
        return [pytree.tree_map(lambda x: x[some], train)]

    @property
    def has_test_split(self) -> bool:
        """Whether the test split is other data than the validation split; false for a problem without data."""
        one, other = (pytree.tree_leaves(self.full(split)) for split in ("validation", "test"))
        return len(one) != len(other) or not all(a is b or torch.equal(a, b) for a, b in zip(one, other, strict=True))

    def split_size(self, split: str) -> float:
        """Returns the number of rows of a split; NaN where its tensors do not have equally many."""
        with Generators(0, "evaluation", held=self.generators()):
            return _rows(self.full(split)) or math.nan

    def update_size(self) -> float:
        """Returns the number of rows in a batch; NaN where its tensors do not have equally many."""
        with Generators(0, "evaluation", held=self.generators()):
            return _rows(next(self.stream(0, {}), None)) or math.nan

    @torch.no_grad()
    def evaluate(self, params: Params, split: str, /, *, sample: bool = False) -> tuple[float, ...]:
        """Returns (loss, metric) on a whole split, or on the training sample.  Raises ValueError for an unknown split."""
        if split not in SPLITS:
            raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
        with Generators(0, "evaluation", held=self.generators()):
            (batch,) = (self.training_sample if sample else None) or [self.full(split)]
            return tuple(float(value) for value in self.measure(params, batch))

    def apply(self, function: Callable[[Any, Any], Any], params: Params, batch: Any, *, training: bool = True) -> Any:
        """Returns function(params, batch)."""
        return function(params, batch)


class DataTask(PureTask):
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
        """Returns all rows of a split."""
        return self.splits[split]

    def batches(self, seed: int) -> Iterator[Any]:
        """Yields minibatches of `batch_size` rows, without replacement within an epoch; a rest too small for one is dropped."""
        X, y = self.splits["train"]
        order = stream(seed, "order")
        while True:
            shuffled = torch.as_tensor(order.permutation(len(X)))
            for rows in shuffled.split(self.batch_size):
                if len(rows) == min(self.batch_size, len(X)):
                    yield X[rows], y[rows]


def _rows(batch: Any) -> int | None:
    """Returns the number of rows of all tensors in a batch; None where they do not have equally many."""
    lengths = {len(x) if isinstance(x, Tensor) and x.ndim else -1 for x in pytree.tree_leaves(batch)}
    return lengths.pop() if len(lengths) == 1 and -1 not in lengths else None

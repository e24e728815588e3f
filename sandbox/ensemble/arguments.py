"""Turns the arguments of `run` into configurations and a task."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from sandbox import tasks
from sandbox.ensemble.members import Config
from sandbox.forms import lookup
from sandbox.recipe import Recipe
from sandbox.tasks import PureTask, Task


def configs_of(recipes: Any, lr: Any) -> list[Config]:
    """Returns every recipe at every rate.  Raises ValueError for a rate below 0 or not finite, and where there is none."""
    resolved = [lookup.recipe(r) for r in ([recipes] if isinstance(recipes, str | Recipe) else recipes)]
    if not resolved:
        raise ValueError("an ensemble needs at least one recipe")
    if lr is None:
        return [Config(recipe, recipe.lr) for recipe in resolved]
    rates = [lr] if isinstance(lr, float | int) or callable(lr) else list(lr)
    if not rates:
        raise ValueError("lr must name at least one rate")
    for rate in rates:
        if not callable(rate) and not 0 <= float(rate) < math.inf:
            raise ValueError(f"lr must lie in [0, inf), got {rate}")
    return [Config(recipe, rate if callable(rate) else float(rate)) for recipe in resolved for rate in rates]


class BareLoss(PureTask):
    """A bare loss as a task: one start, batches by seed, nothing held out."""

    name, about, convex, metric, higher_is_better, steps = "loss", "", False, "loss", False, 100

    def __init__(self, loss: Any, params: Any, batches: Any) -> None:
        self.loss, self.params, self.batches_of = loss, params, batches  # type: ignore[method-assign]

    def init(self, seed: int) -> Any:
        """Returns the same start for every seed."""
        return self.params

    def batches(self, seed: int) -> Iterator[Any]:
        """Yields the seed's batches, from the beginning again when they end; None without any."""
        while True:
            empty = True
            for batch in [None] if self.batches_of is None else self.batches_of(seed):
                empty = False
                yield batch
            if empty:
                raise ValueError(f"batches must give at least one batch each time it is called, got none for seed {seed}")

    def full(self, split: str) -> Any:
        """Raises ValueError: there are no splits."""
        raise ValueError("evaluations must be 0 for a bare loss: it has no splits to be evaluated on; a Task has")


def task_of(task: Any, params: Any, batches: Any) -> Task:
    """Returns the task, or a bare loss as one.  Raises TypeError and ValueError for what is neither."""
    if isinstance(task, str | Task):
        if params is not None or batches is not None:
            raise ValueError("params and batches belong to a bare loss; a task has its own")
        return tasks.get(task)
    if not callable(task):
        raise TypeError(f"task must be a Task, a task's name or a function loss(params, batch), got {task!r}")
    if params is None:
        raise ValueError("a bare loss needs params: the tree of tensors with which every member starts")
    if batches is not None and not callable(batches):
        raise TypeError(f"batches must be a function of the seed that gives its batches, got a {type(batches).__name__}")
    return BareLoss(task, params, batches)


def allows(recipe: Recipe, lr: float) -> bool:
    """Whether the recipe's decay allows the rate."""
    try:
        recipe.decay.check_lr(lr)
    except ValueError:
        return False
    return True

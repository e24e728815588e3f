"""Whole comparisons of a recipe with itself, search included: each side chooses its rate on tuning seeds of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sandbox import ensemble
from sandbox.experiments.runs.methods import RecipeMethod
from sandbox.experiments.selection import contenders
from sandbox.experiments.selection.axes import Trial
from sandbox.experiments.selection.plan import plan
from sandbox.experiments.selection.search import Tuner
from sandbox.experiments.selection.statistics import Choice
from sandbox.experiments.settings import ComparisonSettings
from sandbox.tasks import Task
from sandbox.utils import memory


@dataclasses.dataclass(frozen=True)
class Tuned:
    """Differences of comparisons, (comparisons, pairs), by measure; and what the choice of rates adds to each comparison."""

    differences: Mapping[str, np.ndarray]
    choices: Mapping[str, list[Choice]]


class _Side:
    """One of the two in a comparison: its search, and its seeds."""

    def __init__(self, tuner: Tuner, tuning: list[int], final: list[int]) -> None:
        self.tuner, self.tuning, self.final = tuner, tuning, final
        self.chosen, self.contenders = 0.0, list[Trial]()


def tuned_differences(
    recipe: Any = "adamw",
    task: str | Task = "ridge-diabetes",
    *,
    comparisons: int = 400,
    pairs: int = 10,
    steps: int = 10,
    seed: int = 0,
    tuning_seeds: int = 3,
    progress: Callable[[int, int], None] | None = None,
) -> Tuned:
    """Returns paired differences of a recipe to itself; each side of a comparison is tuned as `compare` tunes a variant.

    Seeds from `seed` on, each used once.  Measures: the final loss on the training split, and the task's metric on the
    validation split.  progress: called with (sides whose search is over, in all).
    Raises ValueError for counts out of range, and where a final run diverged.
    """
    for name, value, least in (("comparisons", comparisons, 1), ("pairs", pairs, 2), ("seed", seed, 0), ("steps", steps, 1)):
        memory.whole(name, value, least)
    memory.whole("tuning_seeds", tuning_seeds, 2)
    planned = plan([recipe], task, ComparisonSettings(steps=steps, tuning_seeds=tuning_seeds, vectorised=False, evaluations=1))
    task, method = planned.task, planned.methods[0]
    if not isinstance(method, RecipeMethod):
        raise TypeError(f"{method.name} must be a recipe: the runs train together")
    each = tuning_seeds + pairs
    places = [range(seed + i * each, seed + (i + 1) * each) for i in range(2 * comparisons)]
    sides = [_Side(planned.new_tuner(method, 0), list(p[:tuning_seeds]), list(p[tuning_seeds:])) for p in places]
    runs = _Runs(method, task, steps)
    wanted = {i: side.tuner.ask() for i, side in enumerate(sides)}
    while wanted := {i: numbers for i, numbers in wanted.items() if numbers}:
        runs.make([(n["lr"], s) for i, numbers in wanted.items() for n in numbers for s in sides[i].tuning])
        for i, numbers in wanted.items():
            losses = [tuple(runs.at(n["lr"], s)["validation_loss"] for s in sides[i].tuning) for n in numbers]
            sides[i].tuner.tell([Trial(n, loss) for n, loss in zip(numbers, losses, strict=True)])
        wanted = {i: sides[i].tuner.ask() for i in wanted}
        if progress is not None:
            progress(len(sides) - sum(map(bool, wanted.values())), len(sides))
    for side in sides:
        chosen, _ = side.tuner.best(method.lr)
        side.chosen, side.contenders = chosen["lr"], contenders.contending(side.tuner.trials, chosen)
    few = min(pairs, contenders.SEEDS)
    runs.make([(side.chosen, s) for side in sides for s in side.final])
    runs.make([(t.numbers["lr"], s) for side in sides for t in side.contenders for s in side.final[:few]])
    differences, choices = {}, {}
    for measure, name in (("final loss", "train_loss"), (task.metric, "validation_metric")):
        ends = np.array([[runs.at(side.chosen, s)[name] for s in side.final] for side in sides])
        if lost := int((~np.isfinite(ends)).sum()):
            raise ValueError(f"the runs must not diverge, {lost} of {ends.size} did: take another recipe or fewer steps")
        shifts = [
            {
                side.tuner.trials.index(t): float(
                    np.mean([runs.at(t.numbers["lr"], s)[name] - runs.at(side.chosen, s)[name] for s in side.final[:few]])
                )
                for t in side.contenders
            }
            for side in sides
        ]
        differences[measure] = ends[:comparisons] - ends[comparisons:]
        choices[measure] = [
            contenders.variance([(sides[k].tuner.trials, shifts[k]) for k in (i, comparisons + i)]) for i in range(comparisons)
        ]
    return Tuned(differences, choices)


class _Runs:
    """Ends of runs by rate and seed; those of one rate train together."""

    def __init__(self, method: RecipeMethod, task: Task, steps: int) -> None:
        self.method, self.task, self.steps = method, task, steps
        self.ends: dict[tuple[float, int], dict[str, float]] = {}

    def make(self, wanted: list[tuple[float, int]]) -> None:
        """Makes the runs that are missing."""
        by_rate: dict[float, list[int]] = {}
        for rate, seed in dict.fromkeys(wanted):
            if (rate, seed) not in self.ends:
                by_rate.setdefault(rate, []).append(seed)
        for rate, seeds in by_rate.items():
            found = ensemble.run(
                [self.method.recipe], self.task, lr=rate, seeds=seeds, steps=self.steps, evaluations=[self.steps]
            )
            for k, seed in enumerate(seeds):
                ends = {name: float(values[k, -1]) for name, values in found.evaluations.items()}
                lost = not np.isfinite(ends["train_loss"]) or bool(found.diverged[k])
                self.ends[rate, seed] = ends | ({"validation_loss": np.inf, "train_loss": np.inf} if lost else {})

    def at(self, rate: float, seed: int) -> dict[str, float]:
        """Returns the last evaluation of a run."""
        return self.ends[rate, seed]

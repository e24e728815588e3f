"""Coordinate descent over the numbers of a variant: each is searched along a line, the others at their best so far.

The numbers come in the order in which they are named, and the first one, usually the rate, once more at the end.  A line is
searched by `bracket`; the next trials are a function of the finished ones alone.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sandbox.experiments.selection import bracket
from sandbox.experiments.selection.axes import Axis, Numbers, Trial


@dataclasses.dataclass(frozen=True)
class Descent:
    """A coordinate descent.  points: of a line's first round, `spacing` apart on a logarithmic axis, a part of the range on a
    linear one.  trials, limit: in all, and where an optimum is still at an end of what was tried."""

    axes: Mapping[str, Axis]
    points: int
    spacing: float
    trials: int
    limit: int

    def step(self, trials: Sequence[Trial]) -> tuple[list[Numbers], Numbers, bool]:
        """Returns the numbers to try next, the best ones so far, and whether one of these is at an end of what was tried."""
        best: Numbers = {name: axis.choices[0] if axis.choices else axis.middle for name, axis in self.axes.items()}
        edges: dict[str, bool] = {}
        order = [*self.axes, *list(self.axes)[:1]] if len(self.axes) > 1 else list(self.axes)
        for place, name in enumerate(order):
            axis, along = self.axes[name], [t for t in trials if _agree(t.numbers, best, name)]
            line = {axis.position(t.numbers[name], self._unit(axis)): t for t in along}
            last = place == len(order) - 1
            budget = len(along) + self.trials - len(trials) if last else self.trials // len(order)
            if values := self._next(axis, best[name], {p: t.loss for p, t in line.items()}, budget):
                return [{**best, name: value} for value in values], best, True
            lowest = bracket.best({p: t.loss for p, t in line.items()}) if line else None
            if lowest is None:
                return [], best, False  # nothing survived
            if place == 0 or _gains(line.get(axis.position(best[name], self._unit(axis))), line[lowest]):
                best = {**best, name: line[lowest].numbers[name]}
            edges[name] = not axis.choices and bracket.outside({p: t.loss for p, t in line.items()}) != 0
        return [], best, any(edges.values())

    def _unit(self, axis: Axis) -> float:
        """Returns the distance of neighbouring positions on the axis' scale."""
        unit = math.log(self.spacing) / bracket.GAP if axis.log else math.inf
        return min(unit, axis.length / (bracket.GAP * max(self.points - 1, 1)))

    def _next(self, axis: Axis, value: Any, losses: Mapping[float, float], budget: int) -> list[Any]:
        if axis.choices:
            return [choice for i, choice in enumerate(axis.choices) if i not in losses]
        unit = self._unit(axis)
        centre = axis.position(value, unit)
        low, high = (axis.position(end, unit) for end in (axis.low, axis.high))
        line = bracket.Line(self.points, max(budget, 0), budget + self.limit - self.trials, centre, low, high)
        values = (axis.value(p, unit) for p in line.propose(losses))
        return [v for v in values if axis.position(v, unit) not in losses]


def _agree(numbers: Numbers, best: Numbers, name: str) -> bool:
    return all(numbers[other] == value for other, value in best.items() if other != name)


def _gains(before: Trial | None, after: Trial) -> bool:
    """Whether the loss fell by more than the standard error of its difference over the seeds."""
    if before is None or not math.isfinite(before.loss):
        return True
    d = np.subtract(before.losses, after.losses)
    error = d.std(ddof=1) / math.sqrt(len(d)) if len(d) > 1 else 0.0
    return before.loss - after.loss > error

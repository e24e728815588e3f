"""What a search may vary: ranges and choices; and what it finds: trials."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

Numbers = dict[str, Any]
PART = 64  # parts of a position that are told apart: values are rounded


@dataclasses.dataclass(frozen=True)
class Axis:
    """The values that a number may take: a range, or `choices`.  start: where a search along it begins."""

    low: float = 0.0
    high: float = math.inf
    log: bool = False
    choices: tuple[Any, ...] = ()
    start: float | None = None

    def points(self, count: int) -> list[Any]:
        """Returns `count` values, lowest first; or all choices."""
        if self.choices:
            return list(self.choices)
        spaced = np.geomspace if self.log else np.linspace
        return [float(f"{v:.6g}") for v in spaced(self.low, self.high, count)]

    def on_edge(self, value: Any) -> bool:
        """Whether a value lies within a twentieth of the range from its ends."""
        if self.choices:
            return False
        low, high, place = self._scale(self.low), self._scale(self.high), self._scale(value)
        return min(place - low, high - place) <= 0.05 * (high - low)

    @property
    def length(self) -> float:
        """The length of the range on its scale; infinite where it has no ends."""
        return self._scale(self.high) - self._scale(self.low)

    @property
    def middle(self) -> float:
        """Where a search begins: the start if it lies in the range, else the range's middle."""
        if self.start is not None and self.low <= self.start <= self.high:
            return self.start
        return float(f"{self.points(3)[1]:.6g}")

    def position(self, value: Any, unit: float) -> float:
        """Returns the place of a value in units from the middle; of a choice, its number."""
        if self.choices:
            return float(self.choices.index(value))
        place = self._scale(value) - self._scale(self.middle)
        return round(PART * place / unit) / PART if math.isfinite(place) else place

    def value(self, position: float, unit: float) -> float:
        """Returns the value at a place, to six digits."""
        moved = self.middle * math.exp(position * unit) if self.log else self.middle + position * unit
        return float(f"{min(max(moved, self.low), self.high):.6g}")

    def _scale(self, value: Any) -> float:
        if not self.log:
            return float(value)
        return math.log(value) if value > 0 else -math.inf


@dataclasses.dataclass(frozen=True)
class Trial:
    """Numbers that were tried, and the validation loss of each tuning seed: infinite where a run diverged."""

    numbers: Numbers
    losses: tuple[float, ...]

    @property
    def loss(self) -> float:
        """The mean loss over the tuning seeds."""
        return float(np.mean(self.losses)) if self.losses else math.inf

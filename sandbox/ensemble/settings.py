"""What all members of an ensemble share."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from sandbox.schedules import evenly
from sandbox.tasks import Task


@dataclasses.dataclass(frozen=True)
class Settings:
    """Task, seeds, length, schedule, measurements and memory budget of an ensemble; as for `sandbox.ensemble.run`.

    factors: of the schedule, one per step.  evaluations: their number, or the steps after which they are made.
    full_at: those that take the whole training split, None for all; the others take its sample.
    """

    task: Task
    seeds: list[int]
    steps: int
    factors: list[float]
    evaluations: int | Sequence[int]
    full_at: Sequence[int] | None
    probes: dict[str, Any]
    every: int
    compiled: bool
    memory: int

    @property
    def at(self) -> list[int]:
        """The steps after which members are evaluated."""
        if isinstance(self.evaluations, int):
            return [0, *evenly(self.steps, self.evaluations)] if self.evaluations else []
        return [0, *self.evaluations]

    def sampled(self, t: int) -> bool:
        """Whether the evaluation after step t takes the training sample."""
        return self.full_at is not None and t not in self.full_at

    @property
    def probed(self) -> list[int]:
        """The steps that probes see."""
        return [t for t in range(1, self.steps + 1) if t % self.every == 0] if self.probes else []

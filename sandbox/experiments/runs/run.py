"""A run as data: everything it depends on, and the name that this gives it on disk."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

from sandbox.experiments.settings import Options

TUNING_SEEDS_FROM = 10_000  # tuning seeds are 10000, 10001, …; final ones 0, 1, …


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """What a run depends on.  `role` is "tuning", "final", or "contender" for final runs of numbers that other tuning seeds
    might have chosen: tuning runs never evaluate the test split, the others once, at their end.

    numbers: the searched values that replace the method's own.  at: the steps after which it is evaluated.  full_at: those at
        which the training loss is that of the whole split, None for all; elsewhere it is that of the training sample.
    way: a backend, or "vmap" for runs that train as one batch; batch_id: digits of the set of runs in that batch, on which
        rounding depends.  code: digits of the source, the task and everything else that the numbers depend on.
    """

    task: str
    method: str
    lr: float
    seed: int
    role: str
    steps: int
    at: tuple[int, ...]
    full_at: tuple[int, ...] | None = None
    warmup: int = 0
    schedule: Any = "constant"
    numbers: tuple[tuple[str, Any], ...] = ()
    way: str = "eager"
    batch_id: str = ""
    options: Options = Options()
    probes: str = ""
    code: str = ""

    def facts(self) -> dict[str, Any]:
        """Returns the fields as JSON stores them."""
        named = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        schedule = self.schedule if isinstance(self.schedule, str) else getattr(self.schedule, "__qualname__", "function")
        numbers = {name: value if isinstance(value, float | int | str) else str(value) for name, value in self.numbers}
        steps = {"at": list(self.at), "full_at": None if self.full_at is None else list(self.full_at)}
        return {**named, "schedule": schedule, "numbers": numbers, "options": dataclasses.asdict(self.options), **steps}

    def key(self) -> str:
        """Returns the sixteen digits that name the run on disk."""
        return hashlib.sha256(json.dumps(self.facts(), sort_keys=True).encode()).hexdigest()[:16]

"""What a run depends on: its settings, and the name they give it on disk."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """How updates are made, beside the method."""

    # also the options of `apollo-sandbox compare`, whose help these texts are

    accumulate: int = 1
    """Batches whose mean gradient makes an update."""
    autocast: str | None = None
    """None, or bfloat16: losses and metrics in mixed precision."""
    state_dtype: str | None = None
    """None, or bfloat16: a recipe's state in half the bytes, rounded at random."""
    device: str = "cpu"
    """Where a network trains; a run starts from the same numbers on every device."""
    compile_model: bool = False
    """torch.compile the network."""
    threads: int = 1
    """Of the CPU, for a run; sums depend on their number."""
    ranks: int = 1
    """Processes that make a run together, each on its share of every batch: the same numbers to rounding."""
    time_limit: float | None = None
    """Seconds after which a run ends, as it then stands."""

    def __post_init__(self) -> None:
        for name in ("accumulate", "threads", "ranks"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
        for name in ("autocast", "state_dtype"):
            if (dtype := getattr(self, name)) not in (None, "bfloat16"):
                raise ValueError(f'{name} must be None or "bfloat16", got {dtype!r}')
        if self.time_limit is not None and not 0 < self.time_limit < math.inf:
            raise ValueError(f"time_limit must be a number of seconds above 0, got {self.time_limit!r}")
        if self.ranks > 1 and self.device != "cpu":
            raise ValueError(f"ranks={self.ranks} train on the CPU, got device={self.device!r}")
        if self.device != "cpu":
            import torch

            try:
                torch.device(self.device)
            except RuntimeError as error:
                raise ValueError(f"device: {str(error).splitlines()[0]}") from error

    def needs_a_loop(self) -> str | None:
        """What of it a vectorised run cannot do."""
        changed = [f.name for f in dataclasses.fields(self) if getattr(self, f.name) != f.default]
        return ", ".join(changed) or None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """What a run depends on.  `role` is "tuning" or "final": only final runs look at the test split, once, at their end.

    numbers: what a search has put in place of the method's own.  at: the steps after which it is evaluated.
    way: a backend, or "vmap" for runs made together; company: of those, the digits of the runs that were made together, on
        whose number rounding depends.  code: of the source, of the task and of whoever else has a say.
    """

    task: str
    method: str
    lr: float
    seed: int
    role: str
    steps: int
    at: tuple[int, ...]
    warmup: int = 0
    schedule: Any = "constant"
    numbers: tuple[tuple[str, Any], ...] = ()
    way: str = "eager"
    company: str = ""
    options: Options = Options()
    probes: str = ""
    code: str = ""

    def facts(self) -> dict[str, Any]:
        """As JSON keeps it."""
        named = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        schedule = self.schedule if isinstance(self.schedule, str) else getattr(self.schedule, "__qualname__", "function")
        numbers = {name: value if isinstance(value, float | int | str) else str(value) for name, value in self.numbers}
        changed = {f.name: getattr(self.options, f.name) for f in dataclasses.fields(self.options)}
        return {**named, "schedule": schedule, "numbers": numbers, "options": changed, "at": list(self.at)}

    def key(self) -> str:
        """Sixteen digits that name the run on disk."""
        return hashlib.sha256(json.dumps(self.facts(), sort_keys=True).encode()).hexdigest()[:16]

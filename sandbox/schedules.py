"""Rates over time.

`warmup` is a `torch.optim.lr_scheduler`: linear from an initial rate, the one that Apollo's author uses.  It composes with any
other scheduler and honours per-group rates.  `InverseSquareRoot`, `Geometric` and `InverseTime` are functions of t for any
number of a recipe, as the theory needs them.  `NAMES` are the schedules that experiments know by name.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence

import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LRScheduler, ReduceLROnPlateau, SequentialLR

from sandbox.blocks.schedule import Geometric, InverseSquareRoot, InverseTime
from sandbox.utils import imports, suggest

__all__ = [
    "NAMES",
    "Geometric",
    "InverseSquareRoot",
    "InverseTime",
    "Schedule",
    "Warmup",
    "evenly",
    "factors",
    "of_run",
    "warmup",
]

Schedule = str | Callable[[torch.optim.Optimizer, int], LRScheduler | None]

DECAY = 5  # the last 1/DECAY of the updates, in which the rate of "wsd" falls


def _stable_then_decay(optimizer: torch.optim.Optimizer, steps: int, form: Callable[[float], float]) -> LambdaLR:
    """A constant rate, then η (1 - form(x)), x from 0 to 1 over the last fifth of the updates   (Hu et al. 2024, WSD)."""
    start = steps - steps // DECAY
    return LambdaLR(optimizer, lambda k: 1.0 if k <= start else max(0.0, 1 - form((k - start) / (steps - start))))


NAMES: dict[str, Callable[[torch.optim.Optimizer, int], LRScheduler | None]] = {
    "constant": lambda optimizer, steps: None,
    "cosine": lambda optimizer, steps: CosineAnnealingLR(optimizer, max(steps, 1)),
    "linear": lambda optimizer, steps: LambdaLR(optimizer, lambda k: max(0.0, 1 - k / max(steps, 1))),
    "wsd": lambda optimizer, steps: _stable_then_decay(optimizer, steps, lambda x: x),
    "wsd-sqrt": lambda optimizer, steps: _stable_then_decay(optimizer, steps, math.sqrt),
    "inverse-sqrt": lambda optimizer, steps: LambdaLR(optimizer, lambda k: 1 / math.sqrt(k + 1)),
}


class Warmup(LRScheduler):
    """η_k = init + (η - init) k/steps at update k = 0, 1, … < steps, then η: each group's own rate η.

    Steps by factors, as torch's own chainable schedulers do, so others (ExponentialLR, ReduceLROnPlateau, …) may be
    stepped beside it; to have another one begin where it ends, use `warmup(…, then=…)`.

    steps: length of the warm-up in updates, ≥ 0.
    init: the rate of the first update, in every group: a number, or one per group.  Default η/1000, as the author's code.
    Raises ValueError where `init` exceeds a group's rate or is negative, or steps < 0.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        steps: int,
        init: float | Sequence[float] | None = None,
        last_epoch: int = -1,
    ) -> None:
        if isinstance(steps, bool) or not isinstance(steps, int):
            raise TypeError(f"warm-up: steps must be a whole number, got {steps!r}")
        if steps < 0:
            raise ValueError(f"warm-up: steps must be at least 0, got {steps}")
        groups = optimizer.param_groups
        for i, group in enumerate(groups):
            if callable(group["lr"]) and not isinstance(group["lr"], torch.Tensor):
                raise ValueError(f"warm-up: the rate of group {i} is a function of t already; put the warm-up into it")
        targets = [float(g.get("initial_lr", g["lr"])) for g in groups]
        given = list(init) if isinstance(init, Sequence) else [init] * len(groups)
        if len(given) != len(groups):
            raise ValueError(f"warm-up: {len(given)} initial rates for {len(groups)} parameter groups")
        low_rates = [target / 1000 if value is None else float(value) for target, value in zip(targets, given, strict=True)]
        for i, (low, target) in enumerate(zip(low_rates, targets, strict=True)):
            if not 0 <= low <= target:
                raise ValueError(f"warm-up: the initial rate must lie in [0, {target:g}], the rate of group {i}, got {low:g}")
        for group, low in zip(groups, low_rates, strict=True):
            group["warmup_init"] = low  # in the group, as torch keeps "initial_lr": groups may be added, moved and saved
        self.steps = steps
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:  # type: ignore[override]
        """The rates of the update to come; after the warm-up, whatever they are, so that other schedulers may act beside it."""
        k, rates = self.last_epoch, [float(g["lr"]) for g in self.optimizer.param_groups]
        if k > self.steps or (k == self.steps and not self.steps):
            return rates
        found = []
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            joins = "initial_lr" not in group  # added since the last update: from now on it warms up with the others
            base = float(group.setdefault("initial_lr", rate))
            low = group.setdefault("warmup_init", base / 1000)
            now, before = (low + (base - low) * j / self.steps for j in (k, k - 1))
            # in proportion to what it was, since another scheduler may have changed it; from 0 there is no proportion
            found.append(rate * now / before if k > 0 and before > 0 and rate > 0 and not joins else now)
        return found


def warmup(
    optimizer: torch.optim.Optimizer,
    steps: int,
    init: float | Sequence[float] | None = None,
    then: LRScheduler | None = None,
) -> LRScheduler:
    """A linear warm-up, followed by the scheduler `then`, which starts counting where the warm-up ends.

        scheduler = warmup(optimizer, 500, then=CosineAnnealingLR(optimizer, 10_000))

    See `Warmup` for arguments and errors.
    """
    if then is None:
        return Warmup(optimizer, steps, init)
    if isinstance(then, ReduceLROnPlateau):
        raise TypeError("ReduceLROnPlateau needs a metric and cannot be chained: make it beside the warm-up and step both")
    # `then` has set rates for its own update 0; the warm-up starts from the rates that it was given
    for group in optimizer.param_groups:
        rate = group["initial_lr"]
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(float(rate))
        else:
            group["lr"] = rate
    return SequentialLR(optimizer, [Warmup(optimizer, steps, init), then], milestones=[steps])


def checked(schedule: Schedule) -> Schedule:
    """The schedule; of "module:function" the function.

    Raises ValueError for an unknown name, TypeError for what is neither a name nor a function.
    """
    if isinstance(schedule, str) and ":" not in schedule:
        if schedule not in NAMES:
            raise ValueError(suggest.unknown("schedule", schedule, NAMES))
    elif isinstance(schedule, str):
        return checked(imports.attribute(schedule))
    elif not callable(schedule):
        raise TypeError(f"schedule must be a name or a function (optimizer, steps) -> LRScheduler, got {schedule!r}")
    return schedule


def of_run(optimizer: torch.optim.Optimizer, steps: int, warm: int, schedule: Schedule) -> LRScheduler | None:
    """The scheduler of a run of `steps` updates: `warm` of linear warm-up, then the schedule; None for a constant rate.

    schedule: one of `NAMES`, or a function (optimizer, updates after the warm-up) -> LRScheduler, stepped after each update.
    """
    make = NAMES[schedule] if isinstance(schedule, str) else schedule
    then = make(optimizer, steps - warm)
    return warmup(optimizer, warm, then=then) if warm else then


def factors(steps: int, warm: int, schedule: str) -> list[float]:
    """η_t over η for t = 1 … steps, from the same schedulers that a single run has."""
    if not warm and schedule == "constant":
        return [1.0] * steps
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    scheduler = of_run(optimizer, steps, warm, schedule)
    found = []
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*lr_scheduler.step.*")  # nobody steps this optimizer
        for _ in range(steps):
            found.append(float(optimizer.param_groups[0]["lr"]))
            if scheduler is not None:
                scheduler.step()
    return found


def evenly(steps: int, count: int) -> list[int]:
    """`count` steps at equal distances, the last one included."""
    count = min(count, steps)
    return sorted({round(steps * (k + 1) / count) for k in range(count)})

"""Learning rates over a run, as data: milestones, cosine, exponential, inverse square root."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from torch.optim.lr_scheduler import LambdaLR

KINDS = ("constant", "milestones", "cosine", "exponential", "inverse-sqrt")


@dataclasses.dataclass(frozen=True)
class RateSchedule:
    """η_t = η f(t); t counts the updates of a run from 0, its warm-up included.

    constant: 1.  cosine: (1 + cos πu)/2, u the share of the run that is over since the warm-up.
    milestones: `factor` at each share of the run in `at`.  exponential: factor^⌊pieces t/T⌋, a piece being an epoch.
    inverse-sqrt: √(w/t) after w updates of warm-up.
    """

    kind: str = "constant"
    at: tuple[float, ...] = ()
    factor: float = 0.1
    pieces: int = 1

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {self.kind!r}")

    def updates(self, steps: int) -> tuple[int, ...]:
        """Returns the milestones as numbers of updates made before each."""
        return tuple(round(share * steps) for share in self.at)

    def schedule(self, steps: int, warmup: int) -> Any:
        """Returns "constant", "cosine", or a function (optimizer, updates after warm-up) -> scheduler, for `steps` updates."""
        if self.kind in ("constant", "cosine"):
            return self.kind
        scale = self._scale(steps, warmup)

        def build(optimizer: Any, left: int) -> LambdaLR:
            return LambdaLR(optimizer, lambda k: scale(k + warmup))

        text = repr(self).replace(type(self).__name__, "Rate")  # as the rows that are kept have it
        build.__qualname__ = f"{text} of {steps} after {warmup}"  # by which stored runs tell schedules apart
        return build

    def _scale(self, steps: int, warmup: int) -> Callable[[int], float]:
        if self.kind == "milestones":
            ends = self.updates(steps)
            return lambda t: self.factor ** sum(t >= end for end in ends)
        if self.kind == "exponential":
            return lambda t: self.factor ** (t * self.pieces // steps)
        return lambda t: (max(warmup, 1) / max(t, warmup, 1)) ** 0.5


def milestones(*at: float) -> RateSchedule:
    """Returns the schedule that multiplies the rate by 0.1 at shares of the run."""
    return RateSchedule("milestones", at)


COSINE = RateSchedule("cosine")
CIFAR_MILESTONES = milestones(80 / 164, 120 / 164)
IMAGENET_MILESTONES = milestones(40 / 120, 80 / 120)
TEXT_MILESTONES = milestones(0.6, 0.9)  # epochs 12 and 18 of 20; updates 300,000 and 450,000 of 500,000

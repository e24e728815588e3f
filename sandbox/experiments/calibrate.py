"""Calibration: whether the statistics of `compare` have the error rate and the power that they state.

A/A: one recipe under two names, on seeds that no two runs share, so that every difference found is an error.  A/B: the same
differences with a known effect added, so that every one missed is a miss.  With tuning, each of the two chooses its rate by the
search of `compare`, on tuning seeds of its own, and contending rates count as there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from sandbox import ensemble, tasks
from sandbox.experiments.reports.tables import Shown, Table
from sandbox.experiments.selection import statistics
from sandbox.tasks import Task
from sandbox.utils import memory

FAMILY = 4  # comparisons that Holm's correction takes together: five variants
LEVEL, POWER = 0.05, 0.8


@dataclasses.dataclass(frozen=True)
class EventRate:
    """How often an event happened, and how often it should.  measure, event: names of both.

    at_most: whether `stated` is a bound: a test of few distinct values (ties, few pairs) errs less than its level.
    """

    measure: str
    event: str
    stated: float
    count: int
    of: int
    at_most: bool = True

    @property
    def interval(self) -> tuple[float, float]:
        """Exact 95 % binomial interval of the rate (Clopper and Pearson 1934)."""
        interval = stats.binomtest(self.count, self.of).proportion_ci(0.95, method="exact")
        return float(interval.low), float(interval.high)

    @property
    def holds(self) -> bool:
        """Whether the stated rate lies in the interval, or above it where it is a bound."""
        low, high = self.interval
        return low <= self.stated and (self.at_most or self.stated <= high)


@dataclasses.dataclass(frozen=True, repr=False)
class Calibration(Shown):
    """All rates.  pairs: seeds per comparison."""

    rates: list[EventRate]
    pairs: int

    @property
    def holds(self) -> bool:
        """Whether every stated rate holds."""
        return all(rate.holds for rate in self.rates)

    def table(self) -> Table:
        """Returns one row per rate."""
        rows = []
        for r in self.rates:
            low, high = r.interval
            measured = f"{100 * r.count / r.of:.1f} % [{100 * low:.1f}, {100 * high:.1f}]"
            holds = "no" if not r.holds else "yes" if r.stated <= high else "yes, rarer"
            rows.append([r.measure, r.event, f"{100 * r.stated:.0f} %", measured, f"{r.count} of {r.of}", holds])
        return ["measure", "event", "stated", "found [95 %]", "count", "holds"], rows

    def notes(self) -> list[str]:
        """Returns what a reader must know to read the table."""
        return [
            f"{self.pairs} pairs a comparison; brackets: exact binomial interval; σ: standard deviation of the differences.",
            "A/A: one recipe under two names.  A/B: the same differences with a shift added.  Rarer: fewer errors than "
            "stated, as with a metric of few distinct values.",
        ]

    def shown(self) -> tuple[list[Table], list[str]]:
        """Returns the table and its notes."""
        return [self.table()], self.notes()


def differences(
    recipe: Any = "adamw",
    task: str | Task = "ridge-diabetes",
    *,
    comparisons: int = 400,
    pairs: int = 10,
    steps: int = 10,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, np.ndarray]:
    """Returns paired differences of a recipe to itself: measure -> (comparisons, pairs) in float64.

    Trains 2 · comparisons · pairs runs, together, with the seeds that follow `seed`, each used once.  Measures: the final loss
    on the training split, and the task's metric on the validation split.  progress: called with (member steps done, in all).
    Raises ValueError for counts out of range, and where a run diverged.
    """
    task = tasks.get(task)
    memory.whole("comparisons", comparisons)
    memory.whole("pairs", pairs, 2)
    memory.whole("seed", seed, 0)
    if comparisons % FAMILY:
        raise ValueError(f"comparisons must be a multiple of {FAMILY}, the size of a family, got {comparisons}")
    seeds = range(seed, seed + 2 * comparisons * pairs)
    runs = ensemble.run([recipe], task, seeds=seeds, steps=steps, evaluations=[steps], progress=progress)
    result = {}
    for measure, name in (("final loss", "train_loss"), (task.metric, "validation_metric")):
        ends = runs.evaluations[name][:, -1]
        if lost := int((~np.isfinite(ends)).sum()):
            raise ValueError(f"the runs must not diverge, {lost} of {len(ends)} did: take another recipe or fewer steps")
        a, b = ends.astype(np.float64).reshape(2, comparisons, pairs)
        result[measure] = a - b
    return result


def judge(
    paired: Mapping[str, np.ndarray],
    progress: Callable[[int, int], None] | None = None,
    choices: Mapping[str, Sequence[statistics.Choice]] | None = None,
) -> Calibration:
    """Counts errors and detections of the statistics of `compare` on differences without an effect.

    paired: measure -> (comparisons, pairs), symmetric about 0; comparisons a multiple of four, for Holm's families.
    choices: measure -> what the choice of rates adds to each comparison.
    The shift of A/B is `smallest_detectable` with 80 % power, for the σ of all differences together; where rates were chosen
    the power may be lower, since intervals are then wider.
    progress: called with (comparisons judged, in all).  Raises ValueError for differences that are all equal.
    """
    rates, done, total, pairs = [], 0, sum(len(d) for d in paired.values()), 0
    for measure, d in paired.items():
        pairs = d.shape[1]
        sigma = float(d.std())
        if not sigma:
            raise ValueError(f"{measure}: the differences must not all be equal; runs differ in nothing on this task")
        results, added = [], choices[measure] if choices is not None else [statistics.Choice()] * len(d)
        for row, choice in zip(d, added, strict=True):
            results.append(statistics.paired(row.tolist(), [0.0] * pairs, choice))
            done += 1
            if progress is not None:
                progress(done, total)
        p = [r.p for r in results]
        lowest = [min(statistics.holm(p[i : i + FAMILY])) for i in range(0, len(p), FAMILY)]
        shift = statistics.smallest_detectable(sigma, pairs, POWER, LEVEL)
        excluded = sum(_excludes(r.low, r.high) for r in results)
        shifted = sum(_excludes(*statistics.interval(row + shift, choice=c)) for row, c in zip(d, added, strict=True))
        tuned = choices is not None
        rates += [
            EventRate(measure, "A/A: the t interval excludes 0", LEVEL, excluded, len(d)),
            EventRate(measure, "A/A: sign-flip p < 0.05", LEVEL, sum(x < LEVEL for x in p), len(d)),
            EventRate(measure, "A/A: some of four p < 0.05 after Holm", LEVEL, sum(x < LEVEL for x in lowest), len(lowest)),
            EventRate(measure, f"A/B, {shift / sigma:.3f} σ: the t interval excludes 0", POWER, shifted, len(d), at_most=tuned),
        ]
    return Calibration(rates, pairs)


def _excludes(low: float | None, high: float | None) -> bool:
    return low is not None and high is not None and (low > 0 or high < 0)

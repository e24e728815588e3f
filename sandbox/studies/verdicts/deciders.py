"""Relations between quantities that decide claims, and their evaluation on rows."""

from __future__ import annotations

import dataclasses
import math
from typing import Protocol

import numpy as np
from scipy import stats

from sandbox.experiments.selection import statistics
from sandbox.studies.verdicts.quantities import Missing, Quantity, Reads, Rows, Seeds, final


@dataclasses.dataclass(frozen=True)
class Comparison:
    """says: +1 as claimed, -1 the opposite, 0 neither beyond its 95 % interval.  p: of no difference, two-sided.

    shown: the comparison, the difference and its interval.  of, difference: the quantity and its difference, if any.
    """

    says: int
    p: float
    shown: str
    of: Quantity | None = None
    difference: statistics.Difference | None = None

    def smallest(self) -> str:
        """Returns the smallest difference detectable with 80 % power; "" where there is no such number."""
        if self.of is None or self.difference is None or self.difference.mean is None:
            return ""
        return amount(self.of, statistics.smallest_detectable(self.difference.spread, self.difference.pairs))


class Decider(Protocol):
    """reads: keys of the studies whose rows it needs.  compared: the comparisons; raises Missing where rows are missing."""

    @property
    def reads(self) -> set[str]: ...  # noqa: D102

    def compared(self, rows: Rows) -> list[Comparison]: ...  # noqa: D102


@dataclasses.dataclass(frozen=True)
class Better(Reads):
    """`left` is better than every one of `than`: lower, or higher where its quantity says so; beyond the 95 % intervals."""

    left: Quantity
    than: tuple[Quantity, ...]

    def compared(self, rows: Rows) -> list[Comparison]:
        """Returns one comparison per member of `than`."""
        mine, sign = self.left.values(rows), 1 if self.left.higher else -1
        comparisons = []
        for other in self.than:
            a, b = paired(mine, other.values(rows))
            d = statistics.paired(a, b)
            shown = f"{self.left} − {other} {interval_text(self.left, d)}"
            comparisons.append(Comparison(sign * direction(d, a, b), p_of(d), shown, self.left, d))
        return comparisons


@dataclasses.dataclass(frozen=True)
class Close(Reads):
    """`left` and `right`, a quantity or a number, differ by less than `margin`: the 95 % interval lies within."""

    left: Quantity
    right: Quantity | float
    margin: float

    def compared(self, rows: Rows) -> list[Comparison]:
        """Returns the one comparison."""
        mine = self.left.values(rows)
        a, b = paired(mine, dict.fromkeys(mine, self.right) if isinstance(self.right, float) else self.right.values(rows))
        d = statistics.paired(a, b)
        right = f"{self.right:g}" if isinstance(self.right, float) else str(self.right)
        shown = f"{self.left} − {right} {interval_text(self.left, d)}, margin {amount(self.left, self.margin)}"
        if d.mean is None or d.low is None or d.high is None:
            return [Comparison(0, 1.0, shown)]
        within, beyond = -self.margin < d.low and d.high < self.margin, d.low > self.margin or d.high < -self.margin
        return [Comparison(int(within) - int(beyond), p_of(d), shown, self.left, d)]


@dataclasses.dataclass(frozen=True)
class Same(Reads):
    """Arms (of one part) or one arm (of several parts, its losses divided by 2^k) have equal training losses.

    tolerance: of the relative difference; 0 for bitwise.
    """

    study: str
    parts: tuple[str, ...]
    arms: tuple[str, ...]
    tolerance: float = 0.0

    def compared(self, rows: Rows) -> list[Comparison]:
        """Compares all evaluations of all runs with the first by the largest relative difference."""
        curves = []
        for part in self.parts:
            scale = 2.0 ** int(part[2:]) if part.startswith("2^") else 1.0
            curves += [
                final(rows, self.study, part, arm).sort("seed", "step")["train_loss"].to_numpy() / scale for arm in self.arms
            ]
        gap = max(float(np.max(np.abs(c - curves[0]) / np.abs(curves[0]))) for c in curves[1:])
        shown = f"largest relative difference of training losses {gap:.2g} over {len(curves[0])} evaluations"
        return [Comparison(1 if gap <= self.tolerance else -1, 0.0, shown)]


@dataclasses.dataclass(frozen=True)
class Steadier(Reads):
    """The rates chosen for `arm` in several (study, part) spread over fewer decades than those of `than`.

    step: decades between neighbouring rates of a search; smaller differences do not count.
    """

    places: tuple[tuple[str, str], ...]
    arm: str
    than: str
    step: float

    @property
    def reads(self) -> set[str]:
        """Keys of the studies of all places."""
        return {study for study, _ in self.places}

    def compared(self, rows: Rows) -> list[Comparison]:
        """Returns the one comparison, without an interval: a rate is a point of a grid."""
        ranges = {}
        for arm in (self.arm, self.than):
            rates = [math.log10(final(rows, study, part, arm)["lr"][0]) for study, part in self.places]
            ranges[arm] = max(rates) - min(rates)
        gap = ranges[self.than] - ranges[self.arm]
        shown = " against ".join(f"{width:.2g} decades ({arm})" for arm, width in ranges.items())
        return [
            Comparison(int(gap > self.step) - int(gap < -self.step), 0.0, f"best rates of {len(self.places)} tasks: {shown}")
        ]


@dataclasses.dataclass(frozen=True)
class Every(Reads):
    """All deciders of a claim."""

    of: tuple[Decider, ...]

    def compared(self, rows: Rows) -> list[Comparison]:
        """Returns the comparisons of all."""
        return [comparison for each in self.of for comparison in each.compared(rows)]


@dataclasses.dataclass(frozen=True)
class Given(Reads):
    """`then`, if the rows meet `premise`; otherwise nothing is tested, for the reason `otherwise`."""

    premise: Decider
    then: Decider
    otherwise: str

    def compared(self, rows: Rows) -> list[Comparison]:
        """Returns the comparisons of `then`.  Raises Missing where the premise is not met."""
        if any(c.says <= 0 for c in self.premise.compared(rows)):
            raise Missing(self.otherwise)
        return self.then.compared(rows)


@dataclasses.dataclass(frozen=True)
class Open(Reads):
    """A claim that no rows decide; `why` in a few words."""

    why: str

    def compared(self, rows: Rows) -> list[Comparison]:
        """Raises Missing with the reason."""
        raise Missing(self.why)


# -- differences -------------------------------------------------------------------------------------------------------


def paired(a: Seeds, b: Seeds) -> tuple[list[float], list[float]]:
    """Returns the numbers of the common seeds.  Raises Missing where there is none."""
    seeds = sorted(set(a) & set(b))
    if not seeds:
        raise Missing("no seed is common to both")
    return [a[seed] for seed in seeds], [b[seed] for seed in seeds]


def direction(d: statistics.Difference, a: list[float], b: list[float]) -> int:
    """Returns the sign of a difference beyond its interval, or of at least three agreeing pairs where runs diverged; else 0."""
    if d.low is None or d.high is None:
        signs = {(x > y) - (x < y) for x, y in zip(a, b, strict=True)}
        return signs.pop() if len(signs) == 1 and d.pairs > 2 else 0
    return int(d.low > 0) - int(d.high < 0)


def p_of(d: statistics.Difference) -> float:
    """Returns Student's two-sided p of no difference, which three pairs can bring below 0.05; by ranks where runs diverged."""
    if d.mean is None:
        return d.p
    if not 0 < d.spread < math.inf:
        return 1.0 if d.mean == 0 or d.pairs < 2 else 0.0
    return float(2 * stats.t.sf(abs(d.mean) / d.spread * math.sqrt(d.pairs), d.pairs - 1))


def interval_text(q: Quantity, d: statistics.Difference) -> str:
    """Formats a difference with its interval."""
    if d.mean is None or d.low is None or d.high is None:
        return f"(runs diverged, n = {d.pairs})"
    return f"{amount(q, d.mean, '+')} [{amount(q, d.low, '+')}, {amount(q, d.high, '+')}], n = {d.pairs}"


def amount(q: Quantity, value: float, sign: str = "") -> str:
    """Formats a difference of a quantity: per cent for logarithms, points for accuracies, else the number."""
    if q.unit == "relative":
        return f"{100 * math.expm1(min(value, 30.0)):{sign}.3g} %"
    return f"{100 * value:{sign}.3g} points" if q.unit == "points" else f"{value:{sign}.3g}"

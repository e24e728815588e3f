"""What a claim comes down to: relations between quantities, and what the rows say of each."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Protocol

import numpy as np
from scipy import stats

from sandbox.experiments.selection import statistics
from sandbox.studies.verdicts.quantities import EDGE, Missing, Place, Quantity, Rows, Seeds, final, rate

FEWEST = 6  # pairs: fewer cannot bring a two-sided sign-flip test, whose smallest p is 2/2ⁿ, below 0.05
NEGLIGIBLE = {"relative": 0.01, "points": 0.006}  # by unit: an interval within ± this is a finding, that there is no effect


@dataclasses.dataclass(frozen=True)
class Comparison:
    """says: +1 as claimed, -1 the opposite, 0 neither beyond its 95 % interval.  p: of no difference, two-sided.

    shown: what was compared, the difference and its interval.  of, difference: the quantity and the difference in it, if any.
    barred: why nothing may be decided, whatever the interval: `ON_EDGE` or `TOO_FEW`.
    """

    says: int
    p: float
    shown: str
    of: Quantity | None = None
    difference: statistics.Difference | None = None
    barred: str = ""

    @property
    def null(self) -> bool:
        """Whether the interval is so tight around 0 that there is no effect."""
        d, margin = self.difference, NEGLIGIBLE.get(self.of.unit if self.of else "", 0.0)
        return not (self.barred or d is None or d.low is None or d.high is None) and -margin < d.low <= d.high < margin

    def smallest(self) -> str:
        """The smallest difference found with 80 % power; "" where there is no such number."""
        if self.of is None or self.difference is None or self.difference.mean is None:
            return ""
        return amount(self.of, statistics.smallest_detectable(self.difference.spread, self.difference.pairs))


ON_EDGE, TOO_FEW = "rate on the edge", "fewer than six seeds"


def edges(places: Iterable[Place], rows: Rows) -> list[str]:
    """Returns the arms whose chosen rates lie on an edge of their grids, in alphabetical order."""
    return sorted({arm for study, part, arm in places if rate(rows, (study, part, arm)) == EDGE})


def judged(says: int, d: statistics.Difference, shown: str, of: Quantity, places: set[Place], rows: Rows) -> Comparison:
    """Returns the comparison that a paired difference makes.

    Every difference passes here: it says nothing where one of the arms in `places` has its rate on an edge, nor where there are
    fewer than `FEWEST` pairs.
    """
    if outside := edges(places, rows):
        return Comparison(0, 1.0, f"{shown}, {ON_EDGE}: {', '.join(outside)}", of, d, ON_EDGE)
    if d.pairs < FEWEST:
        return Comparison(0, 1.0, shown, of, d, TOO_FEW)
    return Comparison(says, p_of(d), shown, of, d)


class Decider(Protocol):
    """places: the arms whose rows it needs.  compare: what they say; raises Missing where they are not there."""

    @property
    def places(self) -> set[Place]: ...  # noqa: D102

    def compare(self, rows: Rows) -> list[Comparison]: ...  # noqa: D102


def reads(by: Decider) -> set[str]:
    """Returns the keys of the studies that a decider needs."""
    return {study for study, _, _ in by.places}


@dataclasses.dataclass(frozen=True)
class Better:
    """`left` is better than every one of `than`: lower, or higher where its quantity says so; beyond the 95 % intervals.

    An interval within ± `NEGLIGIBLE` is neither better nor worse, even if it leaves out 0.
    """

    left: Quantity
    than: tuple[Quantity, ...]

    @property
    def places(self) -> set[Place]:
        """Of all."""
        return self.left.places.union(*(q.places for q in self.than))

    def compare(self, rows: Rows) -> list[Comparison]:
        """One of each of `than`."""
        mine, sign = self.left.values(rows), 1 if self.left.higher else -1
        found = []
        for other in self.than:
            a, b = paired(mine, other.values(rows))
            d = statistics.paired(a, b)
            shown = f"{self.left} − {other} {interval_text(self.left, d)}"
            each = judged(sign * direction(d, a, b), d, shown, self.left, self.left.places | other.places, rows)
            found.append(dataclasses.replace(each, says=0) if each.null else each)
        return found


@dataclasses.dataclass(frozen=True)
class Close:
    """`left` and `right`, a quantity or a number, differ by less than `margin`: the 95 % interval lies within."""

    left: Quantity
    right: Quantity | float
    margin: float

    @property
    def places(self) -> set[Place]:
        """Of both."""
        return self.left.places | (set() if isinstance(self.right, float) else self.right.places)

    def compare(self, rows: Rows) -> list[Comparison]:
        """The one."""
        mine = self.left.values(rows)
        a, b = paired(mine, dict.fromkeys(mine, self.right) if isinstance(self.right, float) else self.right.values(rows))
        d = statistics.paired(a, b)
        right = f"{self.right:g}" if isinstance(self.right, float) else str(self.right)
        shown = f"{self.left} − {right} {interval_text(self.left, d)}, margin {amount(self.left, self.margin)}"
        if d.mean is None or d.low is None or d.high is None:  # runs that diverged, of one alone, are as far off as can be
            return [judged(-abs(direction(d, a, b)), d, shown, self.left, self.places, rows)]
        within, beyond = -self.margin < d.low and d.high < self.margin, d.low > self.margin or d.high < -self.margin
        return [judged(int(within) - int(beyond), d, shown, self.left, self.places, rows)]


@dataclasses.dataclass(frozen=True)
class Same:
    """Arms (of one part) or one arm (of several parts, its losses divided by 2^k) have equal training losses.

    tolerance: of the relative difference; 0 for bitwise.
    """

    study: str
    parts: tuple[str, ...]
    arms: tuple[str, ...]
    tolerance: float = 0.0

    @property
    def places(self) -> set[Place]:
        """All arms in all parts."""
        return {(self.study, part, arm) for part in self.parts for arm in self.arms}

    def compare(self, rows: Rows) -> list[Comparison]:
        """The largest relative difference to the first, of all evaluations of all runs."""
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
class Steadier:
    """The rates chosen for `arm` in several (study, part) spread over fewer decades than those of `than`.

    step: decades between neighbouring rates of a search; what differs by less is not told apart.
    """

    parts: tuple[tuple[str, str], ...]
    arm: str
    than: str
    step: float

    @property
    def places(self) -> set[Place]:
        """Both arms in all parts."""
        return {(*part, arm) for part in self.parts for arm in (self.arm, self.than)}

    def compare(self, rows: Rows) -> list[Comparison]:
        """The one, without an interval: a rate is a point of a grid, and says nothing where it is the last one."""
        ranges = {}
        for arm in (self.arm, self.than):
            rates = [math.log10(final(rows, study, part, arm)["lr"][0]) for study, part in self.parts]
            ranges[arm] = max(rates) - min(rates)
        gap = ranges[self.than] - ranges[self.arm]
        shown = " against ".join(f"{width:.2g} decades ({arm})" for arm, width in ranges.items())
        shown = f"best rates of {len(self.parts)} tasks: {shown}"
        if outside := edges(self.places, rows):
            return [Comparison(0, 1.0, f"{shown}, {ON_EDGE}: {', '.join(outside)}", barred=ON_EDGE)]
        return [Comparison(int(gap > self.step) - int(gap < -self.step), 0.0, shown)]


@dataclasses.dataclass(frozen=True)
class Every:
    """All of them."""

    of: tuple[Decider, ...]

    @property
    def places(self) -> set[Place]:
        """Of all."""
        return set().union(*(each.places for each in self.of))

    def compare(self, rows: Rows) -> list[Comparison]:
        """All."""
        return [found for each in self.of for found in each.compare(rows)]


@dataclasses.dataclass(frozen=True)
class Cases:
    """One decider per condition, each judged by itself: what holds under one condition need not hold under another."""

    of: tuple[tuple[str, Decider], ...]

    @property
    def places(self) -> set[Place]:
        """Of all."""
        return set().union(*(each.places for _, each in self.of))

    def compare(self, rows: Rows) -> list[Comparison]:
        """All."""
        return [found for _, each in self.of for found in each.compare(rows)]


@dataclasses.dataclass(frozen=True)
class Given:
    """`then`, where the rows say all of `premise`; else nothing is tested, for the reason `otherwise`."""

    premise: Decider
    then: Decider
    otherwise: str

    @property
    def places(self) -> set[Place]:
        """Of both."""
        return self.premise.places | self.then.places

    def compare(self, rows: Rows) -> list[Comparison]:
        """What decides, if the premise is met; the premise itself where nothing may be said of it."""
        premise = self.premise.compare(rows)
        if barred := [c for c in premise if c.barred]:
            return barred
        if any(c.says <= 0 for c in premise):
            raise Missing(self.otherwise)
        return self.then.compare(rows)


@dataclasses.dataclass(frozen=True)
class Open:
    """No rows decide it; `why` in a few words."""

    why: str

    @property
    def places(self) -> set[Place]:
        """None."""
        return set()

    def compare(self, rows: Rows) -> list[Comparison]:
        """Raises Missing always."""
        raise Missing(self.why)


# -- differences -------------------------------------------------------------------------------------------------------


def paired(a: Seeds, b: Seeds) -> tuple[list[float], list[float]]:
    """The numbers of the seeds that both have.  Raises Missing where there is none."""
    seeds = sorted(set(a) & set(b))
    if not seeds:
        raise Missing("no seed is common to both")
    return [a[seed] for seed in seeds], [b[seed] for seed in seeds]


def direction(d: statistics.Difference, a: list[float], b: list[float]) -> int:
    """The sign of a difference beyond its interval, or of at least `FEWEST` pairs that agree where runs diverged; else 0."""
    if d.low is None or d.high is None:
        signs = {(x > y) - (x < y) for x, y in zip(a, b, strict=True)}
        return signs.pop() if len(signs) == 1 and d.pairs >= FEWEST else 0
    return int(d.low > 0) - int(d.high < 0)


def p_of(d: statistics.Difference) -> float:
    """Student's two-sided p of no difference; the sign-flip test's where differences are all equal or runs diverged.

    For differences of two values ± c, the worst case, p < 0.05 without an effect in 25 % of samples of three pairs and in 3.1 %
    of samples of six.
    """
    if d.mean is None or not 0 < d.spread < math.inf:
        return d.p
    return float(2 * stats.t.sf(abs(d.mean) / d.spread * math.sqrt(d.pairs), d.pairs - 1))


def interval_text(q: Quantity, d: statistics.Difference) -> str:
    """A difference with its interval."""
    if d.mean is None or d.low is None or d.high is None:
        return f"(runs diverged, n = {d.pairs})"
    return f"{amount(q, d.mean, '+')} [{amount(q, d.low, '+')}, {amount(q, d.high, '+')}], n = {d.pairs}"


def amount(q: Quantity, value: float, sign: str = "") -> str:
    """A difference of a quantity: per cent of what is logarithmic, points of an accuracy, else the number."""
    if q.unit == "relative":
        return f"{100 * math.expm1(min(value, 30.0)):{sign}.3g} %"
    return f"{100 * value:{sign}.3g} points" if q.unit == "points" else f"{value:{sign}.3g}"

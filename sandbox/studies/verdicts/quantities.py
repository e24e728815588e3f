"""What is read off the final runs of an arm: one number per seed.

A diverged run counts as the worst there is: infinite, or minus infinite where more is better.  Where rows or arms are not
there, `Missing` says which.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
import polars as pl

Rows = Mapping[str, pl.DataFrame]  # study's key -> its rows
Seeds = dict[int, float]
Place = tuple[str, str, str]  # study's key, part, arm
TINY = sys.float_info.min  # in place of a loss of 0 where its logarithm is taken


class Missing(ValueError):
    """A study, part or arm has not been run."""


class Quantity(Protocol):
    """A number per seed.  higher: whether more is better.  places: the arms whose runs it needs.

    unit: of its differences: "relative" of logarithms, "points" of accuracies, "" for all others.
    """

    @property
    def higher(self) -> bool: ...  # noqa: D102

    @property
    def unit(self) -> str: ...  # noqa: D102

    @property
    def places(self) -> set[Place]: ...  # noqa: D102

    def values(self, rows: Rows) -> Seeds: ...  # noqa: D102

    def __str__(self) -> str: ...


@dataclasses.dataclass(frozen=True)
class End:
    """A column of the rows at the last evaluation within a share of the run: its end, by default.

    log: the column's logarithm, whose differences are relative ones.  name: what it is called, by default after its arm.
    """

    study: str
    part: str
    arm: str
    column: str
    higher: bool = False
    log: bool = False
    share: float = 1.0
    name: str = ""

    @property
    def unit(self) -> str:
        """Accuracies are what is better when it is higher."""
        return "relative" if self.log else "points" if self.higher else ""

    @property
    def places(self) -> set[Place]:
        """The one arm."""
        return {(self.study, self.part, self.arm)}

    def values(self, rows: Rows) -> Seeds:
        """By seed.  Raises Missing."""
        worst = -math.inf if self.higher else math.inf
        found = runs(self, rows).filter((pl.col("step") > 0) & (pl.col("step") <= self.share * pl.col("steps")))
        last = found.filter(pl.col("step") == pl.col("step").max().over("seed"))
        lost = pl.col(self.column).is_null() | pl.col(self.column).is_nan()
        at_end = pl.col("diverged") if self.share == 1.0 else pl.lit(False)
        column = last.select("seed", pl.when(lost | at_end).then(worst).otherwise(pl.col(self.column)).alias("v"))
        return {seed: math.log(max(v, TINY)) if self.log else v for seed, v in column.rows()}

    def __str__(self) -> str:
        if self.name:
            return self.name
        return self.arm if self.share == 1.0 else f"{self.arm} after {100 * self.share:.3g} % of the run"


@dataclasses.dataclass(frozen=True)
class AtTrainingLoss:
    """An arm's validation loss when its training loss has come down to the lowest that every arm of `among` reaches.

    Between two evaluations both losses are taken as linear in time.
    """

    study: str
    part: str
    arm: str
    among: tuple[str, ...]
    higher, unit = False, ""

    @property
    def places(self) -> set[Place]:
        """The arm and all those that set the level."""
        return {(self.study, self.part, arm) for arm in (self.arm, *self.among)}

    def values(self, rows: Rows) -> Seeds:
        """By seed.  Raises Missing."""
        curves = {arm: _curves(dataclasses.replace(self, arm=arm), rows) for arm in self.among}
        found = {}
        for seed, (train, validation) in curves[self.arm].items():
            level = max(min(curves[arm][seed][0]) for arm in self.among if seed in curves[arm])
            found[seed] = _first_at(level, train, validation)
        return found

    def __str__(self) -> str:
        return f"{self.arm} at equal training loss"


def _curves(who: AtTrainingLoss, rows: Rows) -> dict[int, tuple[list[float], list[float]]]:
    found: dict[int, tuple[list[float], list[float]]] = {}
    for seed, train, validation in runs(who, rows).sort("step").select("seed", "train_loss", "validation_loss").rows():
        both = found.setdefault(seed, ([], []))
        both[0].append(train)
        both[1].append(validation)
    return found


def _first_at(level: float, train: list[float], validation: list[float]) -> float:
    for i, loss in enumerate(train):
        if loss <= level:
            if i == 0 or loss == train[i - 1]:
                return validation[i]
            share = (train[i - 1] - level) / (train[i - 1] - loss)
            return validation[i - 1] + share * (validation[i] - validation[i - 1])
    return math.inf


@dataclasses.dataclass(frozen=True)
class Combined:
    """Numbers of several quantities made into one, seed by seed."""

    name: str
    make: Callable[[list[float]], float]
    of: tuple[Quantity, ...]
    higher: bool = False
    unit: str = ""

    @property
    def places(self) -> set[Place]:
        """Theirs."""
        return set().union(*(q.places for q in self.of))

    def values(self, rows: Rows) -> Seeds:
        """By seed.  Raises Missing."""
        found = [q.values(rows) for q in self.of]
        return {seed: self.make([f[seed] for f in found]) for seed in found[0] if all(seed in f for f in found)}

    def __str__(self) -> str:
        return self.name


def spread(name: str, *of: Quantity) -> Combined:
    """The largest of some quantities minus the smallest; of two, how far they are apart."""
    return Combined(name, lambda v: 0.0 if max(v) == min(v) else max(v) - min(v), of, unit=of[0].unit)


def minus(a: Quantity, b: Quantity) -> Combined:
    """a - b: a gain where more of them is better."""
    return Combined(f"({a} − {b})", lambda v: 0.0 if v[0] == v[1] else v[0] - v[1], (a, b), a.higher, a.unit)


def slope(name: str, sizes: tuple[float, ...], of: tuple[Quantity, ...]) -> Combined:
    """The exponent s of v = c size^s by least squares, for quantities that are logarithms."""
    x = np.log(sizes)
    return Combined(name, lambda v: float(np.polyfit(x, v, 1)[0]), of)


@dataclasses.dataclass(frozen=True)
class Best:
    """`column` of that arm whose mean of `by` is the best."""

    name: str
    study: str
    part: str
    arms: tuple[str, ...]
    column: str
    by: str
    higher: bool = False

    @property
    def unit(self) -> str:
        """As of an end."""
        return "points" if self.higher else ""

    @property
    def places(self) -> set[Place]:
        """All that it chooses from."""
        return {(self.study, self.part, arm) for arm in self.arms}

    def values(self, rows: Rows) -> Seeds:
        """By seed.  Raises Missing."""
        ends = {arm: End(self.study, self.part, arm, self.by, self.higher).values(rows) for arm in self.arms}
        means = {arm: float(np.mean(list(v.values()))) for arm, v in ends.items()}
        arm = (max if self.higher else min)(means, key=means.__getitem__)
        return End(self.study, self.part, arm, self.column, self.higher).values(rows)

    def __str__(self) -> str:
        return self.name


def runs(who: End | AtTrainingLoss, rows: Rows) -> pl.DataFrame:
    """The final runs of an arm.  Raises Missing."""
    return final(rows, who.study, who.part, who.arm)


def final(rows: Rows, study: str, part: str, arm: str) -> pl.DataFrame:
    """The final runs of an arm.  Raises Missing."""
    if study not in rows:
        raise Missing(f"{study} has not been run")
    found = rows[study].filter((pl.col("role") == "final") & (pl.col("part") == part))
    if not len(found):
        raise Missing(f"{study} {part} has not been run")
    found = found.filter(pl.col("arm") == arm)
    if not len(found):
        raise Missing(f"{study} {part} has no runs of {arm}")
    return found


EDGE, INSIDE, GIVEN = "edge", "inside", "given"


def rate(rows: Rows, place: Place) -> str:
    """Returns where an arm's final rate lies among those that its search tried.

    EDGE, where a better one may lie outside, INSIDE, or GIVEN without a search; an arm whose rate comes from another's search
    lies where that one does.  Raises Missing.
    """
    study, part, arm = place
    found = final(rows, study, part, arm)
    arm = (found["rate_of"][0] if "rate_of" in found.columns else None) or arm
    chosen = final(rows, study, part, arm)["lr"][0]
    tried = rows[study].filter((pl.col("part") == part) & (pl.col("arm") == arm) & (pl.col("role") == "tuning"))["lr"]
    if not len(tried):
        return GIVEN
    return EDGE if chosen in (tried.min(), tried.max()) else INSIDE

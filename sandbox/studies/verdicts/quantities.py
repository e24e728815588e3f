"""Quantities of the final runs of an arm: one number per seed.

A diverged run counts as the worst there is: infinite, or minus infinite where more is better.  Where rows or arms are not
there, `Missing` says which.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
import polars as pl

Rows = Mapping[str, pl.DataFrame]  # study's key -> its rows
Seeds = dict[int, float]


class Missing(ValueError):
    """Raised where a study, part or arm has not been run."""


class Reads:
    """Base of what reads rows of studies: its fields name a study, or hold others that do."""

    @property
    def reads(self) -> set[str]:
        """Keys of the studies whose rows it needs."""
        named = {self.study} if hasattr(self, "study") else set()
        fields = [v for value in vars(self).values() for v in (value if isinstance(value, tuple) else (value,))]
        return named.union(*(v.reads for v in fields if isinstance(v, Reads)))


class Quantity(Protocol):
    """One number per seed.  higher: whether more is better.  reads: keys of the studies that it needs.

    unit: of its differences: "relative" of logarithms, "points" of accuracies, "" for all others.
    """

    @property
    def higher(self) -> bool: ...  # noqa: D102

    @property
    def unit(self) -> str: ...  # noqa: D102

    @property
    def reads(self) -> set[str]: ...  # noqa: D102

    def values(self, rows: Rows) -> Seeds: ...  # noqa: D102

    def __str__(self) -> str: ...


@dataclasses.dataclass(frozen=True)
class End(Reads):
    """A column of the rows at the last evaluation within a share of the run: its end, by default.

    log: the column's logarithm, whose differences are relative ones.
    """

    study: str
    part: str
    arm: str
    column: str
    higher: bool = False
    log: bool = False
    share: float = 1.0

    @property
    def unit(self) -> str:
        """Relative for logarithms, points for quantities of which more is better: accuracies."""
        return "relative" if self.log else "points" if self.higher else ""

    def values(self, rows: Rows) -> Seeds:
        """Returns the numbers by seed.  Raises Missing."""
        worst = -math.inf if self.higher else math.inf
        reached = runs(self, rows).filter((pl.col("step") > 0) & (pl.col("step") <= self.share * pl.col("steps")))
        last = reached.filter(pl.col("step") == pl.col("step").max().over("seed"))
        lost = pl.col(self.column).is_null() | pl.col(self.column).is_nan()
        at_end = pl.col("diverged") if self.share == 1.0 else pl.lit(False)
        column = last.select("seed", pl.when(lost | at_end).then(worst).otherwise(pl.col(self.column)).alias("v"))
        return {seed: math.log(v) if self.log and v > 0 else v for seed, v in column.rows()}

    def __str__(self) -> str:
        return self.arm if self.share == 1.0 else f"{self.arm} after {100 * self.share:.3g} % of the run"


@dataclasses.dataclass(frozen=True)
class AtTrainingLoss(Reads):
    """An arm's validation loss when its training loss has come down to the lowest that every arm of `among` reaches.

    Between two evaluations both losses are taken as linear in time.
    """

    study: str
    part: str
    arm: str
    among: tuple[str, ...]
    higher, unit = False, ""

    def values(self, rows: Rows) -> Seeds:
        """Returns the numbers by seed.  Raises Missing."""
        curves = {arm: _curves(dataclasses.replace(self, arm=arm), rows) for arm in self.among}
        numbers = {}
        for seed, (train, validation) in curves[self.arm].items():
            level = max(min(curves[arm][seed][0]) for arm in self.among if seed in curves[arm])
            numbers[seed] = _first_at(level, train, validation)
        return numbers

    def __str__(self) -> str:
        return f"{self.arm} at equal training loss"


def _curves(quantity: AtTrainingLoss, rows: Rows) -> dict[int, tuple[list[float], list[float]]]:
    curves: dict[int, tuple[list[float], list[float]]] = {}
    for seed, train, validation in runs(quantity, rows).sort("step").select("seed", "train_loss", "validation_loss").rows():
        both = curves.setdefault(seed, ([], []))
        both[0].append(train)
        both[1].append(validation)
    return curves


def _first_at(level: float, train: list[float], validation: list[float]) -> float:
    for i, loss in enumerate(train):
        if loss <= level:
            if i == 0 or loss == train[i - 1]:
                return validation[i]
            share = (train[i - 1] - level) / (train[i - 1] - loss)
            return validation[i - 1] + share * (validation[i] - validation[i - 1])
    return math.inf


@dataclasses.dataclass(frozen=True)
class Combined(Reads):
    """A quantity computed from several others, seed by seed."""

    name: str
    make: Callable[[list[float]], float]
    of: tuple[Quantity, ...]
    higher: bool = False
    unit: str = ""

    def values(self, rows: Rows) -> Seeds:
        """Returns the numbers by seed.  Raises Missing."""
        parts = [q.values(rows) for q in self.of]
        return {seed: self.make([p[seed] for p in parts]) for seed in parts[0] if all(seed in p for p in parts)}

    def __str__(self) -> str:
        return self.name


def spread(name: str, *of: Quantity) -> Combined:
    """Returns the largest of some quantities minus the smallest; for two, their distance."""
    return Combined(name, lambda v: 0.0 if max(v) == min(v) else max(v) - min(v), of, unit=of[0].unit)


def minus(a: Quantity, b: Quantity) -> Combined:
    """Returns a - b: a gain where more of them is better."""
    return Combined(f"({a} − {b})", lambda v: 0.0 if v[0] == v[1] else v[0] - v[1], (a, b), a.higher, a.unit)


def slope(name: str, sizes: tuple[float, ...], of: tuple[Quantity, ...]) -> Combined:
    """Returns the exponent s of v = c size^s by least squares, for quantities that are logarithms."""
    x = np.log(sizes)
    return Combined(name, lambda v: float(np.polyfit(x, v, 1)[0]), of)


@dataclasses.dataclass(frozen=True)
class Best(Reads):
    """`column` of the arm with the best mean of `by`."""

    name: str
    study: str
    part: str
    arms: tuple[str, ...]
    column: str
    by: str
    higher: bool = False

    @property
    def unit(self) -> str:
        """Points for accuracies, as for `End`."""
        return "points" if self.higher else ""

    def values(self, rows: Rows) -> Seeds:
        """Returns the numbers by seed.  Raises Missing."""
        ends = {arm: End(self.study, self.part, arm, self.by, self.higher).values(rows) for arm in self.arms}
        means = {arm: float(np.mean(list(v.values()))) for arm, v in ends.items()}
        arm = (max if self.higher else min)(means, key=means.__getitem__)
        return End(self.study, self.part, arm, self.column, self.higher).values(rows)

    def __str__(self) -> str:
        return self.name


def runs(quantity: End | AtTrainingLoss, rows: Rows) -> pl.DataFrame:
    """Returns the final runs of a quantity's arm.  Raises Missing."""
    return final(rows, quantity.study, quantity.part, quantity.arm)


def final(rows: Rows, study: str, part: str, arm: str) -> pl.DataFrame:
    """Returns the final runs of an arm.  Raises Missing."""
    if study not in rows:
        raise Missing(f"{study} has not been run")
    result = rows[study].filter((pl.col("role") == "final") & (pl.col("part") == part))
    if not len(result):
        raise Missing(f"{study} {part} has not been run")
    result = result.filter(pl.col("arm") == arm)
    if not len(result):
        raise Missing(f"{study} {part} has no runs of {arm}")
    return result

"""Verdicts on claims, from rows that were kept."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import numpy as np
import polars as pl

from sandbox.experiments import statistics
from sandbox.studies.claims import Better, Claim, Open, Same

HOLDS, NOT, UNDECIDED, UNTESTED = "holds here", "does not hold here", "not decidable at this size", "not tested"


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What is said of a claim: one of the four verdicts, and the numbers that it rests on."""

    claim: Claim
    verdict: str
    because: str


def judge(claim: Claim, rows: Mapping[str, pl.DataFrame]) -> Verdict:
    """The verdict on a claim; rows: study's key -> its rows."""
    by = claim.by
    if isinstance(by, Open):
        return Verdict(claim, UNTESTED, by.why)
    if by.study not in rows:
        return Verdict(claim, UNTESTED, f"{by.study} has not been run")
    found = rows[by.study].filter(pl.col("role") == "final")
    wanted = by.parts if isinstance(by, Same) else (by.part,)
    if lacking := [part for part in wanted if part not in found["part"].unique()]:
        return Verdict(claim, UNTESTED, f"{by.study} {lacking[0]} has not been run")
    verdict, because = _same(by, found) if isinstance(by, Same) else _better(by, found)
    return Verdict(claim, verdict, because)


def ends(rows: pl.DataFrame, part: str, arm: str, column: str, worst: float) -> list[float]:
    """A column at the end of an arm's final runs, by seed; a diverged run counts as the worst there is."""
    mine = rows.filter((pl.col("part") == part) & (pl.col("arm") == arm) & (pl.col("step") == pl.col("steps"))).sort("seed")
    lost = pl.col("diverged") | pl.col(column).is_null() | pl.col(column).is_nan()
    return mine.select(pl.when(lost).then(worst).otherwise(pl.col(column))).to_series().to_list()


def _better(by: Better, rows: pl.DataFrame) -> tuple[str, str]:
    """Holds where every difference is beyond zero in the direction claimed; does not where one is beyond zero in the other."""
    sign = 1.0 if by.higher else -1.0
    worst = -sign * math.inf
    mine = ends(rows, by.part, by.arm, by.column, worst)
    differences = {}
    for other in by.than:
        theirs = ends(rows, by.part, other, by.column, worst)
        pairs = min(len(mine), len(theirs))
        if pairs == 0:
            return UNTESTED, f"{by.study} {by.part} has no runs of {by.arm} and {other}"
        differences[other] = statistics.paired(mine[:pairs], theirs[:pairs])
    said = "; ".join(f"{by.arm} − {other}: {_shown(d)}" for other, d in differences.items())
    because = f"{by.study} {by.part}, {by.column}: {said}"
    beyond = {}
    for other, d in differences.items():
        beyond[other] = sign * _direction(d, mine, ends(rows, by.part, other, by.column, worst))
    if min(beyond.values()) > 0:
        return HOLDS, because
    if min(beyond.values()) < 0:
        return NOT, because
    smallest = max(statistics.smallest_found(d.spread, d.pairs) for d in differences.values())
    return UNDECIDED, f"{because}; smallest difference found with 80 % power {smallest:.3g}"


def _direction(d: statistics.Difference, mine: list[float], theirs: list[float]) -> float:
    """+1 or -1 where the 95 % interval is beyond zero, or all pairs agree where runs diverged; 0 otherwise."""
    if d.mean is None or d.low is None or d.high is None:
        signs = {float(np.sign(a - b)) if a != b else 0.0 for a, b in zip(mine, theirs, strict=False)}
        return signs.pop() if len(signs) == 1 and d.pairs > 2 else 0.0
    return 1.0 if d.low > 0 else -1.0 if d.high < 0 else 0.0


def _shown(d: statistics.Difference) -> str:
    if d.mean is None:
        return f"runs diverged ({d.pairs} pairs)"
    return f"{d.mean:+.3g} [{d.low:+.3g}, {d.high:+.3g}], n = {d.pairs}"


def _same(by: Same, rows: pl.DataFrame) -> tuple[str, str]:
    curves = []
    for part in by.parts:
        scale = 2.0 ** int(part[2:]) if part.startswith("2^") else 1.0
        for arm in by.arms:
            mine = rows.filter((pl.col("part") == part) & (pl.col("arm") == arm)).sort("seed", "step")
            curves.append(mine["train_loss"].to_numpy() / scale)
    if not len(curves[0]):
        return UNTESTED, f"{by.study} has no runs of {by.arms[0]}"
    gap = max(float(np.max(np.abs(c - curves[0]) / np.abs(curves[0]))) for c in curves[1:])
    because = f"{by.study}: largest relative difference of training losses {gap:.2g} over {len(curves[0])} evaluations"
    return (HOLDS if gap <= by.tolerance else NOT), because

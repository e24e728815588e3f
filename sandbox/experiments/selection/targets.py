"""How soon variants reach a target, and performance profiles over several tasks.

    result = sandbox.compare(["apollo", "adamw"], "digits-mlp")
    print(result.to_target(0.95))                   # of the task's metric, on the validation split

A run that never gets there is censored at its last update.  A target is reached where an evaluation says so: all variants are
evaluated at the same updates, and what lies between two of them is not seen.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from sandbox.experiments.selection import statistics

COLUMNS = {"steps": "step", "gradients": "gradients", "seconds": "seconds"}  # of a budget
UNITS = {"steps": "updates", "gradients": "gradient evaluations", "seconds": "seconds"}
SECONDS = pl.col("step") * pl.col("seconds_a_step").max().over("run")

Times = Mapping[str, Mapping[str, float]]  # variant -> task -> time to target: infinity where it was not reached


@dataclasses.dataclass(frozen=True)
class ToTarget:
    """How soon the runs of a variant reached a target.

    times: of each seed, in updates, gradient evaluations or seconds; infinity where it was not reached.  share: of the runs
    that reached it, with its exact 95 % interval (Clopper and Pearson 1934).  median: infinite where fewer than half did.
    restricted_mean: of min(times, end), the end of the variant that ends first.  difference: of min(times, end) to the first
    variant's, paired by seed; None for the first.
    """

    name: str
    times: tuple[float, ...]
    share: float
    interval: tuple[float, float]
    median: float
    restricted_mean: float
    difference: statistics.Difference | None


def times(
    runs: pl.DataFrame, names: Sequence[str], column: str, target: float, *, higher: bool, budget: str = "steps"
) -> dict[str, tuple[float, ...]]:
    """Returns variant -> the time at which each final run first has a value of `column` at the target or beyond, by seed.

    runs: all rows of a comparison.  higher: whether higher values are better.  budget: in what time is counted, "steps",
    "gradients" (evaluations) or "seconds" (of updates).
    Raises ValueError for a target that is not finite, and a column that is not there.
    """
    if not math.isfinite(target):
        raise ValueError(f"target must be a finite number, got {target}")
    if column not in runs.columns:
        raise ValueError(f"column must be one of the rows' columns, got {column!r}")
    there = pl.col(column) >= target if higher else pl.col(column) <= target
    final, found = _timed(runs, budget), dict[str, tuple[float, ...]]()
    for name in names:
        own = final.filter(pl.col("variant") == name)
        hits = own.filter(there & pl.col(column).is_not_nan()).group_by("seed").agg(pl.col("time").min())
        by_seed = dict(hits.iter_rows())
        found[name] = tuple(float(by_seed.get(seed, math.inf)) for seed in own["seed"].unique().sort())
    return found


def _timed(runs: pl.DataFrame, budget: str) -> pl.DataFrame:
    """Returns the final rows with their time; null where a diverged run has none."""
    time = SECONDS if budget == "seconds" else pl.col(COLUMNS[budget])
    return runs.filter(pl.col("role") == "final").with_columns(time.cast(pl.Float64).alias("time"))


def reach(
    runs: pl.DataFrame, names: Sequence[str], column: str, target: float, *, higher: bool, budget: str = "steps"
) -> list[ToTarget]:
    """Returns how soon each variant's final runs reach the target; see `times`."""
    from scipy import stats

    found, rows = times(runs, names, column, target, higher=higher, budget=budget), list[ToTarget]()
    ends = _timed(runs, budget).filter(pl.col("variant").is_in(list(names))).group_by("variant").agg(pl.col("time").max())
    end = float(ends["time"].min() or 0)  # type: ignore[arg-type]
    first: list[float] | None = None
    for name in names:
        reached = sum(map(math.isfinite, found[name]))
        interval = stats.binomtest(reached, len(found[name])).proportion_ci(0.95, method="exact")
        cut = [min(time, end) for time in found[name]]
        difference = None if first is None else statistics.paired(cut, first)
        first = cut if first is None else first
        rows.append(
            ToTarget(
                name, found[name], reached / len(cut), (float(interval.low), float(interval.high)), median(found[name]),
                float(np.mean(cut)), difference,
            )
        )  # fmt: skip
    return rows


def median(found: Sequence[float]) -> float:
    """Returns the least time by which half of the runs have reached the target; infinite where fewer do."""
    return sorted(found)[(len(found) - 1) // 2]


def profile(times: Times, ratios: Sequence[float]) -> dict[str, list[float]]:
    """Returns each variant's performance profile: the share of tasks on which it takes at most a ratio of the best time.

    ρ_s(τ) = |{p: t_sp ≤ τ min_r t_rp}| / |{p}|   (Dolan and Moré 2002).  With three variants or more, the order of two of them
    may depend on the others: see ratios of pairs too.
    Raises ValueError where variants have different tasks.
    """
    tasks = {frozenset(by_task) for by_task in times.values()}
    if len(tasks) != 1 or not all(tasks):
        raise ValueError("every variant must have a time, or infinity, for each of the same tasks")
    (every,) = tasks
    best = {task: min(by_task[task] for by_task in times.values()) for task in every}

    def ratio(time: float, task: str) -> float:
        return time / (best[task] or 1.0) if math.isfinite(time) else math.inf  # at time 0 all that reach it at once are best

    rows = {name: [ratio(time, task) for task, time in by_task.items()] for name, by_task in times.items()}
    return {name: [sum(r <= tau for r in row) / len(row) for tau in ratios] for name, row in rows.items()}


def score(times: Times, limit: float = 4.0, points: int = 100) -> dict[str, float]:
    """Returns the mean of each performance profile for τ from 1 to `limit`, by the trapezoidal rule: AlgoPerf's score."""
    ratios = np.linspace(1.0, limit, points)
    return {name: float(np.trapezoid(rho, ratios) / (limit - 1)) for name, rho in profile(times, ratios.tolist()).items()}


@dataclasses.dataclass(frozen=True)
class Profile:
    """A variant's performance profile: rho at ratios, its 95 % band from low to high, and the score with its 95 % interval.

    ratio: geometric mean of its times divided by the first variant's, over the problems on which both reach the target; None
    where there are none.
    """

    name: str
    ratios: tuple[float, ...]
    rho: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    score: float
    interval: tuple[float, float]
    ratio: float | None


def profiles(
    by_seed: Mapping[str, Mapping[str, Sequence[float]]], limit: float = 4.0, points: int = 100, resamples: int = 1000
) -> list[Profile]:
    """Returns the profiles of the median times over the seeds, with bands from a bootstrap.

    by_seed: variant -> problem -> time of each seed, infinite where the target was not reached; as many for every variant, the
    same seeds.  Problems are drawn with replacement, and for each of them seeds, the same for all variants (percentiles).
    Raises ValueError where variants have different problems, or other numbers of seeds on one.
    """
    times = {name: {task: median(row) for task, row in by_task.items()} for name, by_task in by_seed.items()}
    ratios = np.linspace(1.0, limit, points)
    rho, scores = profile(times, ratios.tolist()), score(times, limit, points)
    names, tasks = list(times), list(next(iter(times.values())))
    if any(len({len(by_seed[name][task]) for name in names}) > 1 for task in tasks):
        raise ValueError("every variant must have as many seeds on a problem as the others")
    draw = np.random.default_rng(0)
    drawn = np.empty((resamples, len(names), points))
    table = {task: np.array([by_seed[name][task] for name in names], dtype=float) for task in tasks}  # (variants, seeds)
    for k in range(resamples):
        each = []
        for i in draw.integers(len(tasks), size=len(tasks)):
            seeds = table[tasks[i]].shape[1]
            each.append(np.sort(table[tasks[i]][:, draw.integers(seeds, size=seeds)], axis=1)[:, (seeds - 1) // 2])
        sample = np.stack(each, axis=1)  # (variants, problems)
        reached = np.isfinite(sample)
        best = np.where(reached.any(axis=0), sample.min(axis=0), 1.0)
        beyond = np.where(reached, np.where(reached, sample, 0.0) / np.where(best > 0, best, 1.0), np.inf)
        drawn[k] = (beyond[:, :, None] <= ratios).mean(axis=1)
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    ends = np.quantile(np.trapezoid(drawn, ratios, axis=2) / (limit - 1), [0.025, 0.975], axis=0)
    return [
        Profile(
            name, tuple(ratios.tolist()), tuple(rho[name]), tuple(low[i].tolist()), tuple(high[i].tolist()), scores[name],
            (float(ends[0, i]), float(ends[1, i])), _mean_ratio(times[name], times[names[0]]),
        )
        for i, name in enumerate(names)
    ]  # fmt: skip


def _mean_ratio(row: Mapping[str, float], first: Mapping[str, float]) -> float | None:
    both = [row[task] / first[task] for task in row if math.isfinite(row[task] + first[task]) and row[task] and first[task]]
    return float(np.exp(np.mean(np.log(both)))) if both else None


def algoperf_scores(times: Times, held_out: Mapping[str, str], limit: float = 4.0) -> dict[str, float]:
    """Returns AlgoPerf's scores (Dahl et al. 2023): a base workload counts only if its held-out variant is reached too.

    times: of base and held-out workloads; NaN where one was not run.  held_out: held-out workload -> its base.  A time beyond
    `limit` times the best one counts as not reached; on a held-out workload so does one whose base was not reached.
    """
    table = {name: dict(row) for name, row in times.items()}
    base = [task for task in next(iter(table.values())) if task not in held_out]
    for row in table.values():
        row.update({task: math.inf for task, of in held_out.items() if not math.isfinite(row[of])})
    best = {t: min((r[t] for r in table.values() if not math.isnan(r[t])), default=math.inf) for t in (*base, *held_out)}
    for row in table.values():
        row.update({task: math.inf for task, time in row.items() if time > limit * best[task]})
        row.update({of: math.inf for task, of in held_out.items() if not math.isfinite(row[task])})
    return score({n: {t: r[t] if math.isfinite(r[t]) else math.inf for t in base} for n, r in table.items()}, limit)

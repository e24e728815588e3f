"""What a comparison measures, as data: all rows, and a summary per variant."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from sandbox.experiments.runs.batch import Failure
from sandbox.experiments.runs.methods import Method
from sandbox.experiments.selection import contenders, statistics
from sandbox.experiments.selection.plan import ComparisonPlan
from sandbox.experiments.selection.saved_plan import SavedMethod, SavedPlan
from sandbox.experiments.selection.search import Chosen
from sandbox.utils import suggest


@dataclasses.dataclass(frozen=True)
class Summary:
    """The numbers of one variant.  best_loss: the lowest validation loss of a run, on average; gradients: its evaluations."""

    name: str
    lr: float
    on_edge: bool
    tuned: bool  # whether some trial survived tuning
    train_loss: float
    best_loss: float
    test_metric: float
    diverged: int
    seconds_a_step: float
    state_words: float | None
    gradients: float | None
    floor_occupancy: float | None
    train_difference: statistics.Difference | None
    test_difference: statistics.Difference | None
    train_p: float | None
    test_p: float | None


@dataclasses.dataclass(frozen=True, repr=False)
class ComparisonData:
    """`summaries` (one per variant that did not fail), `runs` (all rows, a polars DataFrame), `probes` (what they measured),
    `chosen` (variant -> numbers and trials), `failures`, `environment` (machine, versions, command), and the files in `folder`.
    unreadable: files of runs there that could not be read, and were repeated.  interrupted: whether
    runs are missing."""

    plan: ComparisonPlan | SavedPlan
    summaries: list[Summary]
    runs: pl.DataFrame
    folder: Path
    probes: pl.DataFrame
    chosen: dict[str, Chosen]
    failures: list[Failure]
    unreadable: list[Path]
    environment: Mapping[str, Any]
    interrupted: bool = False

    @property
    def frame(self) -> pl.DataFrame:
        """All rows."""
        return self.runs

    def goal(self, target: Any) -> float:
        """Returns a target as a number: itself, or of a variant's name the median over its seeds of the best validation metric.

        target: also a mapping from the task's name to either.  NaN where no run of the variant has a metric.
        Raises ValueError for an unknown variant, KeyError for a mapping without the task.
        """
        if isinstance(target, Mapping):
            target = target[self.plan.task.name]
        if not isinstance(target, str):
            return float(target)
        if target not in self.plan.names:
            raise ValueError(suggest.unknown("variant as target", target, self.plan.names))
        final = self.runs.filter((pl.col("role") == "final") & (pl.col("variant") == target))
        metric = pl.col("validation_metric").fill_nan(None)
        best = final.group_by("seed").agg(metric.max() if self.plan.task.higher_is_better else metric.min())
        values = best["validation_metric"].drop_nulls()
        return float(np.median(values.to_numpy())) if len(values) else math.nan

    @property
    def enough_seeds(self) -> int:
        """The fewest seeds with which some difference could be significant."""
        return statistics.enough_seeds(len(self.plan.methods) - 1)

    @property
    def exploratory(self) -> bool:
        """Whether there are too few seeds for a conclusion."""
        return self.plan.seeds < self.enough_seeds


def summarise(
    plan: ComparisonPlan | SavedPlan,
    methods: Sequence[Method | SavedMethod],
    rows: pl.DataFrame,
    chosen: Mapping[str, Chosen],
) -> list[Summary]:
    """Returns a summary per method from the rows of its final runs; differences are taken to the first method."""
    final = rows.filter(pl.col("role") == "final")
    ends = {method.name: _ends(final, method.name, plan) for method in methods}
    tried = {m.name: _contenders(rows, m.name, chosen[m.name], plan) for m in methods}
    first, *others = [m.name for m in methods]
    differences = {}
    for measure in ("train_loss", "test_metric"):
        shifts = {name: _shifts(ends[name], tried[name], measure) for name in ends}
        differences[measure] = {
            name: statistics.paired(
                ends[name][measure].to_list(),
                ends[first][measure].to_list(),
                contenders.variance([(chosen[n].trials, shifts[n]) for n in (name, first)]),
            )
            for name in others
        }
    corrected = {
        measure: dict(zip(others, statistics.holm([d.p for d in by_name.values()]), strict=True))
        for measure, by_name in differences.items()
    }
    return [_summary(m, final, ends[m.name], chosen[m.name], differences, corrected) for m in methods]


def _ends(rows: pl.DataFrame, name: str, plan: ComparisonPlan | SavedPlan) -> pl.DataFrame:
    """Returns the last row of each run of a variant, by seed; a diverged run has the worst metric there is."""
    sign = 1.0 if plan.task.higher_is_better else -1.0
    end = rows.filter((pl.col("variant") == name) & (pl.col("step") == pl.col("step").max().over("run"))).sort("seed")
    return end.with_columns(pl.when("diverged").then(-sign * math.inf).otherwise("test_metric").alias("test_metric"))


def _contenders(rows: pl.DataFrame, name: str, chosen: Chosen, plan: ComparisonPlan | SavedPlan) -> dict[int, pl.DataFrame]:
    """Returns the last rows of the runs of each contender, by its place among the trials."""
    ends = _ends(rows.filter(pl.col("role") == "contender"), name, plan)
    found = {}
    for trial in chosen.contenders:
        numbers = json.dumps(
            {n: v if isinstance(v, float | int | str) else str(v) for n, v in trial.numbers.items() if n != "lr"}
        )
        own = ends.filter((pl.col("lr") == trial.numbers.get("lr", chosen.numbers["lr"])) & (pl.col("numbers") == numbers))
        found[chosen.trials.index(trial)] = own
    return found


def _shifts(end: pl.DataFrame, tried: Mapping[int, pl.DataFrame], measure: str) -> dict[int, float]:
    """Returns the mean result of each contender minus that of the chosen numbers, over the seeds of the former.

    Infinite where its runs are not there yet.
    """
    shifts = {}
    for place, own in tried.items():
        both = own.join(end, on="seed", suffix=" chosen")
        with np.errstate(invalid="ignore"):
            d = both[measure].to_numpy() - both[f"{measure} chosen"].to_numpy()
        equal = both[measure].to_numpy() == both[f"{measure} chosen"].to_numpy()
        shifts[place] = float(np.mean(np.where(equal, 0.0, d))) if len(own) else math.inf
    return shifts


def _summary(
    method: Method | SavedMethod,
    final: pl.DataFrame,
    end: pl.DataFrame,
    chosen: Chosen,
    differences: Mapping[str, Any],
    corrected: Any,
) -> Summary:
    name = method.name
    mine = final.filter(pl.col("variant") == name)
    best = mine.group_by("seed").agg(pl.col("validation_loss").min())["validation_loss"]
    floor = mine.filter(pl.col("step") > 0)["floor_occupancy"].drop_nulls()
    words = mine["state_words"].drop_nulls()
    gradients = end["gradients"].drop_nulls()
    return Summary(
        name=name, lr=chosen.numbers["lr"], on_edge=chosen.on_edge, tuned=chosen.tuned,
        train_loss=float(np.mean(end["train_loss"].to_numpy())),
        best_loss=float(np.mean(best.to_numpy())),
        test_metric=float(np.mean(end["test_metric"].to_numpy())),
        diverged=int(end["diverged"].sum()),
        seconds_a_step=float(np.median(end["seconds_a_step"].to_numpy())),
        state_words=float(np.max(words.to_numpy())) if len(words) else method.words(),
        gradients=float(np.mean(gradients.to_numpy())) if len(gradients) else None,
        floor_occupancy=float(np.mean(floor.to_numpy())) if len(floor) else None,
        train_difference=differences["train_loss"].get(name), test_difference=differences["test_metric"].get(name),
        train_p=corrected["train_loss"].get(name), test_p=corrected["test_metric"].get(name),
    )  # fmt: skip

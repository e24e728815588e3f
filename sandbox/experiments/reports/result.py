"""What a comparison found."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from sandbox.experiments.reports import figures, report, tables
from sandbox.experiments.runs.unit import Failure
from sandbox.experiments.selection import statistics
from sandbox.experiments.selection.plan import Plan
from sandbox.experiments.selection.search import Trial

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True)
class Chosen:
    """The numbers of a variant: whether they lie on the edge of their range, whether some trial survived, and all trials."""

    numbers: dict[str, Any]
    on_edge: bool
    tuned: bool
    trials: list[Trial]


@dataclasses.dataclass(frozen=True)
class Summary:
    """What is said of one variant.  gradients: gradient evaluations of a run, on average."""

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
class Comparison(tables.Shown):
    """The outcome: `summaries` (one a variant that did not fail), `runs` (all rows, a polars DataFrame), `probes` (what they
    measured), `chosen` (variant -> numbers and trials), `failures`, and the files in `folder`.  unreadable: files of runs there
    that could not be read, and were made again."""

    plan: Plan
    summaries: list[Summary]
    runs: pl.DataFrame
    folder: Path
    probes: pl.DataFrame
    chosen: dict[str, Chosen]
    failures: list[Failure]
    unreadable: list[Path]

    @property
    def frame(self) -> pl.DataFrame:
        """All rows."""
        return self.runs

    @property
    def enough_seeds(self) -> int:
        """The fewest seeds with which some difference could be significant."""
        return statistics.enough_seeds(len(self.plan.methods) - 1)

    @property
    def exploratory(self) -> bool:
        """Whether there are too few seeds for a conclusion."""
        return self.plan.seeds < self.enough_seeds

    def plot(self) -> Figure:
        """Curves of the training loss, beside the losses over the rate."""
        return figures.both(self)

    def save(self, folder: str | Path) -> None:
        """Writes the tables, pictures and report into another folder."""
        report.write(dataclasses.replace(self, folder=Path(folder)))
        report.tables_to_disk(Path(folder), self.runs, self.probes if len(self.probes) else None)

    def shown(self) -> tuple[list[tables.Table], list[str]]:
        """Results and differences, with notes."""
        return tables.of(self), tables.notes(self)

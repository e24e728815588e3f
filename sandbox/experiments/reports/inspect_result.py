"""What an inspection found."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from torch import Tensor

from sandbox.experiments.reports import inspect_report, tables
from sandbox.experiments.runs.methods import Ours
from sandbox.experiments.runs.unit import Failure
from sandbox.probes import EVERYTHING
from sandbox.recipe import Recipe
from sandbox.tasks import Task
from sandbox.utils import suggest

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True)
class Pair:
    """One tensor, or all of them end to end, at one step: vectors of n entries on the CPU.

    estimate: of diag H, on its scale.  truth: diag H.  floor: whether D is the rectifier's floor; None without one.
    """

    estimate: Tensor
    truth: Tensor
    floor: Tensor | None


@dataclasses.dataclass(frozen=True)
class Inspected:
    """What was found for one recipe.

    rows: of the evaluations at the samples, as `compare` has them.  frame: what was measured: run, variant, task, role, lr,
    seed, step, tensor, probe, value.  vectors: a row a coordinate at the last sample of each run (`store.VECTORS`).
    start: parameters of these names, shapes and dtypes.
    """

    method: Ours
    lr: float
    rows: pl.DataFrame
    frame: pl.DataFrame
    vectors: pl.DataFrame
    start: dict[str, Tensor]

    @property
    def recipe(self) -> Recipe:
        """The recipe."""
        return self.method.recipe

    @property
    def seeds(self) -> list[int]:
        """Of its runs."""
        return self.rows["seed"].unique().sort().to_list()

    @property
    def sampled(self) -> int:
        """The last step at which the first seed's truth was taken, 0 where none was."""
        return max(self.vectors.filter(pl.col("seed") == self.seeds[0])["step"].to_list(), default=0)

    @property
    def losses(self) -> list[float]:
        """The loss of the training split at the end, infinite where the run diverged; one a seed."""
        return self.rows.filter(pl.col("step") == pl.col("step").max().over("run")).sort("seed")["train_loss"].to_list()

    @property
    def diverged(self) -> int:
        """How many runs did."""
        return self.rows.filter("diverged")["run"].n_unique()

    def values(self, probe: str, tensor: str = EVERYTHING, step: int | None = None) -> list[float]:
        """A measurement at a step, or the last one of each run that has it; one a seed that has one."""
        rows = self.frame.filter((pl.col("probe") == probe) & (pl.col("tensor") == tensor))
        rows = rows.sort("seed", "step") if step is None else rows.filter(pl.col("step") == step).sort("seed")
        return rows.group_by("seed", maintain_order=True).last()["value"].to_list()

    def value(self, probe: str, tensor: str = EVERYTHING, step: int | None = None) -> float | None:
        """Their mean; None where there is none."""
        found = self.values(probe, tensor, step)
        return float(np.mean(found)) if found else None

    def means(self, probe: str, tensor: str = EVERYTHING) -> list[float]:
        """The means of a measurement over all sampled steps; one a seed that has one."""
        rows = self.frame.filter((pl.col("probe") == probe) & (pl.col("tensor") == tensor))
        return [float(np.mean(each.to_numpy())) for each in rows.group_by("seed").agg("value").sort("seed")["value"]]

    def mean(self, probe: str, tensor: str = EVERYTHING) -> float | None:
        """The mean of these."""
        found = self.means(probe, tensor)
        return float(np.mean(found)) if found else None

    def pairs_of(self, seed: int) -> dict[str, Pair]:
        """By tensor, all together first, at the last sample of a run; none for a recipe that estimates no Hessian."""
        mine = self.vectors.filter((pl.col("seed") == seed) & pl.col("estimate").is_not_null())
        parts = {EVERYTHING: mine, **{str(t): part for (t,), part in mine.group_by("tensor", maintain_order=True)}}
        names = "estimate", "truth", "floor"
        return {
            tensor: Pair(*(None if part[n].has_nulls() else part[n].to_torch() for n in names))  # type: ignore[arg-type]
            for tensor, part in parts.items()
            if len(part)
        }

    @functools.cached_property
    def pairs(self) -> dict[str, Pair]:
        """Those of the first seed."""
        return self.pairs_of(self.seeds[0])

    @functools.cached_property
    def params(self) -> dict[str, Tensor]:
        """The parameters after the last sample of the first seed."""
        mine = self.vectors.filter(pl.col("seed") == self.seeds[0])
        return {
            str(t): part["theta_new"].to_torch().reshape(self.start[str(t)].shape).to(self.start[str(t)].dtype)
            for (t,), part in mine.group_by("tensor", maintain_order=True)
        }


@dataclasses.dataclass(frozen=True, repr=False)
class Inspection(tables.Shown):
    """The outcome; `result["apollo"]` is one recipe's.

    at: before which steps the truth was taken.  num_vectors: random vectors for a truth, 0 for the exact one.  rows: of the
    training split.  folder: where the files are, or None.  unreadable: files of runs that could not be read, and were made
    again.
    """

    task: Task
    steps: int
    at: list[int]
    seeds: list[int]
    method: str
    num_vectors: int
    rows: int
    variants: list[Inspected]
    folder: Path | None
    failures: list[Failure]
    unreadable: list[Path]

    def __getitem__(self, name: str) -> Inspected:
        found = {one.recipe.name: one for one in self.variants}
        if name not in found:
            raise KeyError(suggest.unknown("variant", name, found))
        return found[name]

    @property
    def frame(self) -> pl.DataFrame:
        """All measurements."""
        return pl.concat([one.frame for one in self.variants])

    @property
    def vectors(self) -> pl.DataFrame:
        """Every coordinate at the last sample of each run."""
        return pl.concat([one.vectors for one in self.variants])

    def plot(self) -> Figure:
        """|estimate| against |diag H| of the first seed, a row a recipe and a column a tensor."""
        return inspect_report.scatter(self)

    scatter = plot

    def correlations(self) -> Figure:
        """Agreement of |estimate| and |diag H| over the steps."""
        return inspect_report.correlations(self)

    def floors(self) -> Figure:
        """Floor occupancy and violations of the condition that D/η grows, over the steps."""
        return inspect_report.floors(self)

    def save(self, folder: str | Path) -> None:
        """Writes the tables and pictures into another folder."""
        inspect_report.write(self, Path(folder))

    def shown(self) -> tuple[list[tables.Table], list[str]]:
        """The table and its notes."""
        return [inspect_report.table(self)], inspect_report.notes(self)

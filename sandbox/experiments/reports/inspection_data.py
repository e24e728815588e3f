"""What an inspection measures, as data."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import polars as pl
from torch import Tensor

from sandbox.experiments.runs.batch import Failure
from sandbox.experiments.runs.methods import RecipeMethod
from sandbox.experiments.selection.search import Chosen
from sandbox.probes import EVERYTHING
from sandbox.recipe import Recipe
from sandbox.tasks import Task
from sandbox.utils import suggest


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
    """The measurements of one recipe.

    rows: the evaluations at the samples, as `compare` has them.  frame: the measurements: run, variant, task, role, lr,
    seed, step, tensor, probe, value.  vectors: one row per coordinate at the last sample of each run (`store.VECTORS`).
    start: parameters of these names, shapes and dtypes.
    """

    method: RecipeMethod
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
        """The seeds of its runs."""
        return self.rows["seed"].unique().sort().to_list()

    @property
    def sampled(self) -> int:
        """The last step at which the first seed's truth was computed, 0 where it never was."""
        return max(self.vectors.filter(pl.col("seed") == self.seeds[0])["step"].to_list(), default=0)

    @property
    def losses(self) -> list[float]:
        """The loss of the training split at the end, infinite where the run diverged; one per seed."""
        return self.rows.filter(pl.col("step") == pl.col("step").max().over("run")).sort("seed")["train_loss"].to_list()

    @property
    def diverged(self) -> int:
        """The number of runs that diverged."""
        return self.rows.filter("diverged")["run"].n_unique()

    def values(self, probe: str, tensor: str = EVERYTHING, step: int | None = None) -> list[float]:
        """Returns a measurement at a step, or the last one of each run; one per seed that has it."""
        rows = self.frame.filter((pl.col("probe") == probe) & (pl.col("tensor") == tensor))
        rows = rows.sort("seed", "step") if step is None else rows.filter(pl.col("step") == step).sort("seed")
        return rows.group_by("seed", maintain_order=True).last()["value"].to_list()

    def value(self, probe: str, tensor: str = EVERYTHING, step: int | None = None) -> float | None:
        """Returns their mean; None where there are none."""
        values = self.values(probe, tensor, step)
        return float(np.mean(values)) if values else None

    def means(self, probe: str, tensor: str = EVERYTHING) -> list[float]:
        """Returns the means of a measurement over all sampled steps; one per seed that has it."""
        rows = self.frame.filter((pl.col("probe") == probe) & (pl.col("tensor") == tensor))
        return [float(np.mean(each.to_numpy())) for each in rows.group_by("seed").agg("value").sort("seed")["value"]]

    def mean(self, probe: str, tensor: str = EVERYTHING) -> float | None:
        """Returns the mean of these; None where there are none."""
        values = self.means(probe, tensor)
        return float(np.mean(values)) if values else None

    def pairs_of(self, seed: int) -> dict[str, Pair]:
        """Returns the pairs at the last sample of a run by tensor, all tensors together first; none without an estimate."""
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
        """The pairs of the first seed."""
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
class InspectionData:
    """All measurements; `result["apollo"]` are one recipe's.

    at: the steps before which the truth was computed.  num_vectors: random vectors per truth, 0 for the exact one.  rows: of
    the training split.  folder: where the files are, or None.  unreadable: files of runs that were repeated as unreadable.
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
    chosen: Mapping[str, Chosen]

    def __getitem__(self, name: str) -> Inspected:
        by_name = {one.recipe.name: one for one in self.variants}
        if name not in by_name:
            raise KeyError(suggest.unknown("variant", name, by_name))
        return by_name[name]

    @property
    def frame(self) -> pl.DataFrame:
        """All measurements."""
        return pl.concat([one.frame for one in self.variants])

    @property
    def vectors(self) -> pl.DataFrame:
        """Every coordinate at the last sample of each run."""
        return pl.concat([one.vectors for one in self.variants])

"""What an inspection found."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
from torch import Tensor

from sandbox import suggest, tasks
from sandbox.probes import EVERYTHING
from sandbox.recipe import Recipe

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def sample_steps(steps: int, samples: int) -> list[int]:
    """Where the truth is taken: multiples of steps // samples, counted so that the last step is one of them."""
    every = steps // samples
    return [steps - every * k for k in reversed(range(samples))]


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

    frame: step, tensor, probe, value.  pairs: by tensor, at `sampled`, the last step that was sampled; empty for a recipe that
    estimates no Hessian.  ended: why it stopped before the last step, or None.  params: where it ended.  loss: of the training
    split, there.
    """

    recipe: Recipe
    lr: float
    frame: pl.DataFrame
    pairs: dict[str, Pair]
    sampled: int
    params: dict[str, Tensor]
    loss: float
    ended: str | None = None

    def value(self, probe: str, tensor: str = EVERYTHING, step: int | None = None) -> float | None:
        """A measurement, at a step or the last one that has it; None where there is none."""
        rows = self.frame.filter((pl.col("probe") == probe) & (pl.col("tensor") == tensor)).sort("step")
        rows = rows if step is None else rows.filter(pl.col("step") == step)
        return float(rows["value"][-1]) if len(rows) else None

    def mean(self, probe: str, tensor: str = EVERYTHING) -> float | None:
        """The mean of a measurement over all sampled steps; None where there is none."""
        rows = self.frame.filter((pl.col("probe") == probe) & (pl.col("tensor") == tensor))
        return None if rows.is_empty() else float(rows["value"].to_numpy().mean())


@dataclasses.dataclass(frozen=True, repr=False)
class Inspection:
    """The outcome; `result["apollo"]` is one recipe's.  folder: where the files are, or None."""

    task: tasks.Task
    steps: int
    samples: int
    seed: int
    method: str
    num_vectors: int  # random vectors for a truth, 0 for the exact one
    rows: int  # of the training split
    variants: list[Inspected]
    folder: Path | None
    interrupted: bool = False

    def __getitem__(self, name: str) -> Inspected:
        for one in self.variants:
            if one.recipe.name == name:
                return one
        raise KeyError(suggest.unknown("variant", name, [one.recipe.name for one in self.variants]))

    @property
    def at(self) -> list[int]:
        """Before which steps the truth was taken."""
        return sample_steps(self.steps, self.samples)

    @property
    def frame(self) -> pl.DataFrame:
        """All measurements: variant, step, tensor, probe, value."""
        named = [one.frame.select(pl.lit(one.recipe.name).alias("variant"), pl.all()) for one in self.variants]
        return pl.concat(named)

    def scatter(self) -> Figure:
        """|estimate| against |diag H|, a row a recipe and a column a tensor."""
        from sandbox.experiments import inspect_report

        return inspect_report.scatter(self)

    def correlations(self) -> Figure:
        """Agreement of |estimate| and |diag H| over the steps."""
        from sandbox.experiments import inspect_report

        return inspect_report.correlations(self)

    def floors(self) -> Figure:
        """Floor occupancy and violations of the condition that D/η grows, over the steps."""
        from sandbox.experiments import inspect_report

        return inspect_report.floors(self)

    def __str__(self) -> str:
        from sandbox.experiments import inspect_report

        return inspect_report.text(self)

    __repr__ = __str__

    def _repr_markdown_(self) -> str:
        from sandbox.experiments import inspect_report

        return inspect_report.markdown(self)

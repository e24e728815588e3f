"""The result of a sweep, and its picture: a curve over one number, a heat map over two."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from sandbox.experiments.reports import tables
from sandbox.experiments.reports.figures import figure
from sandbox.experiments.runs.store import atomically
from sandbox.experiments.selection.search import Chosen
from sandbox.recipe import Recipe
from sandbox.tasks import Task
from sandbox.utils import suggest
from sandbox.utils.literal import picture as literal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MEASURES = ("train_loss", "validation_loss", "validation_metric", "floor_occupancy")


@dataclasses.dataclass(frozen=True, repr=False)
class Sweep(tables.Shown):
    """The outcome of a sweep.  folder: its place on disk, or None.

    frame: one row per member: the varied and searched numbers, seed, MEASURES at the end, "diverged" (the first step at which
    loss or gradient was not finite, the last where only train_loss after it is not, 0 where none), and where numbers were
    searched "chosen", whether its search chose it.
    searched: the names of searched numbers.  chosen: what the search has found at each combination of the varied numbers.
    """

    recipe: Recipe
    task: Task
    vary: dict[str, list[float]]
    steps: int
    frame: pl.DataFrame
    folder: Path | None
    searched: tuple[str, ...] = ()
    chosen: Sequence[Chosen] = ()

    @functools.cached_property
    def axes(self) -> dict[str, list[float]]:
        """The numbers that a picture shows, with their values: the varied ones, or what was tried of a single searched one."""
        if self.vary or len(self.searched) != 1:
            return self.vary
        return {name: self.frame[name].unique(maintain_order=True).to_list() for name in self.searched}

    def grid(self, measure: str = "train_loss") -> np.ndarray:
        """Returns the median over the seeds, one axis per entry of `axes`; diverged losses are infinite, metrics NaN.

        Where numbers were searched too, those of the chosen members.
        """
        if measure not in MEASURES:
            raise ValueError(suggest.unknown("measure", measure, MEASURES))
        lost = math.nan if measure in ("validation_metric", "floor_occupancy") else math.inf
        frame = self.frame
        if self.searched and self.axes is self.vary:
            place = {values: i for i, values in enumerate(itertools.product(*self.vary.values()))}
            places = pl.Series([place[row] for row in frame.select(*self.vary).rows()] if self.vary else [0] * len(frame))
            frame = frame.with_columns(place=places).filter("chosen").sort("place", maintain_order=True)
        values = frame[measure].to_numpy().copy()
        values[(frame["diverged"].to_numpy() > 0) | ~np.isfinite(values)] = lost
        return np.median(values.reshape(*map(len, self.axes.values()), -1), axis=-1)

    def best(self) -> dict[str, Any]:
        """Returns the numbers with the lowest median training loss, or those of the search with the lowest validation loss."""
        if self.searched:
            fixed = [dict(zip(self.vary, row, strict=True)) for row in itertools.product(*self.vary.values())]
            losses = [next((t.loss for t in each.trials if t.numbers == each.numbers), math.inf) for each in self.chosen]
            place = int(np.argmin(losses))
            return {**fixed[place], **self.chosen[place].numbers, "validation_loss": losses[place]}
        values = self.grid()
        places = np.unravel_index(int(np.argmin(values)), values.shape)
        numbers = {name: row[i] for (name, row), i in zip(self.vary.items(), places, strict=True)}
        return {**numbers, "train_loss": float(values[places])}

    def plot(self, measure: str = "train_loss") -> Figure:
        """Draws a curve for one varied number, a heat map for two.  Raises ValueError for more."""
        drawing = figure(6.4, 4.8)
        self.draw(drawing.subplots(), measure)
        return drawing

    def save(self, folder: str | Path) -> None:
        """Writes sweep.parquet, and sweep.png for one or two numbers, into another folder."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        with atomically(Path(folder) / "sweep.parquet") as path:
            self.frame.write_parquet(path)
        self.save_picture(Path(folder))

    def save_picture(self, folder: Path) -> None:
        """Writes sweep.png for one or two varied numbers."""
        if len(self.axes) in (1, 2):
            with atomically(folder / "sweep.png") as path:
                self.plot().savefig(path, format="png")

    def table(self) -> tables.Table:
        """Returns the best numbers, as heads and rows."""
        rows = [[name, f"{value:.6g}"] for name, value in self.best().items()]
        rows += [["members", str(len(self.frame))], ["diverged", str(int((self.frame["diverged"] > 0).sum()))]]
        if self.searched:
            edges = sum(each.on_edge or not each.tuned for each in self.chosen)
            rows.append(["searches that ended on an edge", f"{edges} of {len(self.chosen)}"])
        return ["best", f"of {self.recipe.name} on {self.task.name}, {self.steps} steps"], rows

    def shown(self) -> tuple[list[tables.Table], list[str]]:
        """Returns the best numbers, without notes."""
        return [self.table()], []

    def draw(self, axes: Any, measure: str = "train_loss") -> None:
        """Draws the same on given axes."""
        if len(self.axes) not in (1, 2):
            numbers = len(self.axes) or len(self.searched)
            raise ValueError(f"a picture shows one or two varied numbers, not {numbers}; use frame")
        (_curve if len(self.axes) == 1 else _map)(self, axes, measure)


def _label(name: str) -> str:
    return {"lr": "learning rate η", "rectifier.sigma": "σ (rectifier.sigma)"}.get(name, name)


def _logarithmic(values: np.ndarray) -> bool:
    return bool(values[0] > 0 and values[-1] / values[0] > 20)


def _in_order(sweep: Sweep, measure: str) -> tuple[list[np.ndarray], np.ndarray]:
    """Returns the values of each varied number, lowest first, and the grid in that order."""
    values = [np.array(row) for row in sweep.axes.values()]
    orders = [np.argsort(row, kind="stable") for row in values]
    return [row[order] for row, order in zip(values, orders, strict=True)], sweep.grid(measure)[np.ix_(*orders)]


def _curve(sweep: Sweep, axes: Any, measure: str) -> None:
    (name,) = sweep.axes
    (values,), middle = _in_order(sweep, measure)
    finite = np.isfinite(middle) & (np.abs(middle) < 1e100)  # beyond, an axis overflows
    axes.plot(values[finite], middle[finite], color="#0072B2", marker="o", markersize=3)
    for value in values[~finite]:
        axes.axvline(value, color="0.8", linewidth=1, zorder=0)
    if _logarithmic(values):
        axes.set_xscale("log")
    shown = middle[finite]
    if len(shown) and shown.min() > 0 and shown.max() / shown.min() > 5:
        axes.set_yscale("log")
    axes.set_xlabel(_label(name))
    axes.set_ylabel(f"{measure.replace('_', ' ')} after {sweep.steps} steps")
    axes.set_title(literal(f"{sweep.recipe.name} on {sweep.task.name}") + (" (grey: diverged)" if not finite.all() else ""))


def _map(sweep: Sweep, axes: Any, measure: str) -> None:
    from matplotlib.colors import LogNorm, Normalize

    x_name, y_name = sweep.axes
    (x, y), raw = _in_order(sweep, measure)
    values = np.ma.masked_invalid(np.where(np.abs(raw) < 1e100, raw, np.nan).T)
    shown = values.compressed()
    # values far above all others would take all colours
    top = float(np.quantile(shown, 0.95)) if len(shown) else 1.0
    low = float(shown.min()) if len(shown) else 0.0
    log = low > 0 and top / low > 5
    norm = (LogNorm if log else Normalize)(vmin=low, vmax=max(top, low * 1.0001 + 1e-300))
    axes.set_facecolor("0.85")
    mesh = axes.pcolormesh(x, y, values, norm=norm, cmap="viridis", shading="nearest", rasterized=True)
    if len(shown) and top > low and min(values.shape) > 1:
        levels = np.geomspace(low, top, 9)[1:-1] if log else np.linspace(low, top, 9)[1:-1]
        axes.contour(x, y, values, levels=levels, colors="white", linewidths=0.6)
    for scale, row in ((axes.set_xscale, x), (axes.set_yscale, y)):
        if _logarithmic(row):
            scale("log")
    axes.set_xlabel(_label(x_name))
    axes.set_ylabel(_label(y_name))
    axes.figure.colorbar(mesh, ax=axes, label=f"{measure.replace('_', ' ')} after {sweep.steps} steps", extend="max")
    lost = values.mask.any() if np.ma.is_masked(values) else False
    axes.set_title(literal(f"{sweep.recipe.name} on {sweep.task.name}") + (" (grey: diverged)" if lost else ""), fontsize=10)

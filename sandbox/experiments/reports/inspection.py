"""The result of `inspect`, which prints, draws and saves itself."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from sandbox.blocks import NoAveraging
from sandbox.experiments.reports import tables
from sandbox.experiments.reports.figures import figure, style
from sandbox.experiments.reports.inspection_data import Inspected, InspectionData
from sandbox.experiments.reports.tables import Shown, Table
from sandbox.experiments.runs.store import atomically
from sandbox.experiments.selection import statistics
from sandbox.probes import EVERYTHING
from sandbox.recipe import Recipe
from sandbox.utils.literal import picture as literal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# what lies on the floor, and what does not: told apart by colour, shape and fill
FLOOR = {"color": "#0072B2", "marker": "o", "facecolors": "none", "linewidths": 0.5}
ABOVE = {"color": "#D55E00", "marker": "^", "linewidths": 0.0}
FREE = {"color": "#009E73", "marker": "s", "linewidths": 0.0}


def estimates(recipe: Recipe) -> str:
    """Returns the formula of a recipe's estimate of diag H: "B/η", or "" where it has none."""
    text = recipe.curvature.estimates
    return text if isinstance(recipe.averaging, NoAveraging) else text.replace("B", "B̄")


def table(result: InspectionData) -> Table:
    """Returns one row per variant: agreement at the last sample, all tensors together, and means over the run."""
    head = ["variant", "lr", "estimate", "r", "rank r", "relative error", "same sign", "on floor", "D/η shrinks", "final loss"]
    return head, [_row(one) for one in result.variants]


def _row(one: Inspected) -> list[str]:
    # √B has no sign to agree with
    signs = [] if estimates(one.recipe).startswith("√") else one.values("sign_agreement")
    return [
        one.recipe.name,
        "η(t)" if one.method.moving else f"{one.lr:.3g}",
        estimates(one.recipe) or "none",
        _mean(one.values("correlation"), ".3f"),
        _mean(one.values("rank_correlation"), ".3f"),
        _mean(one.values("relative_error"), ".3g"),
        _mean(signs, ".1f", percent=True),
        _mean(one.means("floor_occupancy"), ".1f", percent=True),
        _mean(one.means("condition_failures"), ".1f", percent=True),
        _mean(one.losses, ".4g") + (f" ({one.diverged} diverged)" if one.diverged else ""),
    ]


def _mean(values: list[float], form: str, *, percent: bool = False) -> str:
    """Formats mean and half the width of its 95 % interval over the seeds; of one seed only the value."""
    if not values:
        return "—"
    array = np.asarray(values) * (100 if percent else 1)
    text = f"{array.mean():{form}}"
    if np.isfinite(array).all() and len(array) > 1:
        low, high = statistics.interval(array)
        text += f" ± {(high - low) / 2:{'.2g' if form.endswith('g') else form}}"
    return text + (" %" if percent else "")


def notes(result: InspectionData) -> list[str]:
    """Returns what a reader must know to read the table."""
    how = "exact" if result.method == "exact" else f"by Hutchinson's estimator, {result.num_vectors} vectors"
    rows = f"all {result.rows:,} rows of the training split" if result.rows > 1 else "the task without its noise"
    at, seeds = ", ".join(map(str, result.at)), result.seeds
    runs = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"
    lines = [
        f"{result.task.name}, {result.steps} steps at a constant rate, {runs}.  Truth: diag H of the loss on "
        f"{rows}, {how}, at θ before step {at}{'; the estimates are made from minibatches' if result.rows > 1 else ''}.",
        "r, rank r: correlation (Pearson, Spearman) of |estimate| and |truth| over all parameters, and relative error "
        "‖|estimate| - |truth|‖/‖truth‖, at the last sample.  On floor: share of coordinates with D at the rectifier's floor; "
        "D/η shrinks: share where D/η is less than one step before (Theorem 2's repair needs 0); both are means over the run.",
    ]
    tuned = {name: each for name, each in result.chosen.items() if each.trials}
    if tuned:
        edges = ", ".join(name for name, each in tuned.items() if each.on_edge or not each.tuned)
        trials = ", ".join(f"{name} {len(each.trials)}" for name, each in tuned.items())
        lines.append(
            f"Numbers chosen on validation loss, trials: {trials}; {f'on an edge: {edges}' if edges else 'all inside'}."
        )
    several = f"Mean ± half of its 95 % Student t interval over {len(seeds)} seeds."
    lines.append(several if len(seeds) > 1 else "One seed: rounding may decide what it shows.")
    none = [one.recipe.name for one in result.variants if not estimates(one.recipe)]
    if none:
        lines.append(f"No estimate of the Hessian in {', '.join(none)}: nothing to compare.")
    if any(estimates(one.recipe).startswith("√") for one in result.variants):
        lines.append("√B is the root of the mean of (z ⊙ Hz)²: it estimates √(Σ_k H_jk²), not H_jj, and has no sign.")
    lines += [f"Failed: {failure}." for failure in result.failures]
    return lines + [f"Could not be read, and was made again: {path}." for path in result.unreadable]


FILES = (
    *("table.md", "scatter.png", "correlations.png", "floors.png"),
    *("results.parquet", "probes.parquet", "diagonal.parquet", "manifest.json"),
)


def write(result: InspectionData, folder: Path) -> None:
    """Writes the files of `FILES`, each replaced atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    with atomically(folder / "table.md") as path:
        path.write_text(tables.markdown([table(result)], notes(result)) + "\n")
    rows = pl.concat([one.rows for one in result.variants])
    for name, frame in (("results", rows), ("probes", result.frame), ("diagonal", result.vectors)):
        with atomically(folder / f"{name}.parquet") as path:
            frame.write_parquet(path)
    for name, drawing in (("scatter", scatter(result)), ("correlations", correlations(result)), ("floors", floors(result))):
        with atomically(folder / f"{name}.png") as path:
            drawing.savefig(path, format="png", dpi=150)


# -- pictures --------------------------------------------------------------------------------------------------------


def scatter(result: InspectionData) -> Figure:
    """Draws |estimate| against |truth| at the first seed's last sample, log-log: a row per variant, a column per tensor."""
    shown = [one for one in result.variants if one.pairs]
    columns = [name for name in (shown[0].pairs if shown else {}) if name != EVERYTHING] or [EVERYTHING]
    drawing = figure(2.3 * len(columns) + 0.8, 2.2 * max(len(shown), 1) + 0.5, 100)
    axes = drawing.subplots(max(len(shown), 1), len(columns), squeeze=False)
    if not shown:
        axes[0][0].text(0.5, 0.5, "no estimates", ha="center", va="center", transform=axes[0][0].transAxes)
    for row, one in zip(axes, shown, strict=False):
        for ax, tensor in zip(row, columns, strict=True):
            _cloud(ax, one, tensor)
        row[0].set_ylabel(f"{literal(one.recipe.name)}\n|{estimates(one.recipe)}| (loss/θ²)", fontsize=8)
    for ax, tensor in zip(axes[0], columns, strict=True):
        ax.set_title(literal(tensor), fontsize=9)
    for ax in axes[-1]:
        ax.set_xlabel("|diag H| (loss/θ²)", fontsize=8)
    handles = {label: h for ax in axes.flat for h, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    if handles:
        drawing.legend(handles.values(), handles, loc="outside upper center", ncols=len(handles), fontsize=8)
    return drawing


SMALLEST = 1e-8  # of the largest |diag H|: what is less is not drawn


def _cloud(ax: Any, one: Inspected, tensor: str) -> None:
    pair = one.pairs[tensor]
    x, y = (v.double().abs().numpy() for v in (pair.truth, pair.estimate))
    drawn = (x > SMALLEST * x.max()) & (y > 0) & np.isfinite(y)
    floor = np.zeros(len(x), dtype=bool) if pair.floor is None else pair.floor.bool().numpy()
    name, free = ("no floor", FREE) if pair.floor is None else ("above the floor", ABOVE)
    for mask, look, label in ((floor, FLOOR, "on the floor"), (~floor, free, name)):
        if (mask & drawn).any():
            ax.scatter(x[mask & drawn], y[mask & drawn], s=6, label=label, rasterized=True, **look)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.xaxis.set_minor_formatter("")
    ax.yaxis.set_minor_formatter("")
    if drawn.any():
        low, high = _decades(x[drawn])
        ax.plot([low, high], [low, high], color="black", linewidth=0.8, label="equal")
        ax.set_xlim(low, high)
        ax.set_ylim(*_decades(np.concatenate([y[drawn], x[drawn]])))
    r = one.frame.filter((pl.col("probe") == "correlation") & (pl.col("tensor") == tensor) & (pl.col("seed") == one.seeds[0]))
    lines = [f"r = {r.sort('step')['value'][-1]:.2f}"] if len(r) else []
    missing = len(x) - int(drawn.sum())
    lines += [f"{missing} of {len(x)} not drawn (≈ 0)"] if missing else []
    box = {"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 1}
    ax.text(0.97, 0.04, "\n".join(lines), transform=ax.transAxes, ha="right", fontsize=7, bbox=box)
    ax.tick_params(labelsize=7)


def _decades(values: np.ndarray) -> tuple[float, float]:
    """Returns the powers of ten around some positive numbers."""
    return 10.0 ** np.floor(np.log10(values.min())), 10.0 ** (np.floor(np.log10(values.max())) + 1)


def _over_steps(result: InspectionData, panels: list[tuple[str, str, float]]) -> Figure:
    """Draws a panel per (probe, axis label, factor), a line per variant: mean and range of the seeds, all tensors together."""
    drawing = figure(8.0, 3.2, 100)
    for ax, (probe, label, factor) in zip(drawing.subplots(1, len(panels)), panels, strict=True):
        for i, one in enumerate(result.variants):
            rows = one.frame.filter((pl.col("probe") == probe) & (pl.col("tensor") == EVERYTHING))
            if len(rows):
                value = factor * pl.col("value")
                by_step = rows.group_by("step").agg(value.mean(), low=value.min(), high=value.max()).sort("step")
                steps, middle, low, high = by_step.to_numpy().T
                ax.plot(steps, middle, **style(i), markersize=3.5, label=literal(one.recipe.name))
                ax.fill_between(steps, low, high, color=style(i)["color"], alpha=0.15, linewidth=0)
        ax.set_xlabel("step (updates)")
        ax.set_ylabel(label)
        if ax.lines:
            ax.legend(fontsize=7)
    return drawing


def correlations(result: InspectionData) -> Figure:
    """Draws Pearson's and Spearman's correlation of |estimate| and |truth| over the steps."""
    r, rank = "Pearson's r of |estimate|, |diag H|", "Spearman's r of the same"
    drawing = _over_steps(result, [("correlation", r, 1), ("rank_correlation", rank, 1)])
    for ax in drawing.axes:
        ax.axhline(0, color="black", linewidth=0.6)
        ax.set_ylim(min(-0.05, ax.get_ylim()[0]), 1.05)
    return drawing


def floors(result: InspectionData) -> Figure:
    """Draws the share of coordinates on the floor, and the share whose D/η is less than one step before."""
    return _over_steps(
        result, [("floor_occupancy", "on the floor (%)", 100), ("condition_failures", "D/η less than before (%)", 100)]
    )


@dataclasses.dataclass(frozen=True, repr=False)
class Inspection(InspectionData, Shown):
    """The outcome of an inspection; see `InspectionData` for what it holds."""

    def plot(self) -> Figure:
        """Draws |estimate| against |diag H| of the first seed, one row per recipe and one column per tensor."""
        return scatter(self)

    scatter = plot

    def correlations(self) -> Figure:
        """Draws the agreement of |estimate| and |diag H| over the steps."""
        return correlations(self)

    def floors(self) -> Figure:
        """Draws floor occupancy and violations of the condition that D/η grows, over the steps."""
        return floors(self)

    def save(self, folder: str | Path) -> None:
        """Writes the tables and pictures into another folder."""
        write(self, Path(folder))

    def shown(self) -> tuple[list[Table], list[str]]:
        """Returns the table and its notes."""
        return [table(self)], notes(self)

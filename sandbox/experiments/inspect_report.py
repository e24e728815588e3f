"""An inspection as a table (terminal, Markdown), as files and as pictures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from sandbox.blocks import NoAveraging
from sandbox.experiments.figures import literal, look
from sandbox.experiments.store import atomically
from sandbox.experiments.tables import Table
from sandbox.probes import EVERYTHING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from sandbox.experiments.inspect import Inspected, Inspection
    from sandbox.recipe import Recipe

# what lies on the floor, and what does not: told apart by colour, shape and fill
FLOOR = {"color": "#0072B2", "marker": "o", "facecolors": "none", "linewidths": 0.5}
ABOVE = {"color": "#D55E00", "marker": "^", "linewidths": 0.0}
FREE = {"color": "#009E73", "marker": "s", "linewidths": 0.0}


def estimates(recipe: Recipe) -> str:
    """What a recipe's estimate of diag H is: "B/η", or "" where it has none."""
    text = recipe.curvature.estimates
    return text if isinstance(recipe.averaging, NoAveraging) else text.replace("B", "B̄")


def table(result: Inspection) -> Table:
    """A row a variant: agreement at the last sample, all tensors together, and what holds over the run."""
    head = ["variant", "lr", "estimate", "step", "r", "rank r", "relative error", "same sign", "on floor", "D/η shrinks"]
    return [*head, "final loss"], [_row(one) for one in result.variants]


def _row(one: Inspected) -> list[str]:
    def shown(value: float | None, form: str, factor: float = 1.0, unit: str = "") -> str:
        return "—" if value is None else f"{factor * value:{form}}{unit}"

    # √B has no sign to agree with
    signs = None if estimates(one.recipe).startswith("√") else one.value("sign_agreement")
    return [
        one.recipe.name,
        f"{one.lr:.3g}",
        estimates(one.recipe) or "none",
        str(one.sampled) if one.pairs else "—",
        shown(one.value("correlation"), ".3f"),
        shown(one.value("rank_correlation"), ".3f"),
        shown(one.value("relative_error"), ".3g"),
        shown(signs, ".1f", 100, " %"),
        shown(one.mean("floor_occupancy"), ".1f", 100, " %"),
        shown(one.mean("condition_failures"), ".1f", 100, " %"),
        f"{one.loss:.4g}" + (f" ({one.ended})" if one.ended else ""),
    ]


def notes(result: Inspection) -> list[str]:
    """What a reader must know to read the table."""
    from sandbox.experiments.inspect import sample_steps

    how = "exact" if result.method == "exact" else f"by Hutchinson's estimator, {result.num_vectors} vectors"
    rows = f"all {result.rows:,} rows of the training split" if result.rows > 1 else "the task without its noise"
    at = ", ".join(str(step) for step in sample_steps(result.steps, result.samples))
    said = [
        f"{result.task.name}, {result.steps} steps at a constant rate, seed {result.seed}.  Truth: diag H of the loss on "
        f"{rows}, {how}, at θ before step {at}{'; the estimates are made from minibatches' if result.rows > 1 else ''}.",
        "r, rank r: correlation (Pearson, Spearman) of |estimate| and |truth| over all parameters, and relative error "
        "‖|estimate| - |truth|‖/‖truth‖, at the last sample.  On floor: share of coordinates with D at the rectifier's floor; "
        "D/η shrinks: share where D/η is less than one step before (Theorem 2's repair needs 0); both are means over the run.",
    ]
    none = [one.recipe.name for one in result.variants if not estimates(one.recipe)]
    if none:
        said.append(f"No estimate of the Hessian in {', '.join(none)}: nothing to compare.")
    if any(estimates(one.recipe).startswith("√") for one in result.variants):
        said.append("√B is the root of the mean of (z ⊙ Hz)²: it estimates √(Σ_k H_jk²), not H_jj, and has no sign.")
    if result.interrupted:
        said.append("Interrupted: what had been measured by then.")
    return said


def text(result: Inspection) -> str:
    """A plain table with its notes."""
    head, rows = table(result)
    widths = [max(len(line[i]) for line in [head, *rows]) for i in range(len(head))]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in [head, *rows]]
    return "\n".join([*lines, "", *notes(result)])


def markdown(result: Inspection) -> str:
    """A Markdown table with its notes."""
    head, rows = table(result)
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([*lines, "", *[f"{n}\n" for n in notes(result)]])


FILES = ("table.md", "scatter.png", "correlations.png", "floors.png", "probes.parquet", "diagonal.parquet")


def write(result: Inspection, folder: Path) -> None:
    """The files of `FILES`, each replaced atomically."""
    with atomically(folder / "table.md") as path:
        path.write_text(markdown(result) + "\n")
    with atomically(folder / "probes.parquet") as path:
        result.frame.write_parquet(path)
    with atomically(folder / "diagonal.parquet") as path:
        vectors(result).write_parquet(path)
    for name, figure in (("scatter", scatter(result)), ("correlations", correlations(result)), ("floors", floors(result))):
        with atomically(folder / f"{name}.png") as path:
            figure.savefig(path, format="png", dpi=150)


def vectors(result: Inspection) -> pl.DataFrame:
    """Every coordinate at each variant's last sample: variant, step, tensor, index, estimate, truth, on_floor."""
    schema: dict[str, Any] = {"variant": pl.String, "step": pl.Int64, "tensor": pl.String, "index": pl.Int64}
    schema |= {"estimate": pl.Float64, "truth": pl.Float64, "on_floor": pl.Boolean}
    frames = [pl.DataFrame(schema=schema)]
    for one in result.variants:
        for tensor, pair in one.pairs.items():
            if tensor == EVERYTHING:
                continue
            n = len(pair.truth)
            floor = None if pair.floor is None else pair.floor.bool().numpy()
            columns = {"index": np.arange(n), "estimate": pair.estimate.double().numpy(), "truth": pair.truth.double().numpy()}
            frame = pl.DataFrame(columns).with_columns(
                pl.lit(one.recipe.name).alias("variant"),
                pl.lit(one.sampled, pl.Int64).alias("step"),
                pl.lit(tensor).alias("tensor"),
                pl.Series("on_floor", [None] * n if floor is None else floor, dtype=pl.Boolean),
            )
            frames.append(frame.select(list(schema)))
    return pl.concat(frames)


# -- pictures --------------------------------------------------------------------------------------------------------


def _figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", dpi=100)


def scatter(result: Inspection) -> Figure:
    """|estimate| against |truth| at the last sample, log-log with the line of equality: a row a variant, a column a tensor."""
    shown = [one for one in result.variants if one.pairs]
    columns = [name for name in (shown[0].pairs if shown else {}) if name != EVERYTHING] or [EVERYTHING]
    figure = _figure(2.3 * len(columns) + 0.8, 2.2 * max(len(shown), 1) + 0.5)
    axes = figure.subplots(max(len(shown), 1), len(columns), squeeze=False)
    if not shown:
        axes[0][0].text(0.5, 0.5, "no estimates", ha="center", va="center", transform=axes[0][0].transAxes)
    for row, one in zip(axes, shown, strict=False):
        for ax, tensor in zip(row, columns, strict=True):
            _cloud(ax, one, tensor)
        row[0].set_ylabel(f"{literal(one.recipe.name)}\n|{estimates(one.recipe)}| (loss/θ²)", fontsize=8)
    for ax, tensor in zip(axes[0], columns, strict=True):
        ax.set_title(tensor, fontsize=9)
    for ax in axes[-1]:
        ax.set_xlabel("|diag H| (loss/θ²)", fontsize=8)
    handles: dict[str, Any] = {}
    for ax in axes.flat:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if handles:
        figure.legend(handles.values(), handles, loc="outside upper center", ncols=len(handles), fontsize=8)
    return figure


SMALLEST = 1e-8  # of the largest |diag H|: what is less is not drawn


def _cloud(ax: Any, one: Inspected, tensor: str) -> None:
    pair = one.pairs[tensor]
    x, y = (v.double().abs().numpy() for v in (pair.truth, pair.estimate))
    drawn = (x > SMALLEST * x.max()) & (y > 0) & np.isfinite(y)
    floor = np.zeros(len(x), dtype=bool) if pair.floor is None else pair.floor.bool().numpy()
    name = "no floor" if pair.floor is None else "above the floor"
    for mask, style, label in ((floor, FLOOR, "on the floor"), (~floor, ABOVE if pair.floor is not None else FREE, name)):
        if (mask & drawn).any():
            ax.scatter(x[mask & drawn], y[mask & drawn], s=6, label=label, rasterized=True, **style)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.xaxis.set_minor_formatter("")
    ax.yaxis.set_minor_formatter("")
    if drawn.any():
        low, high = _decades(x[drawn])
        ax.plot([low, high], [low, high], color="black", linewidth=0.8, label="equal")
        ax.set_xlim(low, high)
        ax.set_ylim(*_decades(np.concatenate([y[drawn], x[drawn]])))
    r = one.value("correlation", tensor, one.sampled)
    said = [] if r is None else [f"r = {r:.2f}"]
    missing = len(x) - int(drawn.sum())
    said += [f"{missing} of {len(x)} not drawn (≈ 0)"] if missing else []
    box = {"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 1}
    ax.text(0.97, 0.04, "\n".join(said), transform=ax.transAxes, ha="right", fontsize=7, bbox=box)
    ax.tick_params(labelsize=7)


def _decades(values: np.ndarray) -> tuple[float, float]:
    """The powers of ten around some positive numbers."""
    return 10.0 ** np.floor(np.log10(values.min())), 10.0 ** (np.floor(np.log10(values.max())) + 1)


def _over_steps(result: Inspection, panels: list[tuple[str, str, float]]) -> Figure:
    """A panel a probe: (probe, axis label, factor), a line a variant, all tensors together."""
    figure = _figure(8.0, 3.2)
    for ax, (probe, label, factor) in zip(figure.subplots(1, len(panels)), panels, strict=True):
        for i, one in enumerate(result.variants):
            rows = one.frame.filter((pl.col("probe") == probe) & (pl.col("tensor") == EVERYTHING)).sort("step")
            if len(rows):
                values = [factor * v for v in rows["value"]]
                ax.plot(rows["step"].to_list(), values, **look(i), markersize=3.5, label=literal(one.recipe.name))
        ax.set_xlabel("step (updates)")
        ax.set_ylabel(label)
        if ax.lines:
            ax.legend(fontsize=7)
    return figure


def correlations(result: Inspection) -> Figure:
    """Pearson's and Spearman's correlation of |estimate| and |truth| over the steps."""
    figure = _over_steps(
        result,
        [("correlation", "Pearson's r of |estimate|, |diag H|", 1), ("rank_correlation", "Spearman's r of the same", 1)],
    )
    for ax in figure.axes:
        ax.axhline(0, color="black", linewidth=0.6)
        ax.set_ylim(min(-0.05, ax.get_ylim()[0]), 1.05)
    return figure


def floors(result: Inspection) -> Figure:
    """Share of coordinates on the floor, and share whose D/η is less than one step before."""
    return _over_steps(
        result, [("floor_occupancy", "on the floor (%)", 100), ("condition_failures", "D/η less than before (%)", 100)]
    )

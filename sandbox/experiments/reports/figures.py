"""A comparison as pictures.  Names from users are data: no mathematics, no hidden legend entries."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from sandbox.experiments.reports.comparison_data import ComparisonData
from sandbox.experiments.selection.targets import Profile
from sandbox.utils.literal import picture as literal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colours, told apart by colour-blind readers; line styles and markers tell them apart in print.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F")
STYLES = ("-", "--", "-.", ":")
MARKERS = "os^Dv<>P"


def figure(width: float, height: float, dpi: int = 150) -> Figure:
    """Returns an empty figure, so many inches wide and high."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", dpi=dpi)


def both(result: ComparisonData) -> Figure:
    """Draws curves and rates side by side."""
    drawing = figure(12.0, 4.6, 100)
    left, right = drawing.subplots(1, 2)
    curves(result, left)
    rates(result, right)
    return drawing


def style(i: int) -> dict[str, Any]:
    """Returns colour, line style and marker of the i-th variant."""
    return {"color": COLOURS[i % len(COLOURS)], "linestyle": STYLES[i % len(STYLES)], "marker": MARKERS[i % len(MARKERS)]}


def drawable(value: float) -> bool:
    """Whether a picture can show a value: finite, and not so large that an axis overflows."""
    return math.isfinite(value) and abs(value) < 1e100


def profiles(each: Sequence[Profile], axes: Any) -> None:
    """Draws performance profiles with their bands."""
    for i, one in enumerate(each):
        line = {name: value for name, value in style(i).items() if name != "marker"}
        axes.step(one.ratios, one.rho, where="post", **line, label=literal(f"{one.name} (score {one.score:.2f})"))
        axes.fill_between(one.ratios, one.low, one.high, step="post", color=line["color"], alpha=0.12, linewidth=0)
    axes.set_xlabel("τ: at most so many times the best time")
    axes.set_ylabel("share of comparisons")
    axes.set_ylim(-0.02, 1.02)
    if each:
        axes.legend(fontsize=8)
    else:
        axes.text(0.5, 0.5, "no target", ha="center", va="center", transform=axes.transAxes)


def _log_where_positive(axes: Any, values: list[float]) -> None:
    finite = [v for v in values if drawable(v)]
    if finite and min(finite) > 0 and max(finite) / min(finite) > 5:
        axes.set_yscale("log")


def curves(result: ComparisonData, axes: Any) -> None:
    """Draws the training loss (of the sample, where there is one) over steps: median and range of the seeds."""
    final, shown = result.runs.filter(pl.col("role") == "final"), []
    loss = pl.coalesce("sample_loss", "train_loss").alias("train_loss")
    for i, s in enumerate(result.summaries):
        by_step = final.filter(pl.col("variant") == s.name).group_by("step").agg(loss).sort("step")
        losses = [np.asarray(v, dtype=float) for v in by_step["train_loss"]]
        middle, low, high = ([float(f(v)) for v in losses] for f in (np.median, np.min, np.max))
        finite = [drawable(v) for v in middle]
        if not any(finite):
            continue
        steps = by_step["step"].to_list()
        x, y = ([v for v, ok in zip(row, finite, strict=True) if ok] for row in (steps, middle))
        top = [h if drawable(h) else m for h, m in zip(high, middle, strict=True)]
        line = style(i)
        ended = f", {s.diverged} diverged" if s.diverged else ""
        axes.plot(x, y, **line, markersize=4, label=literal(f"{s.name} (lr {s.lr:.2g}{ended})"))
        axes.fill_between(steps, low, top, color=line["color"], alpha=0.15, linewidth=0, where=finite)
        shown += y + [v for v in low if drawable(v)]
    _log_where_positive(axes, shown)
    axes.set_xlabel("step (updates)")
    axes.set_ylabel("loss on the training split")
    axes.set_title(literal(result.plan.task.name) + f": median and range of {result.plan.seeds} seeds")
    if axes.lines:
        axes.legend(fontsize=8)


def rates(result: ComparisonData, axes: Any) -> None:
    """Draws the validation loss over the learning rate, in units of each variant's default; the chosen one is filled."""
    defaults = {m.name: m.lr for m in result.plan.methods}
    tuning = result.runs.filter((pl.col("role") == "tuning") & (pl.col("step") == pl.col("step").max().over("run")))
    shown: list[float] = []
    for i, s in enumerate(result.summaries):
        default = defaults[s.name]
        mean = tuning.filter(pl.col("variant") == s.name).group_by("lr").agg(pl.col("validation_loss").mean()).sort("lr")
        x = [lr / default for lr in mean["lr"]]
        y = [v if drawable(v) else math.nan for v in mean["validation_loss"]]
        if not any(drawable(v) for v in y):
            continue
        axes.plot(x, y, **style(i), markersize=6, markerfacecolor="white", label=literal(f"{s.name} (default {default:g})"))
        best = [(a, b) for a, b, lr in zip(x, y, mean["lr"], strict=True) if lr == s.lr]
        if best:
            axes.plot(*zip(*best, strict=True), color=style(i)["color"], marker=style(i)["marker"], linestyle="", markersize=8)
        shown += [v for v in y if drawable(v)]
    if shown:
        axes.set_xscale("log")
        _log_where_positive(axes, shown)
        axes.legend(fontsize=8)
    else:
        axes.text(0.5, 0.5, "no tuning runs", ha="center", va="center", transform=axes.transAxes)
    axes.set_xlabel("learning rate / the variant's default")
    axes.set_ylabel("validation loss after the last step")
    axes.set_title(literal(result.plan.task.name) + ": sensitivity to the learning rate (missing: diverged)")

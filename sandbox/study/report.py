"""A comparison as a table (terminal, Markdown) and as pictures."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from sandbox.study.statistics import Difference
from sandbox.study.store import atomically

if TYPE_CHECKING:
    from sandbox.comparison import Comparison, Summary

# Okabe and Ito's colours, told apart by colour-blind readers; line styles and markers tell them apart in print.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F")
STYLES = ("-", "--", "-.", ":")
MARKERS = "os^Dv<>P"


Table = tuple[list[str], list[list[str]]]  # heads, rows


def tables(result: Comparison) -> list[Table]:
    """The results, and the paired differences to the first variant (none where there is only one)."""
    task, seeds = result.plan.task, result.plan.seeds
    head = ["variant", "lr", "final loss", "best loss", f"test {task.metric}", "diverged", "ms/step", "words", "on floor"]
    rows = [_result(s, seeds) for s in result.summaries]
    first, *others = result.summaries
    if not others:
        return [(head, rows)]
    against = [f"minus {first.name}", "final loss [95 %]", "p", f"test {task.metric} [95 %]", "p"]
    differences = [
        [s.name, *_difference(s.train_difference, s.train_p, ".2g"), *_difference(s.test_difference, s.test_p, ".4f")]
        for s in others
    ]
    return [(head, rows), (against, differences)]


def _result(s: Summary, seeds: int) -> list[str]:
    return [
        s.name,
        f"{s.lr:.3g}{' (edge)' if s.on_edge else ''}",
        f"{s.train_loss:.4g}",
        f"{s.best_loss:.4g}",
        f"{s.test_metric:.4f}",
        f"{s.diverged} of {seeds}",
        f"{1000 * s.seconds_a_step:.2f}",
        str(s.state_words),
        "—" if s.floor_occupancy is None else f"{100 * s.floor_occupancy:.1f} %",
    ]


def _difference(d: Difference | None, p: float | None, digits: str) -> list[str]:
    if d is None or p is None:
        return ["—", "—"]
    size = "some infinite" if d.mean is None else f"{d.mean:+{digits}} [{d.low:+{digits}}, {d.high:+{digits}}]"
    return [size, "< 0.001" if p < 0.001 else f"{p:.3f}"]


def notes(result: Comparison) -> list[str]:
    """What a reader must know to read the table."""
    plan = result.plan
    first = plan.recipes[0].name
    better = "higher" if plan.task.higher_is_better else "lower"
    tuning = f"{plan.rates} rates × {plan.tuning_seeds} tuning seeds a variant, chosen on validation loss"
    said = [
        f"{plan.task.name}, {plan.steps} steps ({plan.warmup} of warm-up, then {plan.schedule}), {plan.seeds} paired seeds; "
        f"{tuning if plan.rates > 1 else 'each at its own default rate, untuned'}.",
        f"Losses are on the training split.  Minus {first}: mean paired difference with its 95 % Student t interval; p: "
        f"sign-flip test, Holm-corrected.  A lower loss and a {better} {plan.task.metric} are better.",
    ]
    joint = [r.name for r in plan.recipes if plan.way(r) == "vmap"]
    if joint:
        said.append("Runs of a variant were made together (vectorised); ms/step is a run's share of that.")
    if result.exploratory:
        said.append(f"Exploratory: {plan.seeds} seeds are too few for a conclusion (6 or more).")
    edges = [s.name for s in result.summaries if s.on_edge]
    if edges:
        said.append(f"The best rate of {', '.join(edges)} lies on the edge of its grid: a wider one (rates) may do better.")
    lost = [s.name for s in result.summaries if not s.tuned]
    if lost:
        said.append(f"Every rate of {', '.join(lost)} diverged in tuning; its default was kept.")
    floors = [s for s in result.summaries if s.floor_occupancy is not None and s.floor_occupancy > 0.99]
    if floors:
        said.append(
            f"On the floor almost everywhere: {', '.join(s.name for s in floors)}.  There D is the floor and the curvature "
            "estimate hardly matters; with a constant floor σ the method is then momentum SGD with rate lr/σ."
        )
    return said


def text(result: Comparison) -> str:
    """Plain tables with their notes."""
    lines: list[str] = []
    for head, rows in tables(result):
        widths = [max(len(line[i]) for line in [head, *rows]) for i in range(len(head))]
        lines += ["  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in [head, *rows]]
        lines.append("")
    return "\n".join([*lines, *notes(result)])


def markdown(result: Comparison) -> str:
    """Markdown tables with their notes."""
    lines: list[str] = []
    for head, rows in tables(result):
        lines += ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
        lines += ["| " + " | ".join(row) + " |" for row in rows]
        lines.append("")
    return "\n".join([*lines, *[f"{n}\n" for n in notes(result)]])


def write(result: Comparison) -> None:
    """table.md and the two pictures, into the comparison's folder."""
    with atomically(result.folder / "table.md") as path:
        path.write_text(markdown(result) + "\n")
    _save(result, "curves.png", curves)
    _save(result, "rates.png", rates)


def _save(result: Comparison, name: str, draw: Any) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4.6), layout="constrained", dpi=150)
    draw(result, figure.subplots())
    with atomically(result.folder / name) as path:
        figure.savefig(path, format="png")


def _look(i: int) -> dict[str, Any]:
    return {"color": COLOURS[i % len(COLOURS)], "linestyle": STYLES[i % len(STYLES)], "marker": MARKERS[i % len(MARKERS)]}


def _shown(value: float) -> bool:
    """Whether a picture can show it: finite, and not so large that an axis overflows."""
    return math.isfinite(value) and abs(value) < 1e100


def _log_where_positive(axes: Any, values: list[float]) -> None:
    finite = [v for v in values if _shown(v)]
    if finite and min(finite) > 0 and max(finite) / min(finite) > 5:
        axes.set_yscale("log")


def curves(result: Comparison, axes: Any) -> None:
    """Training loss over steps: median of the seeds, band from the lowest to the highest."""
    final, shown = result.runs.filter(pl.col("role") == "final"), []
    for i, s in enumerate(result.summaries):
        by_step = final.filter(pl.col("variant") == s.name).group_by("step").agg(pl.col("train_loss")).sort("step")
        losses = [np.asarray(v, dtype=float) for v in by_step["train_loss"]]
        middle, low, high = ([float(f(v)) for v in losses] for f in (np.median, np.min, np.max))
        finite = [_shown(v) for v in middle]
        if not any(finite):
            continue
        steps = by_step["step"].to_list()
        x, y = ([v for v, ok in zip(row, finite, strict=True) if ok] for row in (steps, middle))
        top = [h if _shown(h) else m for h, m in zip(high, middle, strict=True)]
        look = _look(i)
        ended = f", {s.diverged} diverged" if s.diverged else ""
        axes.plot(x, y, **look, markersize=4, label=f"{s.name} (lr {s.lr:.2g}{ended})")
        axes.fill_between(steps, low, top, color=look["color"], alpha=0.15, linewidth=0, where=finite)
        shown += y + [v for v in low if _shown(v)]
    _log_where_positive(axes, shown)
    axes.set_xlabel("step (updates)")
    axes.set_ylabel("loss on the training split")
    axes.set_title(f"{result.plan.task.name}: median and range of {result.plan.seeds} seeds")
    axes.legend(fontsize=8)


def rates(result: Comparison, axes: Any) -> None:
    """Validation loss over the learning rate, in units of each variant's default; the chosen one is filled."""
    tuning = result.runs.filter((pl.col("role") == "tuning") & (pl.col("step") == result.plan.steps))
    shown: list[float] = []
    for i, (recipe, s) in enumerate(zip(result.plan.recipes, result.summaries, strict=True)):
        mean = tuning.filter(pl.col("variant") == s.name).group_by("lr").agg(pl.col("validation_loss").mean()).sort("lr")
        x = [lr / recipe.lr for lr in mean["lr"]]
        y = [v if _shown(v) else math.nan for v in mean["validation_loss"]]
        if not any(_shown(v) for v in y):
            continue
        axes.plot(x, y, **_look(i), markersize=6, markerfacecolor="white", label=f"{s.name} (default {recipe.lr:g})")
        best = [(a, b) for a, b, lr in zip(x, y, mean["lr"], strict=True) if lr == s.lr]
        axes.plot(*zip(*best, strict=True), color=_look(i)["color"], marker=_look(i)["marker"], linestyle="", markersize=8)
        shown += [v for v in y if _shown(v)]
    if shown:
        axes.set_xscale("log")
        _log_where_positive(axes, shown)
        axes.legend(fontsize=8)
    else:
        axes.text(0.5, 0.5, "no tuning runs", ha="center", va="center", transform=axes.transAxes)
    axes.set_xlabel("learning rate / the variant's default")
    axes.set_ylabel("validation loss after the last step")
    axes.set_title(f"{result.plan.task.name}: sensitivity to the learning rate (missing: diverged)")

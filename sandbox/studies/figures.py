"""A study as a picture: curves of the training loss, and where the runs ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from sandbox.experiments.reports.figures import drawable, figure, literal, style
from sandbox.studies.study import Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def picture(study: Study, rows: pl.DataFrame) -> Figure:
    """Draws one row per part: the median training loss of each arm over the updates; every run's test loss at its end.

    Diverged runs are not drawn; the names of their arms say how many there are.
    """
    final = rows.filter(pl.col("role") == "final")
    parts = final["part"].unique(maintain_order=True).to_list()
    arms = {part: final.filter(pl.col("part") == part)["arm"].unique(maintain_order=True).to_list() for part in parts}
    drawing = figure(10.0, 0.8 + sum(_height(arms[part]) for part in parts), 80)
    axes = drawing.subplots(len(parts), 2, squeeze=False, height_ratios=[_height(arms[part]) for part in parts])
    for part, (left, right) in zip(parts, axes, strict=True):
        mine = final.filter(pl.col("part") == part)
        for i, arm in enumerate(arms[part]):
            _curve(left, mine.filter(pl.col("arm") == arm), i)
        _ends(right, mine, arms[part])
        left.set_title(f"{study.key} {part}", loc="left")
        left.set_ylabel("training loss")
        positive = mine.filter(pl.col("train_loss").is_finite())["train_loss"].min()
        if positive is not None and float(positive) > 0:  # type: ignore[arg-type]
            left.set_yscale("log")
    axes[-1][0].set_xlabel("updates")
    axes[-1][1].set_xlabel("test loss, a dot a run")
    return drawing


def _height(arms: list[str]) -> float:
    return max(2.2, 0.19 * len(arms) + 0.6)


def _curve(axes: object, rows: pl.DataFrame, i: int) -> None:
    by_step = rows.group_by("step").agg(pl.col("train_loss").median()).sort("step")
    points = [(step, loss) for step, loss in by_step.rows() if drawable(loss)]
    if points:
        axes.plot(*zip(*points, strict=True), **style(i), markersize=3, linewidth=1)  # type: ignore[attr-defined]


def _ends(axes: object, rows: pl.DataFrame, arms: list[str]) -> None:
    last = rows.filter(pl.col("step") == pl.col("steps"))
    names = []
    for i, arm in enumerate(arms):
        ends = [v for v in last.filter(pl.col("arm") == arm)["test_loss"].to_list() if v is not None and drawable(v)]
        lost = int(last.filter(pl.col("arm") == arm)["diverged"].sum())
        names.append(literal(f"{arm} ({lost} diverged)" if lost else arm))
        line = style(i)
        axes.plot(ends, np.full(len(ends), i), linestyle="", color=line["color"], marker=line["marker"], markersize=4)  # type: ignore[attr-defined]
    axes.set_yticks(range(len(arms)), names, fontsize=7)  # type: ignore[attr-defined]
    axes.set_ylim(len(arms) - 0.5, -0.5)  # type: ignore[attr-defined]

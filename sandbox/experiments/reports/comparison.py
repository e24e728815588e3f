"""The result of `compare`, which prints, draws and saves itself: a page, tables and pictures."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sandbox.experiments.reports import figures, page, tables
from sandbox.experiments.reports.comparison_data import ComparisonData
from sandbox.experiments.runs.store import atomically, write_frames

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURES = tuple(f"{name}.{form}" for name in ("curves", "rates") for form in ("png", "svg"))
FILES = ("report.html", "table.md", "table.tex", *PICTURES, "results.parquet", "manifest.json")


def write(result: Comparison) -> None:
    """Writes the page, the tables and the pictures into the comparison's folder."""
    result.folder.mkdir(parents=True, exist_ok=True)
    parts, notes = result.shown()
    texts = {
        "report.html": page.html(result),
        "table.md": tables.markdown(parts, notes) + "\n",
        "table.tex": tables.latex(result.tabulate()) + "\n",
    }
    for name, text in texts.items():
        with atomically(result.folder / name) as path:
            path.write_text(text)
    for name, draw in (("curves", figures.curves), ("rates", figures.rates)):
        for form, data in pictures(result, draw).items():
            with atomically(result.folder / f"{name}.{form}") as path:
                path.write_bytes(data)


def pictures(result: ComparisonData, draw: Any) -> dict[str, bytes]:
    """Returns a picture as the content of a PNG file and of an SVG file."""
    figure = figures.figure(7.5, 4.6)
    draw(result, figure.subplots())
    files = {form: io.BytesIO() for form in ("png", "svg")}
    for form, file in files.items():
        figure.savefig(file, format=form, metadata={"Date": None} if form == "svg" else None)
    return {form: file.getvalue() for form, file in files.items()}


@dataclasses.dataclass(frozen=True, repr=False)
class Comparison(ComparisonData, tables.Shown):
    """The outcome of a comparison; see `ComparisonData` for what it holds."""

    def plot(self) -> Figure:
        """Draws curves of the training loss, beside the losses over the rate."""
        return figures.both(self)

    def save(self, folder: str | Path) -> None:
        """Writes the page, tables and pictures into another folder."""
        write(dataclasses.replace(self, folder=Path(folder)))
        write_frames(Path(folder), self.runs, self.probes if len(self.probes) else None)

    def to_target(
        self, target: float | str, column: str = "validation_metric", *, higher: bool | None = None
    ) -> tables.ToTargetTable:
        """Returns how soon the runs of each variant reach a value of a column of `runs`, the task's metric by default.

        target: or a variant's name, for what it reaches (`goal`).  Times are in the unit of the comparison's budget.

        higher: whether higher values are better; of losses and of the task's first metric that is known.
        Raises ValueError for a target that is not finite, an unknown column, and one of which it is not known.
        """
        table = tables.to_target(self, target, column, higher=higher)
        if table is None:
            raise ValueError(f"the runs of {target!r} have no value of the metric to reach")
        return table

    @property
    def files(self) -> tuple[str, ...]:
        """The names of the files that `write` writes; none while every variant's runs are missing."""
        return FILES if self.summaries else ()

    def write(self) -> None:
        """Writes these files into the comparison's folder."""
        if self.files:
            write(self)

    def tabulate(self) -> list[tables.Table]:
        """Returns results, differences and who trains what, as a paper shows them."""
        return tables.shown(self)[0]

    def shown(self) -> tuple[list[tables.Table], list[str]]:
        """Returns all tables, with notes."""
        parts, notes = tables.shown(self)
        if timed := tables.to_target(self) if self.summaries else None:
            more, lines = timed.shown()
            parts, notes = [*parts, *more], [*notes, *lines]
        return ([*parts, tables.checklist(self)] if self.summaries else parts), notes

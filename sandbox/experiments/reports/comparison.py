"""The result of `compare`: its data, which print, draw and save themselves."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from sandbox.experiments.reports import figures, files, report, tables
from sandbox.experiments.reports.comparison_data import ComparisonData

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True, repr=False)
class Comparison(ComparisonData, tables.Shown):
    """The outcome of a comparison; see `ComparisonData` for what it holds."""

    def plot(self) -> Figure:
        """Draws curves of the training loss, beside the losses over the rate."""
        return figures.both(self)

    def save(self, folder: str | Path) -> None:
        """Writes the tables, pictures and report into another folder."""
        report.write(dataclasses.replace(self, folder=Path(folder)))
        files.write_frames(Path(folder), self.runs, self.probes if len(self.probes) else None)

    def shown(self) -> tuple[list[tables.Table], list[str]]:
        """Returns results and differences, with notes."""
        return tables.from_comparison(self), tables.notes(self)

"""The result of `inspect`: its data, which print, draw and save themselves."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from sandbox.experiments.reports import inspection_report, tables
from sandbox.experiments.reports.inspection_data import InspectionData

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True, repr=False)
class Inspection(InspectionData, tables.Shown):
    """The outcome of an inspection; see `InspectionData` for what it holds."""

    def plot(self) -> Figure:
        """Draws |estimate| against |diag H| of the first seed, one row per recipe and one column per tensor."""
        return inspection_report.scatter(self)

    scatter = plot

    def correlations(self) -> Figure:
        """Draws the agreement of |estimate| and |diag H| over the steps."""
        return inspection_report.correlations(self)

    def floors(self) -> Figure:
        """Draws floor occupancy and violations of the condition that D/η grows, over the steps."""
        return inspection_report.floors(self)

    def save(self, folder: str | Path) -> None:
        """Writes the tables and pictures into another folder."""
        inspection_report.write(self, Path(folder))

    def shown(self) -> tuple[list[tables.Table], list[str]]:
        """Returns the table and its notes."""
        return [inspection_report.table(self)], inspection_report.notes(self)

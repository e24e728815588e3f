"""`report`: a finished or interrupted comparison, read from its folder again."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from tyro.conf import Positional

from sandbox.cli import interrupt, screen


@dataclasses.dataclass
class Report(interrupt.Command):
    """Show a comparison that is in a folder, finished or not, and write its page, tables and pictures anew.

    Nothing is run. In Python: sandbox.load(folder).

    Try:
      apollo-sandbox report results/digits-mlp
      apollo-sandbox report results/digits-mlp --latex
      apollo-sandbox report results/digits-mlp --target 0.95
    """

    folder: Positional[Path]
    """Where `compare` has written its results."""
    latex: bool = False
    """Print the tables for a paper, in place of those for the screen."""
    target: float | None = None
    """Show too how soon the runs reach this value of the task's metric on the validation split."""

    def main(self) -> int:
        """Shows the tables and writes the files."""
        from sandbox.experiments.reports import comparison, saved, tables

        result = saved.load(self.folder)
        console = screen.console()
        if result.summaries:
            comparison.write(result)
        shown, notes = tables.shown(result)
        if self.latex:
            print(tables.latex(shown))
            return 0
        for head, rows in shown:
            screen.table(console, head, rows)
        for line in notes:
            screen.say(console, line)
        if result.summaries and self.target is not None:
            parts, notes = result.to_target(self.target).shown()
            for head, rows in parts:
                screen.table(console, head, rows)
            for line in notes:
                screen.say(console, line)
        if result.summaries:
            screen.say(console, f"Written to {result.folder}/: {', '.join(comparison.FILES)}")
        return 0

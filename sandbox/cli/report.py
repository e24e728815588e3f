"""`report`: a finished or interrupted comparison, read from its folder again."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from tyro.conf import Positional

from sandbox.cli import interrupt, screen


@dataclasses.dataclass
class Report(interrupt.Command):
    """Show a comparison or several that are in a folder, finished or not, and write its page, tables and pictures anew.

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
    target: str | None = None
    """Show too how soon the runs reach this value of the task's metric on the validation split, or a variant's best one."""

    def main(self) -> int:
        """Shows the tables and writes the files."""
        from sandbox.experiments.reports import saved, tables

        result = saved.load(self.folder)
        console = screen.console()
        result.write()
        if self.latex:
            print(tables.latex(result.tabulate()))
            return 0
        screen.show(console, result)
        if self.target is not None and result.files:
            screen.show(console, result.to_target(screen.number(self.target)))
        if result.files:
            screen.say(console, f"Written to {result.folder}/: {', '.join(result.files)}")
        return 0

"""`source`: a recipe as one Python file."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Literal

from tyro.conf import Positional

from sandbox.cli import interrupt
from sandbox.utils import interrupts


@dataclasses.dataclass
class Source(interrupt.Command):
    """Write a recipe as one Python file: a torch optimizer to be read, changed and used without this package.

    Try:
      apollo-sandbox source apollo --out apollo.py
      apollo-sandbox source adamw
      apollo-sandbox source adamw --form algoperf --out submission
    """

    recipe: Positional[str]
    """A name, a TOML file, or module:attribute."""
    out: Path | None = None
    """The file to write (of algoperf the folder); without it the text is printed."""
    form: Literal["file", "algoperf", "nanogpt"] = "file"
    """A file; an AlgoPerf submission; or the sections of a modded-nanogpt track-3 script."""
    stored: bool = False
    """Keep the previous direction in the state instead of recalling it."""
    fixed: tuple[str, ...] = ()
    """Hyperparameters that will not change during a run, by name (rectifier.sigma): the state does not keep them."""

    def main(self) -> int:
        """Writes or prints the file."""
        with interrupts.postponed():
            from sandbox.forms.source import protocols, source

        if self.form == "algoperf":
            files = protocols.algoperf(self.recipe, stored=self.stored, fixed=self.fixed)
            text = files["submission.py"]
            if self.out is not None:
                self.out.mkdir(parents=True, exist_ok=True)
                for name, content in files.items():
                    (self.out / name).write_text(content)
                return 0
        else:
            write = source if self.form == "file" else protocols.nanogpt
            text = write(self.recipe, stored=self.stored, fixed=self.fixed)
        if self.out is None:
            sys.stdout.write(text)
        else:
            self.out.write_text(text)
        return 0

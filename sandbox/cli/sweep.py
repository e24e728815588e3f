"""`sweep`: a recipe on a grid of numbers."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from tyro.conf import Positional, UseAppendAction

from sandbox.cli import interrupt, options, screen
from sandbox.experiments.settings import SweepSettings
from sandbox.utils import interrupts
from sandbox.utils.literal import file_name


@options.from_settings(SweepSettings, spacing=3.1623)
@dataclasses.dataclass
class Sweep(interrupt.Command):
    """Train a recipe on a whole grid of numbers at once; a heat map for two, curves for one, Parquet for all.

    Any number of any slot can be varied, by its dotted name (apollo-sandbox show RECIPE --toml lists them). All members run
    together, vectorised. The same command again goes on where it was interrupted; a folder holds one sweep.

    Try:
      apollo-sandbox sweep apollo --vary lr=1e-4:1:64:log --vary rectifier.sigma=1e-4:1:64:log --task logistic-breast-cancer
      apollo-sandbox sweep adamw --vary lr=1e-4:1:32:log --task digits-mlp --seeds 8
      apollo-sandbox sweep apollo --vary moment.beta=0,0.5,0.9,0.99 --vary lr=1e-3:1:16:log --task digits-mlp
      apollo-sandbox sweep apollo --vary moment.beta=0,0.5,0.9,0.99 --search lr --task digits-mlp
    """

    recipe: Positional[str]
    """A name, a TOML file, or module:attribute."""
    vary: UseAppendAction[tuple[str, ...]] = ()
    """NAME=FROM:TO:COUNT[:log], or NAME=VALUE,VALUE,...; repeat it for each number to vary."""
    search: UseAppendAction[tuple[str, ...]] = ()
    """NAME, or NAME=LOW:HIGH[:log]: searched at every combination of the others, until the best value lies inside."""
    task: str = "logistic-breast-cancer"
    """A name from apollo-sandbox tasks, module:attribute, or file.py:attribute."""
    memory: float = 1.0
    """GiB that the members which run together may take."""
    out: Path | None = None
    """Folder for results (results/sweep-RECIPE-TASK-NAMES, NAMES those of the varied numbers)."""

    def main(self) -> int:
        """Runs the sweep and shows its best numbers."""
        with interrupts.postponed():
            from sandbox.experiments.selection.search import parse_range
            from sandbox.experiments.sweep import parse_values, sweep

        if not (self.vary or self.search):
            raise ValueError("sweep: name at least one number, as in: apollo-sandbox sweep apollo --vary lr=1e-4:1:32:log")
        pairs = [parse_values(text) for text in self.vary]
        names = [name for name, _ in pairs]
        if len(set(names)) < len(names):
            raise ValueError(f"--vary names {next(n for n in names if names.count(n) > 1)} twice")
        search = dict(parse_range(text) for text in self.search) or None
        console = screen.console()
        out = self._folder()
        if self.out is not None:
            screen.folder(self.out)
        arguments = {**options.values(self, SweepSettings), "out": out, "memory": int(self.memory * 2**30), "search": search}
        with screen.progress(console, "member steps") as progress:
            arguments["progress"] = lambda done, total: progress(done, total, "training")
            result = sweep(self.recipe, self.task, dict(pairs), **arguments)
        screen.table(console, *result.table())
        pictures = ", sweep.png" if len(result.axes) in (1, 2) else "; a picture shows one or two numbers"
        screen.say(console, f"Written to {out}/: sweep.parquet, manifest.json{pictures}")
        return 0

    def _folder(self) -> Path:
        names = [text.partition("=")[0].strip() for text in (*self.vary, *self.search)]
        name = "-".join(["sweep", Path(self.recipe).stem, self.task, *names])
        return self.out or Path("results") / file_name(name)

    def interrupted(self) -> str:
        """Returns what to say after Ctrl-C."""
        return interrupt.resumable(self._folder(), "sweep.parquet", what="blocks of members")

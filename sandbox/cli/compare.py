"""`compare`: variants on one task, with equal tuning."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from tyro.conf import Positional, UseAppendAction

from sandbox.cli import interrupt, options, screen
from sandbox.experiments.settings import ComparisonSettings
from sandbox.utils import interrupts
from sandbox.utils.literal import file_name


@options.from_settings(ComparisonSettings, spacing=3.1623, jobs=os.cpu_count() or 1)
@dataclasses.dataclass
class Compare(interrupt.Command):
    """Compare variants on one task, with equal tuning budgets and paired seeds.

    The first variant is what the others are compared with. A variant is a name (apollo-sandbox variants), a recipe in a TOML
    file, module:attribute, or a torch optimizer: "torch.optim:Muon(momentum=0.95)". Every variant gets the same number of
    learning rates, searched from its default on until the best one lies inside, chosen on validation loss; then fresh seeds,
    the test split scored once. The same command again only adds what is missing.

    Try:
      apollo-sandbox compare apollo scale-invariant hessian-ema adamw sgd --task digits-mlp
      apollo-sandbox compare apollo my_recipe.toml my_module:recipe --task my_file.py:task --seeds 20
      apollo-sandbox compare apollo torch.optim:AdamW --task digits-cnn --schedule cosine --steps 1000 --rates 9
      apollo-sandbox compare apollo adamw --search lr=1e-4:1:log --search rectifier.sigma=1e-3:1:log --tuner tpe --trials 20
    """

    variants: Positional[tuple[str, ...]]
    """Names, TOML files, module:attribute, or torch optimizers."""
    task: str = "digits-mlp"
    """A name from apollo-sandbox tasks, module:attribute, or file.py:attribute."""
    search: UseAppendAction[tuple[str, ...]] = ()
    """Other numbers to choose: NAME=LOW:HIGH[:log], or NAME to widen from its own value; as often as there are numbers."""
    probes: tuple[str, ...] = ()
    """Measurements inside steps, into probes.parquet: floor_occupancy, secant_residual, condition_failures, ..."""
    out: Path | None = None
    """Folder for results (results/TASK)."""

    def main(self) -> int:
        """Runs the comparison and shows its tables."""
        with interrupts.postponed():
            from sandbox.experiments.compare import compare
            from sandbox.experiments.reports import comparison
            from sandbox.experiments.selection.search import parse_range

        arguments = options.values(self, ComparisonSettings)
        arguments["jobs"] = max(arguments["jobs"] // max(arguments["ranks"], 1), 1)
        console = screen.console()
        if not self.variants:
            raise ValueError("compare: name at least one variant, as in: apollo-sandbox compare apollo adamw")
        if self.out is not None:
            screen.folder(self.out)
        arguments |= {"search": dict(parse_range(text) for text in self.search) or None, "out": self._folder()}
        with screen.progress(console) as progress:
            result = compare(list(self.variants), self.task, **{**arguments, "progress": progress})
        shown, notes = result.shown()
        for head, rows in shown:
            screen.table(console, head, rows)
        for line in notes:
            screen.say(console, line)
        screen.say(console, f"Written to {result.folder}/: {', '.join(comparison.FILES)}")
        return 1 if result.failures else 0  # of a user's code

    def _folder(self) -> Path:
        return self.out or Path("results") / file_name(self.task)

    def interrupted(self) -> str:
        """Returns what to say after Ctrl-C."""
        return interrupt.resumable(self._folder(), "runs/*.json", what="runs")

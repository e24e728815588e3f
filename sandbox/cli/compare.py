"""`compare`: variants on one task, with equal tuning."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

from tyro.conf import Positional, UseAppendAction

from sandbox.cli import interrupt, options, screen
from sandbox.experiments.settings import ComparisonSettings
from sandbox.utils import interrupts
from sandbox.utils.literal import file_name

TASK = "digits-mlp"


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
      apollo-sandbox compare adamw apollo schedule-free-adamw --task suite:small
      apollo-sandbox compare adamw apollo --steps 100 --steps 200 --steps 400 --budget gradients
      apollo-sandbox compare apollo adamw --search lr=1e-4:1:log --search rectifier.sigma=1e-3:1:log --tuner tpe --trials 20
    """

    variants: Positional[tuple[str, ...]]
    """Names, TOML files, module:attribute, or torch optimizers."""
    task: UseAppendAction[tuple[str, ...]] = ()
    """A name from apollo-sandbox tasks, module:attribute, or file.py:attribute (digits-mlp); as often as there are tasks.
    suite:small stands for eight of them."""
    steps: UseAppendAction[tuple[int, ...]] = ()
    """Updates per run (the task's own number); as often as there are lengths to compare at."""
    target: str | None = None
    """A value of the task's metric, or the variant whose best value it is: how soon the others reach it."""
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
            from sandbox.experiments.selection.search import parse_range

        arguments = options.values(self, ComparisonSettings)
        task: Any = list(self.task) if len(self.task) > 1 else self.task[0] if self.task else TASK
        arguments["steps"] = self.steps if len(self.steps) > 1 else self.steps[0] if self.steps else None
        arguments["target"] = None if self.target is None else screen.number(self.target)
        arguments["jobs"] = max(arguments["jobs"] // max(arguments["ranks"], 1), 1)
        console = screen.console()
        if not self.variants:
            raise ValueError("compare: name at least one variant, as in: apollo-sandbox compare apollo adamw")
        if self.out is not None:
            screen.folder(self.out)
        arguments |= {"search": dict(parse_range(text) for text in self.search) or None, "out": self._folder()}
        with screen.progress(console) as progress:
            result = compare(list(self.variants), task, **{**arguments, "progress": progress})
        screen.show(console, result)
        screen.say(console, f"Written to {result.folder}/: {', '.join(result.files)}")
        return 1 if result.failures else 0  # of a user's code

    def _folder(self) -> Path:
        return self.out or Path("results") / file_name("-".join(self.task) or TASK)

    def interrupted(self) -> str:
        """Returns what to say after Ctrl-C."""
        return interrupt.resumable(self._folder(), "runs/*.json", what="runs")

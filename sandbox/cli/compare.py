"""`compare`: variants on one task, with equal tuning."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from tyro.conf import OmitArgPrefixes, Positional, UseAppendAction

from sandbox.cli import interrupt, screen
from sandbox.experiments.runs.settings import Options
from sandbox.utils import interrupts
from sandbox.utils.literal import file_name


@dataclasses.dataclass
class Compare(interrupt.Command):
    """Compare variants on one task, with equal tuning budgets and paired seeds.

    The first variant is what the others are compared with. A variant is a name (apollo-sandbox variants), a recipe in a TOML
    file, module:attribute, or a torch optimizer: "torch.optim:Muon(momentum=0.95)". Every variant gets the same number of
    learning rates on a log grid around its default, chosen on validation loss; then fresh seeds, the test split scored once.
    The same command again only adds what is missing.

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
    seeds: int = 10
    """Final runs a variant; exploratory below 6 for two variants, 8 for five."""
    tuning_seeds: int = 2
    """Tuning runs for each learning rate."""
    rates: int = 7
    """Learning rates a variant, around its default."""
    spacing: float = 3.1623
    """Factor between neighbouring rates."""
    search: UseAppendAction[tuple[str, ...]] = ()
    """Other numbers to choose: NAME=LOW:HIGH[:log]; as often as there are numbers."""
    tuner: str = "grid"
    """How they are chosen: grid, random or tpe."""
    trials: int | None = None
    """Trials a variant (the number of rates)."""
    steps: int | None = None
    """Updates a run (the task's own number)."""
    warmup: int | None = None
    """Updates of linear warm-up (a tenth of the steps)."""
    schedule: str = "constant"
    """After the warm-up: constant, cosine, linear or inverse-sqrt."""
    evaluations: int = 20
    """Points of a curve."""
    backend: str = "eager"
    """How a step runs."""
    vectorised: bool = True
    """Make the runs of a variant together (backend eager): same numbers to rounding, several times faster for small networks.
    Networks of LeNet's size and larger train as fast or faster one run at a time."""
    run: OmitArgPrefixes[Options] = Options()
    probes: tuple[str, ...] = ()
    """Measurements inside steps, into probes.parquet: floor_occupancy, secant_residual, condition_failures, ..."""
    every: int = 10
    """Steps from one measurement to the next."""
    out: Path | None = None
    """Folder for results (results/TASK)."""
    jobs: int = os.cpu_count() or 1
    """Processes side by side; the ranks of a run count."""

    def main(self) -> int:
        """Runs it."""
        with interrupts.postponed():
            from sandbox.experiments.compare import compare
            from sandbox.experiments.reports import report, tables
            from sandbox.experiments.selection.search import spoken

        own = ("variants", "task", "search", "out", "run")
        arguments = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in own}
        arguments |= {"out": self._folder(), **dataclasses.asdict(self.run)}
        arguments["jobs"] = max(self.jobs // self.run.ranks, 1)
        console = screen.console()
        if not self.variants:
            raise ValueError("compare: name at least one variant, as in: apollo-sandbox compare apollo adamw")
        if self.out is not None:
            screen.folder(self.out)
        search = dict(spoken(text) for text in self.search) or None
        with screen.progress(console) as progress:
            result = compare(list(self.variants), self.task, progress=progress, search=search, **arguments)
        for head, rows in tables.of(result):
            screen.table(console, head, rows)
        for line in tables.notes(result):
            screen.say(console, line)
        screen.say(console, f"Written to {result.folder}/: {', '.join(report.FILES)}")
        return 1 if result.failures else 0  # of a user's code

    def _folder(self) -> Path:
        return self.out or Path("results") / file_name(self.task)

    def interrupted(self) -> str:
        """What Ctrl-C leaves."""
        return interrupt.kept(self._folder(), "runs/*.json", what="runs")

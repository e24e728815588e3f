"""`compare`: variants on one task, with equal tuning."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from tyro.conf import Positional

from sandbox.cli import interrupt, screen


@dataclasses.dataclass
class Compare(interrupt.Command):
    """Compare variants on one task, with equal tuning budgets and paired seeds.

    The first variant is what the others are compared with. A variant is a name (apollo-sandbox variants), a recipe in a TOML
    file, or module:attribute. Every variant gets the same number of learning rates on a log grid around its default, chosen on
    validation loss; then fresh seeds, the test split scored once. The same command again only adds what is missing.

    Try:
      apollo-sandbox compare apollo scale-invariant hessian-ema adamw sgd --task digits-mlp
      apollo-sandbox compare apollo my_recipe.toml my_module:recipe --task logistic-breast-cancer --seeds 20
      apollo-sandbox compare apollo adamw --task digits-cnn --schedule cosine --steps 1000 --rates 9
    """

    variants: Positional[tuple[str, ...]]
    """Names, TOML files, or module:attribute."""
    task: str = "digits-mlp"
    """A name from apollo-sandbox tasks."""
    seeds: int = 10
    """Final runs a variant; fewer than 6 are exploratory."""
    tuning_seeds: int = 2
    """Tuning runs for each learning rate."""
    rates: int = 7
    """Learning rates a variant, around its default."""
    spacing: float = 3.1623
    """Factor between neighbouring rates."""
    steps: int | None = None
    """Updates a run (the task's own number)."""
    warmup: int | None = None
    """Updates of linear warm-up (a tenth of the steps)."""
    schedule: str = "constant"
    """After the warm-up: constant, cosine or inverse-sqrt."""
    evaluations: int = 20
    """Points of a curve."""
    backend: str = "eager"
    """How a step runs."""
    vectorised: bool = True
    """Make the runs of a variant together (backend eager): same numbers to rounding, several times faster."""
    probes: tuple[str, ...] = ()
    """Measurements inside steps, into probes.parquet: floor_occupancy, secant_residual, condition_failures, ..."""
    every: int = 10
    """Steps from one measurement to the next."""
    out: Path | None = None
    """Folder for results (results/TASK)."""
    jobs: int = os.cpu_count() or 1
    """Processes side by side."""

    def main(self) -> int:
        """Runs it."""
        with interrupt.postponed():
            from sandbox.comparison import compare
            from sandbox.study import report

        arguments = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in ("variants", "task")}
        console = screen.console()
        if not self.variants:
            raise ValueError("compare: name at least one variant, as in: apollo-sandbox compare apollo adamw")
        if self.out is not None:
            screen.folder(self.out)
        with screen.progress(console) as progress:
            result = compare(list(self.variants), self.task, progress=progress, **arguments)
        for head, rows in report.tables(result):
            screen.table(console, head, rows)
        for line in report.notes(result):
            console.print(line, highlight=False)
        names = "table.md, curves.png, rates.png, results.parquet, manifest.json"
        console.print(f"Written to {result.folder}/: {names}", highlight=False)
        return 0

    def interrupted(self) -> str:
        """What Ctrl-C leaves."""
        return interrupt.kept(self.out or Path("results") / self.task, "results.parquet", what="runs")

"""`curvature`: what variants estimate, beside the true diagonal."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from tyro.conf import Positional

from sandbox.cli import interrupt, screen
from sandbox.utils import interrupts
from sandbox.utils.literal import file_name


@dataclasses.dataclass
class Curvature(interrupt.Command):
    """Compare the curvature that variants estimate with the true diagonal of the Hessian, while they train.

    Every variant trains from the same starts on the same batches, a run a seed, at its own constant rate. A few times on the
    way the diagonal of the Hessian of the loss on the whole training split is computed at the point reached, and set beside
    what the variant estimates: B/lr for Apollo, the root of B for AdaHessian. Written: a table, scatter plots tensor by tensor,
    correlations and floor occupancy over the steps, and every number as Parquet. The same command again only adds what is
    missing.

    Try:
      apollo-sandbox curvature apollo hessian-ema no-stepsize-correction adahessian --task digits-mlp
      apollo-sandbox curvature apollo my_recipe.toml --task digits-cnn --samples 10 --method hutchinson
      apollo-sandbox curvature apollo no-momentum --task quadratic --steps 2000 --lr 0.001
    """

    variants: Positional[tuple[str, ...]]
    """Names, TOML files, or module:attribute."""
    task: str = "digits-mlp"
    """A name from apollo-sandbox tasks, module:attribute, or file.py:attribute."""
    steps: int | None = None
    """Updates a run (the task's own number)."""
    samples: int = 5
    """How often the true diagonal is taken."""
    lr: float | None = None
    """The rate of all variants (each its own default)."""
    seeds: int = 5
    """Runs a variant; the table gives means and 95 % intervals."""
    seed: int = 0
    """The first one: of the start, the batches and random vectors."""
    backend: str = "eager"
    """How a step runs."""
    method: str = "exact"
    """Of the true diagonal: exact or hutchinson."""
    num_vectors: int = 200
    """Random vectors a diagonal, for hutchinson."""
    out: Path | None = None
    """Folder for results (results/curvature/TASK)."""
    jobs: int = os.cpu_count() or 1
    """Processes side by side."""

    def main(self) -> int:
        """Runs it."""
        with interrupts.postponed():
            from sandbox.experiments.inspect import inspect
            from sandbox.experiments.reports import inspect_report

        arguments = {
            f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in ("variants", "task", "out")
        }
        console = screen.console()
        if not self.variants:
            raise ValueError("curvature: name at least one variant, as in: apollo-sandbox curvature apollo adahessian")
        out = self._folder()
        if self.out is not None:
            screen.folder(self.out)
        with screen.progress(console) as progress:
            result = inspect(list(self.variants), self.task, out=out, progress=progress, **arguments)
        screen.table(console, *inspect_report.table(result))
        for line in inspect_report.notes(result):
            screen.say(console, line)
        screen.say(console, f"Written to {out}/: {', '.join(inspect_report.FILES)}")
        return 1 if result.failures else 0

    def _folder(self) -> Path:
        return self.out or Path("results/curvature") / file_name(self.task)

    def interrupted(self) -> str:
        """What Ctrl-C leaves."""
        return interrupt.kept(self._folder(), "runs/*.json", what="runs")

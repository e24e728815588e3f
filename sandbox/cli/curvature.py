"""`curvature`: what variants estimate, beside the true diagonal."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from tyro.conf import Positional, UseAppendAction

from sandbox.cli import interrupt, options, screen
from sandbox.experiments.settings import InspectionSettings
from sandbox.utils import interrupts
from sandbox.utils.literal import file_name


@options.from_settings(InspectionSettings, spacing=3.1623, jobs=os.cpu_count() or 1)
@dataclasses.dataclass
class Curvature(interrupt.Command):
    """Compare the curvature that variants estimate with the true diagonal of the Hessian, while they train.

    Every variant trains from the same starts on the same batches, one run per seed, at its own constant rate. A few times on
    the way the diagonal of the Hessian of the loss on the whole training split is computed at the point reached, and compared
    with what the variant estimates: B/lr for Apollo, the root of B for AdaHessian. Written: a table, scatter plots tensor by
    tensor, correlations and floor occupancy over the steps, and every number as Parquet. The same command again only adds what
    is missing.

    Try:
      apollo-sandbox curvature apollo hessian-ema no-stepsize-correction adahessian --task digits-mlp
      apollo-sandbox curvature apollo my_recipe.toml --task digits-cnn --samples 10 --method hutchinson
      apollo-sandbox curvature apollo no-momentum --task quadratic --steps 2000 --lr 0.001
      apollo-sandbox curvature apollo adahessian --task digits-mlp --rates 5
    """

    variants: Positional[tuple[str, ...]]
    """Names, TOML files, or module:attribute."""
    task: str = "digits-mlp"
    """A name from apollo-sandbox tasks, module:attribute, or file.py:attribute."""
    search: UseAppendAction[tuple[str, ...]] = ()
    """Numbers to choose beforehand, as compare does: NAME or NAME=LOW:HIGH[:log]."""
    out: Path | None = None
    """Folder for results (results/curvature/TASK)."""

    def main(self) -> int:
        """Runs the inspection and shows its table."""
        with interrupts.postponed():
            from sandbox.experiments.inspect import inspect
            from sandbox.experiments.reports import inspection
            from sandbox.experiments.runs.methods import RecipeMethod, methods
            from sandbox.experiments.selection.search import parse_range

        arguments = options.values(self, InspectionSettings)
        arguments["search"] = dict(parse_range(text) for text in self.search) or None
        console = screen.console()
        if not self.variants:
            raise ValueError("curvature: name at least one variant, as in: apollo-sandbox curvature apollo adahessian")
        known = methods(list(self.variants), "curvature")
        if not any(inspection.estimates(each.recipe) for each in known if isinstance(each, RecipeMethod)):
            raise ValueError(
                f"curvature: no estimate of the Hessian in {', '.join(each.name for each in known)}; a curvature block says "
                'what it estimates by estimates = "B" and estimate(self, B, x): see docs/experiments.md'
            )
        out = self._folder()
        if self.out is not None:
            screen.folder(self.out)
        with screen.progress(console) as progress:
            result = inspect(list(self.variants), self.task, **{**arguments, "out": out, "progress": progress})
        screen.table(console, *inspection.table(result))
        for line in inspection.notes(result):
            screen.say(console, line)
        screen.say(console, f"Written to {out}/: {', '.join(inspection.FILES)}")
        return 1 if result.failures else 0

    def _folder(self) -> Path:
        return self.out or Path("results/curvature") / file_name(self.task)

    def interrupted(self) -> str:
        """Returns what to say after Ctrl-C."""
        return interrupt.resumable(self._folder(), "runs/*.json", what="runs")

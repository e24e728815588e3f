"""`variants`, `show` and `tasks`: lists of what is available."""

from __future__ import annotations

import dataclasses
import sys

from tyro.conf import Positional

from sandbox.cli import interrupt, screen
from sandbox.utils import interrupts


@dataclasses.dataclass
class Variants(interrupt.Command):
    """List every variant by family: its year, state per parameter, gradients per step, what it is.  `show NAME` says more."""

    def main(self) -> int:
        """Prints the table."""
        with interrupts.postponed():
            from sandbox.forms import lookup
            from sandbox.recipe.analysis import state_text

            variants = lookup.package("variants")

        console = screen.console()
        for family, names in variants.families().items():
            rows = []
            for name in names:
                recipe = variants.get(name)
                numbers = [str(variants.year(name)), f"{recipe.lr:g}", state_text(recipe), str(recipe.analysis.evaluations)]
                rows.append([name, *numbers, variants.about(name).splitlines()[0]])
            screen.say(console, f"\n{family}")
            screen.table(console, ["variant", "year", "lr", "state", "gradients", "what it is"], rows)
        return 0


@dataclasses.dataclass
class Show(interrupt.Command):
    """Show a recipe's algorithm with its numbers, or its TOML.

    Try:
      apollo-sandbox show scale-invariant
      apollo-sandbox show apollo --toml > mine.toml      (edit it, then: apollo-sandbox compare apollo mine.toml)
    """

    recipe: Positional[str]
    """A name, a TOML file, or module:attribute."""
    toml: bool = False
    """Print TOML, to be edited and used wherever a name is."""

    def main(self) -> int:
        """Prints the recipe."""
        with interrupts.postponed():
            from sandbox.forms import lookup, toml

            variants = lookup.package("variants")

        recipe = lookup.recipe(self.recipe)
        if self.toml:
            sys.stdout.write(toml.dumps(recipe))
            return 0
        if self.recipe in variants.names():
            sys.stdout.write(variants.about(self.recipe) + "\n\n")
        sys.stdout.write(f"{recipe}\n")
        return 0


@dataclasses.dataclass
class Tasks(interrupt.Command):
    """List every task."""

    def main(self) -> int:
        """Prints the table."""
        with interrupts.postponed():
            from sandbox import tasks

        rows = []
        for name in tasks.names():
            kind = tasks.about(name)
            task = kind if kind.pure else kind()  # the others load no data before they are used
            length = str(task.steps) if task.epochs is None else f"{task.epochs} epochs"
            better = "higher" if bool(task.higher_is_better) else "lower"
            metric = f"{task.metric} ({better} is better)"
            rows.append([name, "convex" if task.convex else "nonconvex", length, metric, task.about])
        screen.table(screen.console(), ["task", "kind", "length", "metric", "what it is"], rows)
        return 0

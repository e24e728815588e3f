"""`check`: theorems, by number."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tyro.conf import Positional

from sandbox.cli import interrupt, screen


@dataclasses.dataclass
class Check(interrupt.Command):
    """Check theorems numerically: verify a bound on a run, or refute a statement.

    Try:
      apollo-sandbox check counterexamples
      apollo-sandbox check regret --recipe monotone --problem cycle-box --steps 2000
      apollo-sandbox check regret --recipe apollo --problem logistic-breast-cancer --steps 500
      apollo-sandbox check adversary --theorem regret --minutes 2

    counterexamples: what refutes the paper's statements. regret: Theorem 2 and its repaired forms on a run with rate
    eta/sqrt(t). coupling: Theorem 1, repaired and as stated. scale-invariance: the loss times 1024. adversary: a search for a
    problem that violates a theorem, from a random start; Ctrl-C ends it with the best so far.
    Exit code 0, also where a statement of the paper is refuted as expected; 1 where a repaired statement is violated, or where
    a recipe with the scale-invariant floor is not scale invariant; 2 for bad usage.
    """

    what: Positional[str]
    """counterexamples, regret, coupling, scale-invariance, adversary, or all but the adversary (without options)."""
    recipe: str = "apollo"
    """A name, a TOML file, or module:attribute; run without bias correction, as the proofs are."""
    problem: str = "logistic-breast-cancer"
    """cycle, cycle-box, three-periodic, random-linear, random-quadratic, logistic-breast-cancer or ridge-diabetes."""
    steps: int = 500
    """T."""
    eta: float | None = None
    """The rate is eta/sqrt(t); default the recipe's own rate."""
    theorem: str = "regret"
    """What the adversary attacks: regret (Theorem 2 as stated), repaired-1, repaired-2, repaired-3, monotone, or all."""
    minutes: float = 10.0
    """How long the adversary searches, for each theorem."""
    seed: int = 0
    """Where the adversary starts."""
    out: Path = Path("results/check")
    """Folder for the report as JSON and a plot."""

    def main(self) -> int:
        """Runs it."""
        from sandbox import suggest

        checks: dict[str, Callable[[], int]] = {
            "counterexamples": self._counterexamples,
            "regret": self._regret,
            "coupling": self._coupling,
            "scale-invariance": self._scale_invariance,
            "adversary": self._adversary,
            "all": self._all,
        }
        if self.what not in checks:
            raise ValueError(suggest.unknown("check", self.what, checks))
        with interrupt.postponed():  # what all of them need, torch among it
            from sandbox import lookup

            lookup.package("theory_checks")
            importlib.import_module("theory_checks.adversary")
        return checks[self.what]()

    def _rate(self) -> Any:
        from sandbox import lookup
        from sandbox.schedules import InverseSquareRoot

        return InverseSquareRoot(first=self.eta if self.eta is not None else float(lookup.recipe(self.recipe).lr))

    def _coupling(self) -> int:
        from theory_checks import coupling

        for as_stated in (False, True):
            report = coupling.check(self.recipe, self.problem, self.steps, lr=self._rate(), as_stated=as_stated)
            sys.stdout.write(f"{report}\n")
            if not as_stated and report.measured > 0:
                return 1
        return 0

    def _scale_invariance(self) -> int:
        from sandbox import lookup
        from theory_checks import scale_invariance

        recipe = lookup.recipe(self.recipe)
        report = scale_invariance.check(recipe, self.problem, self.steps, lr=self._rate())
        sys.stdout.write(f"{report}\n")
        return 0 if report.assumptions[0].holds or not scale_invariance.promised(recipe) else 1

    def _all(self) -> int:
        screen.folder(self.out)
        ended = [
            self._counterexamples(),
            dataclasses.replace(self, recipe="apollow", problem="ridge-diabetes", steps=100, eta=0.02)._coupling(),
            dataclasses.replace(self, recipe="scale-invariant", steps=100)._scale_invariance(),
        ]
        runs = [("apollo", "logistic-breast-cancer", 0.01), ("apollo", "cycle-box", 0.38), ("monotone", "cycle-box", 0.38)]
        runs += [("adam", "three-periodic", 0.5), ("amsgrad", "three-periodic", 0.5), ("hessian-ema", "ridge-diabetes", 0.01)]
        for recipe, problem, eta in runs:
            ended.append(dataclasses.replace(self, recipe=recipe, problem=problem, steps=500, eta=eta)._regret())
        return max(ended)

    def _counterexamples(self) -> int:
        from theory_checks import counterexamples

        rows = []
        for case in counterexamples.all_cases():
            rows.append(
                [case.name, case.claim, f"{case.left:.6g}", f"{case.right:.6g}", "refuted" if case.refuted else "not refuted"]
            )
        screen.table(screen.console(), ["case", "claim", "left", "right", "verdict"], rows)
        return 0

    def _adversary(self) -> int:
        from matplotlib.figure import Figure

        from theory_checks import adversary

        screen.folder(self.out)
        outcomes = []
        for theorem in adversary.TARGETS if self.theorem == "all" else [self.theorem]:
            with screen.progress(screen.console(), "s") as progress:
                found = adversary.search(theorem, minutes=self.minutes, seed=self.seed, progress=progress)
            sys.stdout.write(f"{found}\n")
            figure = Figure(figsize=(12.0, 5.0), layout="constrained", dpi=150)
            found.plot(figure)
            self._write(f"adversary-{theorem}-{self.seed}", found.to_json(), figure)
            outcomes.append(found)
            if found.interrupted:
                break
        screen.table(screen.console(), list(adversary.COLUMNS), [found.row() for found in outcomes])
        if any(found.news for found in outcomes):
            return 1
        return interrupt.EXIT_CODE if outcomes[-1].interrupted else 0

    def _regret(self) -> int:
        import dataclasses as dc

        from matplotlib.figure import Figure

        from sandbox import lookup
        from sandbox.blocks import EMA
        from theory_checks import record, regret

        recipe = lookup.recipe(self.recipe)
        screen.folder(self.out)
        if isinstance(recipe.moment, EMA) and recipe.moment.bias_correction:
            recipe = recipe.replace(moment=dc.replace(recipe.moment, bias_correction=False), name=recipe.name)
        report = regret.check(record(recipe, self.problem, self.steps, lr=self._rate()), points=16)
        sys.stdout.write(f"{report}\n")
        figure = Figure(figsize=(7.5, 5.0), layout="constrained", dpi=150)
        report.plot(figure.subplots())
        self._write(f"regret-{recipe.name}-{self.problem}".replace("/", "-"), report.to_json(), figure)
        return 1 if report.news else 0

    def _write(self, stem: str, text: str, figure: Any) -> None:
        from sandbox.experiments.store import atomically

        with atomically(self.out / f"{stem}.json") as path:
            path.write_text(text + "\n")
        with atomically(self.out / f"{stem}.png") as path:
            figure.savefig(path, format="png")
        sys.stdout.write(f"Written to {self.out}/: {stem}.json, {stem}.png\n")

    def interrupted(self) -> str:
        """What Ctrl-C leaves; a search for a counterexample returns the best so far by itself."""
        return interrupt.written(self.out)

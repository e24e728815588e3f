"""`check`: theorems, numerically.  Each check is a command of its own, so that an option it does not use is refused."""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, subcommand

from sandbox.cli import interrupt, screen
from sandbox.utils import interrupts
from sandbox.utils.literal import file_name

OUT = Path("results/check")


@dataclasses.dataclass
class Counterexamples:
    """Counterexamples to the paper's statements, each with both sides of its claim.

    Exit code 0; with --certify 1 where a proof fails.
    """

    certify: bool = False
    """Prove each one in ball arithmetic (needs the extra `theory`)."""

    def main(self) -> int:
        """Shows or proves the counterexamples."""
        from theory_checks.proofs import certificates, counterexamples

        if not self.certify:
            head = ["case", "claim", "left", "right", "verdict"]
            rows = [
                [case.name, case.claim, f"{case.left:.6g}", f"{case.right:.6g}", "refuted" if case.refuted else "not refuted"]
                for case in counterexamples.all_cases()
            ]
            screen.table(screen.console(), head, rows)
            return 0
        code = 0
        for name in certificates.PROOFS:
            proof = certificates.certify(name)
            sys.stdout.write(f"{proof}\n    {proof.claim}\n")
            code = max(code, 0 if proof.proved else 1)
        return code


@dataclasses.dataclass
class _OnlineRun:
    """A recipe on an online problem with rate eta/sqrt(t)."""

    recipe: str = "apollo"
    """A name, a TOML file, module:attribute or file.py:attribute."""
    problem: str = "logistic-breast-cancer"
    """A name (cycle, cycle-box, three-periodic, random-linear, random-quadratic, logistic-breast-cancer, ridge-diabetes), or a
    problem, a convex task, or a function that returns one, as module:attribute or file.py:attribute."""
    steps: int = 500
    """T."""
    eta: float | None = None
    """The rate is eta/sqrt(t); default the recipe's own rate."""

    def resolve(self) -> tuple[Any, Any, Any]:
        """Returns the recipe, the problem, and η_t as a function of t.  Without a name of their own they get their option's."""
        from sandbox.forms import lookup
        from sandbox.recipe import Recipe
        from sandbox.schedules import InverseSquareRoot
        from sandbox.utils import imports
        from theory_checks import problems

        recipe = lookup.recipe(self.recipe)
        eta = self.eta if self.eta is not None else float(recipe.lr)
        problem = problems.get(imports.attribute(self.problem) if ":" in self.problem else self.problem)
        if recipe.name == Recipe().name:
            recipe = dataclasses.replace(recipe, name=self.recipe)
        if problem.name == problems.UNNAMED:
            problem = dataclasses.replace(problem, name=self.problem)
        return recipe, problem, InverseSquareRoot(first=eta)


@dataclasses.dataclass
class Regret(_OnlineRun):
    """Theorem 2 and its repaired forms on a run: every premise with its margin, every bound, each step of the proof.

    The recipe is run without bias correction, as the proofs are.  Exit code 1 where a repaired statement is violated.

    Try:
      apollo-sandbox check regret --recipe monotone --problem cycle-box --steps 2000
      apollo-sandbox check regret --problem mine.py:problem
    """

    out: Path = OUT
    """Folder for the report as JSON and a plot."""

    def main(self) -> int:
        """Runs the recipe and writes the report."""
        from matplotlib.figure import Figure

        from sandbox.blocks import EMA
        from theory_checks import record
        from theory_checks.claims import regret

        recipe, problem, rate = self.resolve()
        screen.folder(self.out)
        if isinstance(recipe.moment, EMA) and recipe.moment.bias_correction:
            recipe = recipe.replace(moment=dataclasses.replace(recipe.moment, bias_correction=False), name=recipe.name)
        report = regret.check(record(recipe, problem, self.steps, lr=rate), points=16)
        sys.stdout.write(f"{report}\n")
        figure = Figure(figsize=(7.5, 5.0), layout="constrained", dpi=150)
        report.plot(figure.subplots())
        _write(self.out, f"regret-{recipe.name}-{problem.name}", report.to_json(), figure)
        return 1 if report.news else 0


@dataclasses.dataclass
class Coupling(_OnlineRun):
    """Theorem 1, repaired and as stated: (eta, sigma) against 4 (eta, sigma).  Exit code 1 where the repaired form fails."""

    def main(self) -> int:
        """Runs the check and prints its report."""
        from theory_checks.claims import coupling

        recipe, problem, rate = self.resolve()
        for as_stated in (False, True):
            report = coupling.check(recipe, problem, self.steps, lr=rate, as_stated=as_stated)
            sys.stdout.write(f"{report}\n")
            if not as_stated and not report.assumptions[0].holds:
                return 1
        return 0


@dataclasses.dataclass
class ScaleInvariance(_OnlineRun):
    """The loss times 1024.  Exit code 1 where a recipe with the scale-invariant floor is not scale invariant."""

    def main(self) -> int:
        """Runs the check and prints its report."""
        from theory_checks.claims import scale_invariance

        recipe, problem, rate = self.resolve()
        report = scale_invariance.check(recipe, problem, self.steps, lr=rate)
        sys.stdout.write(f"{report}\n")
        return 0 if report.assumptions[0].holds or not scale_invariance.is_promised(recipe) else 1


@dataclasses.dataclass
class Adversary:
    """A search for a problem that violates a theorem, from a random start.  Ctrl-C ends it with the best so far.

    Exit code 1 where a statement with a proof is violated.
    """

    theorem: str = "regret"
    """regret (Theorem 2 as stated), repaired-1, repaired-2, repaired-3, hessian-ema, monotone, or all."""
    minutes: float = 10.0
    """How long to search, for each theorem."""
    seed: int = 0
    """Where to start."""
    certify: bool = False
    """Prove the result in ball arithmetic (needs the extra `theory`)."""
    out: Path = OUT
    """Folder for the report as JSON and a plot."""

    def main(self) -> int:
        """Searches and writes the reports."""
        from matplotlib.figure import Figure

        from theory_checks.search import adversary

        screen.folder(self.out)
        outcomes = []
        for theorem in adversary.TARGETS if self.theorem == "all" else [self.theorem]:
            with screen.progress(screen.console(), "s") as progress:
                result = adversary.search(theorem, minutes=self.minutes, seed=self.seed, progress=progress)
            sys.stdout.write(f"{result}\n")
            if self.certify and result.refuted:
                sys.stdout.write(f"{adversary.certify(result)}\n")
            figure = Figure(figsize=(12.0, 5.0), layout="constrained", dpi=150)
            result.plot(figure)
            _write(self.out, f"adversary-{theorem}-{self.seed}", result.to_json(), figure)
            outcomes.append(result)
            if result.interrupted:
                break
        screen.table(screen.console(), list(adversary.COLUMNS), [result.row() for result in outcomes])
        if any(result.news for result in outcomes):
            return 1
        return interrupt.EXIT_CODE if outcomes[-1].interrupted else 0


@dataclasses.dataclass
class Questions:
    """Questions that the theorems leave open, each with its answer, the numbers, and the command that reproduces them."""

    names: Positional[tuple[str, ...]] = ()
    """apollo, scale-invariant, scale-invariant-momentum, hessian-ema, ceiling, tight, same-batch; default all."""
    steps: int = 20_000
    """T of the longest runs."""
    certify: bool = False
    """Prove what is refuted in ball arithmetic, on shorter runs (needs the extra `theory`)."""

    def main(self) -> int:
        """Prints the answers."""
        from theory_checks.open_questions import questions

        for name in self.names or questions.QUESTIONS:
            print(questions.answer(name, T=self.steps, certify=self.certify), flush=True)
        return 0


@dataclasses.dataclass
class Rates:
    """Slopes of log regret and log min ‖∇f‖² on log T, with 95 % intervals, beside the exponents of the theorems."""

    steps: int = 1_000_000
    """T of the longest runs: a million takes about twenty seconds."""
    out: Path = OUT
    """Folder for the figure."""

    def main(self) -> int:
        """Measures the slopes and draws them."""
        from matplotlib.figure import Figure

        from theory_checks.open_questions import rates

        screen.folder(self.out)
        figure = Figure(figsize=(12.0, 5.0), layout="constrained", dpi=150)
        every = []
        for axes, measure in zip(figure.subplots(1, 2), (rates.of_regret, rates.of_gradients), strict=True):
            curves = measure(self.steps)
            rates.plot(curves, axes)
            every += curves
            sys.stdout.write("".join(f"{rate}\n" for rate in curves))
        _write(self.out, "rates", json.dumps([dataclasses.asdict(rate) for rate in every], ensure_ascii=False), figure)
        return 0


@dataclasses.dataclass
class All:
    """Everything but the searches, on problems chosen for it, in a minute or two."""

    out: Path = OUT
    """Folder for the reports as JSON and plots."""

    def main(self) -> int:
        """Runs every check."""
        screen.folder(self.out)
        codes = [
            Counterexamples().main(),
            Coupling(recipe="apollow", problem="ridge-diabetes", steps=100, eta=0.02).main(),
            ScaleInvariance(recipe="scale-invariant", steps=100).main(),
        ]
        runs = [("apollo", "logistic-breast-cancer", 0.01), ("apollo", "cycle-box", 0.38), ("monotone", "cycle-box", 0.38)]
        runs += [("adam", "three-periodic", 0.5), ("amsgrad", "three-periodic", 0.5), ("hessian-ema", "ridge-diabetes", 0.01)]
        for recipe, problem, eta in runs:
            codes.append(Regret(recipe=recipe, problem=problem, eta=eta, out=self.out).main())
        return max(codes)


@dataclasses.dataclass
class Check(interrupt.Command):
    """Check theorems numerically: verify a bound on a run, or refute a statement.

    Try:
      apollo-sandbox check counterexamples --certify
      apollo-sandbox check regret --recipe monotone --problem cycle-box --steps 2000
      apollo-sandbox check adversary --theorem regret --minutes 2

    Exit code 0, also where a statement of the paper is refuted as expected; 1 where what should hold does not; 2 for bad usage.
    """

    what: (
        Annotated[Counterexamples, subcommand("counterexamples")]
        | Annotated[Regret, subcommand("regret")]
        | Annotated[Coupling, subcommand("coupling")]
        | Annotated[ScaleInvariance, subcommand("scale-invariance")]
        | Annotated[Adversary, subcommand("adversary")]
        | Annotated[Questions, subcommand("questions")]
        | Annotated[Rates, subcommand("rates")]
        | Annotated[All, subcommand("all")]
    )

    def main(self) -> int:
        """Runs the check."""
        with interrupts.postponed():  # what all of them need, torch among it
            from sandbox.forms import lookup

            lookup.package("theory_checks")
            importlib.import_module("theory_checks.search.adversary")
        return self.what.main()

    def interrupted(self) -> str:
        """Returns what to say after Ctrl-C; a search for a counterexample returns the best so far by itself."""
        return interrupt.not_resumable(getattr(self.what, "out", OUT))


def _write(out: Path, stem: str, text: str, figure: Any) -> None:
    from sandbox.experiments.runs.store import atomically

    stem = file_name(stem)
    with atomically(out / f"{stem}.json") as path:
        path.write_text(text + "\n")
    with atomically(out / f"{stem}.png") as path:
        figure.savefig(path, format="png")
    sys.stdout.write(f"Written to {out}/: {stem}.json, {stem}.png\n")

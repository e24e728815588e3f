"""apollo-sandbox: compare, inspect, check, list and show variants.  Only the standard library and tyro at import."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from tyro.conf import OmitSubcommandPrefixes, Positional, subcommand

if TYPE_CHECKING:
    from rich.console import Console

INTERRUPTED = 130
BAD_USAGE = 2


@dataclasses.dataclass
class Compare:
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
        from sandbox.comparison import compare

        arguments = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in ("variants", "task")}
        console = _console()
        if not self.variants:
            raise ValueError("compare: name at least one variant, as in: apollo-sandbox compare apollo adamw")
        try:
            with _progress(console) as progress:
                result = compare(list(self.variants), self.task, progress=progress, **arguments)
        except KeyboardInterrupt:
            console.print("Interrupted. Finished runs are kept; the same command goes on from here.")
            return INTERRUPTED
        from sandbox.study import report

        for head, rows in report.tables(result):
            _table(console, head, rows)
        for line in report.notes(result):
            console.print(line, highlight=False)
        names = "table.md, curves.png, rates.png, results.parquet, manifest.json"
        console.print(f"Written to {result.folder}/: {names}", highlight=False)
        return 0


@dataclasses.dataclass
class Variants:
    """List every variant: its state, what it changes, its source."""

    def main(self) -> int:
        """Prints the table."""
        import variants

        rows = []
        for name in variants.names():
            recipe = variants.get(name)
            rows.append([name, f"{recipe.lr:g}", str(recipe.words), variants.about(name).splitlines()[0]])
        _table(_console(), ["variant", "lr", "words", "what it is"], rows)
        return 0


@dataclasses.dataclass
class Show:
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
        """Prints it."""
        import variants
        from sandbox import lookup

        recipe = lookup.recipe(self.recipe)
        if self.toml:
            sys.stdout.write(recipe.to_toml())
            return 0
        if self.recipe in variants.names():
            sys.stdout.write(variants.about(self.recipe) + "\n\n")
        sys.stdout.write(f"{recipe}\n")
        return 0


@dataclasses.dataclass
class Sweep:
    """Train a recipe on a whole grid of numbers at once; a heat map for two, curves for one, Parquet for all.

    Any number of any slot can be varied, by its dotted name (apollo-sandbox show RECIPE --toml lists them). All members run
    together, vectorised. The same command again goes on where it was interrupted.

    Try:
      apollo-sandbox sweep apollo --vary lr=1e-4:1:64:log --vary rectifier.sigma=1e-4:1:64:log --task logistic-breast-cancer
      apollo-sandbox sweep adamw --vary lr=1e-4:1:32:log --task digits-mlp --seeds 8
      apollo-sandbox sweep apollo --vary moment.beta=0,0.5,0.9,0.99 --vary lr=1e-3:1:16:log --task digits-mlp
    """

    recipe: Positional[str]
    """A name, a TOML file, or module:attribute."""
    vary: tyro.conf.UseAppendAction[tuple[str, ...]]
    """NAME=FROM:TO:COUNT[:log], or NAME=VALUE,VALUE,...; as often as there are numbers to vary."""
    task: str = "logistic-breast-cancer"
    """A name from apollo-sandbox tasks."""
    seeds: int = 1
    """Runs of each combination; the picture shows their median."""
    steps: int | None = None
    """Updates a run (the task's own number)."""
    warmup: int = 0
    """Updates of linear warm-up."""
    schedule: str = "constant"
    """After the warm-up: constant, cosine or inverse-sqrt."""
    compiled: bool = False
    """Compile the vectorised step: pays from some hundred thousand member steps on."""
    memory: float = 1.0
    """GiB that the members which run together may take."""
    out: Path | None = None
    """Folder for results (results/sweep-RECIPE-TASK)."""

    def main(self) -> int:
        """Runs it."""
        from sandbox import sweep

        pairs = [sweep.values_of(text) for text in self.vary]
        names = [name for name, _ in pairs]
        if len(set(names)) < len(names):
            raise ValueError(f"--vary names {next(n for n in names if names.count(n) > 1)} twice")
        console = _console()
        out = self.out or Path("results") / f"sweep-{Path(self.recipe).stem}-{self.task}".replace(":", "-")
        options = {name: getattr(self, name) for name in ("seeds", "steps", "warmup", "schedule", "compiled")}
        try:
            with _progress(console, "member steps") as progress:
                found = sweep.sweep(
                    self.recipe, self.task, dict(pairs), out=out, memory=int(self.memory * 2**30),
                    progress=lambda done, total: progress(done, total, "training"), **options,
                )  # fmt: skip
        except KeyboardInterrupt:
            console.print("Interrupted. Whole blocks of members are kept; the same command goes on from there.")
            return INTERRUPTED
        best = found.best()
        rows = [[name, f"{value:.6g}"] for name, value in best.items()]
        rows += [["members", str(len(found.frame))], ["diverged", str(int((found.frame["diverged"] > 0).sum()))]]
        _table(console, ["best", f"of {found.recipe.name} on {found.task.name}, {found.steps} steps"], rows)
        pictures = ", sweep.png" if len(names) <= 2 else "; a picture shows one or two numbers"
        console.print(f"Written to {out}/: sweep.parquet, manifest.json{pictures}", highlight=False)
        return 0


@dataclasses.dataclass
class Tasks:
    """List every task."""

    def main(self) -> int:
        """Prints the table."""
        from sandbox import tasks

        rows = []
        for name in tasks.names():
            task = tasks.about(name)
            metric = f"{task.metric} ({'higher' if task.higher_is_better else 'lower'} is better)"
            rows.append([name, "convex" if task.convex else "nonconvex", str(task.steps), metric, task.about])
        _table(_console(), ["task", "kind", "steps", "metric", "what it is"], rows)
        return 0


@dataclasses.dataclass
class Check:
    """Check theorems numerically: verify a bound on a run, or refute a statement.

    Try:
      apollo-sandbox check counterexamples
      apollo-sandbox check regret --recipe monotone --problem cycle-box --steps 2000
      apollo-sandbox check regret --recipe apollo --problem logistic-breast-cancer --steps 500
      apollo-sandbox check adversary --theorem regret --minutes 2

    counterexamples: what refutes the paper's statements. regret: Theorem 2 and its repaired forms on a run with rate
    eta/sqrt(t). coupling: Theorem 1, repaired and as stated. scale-invariance: the loss times 1024. adversary: a search for a
    problem that violates a theorem, from a random start; Ctrl-C ends it with the best so far.
    Exit code 0, also where a statement of the paper is refuted as expected; 1 where a repaired statement is violated; 2 for bad
    usage.
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
        from theory_checks import scale_invariance

        sys.stdout.write(f"{scale_invariance.check(self.recipe, self.problem, self.steps, lr=self._rate())}\n")
        return 0

    def _all(self) -> int:
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
        _table(_console(), ["case", "claim", "left", "right", "verdict"], rows)
        return 0

    def _adversary(self) -> int:
        from matplotlib.figure import Figure

        from theory_checks import adversary

        outcomes = []
        for theorem in adversary.TARGETS if self.theorem == "all" else [self.theorem]:
            with _progress(_console(), "s") as progress:
                found = adversary.search(theorem, minutes=self.minutes, seed=self.seed, progress=progress)
            sys.stdout.write(f"{found}\n")
            figure = Figure(figsize=(12.0, 5.0), layout="constrained", dpi=150)
            found.plot(figure)
            self._write(f"adversary-{theorem}-{self.seed}", found.to_json(), figure)
            outcomes.append(found)
            if found.interrupted:
                break
        _table(_console(), list(adversary.COLUMNS), [found.row() for found in outcomes])
        if any(found.news for found in outcomes):
            return 1
        return INTERRUPTED if outcomes[-1].interrupted else 0

    def _regret(self) -> int:
        import dataclasses as dc

        from matplotlib.figure import Figure

        from sandbox import lookup
        from sandbox.blocks import EMA
        from theory_checks import record, regret

        recipe = lookup.recipe(self.recipe)
        if isinstance(recipe.moment, EMA) and recipe.moment.bias_correction:
            recipe = recipe.replace(moment=dc.replace(recipe.moment, bias_correction=False), name=recipe.name)
        report = regret.check(record(recipe, self.problem, self.steps, lr=self._rate()), points=16)
        sys.stdout.write(f"{report}\n")
        figure = Figure(figsize=(7.5, 5.0), layout="constrained", dpi=150)
        report.plot(figure.subplots())
        self._write(f"regret-{recipe.name}-{self.problem}".replace("/", "-"), report.to_json(), figure)
        return 1 if report.news else 0

    def _write(self, stem: str, text: str, figure: Any) -> None:
        from sandbox.study.store import atomically

        self.out.mkdir(parents=True, exist_ok=True)
        with atomically(self.out / f"{stem}.json") as path:
            path.write_text(text + "\n")
        with atomically(self.out / f"{stem}.png") as path:
            figure.savefig(path, format="png")
        sys.stdout.write(f"Written to {self.out}/: {stem}.json, {stem}.png\n")


@dataclasses.dataclass
class Curvature:
    """Compare the curvature that variants estimate with the true diagonal of the Hessian, while they train.

    Every variant trains from the same start on the same batches, at its own constant rate. A few times on the way the diagonal
    of the Hessian of the loss on the whole training split is computed at the point reached, and set beside what the variant
    estimates: B/lr for Apollo, the root of B for AdaHessian. Written: a table, scatter plots tensor by tensor, correlations and
    floor occupancy over the steps, and every number as Parquet.

    Try:
      apollo-sandbox curvature apollo hessian-ema no-stepsize-correction adahessian --task digits-mlp
      apollo-sandbox curvature apollo my_recipe.toml --task digits-cnn --samples 10 --method hutchinson
      apollo-sandbox curvature apollo no-momentum --task quadratic --steps 2000 --lr 0.001
    """

    variants: Positional[tuple[str, ...]]
    """Names, TOML files, or module:attribute."""
    task: str = "digits-mlp"
    """A name from apollo-sandbox tasks."""
    steps: int | None = None
    """Updates a run (the task's own number)."""
    samples: int = 5
    """How often the true diagonal is taken."""
    lr: float | None = None
    """The rate of all variants (each its own default)."""
    seed: int = 0
    """Of the start, the batches and random vectors."""
    backend: str = "eager"
    """How a step runs."""
    method: str = "exact"
    """Of the true diagonal: exact or hutchinson."""
    vectors: int = 200
    """Random vectors a diagonal, for hutchinson."""
    out: Path | None = None
    """Folder for results (results/curvature/TASK)."""

    def main(self) -> int:
        """Runs it."""
        from sandbox.inspection import inspect
        from sandbox.study import inspection_report

        arguments = {
            f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in ("variants", "task", "out")
        }
        console = _console()
        if not self.variants:
            raise ValueError("curvature: name at least one variant, as in: apollo-sandbox curvature apollo adahessian")
        out = self.out or Path("results/curvature") / self.task
        with _progress(console, "samples") as progress:
            result = inspect(list(self.variants), self.task, out=out, progress=progress, **arguments)
        _table(console, *inspection_report.table(result))
        for line in inspection_report.notes(result):
            console.print(line, highlight=False)
        console.print(f"Written to {out}/: {', '.join(inspection_report.FILES)}", highlight=False)
        return INTERRUPTED if result.interrupted else 0


Command = (
    Annotated[Compare, subcommand("compare")]
    | Annotated[Variants, subcommand("variants")]
    | Annotated[Show, subcommand("show")]
    | Annotated[Tasks, subcommand("tasks")]
    | Annotated[Check, subcommand("check")]
    | Annotated[Sweep, subcommand("sweep")]
    | Annotated[Curvature, subcommand("curvature")]
)

ABOUT = """Optimizers as recipes of blocks, around Apollo (arXiv 2009.13586).

First steps:
  apollo-sandbox compare apollo adamw --task digits-mlp
  apollo-sandbox show apollo
"""


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code: 0, 2 for bad usage, 130 when interrupted."""
    command: Any = tyro.cli(Command, prog="apollo-sandbox", description=ABOUT, args=arguments, config=(OmitSubcommandPrefixes,))
    try:
        return command.main()
    except (ValueError, TypeError, OSError) as error:
        if os.environ.get("APOLLO_SANDBOX_TRACEBACK"):
            raise
        sys.stderr.write(f"apollo-sandbox: {error}\n")
        return BAD_USAGE


def run() -> None:
    """Entry point of the installed command."""
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.stderr.write("apollo-sandbox: interrupted\n")
        sys.exit(INTERRUPTED)


def _console() -> Console:
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 160)


def _table(console: Console, head: list[str], rows: list[list[str]]) -> None:
    from rich import box
    from rich.table import Table

    widths = [max(len(line[i]) for line in [head, *rows]) for i in range(len(head))]
    if sum(widths) + 3 * len(widths) > console.width and len(head) > 4:
        # too narrow for a line each: a block each
        for row in rows:
            console.print(f"\n{row[0]}", style="bold", highlight=False)
            for name, value in zip(head[1:], row[1:], strict=True):
                console.print(f"  {name}: {value}", highlight=False)
        return
    table = Table(box=box.SIMPLE)
    for name in head:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(table)


@contextlib.contextmanager
def _progress(console: Console, unit: str = "runs") -> Iterator[Callable[[int, int, str], None]]:
    """A bar on a terminal, a line a tenth of the way elsewhere."""
    if not sys.stdout.isatty():
        yield _lines(unit)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn(unit), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=None)
        yield lambda done, total, what: bar.update(task, completed=done, total=total, description=what)


def _lines(unit: str) -> Callable[[int, int, str], None]:
    said: set[int] = set()

    def say(done: int, total: int, what: str) -> None:
        tenth = 10 * done // max(total, 1)
        if tenth not in said:
            said.add(tenth)
            sys.stderr.write(f"{what}: {done} of {total} {unit}\n")

    return say


if __name__ == "__main__":
    run()

"""The main job: variants against each other on one task, with equal tuning budgets and paired seeds.

    result = sandbox.compare(["apollo", "adamw"], "digits-mlp")
    print(result)

Every variant gets the same number of learning rates, on a log grid around its own default; the one with the lowest mean
validation loss over the tuning seeds is kept, and an optimum on the grid's edge is said.  Then fresh seeds: the same
initialisation and order of batches for every variant, test split looked at once, at the end.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import pickle
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from sandbox import backends, lookup, suggest, tasks
from sandbox.ensemble.run import refusal
from sandbox.forms import toml
from sandbox.probes.watch import Watch, find
from sandbox.recipe import Recipe
from sandbox.study import identity, run, statistics, together
from sandbox.study.store import PROBES, Store, read_manifest, write_manifest

TUNING_SEEDS_FROM = 10_000  # tuning seeds are 10000, 10001, …; final ones 0, 1, …


@dataclasses.dataclass(frozen=True)
class Plan:
    """What `compare` is asked for; see there."""

    recipes: list[Recipe]
    task: tasks.Task
    seeds: int
    tuning_seeds: int
    rates: int
    spacing: float
    steps: int
    warmup: int
    schedule: str
    evaluations: int
    backend: str
    vectorised: bool = False
    probes: tuple[Any, ...] = ()
    every: int = 1

    def way(self, recipe: Recipe) -> str:
        """The backend of a recipe's runs: made together by `sandbox.ensemble`, where that can be."""
        if not self.vectorised or self.backend != "eager":
            return self.backend
        return together.TOGETHER if self.refusals[recipe.name] is None else self.backend

    @functools.cached_property
    def refusals(self) -> dict[str, str | None]:
        """Why a recipe cannot be batched, by its name."""
        return {recipe.name: refusal(recipe, self.task) for recipe in self.recipes}

    def grid(self, recipe: Recipe) -> list[float]:
        """Learning rates around the recipe's default, lowest first."""
        return [float(f"{recipe.lr * self.spacing ** (k - (self.rates - 1) / 2):.6g}") for k in range(self.rates)]

    def settings(self, recipe: Recipe, lr: float, seed: int, role: str) -> run.Settings:
        """The settings of one run."""
        name, fingerprint = self.task.name, toml.fingerprint(recipe)
        shared = self.steps, self.warmup, self.schedule, self.evaluations, self.way(recipe)
        of_task, code, watched = self.identities
        return run.Settings(name, fingerprint, lr, seed, role, *shared, of_task, code[recipe.name], watched)

    @functools.cached_property
    def identities(self) -> tuple[str, dict[str, str], str]:
        """What the runs depend on beside their settings: the task, the code by the recipe's name, and who looks on."""
        names = " ".join(identity.probe(name, probe) for name, probe in find(self.probes).items())
        code = {recipe.name: identity.code(recipe, self.task) for recipe in self.recipes}
        return identity.task(self.task), code, f"{names} every {self.every}" if names else ""

    def tuning(self, recipe: Recipe) -> list[run.Settings]:
        """The runs that choose a recipe's rate."""
        seeds = range(TUNING_SEEDS_FROM, TUNING_SEEDS_FROM + self.tuning_seeds)
        return [self.settings(recipe, lr, seed, "tuning") for lr in self.grid(recipe) for seed in seeds]

    def final(self, recipe: Recipe, lr: float) -> list[run.Settings]:
        """The runs that are reported."""
        return [self.settings(recipe, lr, seed, "final") for seed in range(self.seeds)]


@dataclasses.dataclass(frozen=True)
class Summary:
    """What is said of one variant."""

    name: str
    lr: float
    on_edge: bool
    tuned: bool  # whether some rate of the grid survived tuning
    train_loss: float
    best_loss: float
    test_metric: float
    diverged: int
    seconds_a_step: float
    state_words: int
    floor_occupancy: float | None
    train_difference: statistics.Difference | None
    test_difference: statistics.Difference | None
    train_p: float | None
    test_p: float | None


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The outcome: `summaries` (one a variant), `runs` (all rows, a polars DataFrame), `probes` (what they measured), and the
    files in `folder`."""

    plan: Plan
    summaries: list[Summary]
    runs: pl.DataFrame
    folder: Path
    probes: pl.DataFrame

    @property
    def exploratory(self) -> bool:
        """Whether there are too few seeds for a conclusion."""
        return self.plan.seeds < statistics.ENOUGH_SEEDS

    def __str__(self) -> str:
        from sandbox.study import report

        return report.text(self)

    def _repr_markdown_(self) -> str:
        from sandbox.study import report

        return report.markdown(self)


Progress = Callable[[int, int, str], None]  # (runs done, runs in all, what)


def compare(
    recipes: Sequence[str | Recipe],
    task: str | tasks.Task,
    *,
    seeds: int = 10,
    tuning_seeds: int = 2,
    rates: int = 7,
    spacing: float = 10**0.5,
    steps: int | None = None,
    warmup: int | None = None,
    schedule: str = "constant",
    evaluations: int = 20,
    backend: str = "eager",
    vectorised: bool = True,
    probes: Sequence[Any] = (),
    every: int = 10,
    out: str | Path | None = None,
    jobs: int = 1,
    progress: Progress | None = None,
) -> Comparison:
    """Compares variants on a task; the first one is what the others are compared with.

    recipes: names, recipes, TOML files or "module:attribute".  task: a name or a Task.
    seeds: final runs a variant, ≥ 2 (fewer than 6 are exploratory).  tuning_seeds: runs for each rate, ≥ 1.
    rates: learning rates a variant, ≥ 1, a factor `spacing` > 1 apart, around its default.
    steps: updates a run, default the task's.  warmup: updates of linear warm-up, default steps/10.
    schedule: "constant", "cosine" or "inverse-sqrt", after the warm-up.  evaluations: points of a curve.
    vectorised: make the runs of a recipe together, by `sandbox.ensemble`, where backend is "eager" and vmap takes the recipe:
        the same numbers to rounding, several times faster; "ms/step" is then a run's share.
    probes, every: as for `sandbox.probes.Watch`, for all tensors together, without `truth`; they look on in every run, and
        their values go into `Comparison.probes` and probes.parquet.
    out: folder, default results/<task>.  Runs that are there already are not repeated; a folder of `sandbox.sweep` is refused.
    jobs: processes side by side, one thread each.  progress: called after every run.
    Raises ValueError for unknown names and impossible numbers.
    """
    plan = _plan(recipes, task, seeds, tuning_seeds, rates, spacing, steps, warmup, schedule, evaluations, backend, jobs)
    every = Watch((), every=every).every
    plan = dataclasses.replace(plan, vectorised=vectorised, probes=tuple(find(probes).values()), every=every)
    folder = Path(out) if out is not None else Path("results") / plan.task.name
    read_manifest(folder, "compare")  # or it is another command's folder
    store = Store(folder)
    measured = Store(store.folder, "probes.parquet", PROBES)
    all_runs = len(plan.recipes) * (plan.rates * plan.tuning_seeds * (plan.rates > 1) + plan.seeds)
    counted = Counter[str]()

    def execute(wanted: list[tuple[Recipe, run.Settings]], what: str) -> None:
        missing = store.missing(s.key() for _, s in wanted)
        unique = {s.key(): (r, s) for r, s in wanted}
        todo = [pair for key, pair in unique.items() if key in missing]
        counted["done"] += len(wanted) - len(todo)
        if progress:
            progress(counted["done"], all_runs, what)
        for recipe, settings, found in _execute(plan, todo, jobs):
            for each, (rows, seen) in zip(settings, found, strict=True):
                shared = {"run": each.key(), "variant": recipe.name, **dataclasses.asdict(each)}
                if seen:
                    measured.add([{**row, **shared} for row in seen])
                store.add([{**row, **shared} for row in rows])
            counted["done"] += len(settings)
            if progress:
                progress(counted["done"], all_runs, what)

    manifest = _manifest(plan)
    write_manifest(store.folder / "manifest.json", manifest)
    tuning = {r.name: plan.tuning(r) if plan.rates > 1 else [] for r in plan.recipes}
    execute([(r, s) for r in plan.recipes for s in tuning[r.name]], "tuning learning rates")
    chosen = {r.name: _chosen(store, plan, r, tuning[r.name]) for r in plan.recipes}
    final = {r.name: plan.final(r, chosen[r.name][0]) for r in plan.recipes}
    execute([(r, s) for r in plan.recipes for s in final[r.name]], "training with fresh seeds")
    frames, seen = [], []
    for recipe in plan.recipes:
        named = {s.key(): recipe.name for s in [*tuning[recipe.name], *final[recipe.name]]}
        frames.append(store.rows(named))
        seen.append(measured.rows(named))
    rows = pl.concat(frames)
    result = Comparison(plan, _summaries(plan, rows, chosen), rows, store.folder, pl.concat(seen))
    from sandbox.study import report

    write_manifest(store.folder / "manifest.json", {**manifest, "chosen_rates": {n: lr for n, (lr, *_) in chosen.items()}})
    report.write(result)
    return result


def _plan(
    recipes: Sequence[str | Recipe],
    task: str | tasks.Task,
    seeds: int,
    tuning_seeds: int,
    rates: int,
    spacing: float,
    steps: int | None,
    warmup: int | None,
    schedule: str,
    evaluations: int,
    backend: str,
    jobs: int,
) -> Plan:
    if isinstance(recipes, str | Recipe) or not recipes:
        raise ValueError("compare needs a list of at least one recipe")
    found = [lookup.recipe(r) for r in recipes]
    twice = [name for name, count in Counter(r.name for r in found).items() if count > 1]
    if twice:
        raise ValueError(f"two recipes are called {twice[0]!r}; give one another name: recipe.replace(name=…)")
    for recipe in found:
        if not isinstance(recipe.lr, float) or recipe.lr <= 0:
            raise ValueError(f"{recipe.name}: compare tunes a rate around the recipe's own, which must be a number above 0")
    made = tasks.get(task)
    steps = made.steps if steps is None else steps
    warmup = steps // 10 if warmup is None else warmup
    least = {"seeds": (seeds, 2), "tuning_seeds": (tuning_seeds, 1), "rates": (rates, 1), "steps": (steps, 1)}
    for name, (value, low) in {**least, "evaluations": (evaluations, 1), "jobs": (jobs, 1), "warmup": (warmup, 0)}.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} must be a whole number, got {value!r}")
        if value < low:
            raise ValueError(f"{name} must be at least {low}, got {value}")
    if warmup > steps:
        raise ValueError(f"warmup must lie in [0, {steps}], the number of steps, got {warmup}")
    if not 1 < spacing <= 1000:
        raise ValueError(f"spacing must lie in (1, 1000], got {spacing}")
    backends.get(backend)
    if schedule not in run.SCHEDULES:
        raise ValueError(suggest.unknown("schedule", schedule, run.SCHEDULES))
    plan = Plan(found, made, seeds, tuning_seeds, rates, spacing, steps, warmup, schedule, evaluations, backend)
    for recipe in found:
        grid = plan.grid(recipe)
        if len(set(grid)) < rates or not all(0 < lr < math.inf for lr in grid):
            raise ValueError(f"spacing {spacing} gives {recipe.name} no grid of {rates} different rates: {grid}")
    return plan


def _manifest(plan: Plan) -> dict[str, Any]:
    seeds = {"final": list(range(plan.seeds)), "tuning": list(range(TUNING_SEEDS_FROM, TUNING_SEEDS_FROM + plan.tuning_seeds))}
    numbers = {
        f.name: getattr(plan, f.name) for f in dataclasses.fields(plan) if f.name not in ("recipes", "task", "seeds", "probes")
    }
    return {
        "task": plan.task.name,
        "seeds": seeds,
        **numbers,
        "probes": list(find(plan.probes)),
        "together": [r.name for r in plan.recipes if plan.way(r) == together.TOGETHER],
        "grids": {r.name: plan.grid(r) for r in plan.recipes},
        "recipes": {r.name: toml.dumps(r) for r in plan.recipes},
    }


def _execute(
    plan: Plan, todo: list[tuple[Recipe, run.Settings]], jobs: int
) -> Iterator[tuple[Recipe, list[run.Settings], list[together.Found]]]:
    """Runs, each yielded as it ends; those that are made together, together."""
    units: list[tuple[Recipe, list[run.Settings]]] = []
    joint: dict[str, list[run.Settings]] = {}
    for recipe, settings in todo:
        if settings.backend == together.TOGETHER and recipe.name in joint:
            joint[recipe.name].append(settings)
            continue
        units.append((recipe, [settings]))
        if settings.backend == together.TOGETHER:
            joint[recipe.name] = units[-1][1]
    more = plan.probes, plan.every
    if jobs <= 1 or len(units) <= 1:
        for recipe, some in units:
            yield recipe, some, together.train(plan.task, recipe, some, *more)
        return
    pool = ProcessPoolExecutor(min(jobs, len(units)), mp_context=get_context("spawn"))
    try:
        with _interrupts_ignored():  # by the workers, which inherit it: Ctrl-C is for the parent
            shared = pickle.dumps(plan.task)
            futures = {pool.submit(_train, shared, pickle.dumps((*unit, *more))): unit for unit in units}
        for future in as_completed(futures):
            yield (*futures[future], future.result())
    finally:
        workers = list((getattr(pool, "_processes", None) or {}).values())
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in workers:  # what they have in hand is lost; waiting for it would not save it
            worker.terminate()


def _train(task: bytes, unit: bytes) -> list[together.Found]:
    """In a worker.  Bytes, since torch would hand tensors over through shared memory and a thread that outlives its worker."""
    return together.train(_task(task), *pickle.loads(unit))


@functools.lru_cache(maxsize=1)
def _task(task: bytes) -> tasks.Task:
    return pickle.loads(task)


@contextlib.contextmanager
def _interrupts_ignored() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _chosen(store: Store, plan: Plan, recipe: Recipe, tuning: list[run.Settings]) -> tuple[float, bool, bool]:
    """The rate with the lowest mean final validation loss, whether it lies on the grid's edge, and whether any survived."""
    grid = plan.grid(recipe)
    if not tuning:
        return grid[0], False, True
    ends = store.rows({s.key(): recipe.name for s in tuning}).filter(pl.col("step") == plan.steps)
    means = {lr: float(np.mean(ends.filter(pl.col("lr") == lr)["validation_loss"].to_numpy())) for lr in grid}
    best = min(grid, key=lambda lr: (means[lr], abs(math.log(lr / recipe.lr))))
    survived = math.isfinite(means[best])
    return best, survived and best in (grid[0], grid[-1]), survived


def _summaries(plan: Plan, rows: pl.DataFrame, chosen: dict[str, tuple[float, bool, bool]]) -> list[Summary]:
    final = rows.filter(pl.col("role") == "final")
    sign = 1.0 if plan.task.higher_is_better else -1.0
    worst = -sign * math.inf
    ends: dict[str, pl.DataFrame] = {}
    for recipe in plan.recipes:
        end = final.filter((pl.col("variant") == recipe.name) & (pl.col("step") == plan.steps)).sort("seed")
        # a diverged run has no metric; in comparisons it counts as the worst there is
        ends[recipe.name] = end.with_columns(pl.when("diverged").then(worst).otherwise("test_metric").alias("test_metric"))
    first, *others = [r.name for r in plan.recipes]
    differences = {
        measure: {name: statistics.paired(ends[name][measure].to_list(), ends[first][measure].to_list()) for name in others}
        for measure in ("train_loss", "test_metric")
    }
    corrected = {
        measure: dict(zip(others, statistics.holm([d.p for d in found.values()]), strict=True))
        for measure, found in differences.items()
    }
    summaries = []
    for recipe in plan.recipes:
        name, end = recipe.name, ends[recipe.name]
        mine = final.filter(pl.col("variant") == name)
        best = mine.group_by("seed").agg(pl.col("train_loss").min())["train_loss"]
        floor = mine.filter(pl.col("step") > 0)["floor_occupancy"].drop_nulls()
        summaries.append(
            Summary(
                name=name,
                lr=chosen[name][0],
                on_edge=chosen[name][1],
                tuned=chosen[name][2],
                train_loss=float(np.mean(end["train_loss"].to_numpy())),
                best_loss=float(np.mean(best.to_numpy())),
                test_metric=float(np.mean(end["test_metric"].to_numpy())),
                diverged=int(end["diverged"].sum()),
                seconds_a_step=float(np.median(end["seconds_a_step"].to_numpy())),
                state_words=recipe.state_words,
                floor_occupancy=float(np.mean(floor.to_numpy())) if len(floor) else None,
                train_difference=differences["train_loss"].get(name),
                test_difference=differences["test_metric"].get(name),
                train_p=corrected["train_loss"].get(name),
                test_p=corrected["test_metric"].get(name),
            )
        )
    return summaries

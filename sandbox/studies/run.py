"""Makes the runs of a study: the only file here that trains, and it leaves the training to `sandbox.experiments`.

folder/F6/main/runs/…       finished runs, one file each: the same call again makes only what is missing
folder/F6-cpu.parquet       all rows of a tier: study, tier, part, arm, torch, processor, and what a run gives
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from pathlib import Path

import polars as pl
import torch

from sandbox import tasks
from sandbox.experiments import executors, identity, manifest, vectorised
from sandbox.experiments.methods import Method
from sandbox.experiments.plan import joined
from sandbox.experiments.settings import Options, Run
from sandbox.experiments.store import Store
from sandbox.experiments.unit import Failure, Found, Unit, units
from sandbox.schedules import evenly
from sandbox.studies.study import Arm, Part, Search, Study
from sandbox.tasks import Task

TOGETHER_FROM = 5  # seeds; fewer are faster one by one
TUNING_SEEDS_FROM = 10_000  # tuning seeds are 10000, 10001, …; final ones 0, 1, …

Progress = Callable[[str, int, int], None]  # (what, runs done, runs in all)


def run(
    study: Study,
    tier: str,
    folder: str | Path,
    *,
    parts: Iterable[str] | None = None,
    seeds: int | None = None,
    jobs: int = 1,
    options: Options | None = None,
    progress: Progress = lambda what, done, total: None,
) -> Path:
    """Makes the runs of a tier that are missing in `folder`, and the table of all of them, whose path it gives.

    parts: names of parts, default all.  seeds: fewer or more than the tier has.  jobs: processes side by side.
    options: device, threads and the like.  Raises ValueError for unknown tiers and parts and for data that are missing,
    RuntimeError where an error ended a run.
    """
    wanted = [part for part in study.parts(tier) if parts is None or part.name in parts]
    unknown = set(parts or ()) - {part.name for part in study.parts(tier)}
    if unknown:
        raise ValueError(f"study {study.key} has no part {sorted(unknown)[0]!r} in its {tier} tier")
    frames = []
    for part in wanted:
        work = _Work(study, tier, part, Path(folder), seeds or part.seeds, jobs, options or Options(), progress)
        frames.append(work.frame())
    path = Path(folder) / f"{study.key}-{tier}.parquet"
    pl.concat(frames, how="diagonal").write_parquet(path)
    return path


def made_by() -> dict[str, str]:
    """With what rows are made: they are bitwise equal where torch and processor are, and equal to rounding elsewhere."""
    return {"torch": torch.__version__, "processor": manifest.processor()}


class _Work:
    """The runs of a part."""

    def __init__(
        self, study: Study, tier: str, part: Part, folder: Path, seeds: int, jobs: int, options: Options, progress: Progress
    ) -> None:
        self.study, self.tier, self.part, self.jobs, self.options = study, tier, part, jobs, options
        self.seeds = seeds
        self.task: Task = tasks.get(part.task, **part.options)
        self.steps = part.steps or self.task.steps
        self.store = Store(folder / study.key / tier / part.name)
        self.said = functools.partial(progress, f"{study.key} {tier} {part.name}")

    def frame(self) -> pl.DataFrame:
        """Makes what is missing; the rows of all runs, searches included."""
        factors, frames = dict.fromkeys(self.methods, 1.0), []
        if self.part.search is not None:
            factors, rows = self.searched(self.part.search)
            frames.append(rows)
        final = self.made(
            self.run_of(arm, arm.lr * factors[arm.name], seed, "final", self.steps)
            for seed in range(self.seeds)  # rounds of all arms, so that what a machine does meanwhile meets all alike
            for arm in self.part.arms
        )
        frames.append(final if self.part.measure is None else final.join(self.measured(self.part.measure), on=["arm", "seed"]))
        labels = {"study": self.study.key, "tier": self.tier, "part": self.part.name, **made_by()}
        return pl.concat(frames, how="diagonal").select(*(pl.lit(v).alias(k) for k, v in labels.items()), pl.all())

    def measured(self, measure: Callable[..., dict[str, float]]) -> pl.DataFrame:
        """Returns what a part measures, one row per arm and seed."""
        return pl.DataFrame(
            {"arm": arm.name, "seed": seed, **measure(arm.recipe(), self.task, seed, self.steps)}
            for seed in range(self.seeds)
            for arm in self.part.arms
        )

    def searched(self, search: Search) -> tuple[dict[str, float], pl.DataFrame]:
        """Arm -> the factor of its rate with the lowest mean validation loss; all rows of the search."""
        seeds = range(TUNING_SEEDS_FROM, TUNING_SEEDS_FROM + search.seeds)
        rows = self.made(
            self.run_of(arm, arm.lr * factor, seed, "tuning", search.steps)
            for arm in self.part.arms
            for factor in search.factors
            for seed in seeds
        )
        means = rows.filter(pl.col("step") == search.steps).group_by("arm", "lr").agg(pl.col("validation_loss").mean())
        losses = {(arm, lr): loss for arm, lr, loss in means.rows()}
        chosen = {a.name: min(search.factors, key=functools.partial(self._loss_of, losses, a)) for a in self.part.arms}
        return chosen, rows

    @staticmethod
    def _loss_of(losses: dict[tuple[str, float], float], arm: Arm, factor: float) -> float:
        return losses[arm.name, arm.lr * factor]

    @functools.cached_property
    def methods(self) -> dict[str, Method]:
        """Arm -> its method."""
        return {arm.name: arm.made() for arm in self.part.arms}

    @functools.cached_property
    def ways(self) -> dict[str, str]:
        """Arm -> how its runs are made: together where they are several, can be, and are not timed."""
        if self.part.timed or self.seeds < TOGETHER_FROM:
            return dict.fromkeys(self.methods, "eager")
        plain = {arm.name: (arm.rate or self.part.rate).schedule(self.steps, arm.warmup) for arm in self.part.arms}
        whys = {name: vectorised.why_not(self.task, m, plain[name], self.options) for name, m in self.methods.items()}
        return {name: "eager" if why else vectorised.TOGETHER for name, why in whys.items()}

    @functools.cached_property
    def code(self) -> str:
        """Digits of the code and the task that the part's runs depend on."""
        return identity.of([identity.package(), self.part.task, sorted(map(repr, self.part.options.items()))])

    def run_of(self, arm: Arm, lr: float, seed: int, role: str, steps: int) -> tuple[Method, Run]:
        """A run of an arm."""
        method, rate = self.methods[arm.name], arm.rate or self.part.rate
        made = Run(
            task=self.task.name, method=method.fingerprint(), lr=lr, seed=seed, role=role, steps=steps,
            at=tuple(evenly(steps, self.part.evaluations if role == "final" else 1)), warmup=arm.warmup,
            schedule=rate.schedule(steps, arm.warmup), way=self.ways[arm.name], options=self.options, code=self.code,
        )  # fmt: skip
        return method, made

    def made(self, wanted: Iterable[tuple[Method, Run]]) -> pl.DataFrame:
        """The rows of the runs, after those that were missing have been made.  Raises RuntimeError where one failed."""
        runs = joined(list(wanted))
        names = {run.key(): method.name for method, run in runs}
        todo = units(runs, self.store)
        done = len(names) - sum(len(unit.runs) for unit in todo)
        self.said(done, len(names))

        def ended(unit: Unit, found: list[Found] | Failure) -> None:
            nonlocal done
            if isinstance(found, Failure):
                raise RuntimeError(f"study {self.study.key}, {self.part.name}: {found}\n{found.trace}")
            for run, (rows, seen) in zip(unit.runs, found, strict=False):
                if self.store.missing([run.key()]):
                    self.store.add(run.key(), run.facts(), rows, seen)
            done += len(unit.runs)
            self.said(done, len(names))

        with executors.workers(self.jobs) as executor:
            executors.execute(todo, self.task, self.store, ended, executor=executor)
        return self.store.frame(names.items()).rename({"variant": "arm"})

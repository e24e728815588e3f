"""Makes the runs of a study; the training is that of `sandbox.experiments`.

folder/F6/main/runs/…       finished runs, one file each: the same call again makes only what is missing
folder/F6-cpu.parquet       all rows of a tier: study, tier, part, arm, torch, processor, and the columns of a run
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import polars as pl
import torch

from sandbox import tasks
from sandbox.experiments.reports import manifest
from sandbox.experiments.runs import identity, vectorised
from sandbox.experiments.runs.methods import Method
from sandbox.experiments.runs.run import TUNING_SEEDS_FROM, Run
from sandbox.experiments.selection.axes import Axis
from sandbox.experiments.selection.coordinates import Descent
from sandbox.experiments.selection.search import Tuner
from sandbox.experiments.selection.tuning import tune
from sandbox.experiments.settings import ExecutionSettings, Options, Progress
from sandbox.experiments.work import Work
from sandbox.schedules import evenly
from sandbox.studies.study import Arm, Part, Study

TOGETHER_FROM = 5  # seeds; fewer are faster one by one


def run(
    study: Study,
    tier: str,
    folder: str | Path,
    *,
    parts: Iterable[str] | None = None,
    seeds: int | None = None,
    jobs: int = 1,
    options: Options | None = None,
    progress: Progress | None = None,
) -> Path:
    """Makes the runs of a tier that are missing in `folder`, and the table of all of them; returns its path.

    parts: names of parts, default all.  seeds: fewer or more than the tier has.  jobs: processes side by side.
    options: device, threads and the like.  progress: called during the runs with (done, in all, what).
    Raises ValueError for unknown tiers and parts and for missing data, RuntimeError where an error ended a run.
    """
    wanted = [part for part in study.parts(tier) if parts is None or part.name in parts]
    unknown = set(parts or ()) - {part.name for part in study.parts(tier)}
    if unknown:
        raise ValueError(f"study {study.key} has no part {sorted(unknown)[0]!r} in its {tier} tier")
    settings, frames = ExecutionSettings(jobs=jobs, progress=progress), []
    for part in wanted:
        plan = PartPlan(part, seeds or part.seeds, options or Options())
        rows = _run_part(plan, Path(folder) / study.key / tier / part.name, settings, f"{study.key} {tier} {part.name}")
        labels = {"study": study.key, "tier": tier, "part": part.name, **provenance()}
        frames.append(rows.select(*(pl.lit(v).alias(k) for k, v in labels.items()), pl.all()))
    path = Path(folder) / f"{study.key}-{tier}.parquet"
    pl.concat(frames, how="diagonal").write_parquet(path)
    return path


def _run_part(plan: PartPlan, folder: Path, settings: ExecutionSettings, what: str) -> pl.DataFrame:
    """Makes the missing runs of a part; returns the rows of all, those of its search first."""
    searched = len(plan.methods) * plan.trials * (plan.part.search.seeds if plan.part.search else 0)
    total = searched + len(plan.part.arms) * plan.seeds
    factors = dict.fromkeys(plan.arms, 1.0)
    with Work(plan.task, folder, total, settings, tables=False) as work:
        if plan.part.search is not None:
            for name, tuner in tune(plan, work, what).items():
                factors[name] = tuner.best(1.0)[0]["factor"]
        # rounds of all arms, so that what a machine does meanwhile meets all alike
        finals = [(arm.build(), factors[arm.rate_of or arm.name]) for arm in plan.part.arms]
        work.run([(m, plan.final(m, factor, s)) for s in range(plan.seeds) for m, factor in finals], what)
        for failure in work.failures:
            raise RuntimeError(f"study {what}: {failure}\n{failure.trace}")
        rows = work.frames()[0].rename({"variant": "arm"})
    if shared := {arm.name: arm.rate_of for arm in plan.part.arms if arm.rate_of}:
        rows = rows.with_columns(rate_of=pl.col("arm").replace_strict(shared, default=None, return_dtype=pl.String))
    measured = plan.measure_arms()
    return rows if measured is None else rows.join(measured, on=["arm", "seed", "role"], how="left")


def provenance() -> dict[str, str]:
    """Returns torch's version and the processor: rows are bitwise equal where both are, and equal to rounding elsewhere."""
    return {"torch": torch.__version__, "processor": manifest.processor()}


@dataclasses.dataclass(frozen=True)
class PartPlan:
    """The runs of a part: what `tune` needs, and the final ones."""

    part: Part
    seeds: int
    options: Options

    def measure_arms(self) -> pl.DataFrame | None:
        """Returns what a part measures, one row per arm and seed; None where it measures nothing."""
        if self.part.measure is None:
            return None
        return pl.DataFrame(
            {"arm": arm.name, "seed": seed, "role": "final", **self.part.measure(arm.recipe(), self.task, seed, self.steps)}
            for seed in range(self.seeds)
            for arm in self.part.arms
        )

    @functools.cached_property
    def task(self) -> tasks.Task:
        """The task of the part, with its options."""
        return tasks.get(self.part.task, **self.part.options)

    @functools.cached_property
    def arms(self) -> dict[str, Arm]:
        """The arms by name."""
        return {arm.name: arm for arm in self.part.arms}

    @functools.cached_property
    def methods(self) -> list[Method]:
        """A method per arm that has its own rate, which `tune` searches."""
        return [arm.build() for arm in self.part.arms if not arm.rate_of]

    @property
    def steps(self) -> int:
        """Updates per final run."""
        return self.part.steps or self.task.steps

    @property
    def trials(self) -> int:
        """Rates that every arm is tried at; a search that is widened may try more."""
        search = self.part.search
        return 0 if search is None else len(search.factors) or search.trials

    def new_tuner(self, method: Method, seed: int) -> Tuner:
        """Returns the tuner of the factor before an arm's own rate."""
        search = self.part.search
        assert search is not None
        if search.factors:
            return Tuner({"factor": Axis(choices=search.factors)}, "grid", self.trials)
        axes = {"factor": Axis(log=True, start=1.0)}
        descent = Descent(axes, search.points, 10**0.5, search.trials, search.limit)
        return Tuner(axes, "coordinate", search.trials, descent=descent)

    def tuning(self, method: Method, numbers: Mapping[str, Any]) -> list[Run]:
        """Returns the runs of a trial."""
        search = self.part.search
        assert search is not None
        run = self._run(method, numbers["factor"], "tuning", search.steps, 1)
        return [dataclasses.replace(run, seed=TUNING_SEEDS_FROM + i) for i in range(search.seeds)]

    def final(self, method: Method, factor: float, seed: int) -> Run:
        """Returns a final run of an arm at a factor before its rate."""
        return dataclasses.replace(self._run(method, factor, "final", self.steps, self.part.evaluations), seed=seed)

    def _run(self, method: Method, factor: float, role: str, steps: int, evaluations: int) -> Run:
        arm = self.arms[method.name]
        return Run(
            task=self.task.name, method=method.fingerprint(), lr=arm.lr * factor, seed=0, role=role, steps=steps,
            at=tuple(evenly(steps, evaluations)), warmup=arm.warmup, schedule=self._schedule(arm, steps),
            way=self._ways[arm.name], options=self.options, code=self._code,
        )  # fmt: skip

    def _schedule(self, arm: Arm, steps: int) -> Any:
        return (arm.rate or self.part.rate).schedule(steps, arm.warmup)

    @functools.cached_property
    def _ways(self) -> dict[str, str]:
        """Arm -> how its runs are made: together where they are several, can be, and are not timed."""
        if self.part.timed or self.seeds < TOGETHER_FROM:
            return dict.fromkeys(self.arms, "eager")
        reasons = {
            name: vectorised.why_not(self.task, arm.build(), self._schedule(arm, self.steps), self.options)
            for name, arm in self.arms.items()
        }
        return {name: "eager" if reason else vectorised.TOGETHER for name, reason in reasons.items()}

    @functools.cached_property
    def _code(self) -> str:
        """Fingerprint of the code and the task that the part's runs depend on."""
        return identity.fingerprint([identity.package(), self.part.task, sorted(map(repr, self.part.options.items()))])

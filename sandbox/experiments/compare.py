"""The main job: variants against each other on one task, with equal tuning budgets and paired seeds.

    result = sandbox.compare(["apollo", "adamw", "torch.optim:Muon(momentum=0.95)"], "digits-mlp")
    print(result)

Every variant gets the same number of trials: by default learning rates, on a log grid around its own default.  The numbers with
the lowest mean validation loss over the tuning seeds are kept, and an optimum on the edge of its range is reported.  Then fresh
seeds: the same initialisation and order of batches for every variant, test split looked at once, at the end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from sandbox.experiments.reports import manifest, report
from sandbox.experiments.reports.result import Chosen, Comparison, Summary
from sandbox.experiments.runs import executors
from sandbox.experiments.runs.methods import Method
from sandbox.experiments.runs.settings import Options
from sandbox.experiments.runs.unit import Failed, Look
from sandbox.experiments.selection import statistics
from sandbox.experiments.selection.plan import Plan, plan
from sandbox.experiments.selection.search import Trial, Tuner
from sandbox.experiments.work import Callback, Progress, Work
from sandbox.tasks import Task
from sandbox.utils.literal import file_name


def compare(
    recipes: Sequence[Any],
    task: str | Task,
    *,
    seeds: int = 10,
    tuning_seeds: int = 2,
    rates: int = 7,
    spacing: float = 10**0.5,
    search: Mapping[str, Any] | None = None,
    tuner: str = "grid",
    trials: int | None = None,
    steps: int | None = None,
    warmup: int | None = None,
    schedule: Any = "constant",
    evaluations: int = 20,
    evaluate_every: int | str | None = None,
    backend: str = "eager",
    vectorised: bool = True,
    accumulate: int = 1,
    autocast: str | None = None,
    state_dtype: str | None = None,
    device: str = "cpu",
    compile_model: bool = False,
    threads: int = 1,
    ranks: int = 1,
    time_limit: float | None = None,
    probes: Sequence[Any] = (),
    every: int = 10,
    out: str | Path | None = None,
    jobs: int = 1,
    executor: Any = None,
    callbacks: Sequence[Callback] = (),
    reuse: bool = False,
    progress: Progress | None = None,
) -> Comparison:
    """Compares variants on a task; the first one is what the others are compared with.

    recipes: names, recipes, TOML files or "module:attribute"; or optimizers that are none: see `sandbox.Outside`.
    task: a name, "module:attribute", "file.py:attribute" or a Task.
    seeds: final runs a variant, ≥ 2 (exploratory below 6 for two variants, 8 for five).  tuning_seeds: runs a trial, ≥ 1.
    rates: learning rates a variant, ≥ 1, a factor `spacing` > 1 apart, around its default.
    search, tuner, trials: other numbers to choose, how ("grid", "random", "tpe"; the latter two need Optuna), and how many
        trials a variant has (default `rates`); see `sandbox.experiments.selection.search`.
    steps: updates a run, default the task's.  warmup: updates of linear warm-up, default steps/10.
    schedule: after the warm-up: a name of `sandbox.schedules.NAMES`, or a function (optimizer, updates) -> LRScheduler.
    evaluations: points of a curve; or evaluate_every: updates between two of them, or "epoch".
    vectorised: make the runs of a recipe together, by `sandbox.ensemble`, where backend is "eager" and recipe and task can:
        the same numbers to rounding, several times faster for small networks and some hundred updates.  Networks of LeNet's
        size and larger train as fast or faster one run at a time.  "ms/step" is then a run's share.
    accumulate, autocast, state_dtype, device, compile_model, threads, ranks, time_limit: see
        `sandbox.experiments.runs.settings.Options`.
    probes, every: as for `sandbox.probes.Watch`, for all tensors together, without `truth`; they look on in every run of a
        recipe, and their values go into `Comparison.probes` and probes.parquet.
    out: folder, default results/<task>.  Runs that are there already are not repeated; a folder of `sandbox.sweep` is refused.
    jobs: processes of this machine.  executor: in their place any `concurrent.futures.Executor`, or dask's, or submitit's: see
        docs/cluster.md.  Two calls at once in one folder share the work.
    reuse: take stored runs of code from `__main__` or a notebook for equal too.
    callbacks: called with every row as it comes, in this process.  progress: called while runs are made.
    An error of a user's code in a run is reported in `Comparison.failures`, and the other variants go on.
    Raises ValueError for unknown names and impossible numbers, RuntimeError where every variant failed.
    """
    options = Options(accumulate=accumulate, autocast=autocast, state_dtype=state_dtype, device=device,
                      compile_model=compile_model, threads=threads, ranks=ranks, time_limit=time_limit)  # fmt: skip
    made = plan(
        recipes, task, seeds=seeds, tuning_seeds=tuning_seeds, rates=rates, spacing=spacing, search=search, tuner=tuner,
        trials=trials, steps=steps, warmup=warmup, schedule=schedule, evaluations=evaluations, evaluate_every=evaluate_every,
        backend=backend, vectorised=vectorised, options=options, probes=probes, every=every, reuse=reuse,
    )  # fmt: skip
    folder = Path(out) if out is not None else Path("results") / file_name(made.task.name)
    manifest.read(folder, "compare")  # or it is another command's folder
    total = len(made.methods) * (made.trials * made.tuning_seeds * made.tuned + made.seeds)
    with executors.workers(jobs, executor) as who:
        look = Look(made.probes, made.every)
        work = Work(made.task, folder, total, look=look, executor=who, callbacks=callbacks, progress=progress)
        facts = manifest.of_plan(made)
        manifest.write(folder, facts)
        try:
            chosen = tune(made, work)
            final = [(m, run) for m in made.methods for run in made.final(m, chosen[m.name].numbers)]
            work.make(final, "training with fresh seeds")
        finally:
            work.save()
    lost = {failure.variant for failure in work.failures}
    if len(lost) == len(made.methods):
        raise Failed(work.failures)
    kept = [m for m in made.methods if m.name not in lost]
    rows, seen = work.frames()
    result = Comparison(
        made, _summaries(made, kept, rows, chosen), rows, folder, seen, chosen, work.failures, work.store.unreadable
    )
    chosen_rates = {m.name: chosen[m.name].numbers["lr"] for m in kept}
    manifest.write(folder, {**facts, "chosen_rates": chosen_rates, "failures": [str(f) for f in work.failures]})
    report.write(result)
    return result


def tune(plan: Plan, work: Work) -> dict[str, Chosen]:
    """Variant -> the numbers that it is reported with."""
    if not plan.tuned:
        return {m.name: Chosen({"lr": plan.grid(m)[0]}, False, True, []) for m in plan.methods}
    tuners = {m.name: Tuner(plan.axes(m), plan.tuner, plan.trials, i) for i, m in enumerate(plan.methods)}
    while True:
        asked = {m.name: tuners[m.name].ask() for m in plan.methods}
        if not any(asked.values()):
            break
        full = {m.name: [{"lr": m.lr, **numbers} for numbers in asked[m.name]] for m in plan.methods}
        wanted = [(m, run) for m in plan.methods for numbers in full[m.name] for run in plan.tuning(m, numbers)]
        made = work.make(wanted, "tuning learning rates" if not plan.search else "searching")
        for method in plan.methods:
            keys = [run.key() for m, run in made if m.name == method.name]
            losses = _losses(work, keys)
            n = plan.tuning_seeds
            means = [float(np.mean(losses[i * n : (i + 1) * n])) if losses else math.inf for i in range(len(full[method.name]))]
            trials = [Trial(numbers, loss) for numbers, loss in zip(asked[method.name], means, strict=True)]
            tuners[method.name].tell(trials)
    return {m.name: choose(m, tuners[m.name], relative=not plan.search) for m in plan.methods}


def _losses(work: Work, keys: list[str]) -> list[float]:
    found = [work.store.get(key) for key in keys]
    return [] if None in found else [each["rows"][-1]["validation_loss"] for each in found if each is not None]


def choose(method: Method, tuner: Tuner, *, relative: bool) -> Chosen:
    """The numbers with the lowest mean validation loss; of equal ones, those with the rate nearest to the default."""

    def distance(trial: Trial) -> float:
        return abs(math.log(trial.numbers.get("lr", method.lr) / method.lr))

    best = min(tuner.trials, key=lambda t: (t.loss, distance(t)))
    survived = math.isfinite(best.loss)
    numbers = {"lr": method.lr, **best.numbers}
    grid = [t.numbers["lr"] for t in tuner.trials] if relative else []
    edge = numbers["lr"] in (min(grid), max(grid)) if grid else any(a.on_edge(numbers[n]) for n, a in tuner.axes.items())
    return Chosen(numbers, survived and edge, survived, tuner.trials)


def _summaries(plan: Plan, methods: list[Method], rows: pl.DataFrame, chosen: Mapping[str, Chosen]) -> list[Summary]:
    final = rows.filter(pl.col("role") == "final")
    sign = 1.0 if plan.task.higher_is_better else -1.0
    ends: dict[str, pl.DataFrame] = {}
    for method in methods:
        mine = final.filter(pl.col("variant") == method.name)
        end = mine.filter(pl.col("step") == pl.col("step").max().over("run")).sort("seed")
        # a diverged run has no metric; in comparisons it counts as the worst there is
        ends[method.name] = end.with_columns(
            pl.when("diverged").then(-sign * math.inf).otherwise("test_metric").alias("test_metric")
        )
    first, *others = [m.name for m in methods]
    differences = {
        measure: {name: statistics.paired(ends[name][measure].to_list(), ends[first][measure].to_list()) for name in others}
        for measure in ("train_loss", "test_metric")
    }
    corrected = {
        measure: dict(zip(others, statistics.holm([d.p for d in found.values()]), strict=True))
        for measure, found in differences.items()
    }
    return [_summary(m, final, ends[m.name], chosen[m.name], differences, corrected) for m in methods]


def _summary(
    method: Method, final: pl.DataFrame, end: pl.DataFrame, chosen: Chosen, differences: Mapping[str, Any], corrected: Any
) -> Summary:
    name = method.name
    mine = final.filter(pl.col("variant") == name)
    best = mine.group_by("seed").agg(pl.col("train_loss").min())["train_loss"]
    floor = mine.filter(pl.col("step") > 0)["floor_occupancy"].drop_nulls()
    words = mine["state_words"].drop_nulls()
    gradients = end["gradients"].drop_nulls()
    return Summary(
        name=name,
        lr=chosen.numbers["lr"],
        on_edge=chosen.on_edge,
        tuned=chosen.tuned,
        train_loss=float(np.mean(end["train_loss"].to_numpy())),
        best_loss=float(np.mean(best.to_numpy())),
        test_metric=float(np.mean(end["test_metric"].to_numpy())),
        diverged=int(end["diverged"].sum()),
        seconds_a_step=float(np.median(end["seconds_a_step"].to_numpy())),
        state_words=float(np.max(words.to_numpy())) if len(words) else method.words(),
        gradients=float(np.mean(gradients.to_numpy())) if len(gradients) else None,
        floor_occupancy=float(np.mean(floor.to_numpy())) if len(floor) else None,
        train_difference=differences["train_loss"].get(name),
        test_difference=differences["test_metric"].get(name),
        train_p=corrected["train_loss"].get(name),
        test_p=corrected["test_metric"].get(name),
    )

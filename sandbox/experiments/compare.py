"""The main job: variants against each other on one task, with equal tuning budgets and paired seeds.

    result = sandbox.compare(["apollo", "adamw", "torch.optim:Muon(momentum=0.95)"], "digits-mlp")
    print(result)

Every variant gets the same number of trials: by default learning rates, from its own default on until the best one lies between
worse ones, and then between those (`selection.bracket`).  The numbers with the lowest mean validation loss over the tuning
seeds are chosen.  Then fresh seeds: the same initialisation and order of batches for every variant, the test split evaluated
once, at the end.  Numbers that other tuning seeds might have chosen get a few final runs too, and the intervals include that
choice (`selection.contenders`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sandbox import tasks
from sandbox.experiments.reports import manifest
from sandbox.experiments.reports.comparison import Comparison, write
from sandbox.experiments.reports.comparison_data import summarise
from sandbox.experiments.reports.page import Live
from sandbox.experiments.runs.batch import Probing
from sandbox.experiments.selection.plan import plan
from sandbox.experiments.selection.search import Chosen
from sandbox.experiments.selection.tuning import choose, tune
from sandbox.experiments.settings import ComparisonSettings, takes
from sandbox.experiments.work import Work
from sandbox.tasks import Task
from sandbox.utils.literal import file_name


@takes(ComparisonSettings)
def compare(recipes: Sequence[Any], task: str | Task, settings: ComparisonSettings) -> Comparison:
    """Compares variants on a task; the first one is what the others are compared with.

    recipes: names, recipes, TOML files or "module:attribute"; or torch optimizers: see `sandbox.TorchOptimizer`.
    task: a name, "module:attribute", "file.py:attribute" or a Task.

    Every seed is a pair: one initialisation and order of batches for all variants.
    A schedule may be a function (optimizer, updates) -> LRScheduler.  Where runs train together, "ms/step" is a run's share.
    Probes measure in every run of a recipe, for all tensors together, without `truth`, into `Comparison.probes` and
    probes.parquet.  Results are written to results/<task>, or to `out`; a folder of `sandbox.sweep` is refused.  Two calls at
    once in one folder share the work.

    An error of a user's code in a run is reported in `Comparison.failures`, and the other variants go on.
    Raises ValueError for unknown names and impossible numbers, RuntimeError where every variant failed.
    """
    task = tasks.get(task)
    folder = Path(settings.out) if settings.out is not None else Path("results") / file_name(task.name)
    comparison = plan(recipes, task, settings, manifest.read(folder, "compare"))
    methods, facts = comparison.methods, comparison.facts()
    tuning = comparison.trials * settings.tuning_seeds * comparison.tuned
    total = len(methods) * (tuning + comparison.seeds)
    with Work(comparison.task, folder, total, settings, Probing(comparison.probes, settings.every)) as work:
        title = f"{comparison.task.name}: {', '.join(comparison.names)}"
        work.watch = Live(
            folder / "report.html", title, comparison.names, comparison.task.metric, settings.budget, lambda: work.frames()[0]
        )
        manifest.write(folder, facts)
        if comparison.tuned:
            tuners = tune(comparison, work, "searching" if settings.search else "tuning learning rates")
            chosen = {m.name: choose(m, tuners[m.name]) for m in methods}
        else:
            chosen = {m.name: Chosen({"lr": comparison.grid(m)[0]}, False, True, []) for m in methods}
        final = [(m, run) for m in methods for run in comparison.final(m, chosen[m.name].numbers)]
        contenders = [(m, run) for m in methods for run in comparison.contending(m, chosen[m.name])]
        work.total += len(contenders)
        work.run([*final, *contenders], "training with fresh seeds")
    survivors = work.survivors(methods)
    rows, measured = work.frames()
    summaries = summarise(comparison, survivors, rows, chosen)
    unreadable, environment = work.store.unreadable, manifest.environment()
    result = Comparison(comparison, summaries, rows, folder, measured, chosen, work.failures, unreadable, environment)
    decided = {m.name: dataclasses.asdict(chosen[m.name]) for m in survivors}
    manifest.write(folder, {**facts, "chosen": decided, "failures": [dataclasses.asdict(f) for f in work.failures]})
    write(result)
    return result

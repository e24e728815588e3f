"""The main job: variants against each other on one task, with equal tuning budgets and paired seeds.

    result = sandbox.compare(["apollo", "adamw", "torch.optim:Muon(momentum=0.95)"], "digits-mlp")
    print(result)

Every variant gets the same number of trials: by default learning rates, from its own default on until the best one lies between
worse ones, and then between those (`selection.bracket`).  The numbers with the lowest mean validation loss over the tuning
seeds are chosen.  Then fresh seeds: the same initialisation and order of batches for every variant, the test split evaluated
once, at the end.  Numbers that other tuning seeds might have chosen get a few final runs too, and the intervals include that
choice (`selection.contenders`).

Several tasks, or several lengths, are as many comparisons, each tuned for itself, in folders of their own:

    result = sandbox.compare(["adamw", "apollo"], "suite:small")
    print(result)              # per task; and how soon each variant reaches what adamw does: performance profiles
    result["digits-mlp"]       # one of the comparisons
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, overload

from sandbox import tasks
from sandbox.experiments.reports import comparisons, manifest
from sandbox.experiments.reports.comparison import Comparison, write
from sandbox.experiments.reports.comparison_data import summarise
from sandbox.experiments.reports.comparisons import Comparisons
from sandbox.experiments.reports.page import Live
from sandbox.experiments.runs.batch import Failed, Probing
from sandbox.experiments.selection.plan import ComparisonPlan, plan
from sandbox.experiments.selection.search import Chosen
from sandbox.experiments.selection.tuning import choose, tune
from sandbox.experiments.settings import ComparisonSettings, takes
from sandbox.experiments.work import Work
from sandbox.tasks import Task
from sandbox.utils.literal import file_name


@overload
@takes(ComparisonSettings)
def compare(recipes: Sequence[Any], task: str | Task, settings: ComparisonSettings) -> Comparison: ...
@overload
@takes(ComparisonSettings)
def compare(recipes: Sequence[Any], task: list[Any] | tuple[Any, ...], settings: ComparisonSettings) -> Comparisons: ...
@takes(ComparisonSettings)
def compare(recipes: Sequence[Any], task: Any, settings: ComparisonSettings) -> Comparison | Comparisons:
    """Compares variants on a task, or on several; the first one is what the others are compared with.

    recipes: names, recipes, TOML files or "module:attribute"; or torch optimizers: see `sandbox.TorchOptimizer`.
    task: a name, "module:attribute", "file.py:attribute" or a Task; or a list of them, or "suite:small" for eight small ones.

    Every seed is a pair: one initialisation and order of batches for all variants.
    A schedule may be a function (optimizer, updates) -> LRScheduler.  Where runs train together, "ms/step" is a run's share.
    Probes measure in every run of a recipe, for all tensors together, without `truth`, into `Comparison.probes` and
    probes.parquet.  Results are written to results/<task>, or to `out`; a folder of `sandbox.sweep` is refused.  Two calls at
    once in one folder share the work.

    Returns a `Comparison`; of several tasks or several `steps` a `Comparisons`.
    An error of a user's code in a run is reported in `Comparison.failures`, and the other variants go on.
    Raises ValueError for unknown names and impossible numbers, RuntimeError where every variant failed.
    """
    resolved, steps = tasks.get_all(task), settings.steps
    one = isinstance(task, str | Task) and len(resolved) == 1
    if one and not isinstance(steps, Sequence):
        folder = Path(settings.out) if settings.out is not None else Path("results") / file_name(resolved[0].name)
        return _one(plan(recipes, resolved[0], settings, manifest.read(folder, "compare")), folder)
    name = task if isinstance(task, str) else "-".join(each.name for each in resolved)
    folder = Path(settings.out) if settings.out is not None else Path("results") / file_name(name)
    lengths = list(steps) if isinstance(steps, Sequence) else [steps]
    cells = {each.name if len(lengths) == 1 else f"{each.name}, {n} updates": (each, n) for each in resolved for n in lengths}
    manifest.read(folder, "comparisons")
    folders = {label: folder / file_name(label) for label in cells}
    plans = {
        label: plan(recipes, each, dataclasses.replace(settings, steps=n), manifest.read(folders[label], "compare"))
        for label, (each, n) in cells.items()
    }
    return _several(plans, folders, folder, settings)


def _several(
    plans: dict[str, ComparisonPlan], folders: dict[str, Path], folder: Path, settings: ComparisonSettings
) -> Comparisons:
    """Makes the comparisons one after the other.  Raises Failed where every variant failed in all of them."""
    folder.mkdir(parents=True, exist_ok=True)
    done, total, results, failures = 0, sum(each.total for each in plans.values()), dict[str, Comparison](), []
    stored = {label: str(path.relative_to(folder)) for label, path in folders.items()}
    manifest.write(folder, {"comparisons": stored, "target": settings.target})
    for label, each in plans.items():

        def advance(now: float, runs: int, what: str, before: int = done, label: str = label, own: int = each.total) -> None:
            if settings.progress:
                settings.progress(before + now, total + runs - own, f"{label}: {what}")

        own = dataclasses.replace(each, settings=dataclasses.replace(each.settings, progress=advance))
        try:
            results[label] = _one(own, folders[label])
        except Failed as error:
            failures += error.failures
        done += each.total
    if not results:
        raise Failed(failures)
    result = Comparisons(results, folder, settings.target, failures, sorted(plans.keys() - results.keys()))
    comparisons.write(result)
    return result


def _one(comparison: ComparisonPlan, folder: Path) -> Comparison:
    """Makes the runs of a comparison, and writes its results."""
    settings, methods, facts = comparison.settings, comparison.methods, comparison.facts()
    with Work(comparison.task, folder, comparison.total, settings, Probing(comparison.probes, settings.every)) as work:
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

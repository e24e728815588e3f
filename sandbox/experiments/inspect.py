"""The curvature that recipes estimate, compared with the true one, over several seeds.

    result = sandbox.inspect(["apollo", "adahessian"], "digits-mlp")
    print(result)
    result.plot()                              # a matplotlib Figure: |estimate| against |diag H|, tensor by tensor
    result["apollo"].pairs["0.weight"].truth   # of the first seed

Each recipe trains at its own constant rate, or with `rates=5` or `search=` at the numbers that `compare` would choose, all from
the same starts on the same batches.  At `samples` steps the diagonal of the Hessian of the loss **on the whole training split**
is computed at θ, and compared with what the recipe's curvature estimates from its minibatches, on the scale that its theory
gives: B/η for Apollo, √B for AdaHessian.  Floor occupancy and the condition of Theorem 2's repair are measured more often,
since they cost little.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import Tensor

from sandbox import backends, curvature, tasks
from sandbox.experiments.reports import manifest
from sandbox.experiments.reports.inspection import Inspection, write
from sandbox.experiments.reports.inspection_data import Inspected
from sandbox.experiments.runs import identity, vectorised
from sandbox.experiments.runs.batch import Failure, Probing
from sandbox.experiments.runs.methods import RecipeMethod, methods
from sandbox.experiments.runs.run import Run
from sandbox.experiments.runs.store import pack
from sandbox.experiments.selection.plan import ComparisonPlan, plan
from sandbox.experiments.selection.search import Chosen
from sandbox.experiments.selection.tuning import choose, tune
from sandbox.experiments.settings import ComparisonSettings, InspectionSettings, fields, takes
from sandbox.experiments.work import Work
from sandbox.probes import View, Watch, find
from sandbox.probes.measures import ALL
from sandbox.tasks import Task
from sandbox.utils import memory, suggest

METHODS = ("exact", "hutchinson")
OFTEN = tuple(name for name, probe in ALL.items() if "truth" not in getattr(probe, "needs", ()))
KEPT = ("estimate", "truth", "floor", "theta_new")  # vectors of a step
SELDOM = tuple(name for name in ALL if name not in OFTEN)


@dataclasses.dataclass(frozen=True)
class _TruthProbing(Probing):
    """Computes the truth at a run's evaluations, with the probes that compare it, and the cheap ones fifty times per run."""

    method: str = "exact"
    num_vectors: int = 0

    def watch(self, task: Task, run: Run) -> Watch:
        full, loss = task.full("train"), functools.partial(task.apply, task.loss)
        how: dict[str, Any] = {"method": self.method, "num_vectors": self.num_vectors or 1, "seed": run.seed, "progress": False}

        def truth(params: dict[str, Tensor]) -> dict[str, Tensor]:
            if not math.isfinite(float(loss(params, full))):
                raise FloatingPointError("the loss of the training split is not finite")
            return curvature.diagonal(loss, params, full, **how).values

        return _Samples(self.probes, run, truth)


class _Samples(Watch):
    """Watches the samples, next to another watch of more steps; both write the same rows."""

    def __init__(self, more: Sequence[Any], run: Run, truth: Any) -> None:
        self.views, self.often = list[View](), Watch(OFTEN, every=max(1, run.steps // 50))

        def keep(v: View) -> None:
            self.views.append(v)

        super().__init__([*SELDOM, *more, keep], at=set(run.at), truth=truth)
        self.rows = self.often.rows

    def observe(self, planned: Any) -> None:
        """Passes the step to both; stores the vectors of a sample, per tensor, in place of those of the sample before."""
        self.often.observe(planned)
        super().observe(planned)
        if self.views:
            self.rows[:] = [row for row in self.rows if "vectors" not in row]
            tensors = [name for names, *_ in planned for name in names]
            for tensor, view in zip(tensors, self.views[1:], strict=True):
                vectors = {name: pack(getattr(view, name)) for name in KEPT if getattr(view, name) is not None}
                self.rows.append({"step": self.steps, "tensor": tensor, "vectors": vectors})
            self.views.clear()


@takes(InspectionSettings)
def inspect(recipes: Sequence[Any], task: str | Task, settings: InspectionSettings) -> Inspection:
    """Trains each recipe with some seeds and compares its estimate of the Hessian's diagonal with the true one.

    recipes: names, recipes, TOML files or "module:attribute".  task: a name, "module:attribute", "file.py:attribute" or a Task
        whose network has neither buffers nor dropout.

    The truth is computed at `samples` steps, equally far apart and the last one included: by a product with the Hessian for
    every parameter ("exact") or `num_vectors` of them ("hutchinson"), with the probes of one's own.  The seeds are `seed`,
    seed + 1, …: of initialisation, batches and random vectors.  Without `out` nothing stays on disk.

    An error of a user's code in a run is reported in `Inspection.failures`, and the other variants go on.
    Raises ValueError for unknown names and impossible numbers, RuntimeError where every variant failed.
    """
    resolved, all_methods = tasks.get(task), methods(recipes, "inspect")
    recipe_methods = [each for each in all_methods if isinstance(each, RecipeMethod)]
    if others := [each.name for each in all_methods if not isinstance(each, RecipeMethod)]:
        raise ValueError(f"inspect needs recipes, whose curvature it knows; not recipes are: {', '.join(others)}")
    steps, samples, method = resolved.steps if settings.steps is None else settings.steps, settings.samples, settings.method
    if samples > steps:
        raise ValueError(f"samples must be at most {steps}, the number of steps, got {samples}")
    if method not in METHODS:
        raise ValueError(suggest.unknown("method", method, METHODS))
    num_vectors = 0 if method == "exact" else memory.whole("num_vectors", settings.num_vectors, 2)
    if refused := vectorised.network(resolved):
        raise ValueError(f"inspect needs a loss that is a function of the parameters alone; task {resolved.name!r}: {refused}")
    comparison = plan(recipe_methods, resolved, _for_tuning(settings)) if settings.tuned else None
    at, way = tuple(steps - steps // samples * k for k in reversed(range(samples))), backends.get(settings.backend).name
    seeds, probes = list(range(settings.seed, settings.seed + settings.seeds)), find(settings.probes)
    custom = [probe for name, probe in probes.items() if ALL.get(name) is not probe]

    def runs(each: RecipeMethod, lr: float) -> list[tuple[RecipeMethod, Run]]:
        code = identity.fingerprint([identity.package(), each.parts(), resolved, custom], settings.reuse)
        run = Run(
            task=resolved.name, method=each.fingerprint(), lr=lr, seed=0, role="inspection", steps=steps, at=at, way=way,
            code=code, probes=f"truth {method} {num_vectors} {' '.join(probes)}",
        )  # fmt: skip
        return [(each, dataclasses.replace(run, seed=seed)) for seed in seeds]

    facts = {
        "task": resolved.name, "steps": steps, "samples": at, "seeds": seeds, "method": method, "num_vectors": num_vectors,
        "backend": way, "recipes": {each.name: each.text() for each in recipe_methods},
    }  # fmt: skip
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()) if settings.out is None else settings.out)
        manifest.read(folder, "inspect")  # or it is another command's folder
        probing = _TruthProbing(tuple(probes.values()), method=method, num_vectors=num_vectors)
        chosen, failures = _tuned(comparison, recipe_methods, folder, settings)
        left = [m for m in recipe_methods if m.name in chosen]
        rates = {m.name: chosen[m.name].numbers["lr"] if settings.lr is None else float(settings.lr) for m in left}
        left = [m.replaced({n: v for n, v in chosen[m.name].numbers.items() if n != "lr"}) for m in left]
        wanted = [pair for each in left for pair in runs(each, rates[each.name])]
        work = stack.enter_context(Work(resolved, folder, len(wanted), settings, probing))
        work.failures += failures
        manifest.write(folder, {**facts, "chosen": {name: dataclasses.asdict(each) for name, each in chosen.items()}})
        work.run(wanted, "training, and taking the true diagonal")
        full = resolved.full("train")
        result = Inspection(
            resolved, steps, list(at), seeds, method, num_vectors, len(full[0]) if isinstance(full, tuple) else 1,
            [_inspected(m, wanted, work) for m in work.survivors(left)], None if settings.out is None else folder,
            work.failures, work.store.unreadable, chosen,
        )  # fmt: skip
    if settings.out is not None:
        write(result, folder)
    return result


def _for_tuning(settings: InspectionSettings) -> ComparisonSettings:
    """Returns the settings of a comparison whose search is that of an inspection: no warm-up, a constant rate."""
    shared = {f.name for f in fields(InspectionSettings)} & {f.name for f in fields(ComparisonSettings)} - {"seeds", "probes"}
    return ComparisonSettings(**{name: getattr(settings, name) for name in shared}, warmup=0)


def _tuned(
    comparison: ComparisonPlan | None, methods: Sequence[RecipeMethod], folder: Path, settings: InspectionSettings
) -> tuple[dict[str, Chosen], list[Failure]]:
    """Returns the numbers of each variant that did not fail, searched or its own rate, and the errors."""
    if comparison is None:
        return {m.name: Chosen({"lr": m.lr}, False, True, []) for m in methods}, []
    total = len(methods) * comparison.trials * settings.tuning_seeds
    with Work(comparison.task, folder, total, settings, tables=False) as work:
        tuners = tune(comparison, work, "searching")
    return {m.name: choose(m, tuners[m.name]) for m in work.survivors(methods)}, work.failures


def _inspected(method: RecipeMethod, wanted: Sequence[tuple[Any, Run]], work: Work) -> Inspected:
    runs = [run for m, run in wanted if m is method]
    names, store = [(run.key(), method.name) for run in runs], work.store
    measured = store.probes(names).drop_nulls("value")
    return Inspected(method, runs[0].lr, store.frame(names), measured, store.vectors(names), work.task.init(0))

"""The curvature that recipes estimate, beside the true one, over several seeds.

    result = sandbox.inspect(["apollo", "adahessian"], "digits-mlp")
    print(result)
    result.plot()                              # a matplotlib Figure: |estimate| against |diag H|, tensor by tensor
    result["apollo"].pairs["0.weight"].truth   # of the first seed

Each recipe trains at its own constant rate, all from the same starts on the same batches.  At `samples` steps the diagonal of
the Hessian of the loss **on the whole training split** is taken at θ, and compared with what the recipe's curvature estimates
from its minibatches, on the scale that its theory gives: B/η for Apollo, √B for AdaHessian.  Floor occupancy and the
condition of Theorem 2's repair are measured more often, since they cost little.
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
from sandbox.experiments.reports import inspect_report, manifest
from sandbox.experiments.reports.inspect_result import Inspected, Inspection
from sandbox.experiments.runs import executors, identity, vectorised
from sandbox.experiments.runs.methods import Ours, methods
from sandbox.experiments.runs.settings import Run
from sandbox.experiments.runs.store import packed
from sandbox.experiments.runs.unit import Failed, Look
from sandbox.experiments.selection.plan import whole
from sandbox.experiments.work import Callback, Progress, Work
from sandbox.probes import View, Watch, find
from sandbox.probes.measures import ALL, Probe
from sandbox.tasks import Task
from sandbox.utils import memory, suggest

METHODS = ("exact", "hutchinson")
OFTEN = tuple(name for name, probe in ALL.items() if "truth" not in getattr(probe, "needs", ()))
KEPT = ("estimate", "truth", "floor", "theta_new")  # vectors of a step
SELDOM = tuple(name for name in ALL if name not in OFTEN)


@dataclasses.dataclass(frozen=True)
class _Truth(Look):
    """The truth at a run's evaluations, with the probes that compare it, and the cheap ones fifty times a run."""

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
    """Watches the samples, beside another that looks at more steps; both write the same rows."""

    def __init__(self, more: Sequence[Any], run: Run, truth: Any) -> None:
        self.views, self.often = list[View](), Watch(OFTEN, every=max(1, run.steps // 50))

        def kept(v: View) -> None:
            self.views.append(v)

        super().__init__([*SELDOM, *more, kept], at=set(run.at), truth=truth)
        self.rows = self.often.rows

    def observe(self, planned: Any) -> None:
        """Shows the step to both; keeps the vectors of a sample, of each tensor, in place of those of the one before."""
        self.often.observe(planned)
        super().observe(planned)
        if self.views:
            self.rows[:] = [row for row in self.rows if "vectors" not in row]
            tensors = [name for names, *_ in planned for name in names]
            for tensor, view in zip(tensors, self.views[1:], strict=True):
                held = {name: packed(getattr(view, name)) for name in KEPT if getattr(view, name) is not None}
                self.rows.append({"step": self.steps, "tensor": tensor, "vectors": held})
            self.views.clear()


def inspect(
    recipes: Sequence[Any],
    task: str | Task,
    *,
    steps: int | None = None,
    samples: int = 5,
    lr: float | None = None,
    seed: int = 0,
    seeds: int = 5,
    backend: str = "eager",
    method: str = "exact",
    num_vectors: int = 200,
    probes: Sequence[str | Probe] = (),
    out: str | Path | None = None,
    jobs: int = 1,
    executor: Any = None,
    callbacks: Sequence[Callback] = (),
    reuse: bool = False,
    progress: Progress | None = None,
) -> Inspection:
    """Trains each recipe with some seeds and compares its estimate of the Hessian's diagonal with the true one.

    recipes: names, recipes, TOML files or "module:attribute".  task: a name, "module:attribute", "file.py:attribute" or a Task
        whose network has neither buffers nor dropout.
    steps: updates, default the task's.  samples: at how many of them, equally far apart and the last one included, the truth
        is taken.  lr: the constant rate of all, default each recipe's own.
    seeds: runs a recipe, of the seeds `seed`, seed + 1, …: of initialisation, batches and random vectors.
    backend: how a step runs, "eager", "compiled" or "scripted".
    method: of the truth, "exact" (a product with the Hessian for every parameter) or "hutchinson" (`num_vectors` of them).
    probes: more of one's own, measured where the truth is (see `sandbox.probes`).
    out: folder for the files of `inspect_report.FILES` and the runs, which are not made again; default none, nothing is kept.
    jobs, executor, callbacks, reuse, progress: as for `sandbox.compare`.
    An error of a user's code in a run is reported in `Inspection.failures`, and the other variants go on.
    Raises ValueError for unknown names and impossible numbers, RuntimeError where every variant failed.
    """
    made, given = tasks.get(task), methods(recipes, "inspect")
    found = [each for each in given if isinstance(each, Ours)]
    if others := [each.name for each in given if not isinstance(each, Ours)]:
        raise ValueError(f"inspect needs recipes, whose curvature it knows; not recipes are: {', '.join(others)}")
    steps = made.steps if steps is None else steps
    for name, value, low in (("steps", steps, 1), ("samples", samples, 1), ("seed", seed, 0), ("seeds", seeds, 1)):
        whole(name, value, low)
    if samples > steps:
        raise ValueError(f"samples must be at most {steps}, the number of steps, got {samples}")
    if lr is not None and not 0 < lr < math.inf:
        raise ValueError(f"lr must be a number above 0, got {lr}")
    if method not in METHODS:
        raise ValueError(suggest.unknown("method", method, METHODS))
    num_vectors = 0 if method == "exact" else memory.whole("num_vectors", num_vectors, 2)
    if refused := vectorised.network(made):
        raise ValueError(f"inspect needs a loss that is a function of the parameters alone; task {made.name!r}: {refused}")
    at, way = tuple(steps - steps // samples * k for k in reversed(range(samples))), backends.get(backend).name
    all_seeds = list(range(seed, seed + seeds))
    own = [probe for name, probe in find(probes).items() if ALL.get(name) is not probe]
    wanted = []
    for each in found:
        code = identity.of([identity.package(), each.parts(), made, own], reuse)
        told = f"truth {method} {num_vectors} {' '.join(find(probes))}"
        wanted += [
            (each, Run(task=made.name, method=each.fingerprint(), lr=each.lr if lr is None else float(lr), seed=s,
                       role="inspection", steps=steps, at=at, way=way, probes=told, code=code))
            for s in all_seeds
        ]  # fmt: skip
    facts = {
        "task": made.name, "steps": steps, "samples": at, "seeds": all_seeds, "method": method, "num_vectors": num_vectors,
        "backend": way, "recipes": {each.name: each.text() for each in found},
    }  # fmt: skip
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()) if out is None else out)
        manifest.read(folder, "inspect")  # or it is another command's folder
        look = _Truth(tuple(find(probes).values()), method=method, num_vectors=num_vectors)
        who = stack.enter_context(executors.workers(jobs, executor))
        work = Work(made, folder, len(wanted), look=look, executor=who, callbacks=callbacks, progress=progress)
        manifest.write(folder, facts)
        try:
            work.make(wanted, "training, and taking the true diagonal")
        finally:
            work.save()
        lost = {failure.variant for failure in work.failures}
        if len(lost) == len(found):
            raise Failed(work.failures)
        full = made.full("train")
        result = Inspection(
            made, steps, list(at), all_seeds, method, num_vectors, len(full[0]) if isinstance(full, tuple) else 1,
            [_inspected(m, wanted, work) for m in found if m.name not in lost], None if out is None else folder,
            work.failures, work.store.unreadable,
        )  # fmt: skip
    if out is not None:
        inspect_report.write(result, folder)
    return result


def _inspected(method: Ours, wanted: Sequence[tuple[Any, Run]], work: Work) -> Inspected:
    runs = [run for m, run in wanted if m is method]
    names, store = [(run.key(), method.name) for run in runs], work.store
    measured = store.probes(names).drop_nulls("value")
    return Inspected(method, runs[0].lr, store.frame(names), measured, store.vectors(names), work.task.init(0))

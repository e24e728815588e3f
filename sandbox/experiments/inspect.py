"""The curvature that recipes estimate, beside the true one: trains, samples, and says how far they agree.

    result = sandbox.inspect(["apollo", "adahessian"], "digits-mlp")
    print(result)
    result.scatter()        # a matplotlib Figure: |estimate| against |diag H|, tensor by tensor
    result["apollo"].pairs["0.weight"].truth

Each recipe trains from the same start on the same batches at its own constant rate.  At `samples` steps the diagonal of the
Hessian of the loss **on the whole training split** is taken at θ, and compared with what the recipe's curvature estimates
from its minibatches, on the scale that its theory gives: B/η for Apollo, √B for AdaHessian.  Floor occupancy and the
condition of Theorem 2's repair are measured more often, since they cost little.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
from torch import Tensor

from sandbox import backends, curvature, lookup, suggest, tasks
from sandbox.experiments.run import threads
from sandbox.optimizer import Optimizer
from sandbox.probes import EVERYTHING, View, Watch
from sandbox.probes.measures import ALL, Probe
from sandbox.recipe import Recipe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS = ("exact", "hutchinson")
OFTEN = tuple(name for name, probe in ALL.items() if "truth" not in getattr(probe, "needs", ()))
SELDOM = tuple(name for name in ALL if name not in OFTEN)
Progress = Callable[[int, int, str], None]  # (samples done, samples in all, what)


@dataclasses.dataclass(frozen=True)
class Pair:
    """One tensor, or all of them end to end, at one step: vectors of n entries on the CPU.

    estimate: of diag H, on its scale.  truth: diag H.  floor: whether D is the rectifier's floor; None without one.
    """

    estimate: Tensor
    truth: Tensor
    floor: Tensor | None


@dataclasses.dataclass(frozen=True)
class Inspected:
    """What was found for one recipe.

    frame: step, tensor, probe, value.  pairs: by tensor, at `sampled`, the last step that was sampled; empty for a recipe that
    estimates no Hessian.  ended: why it stopped before the last step, or None.  params: where it ended.  loss: of the training
    split, there.
    """

    recipe: Recipe
    lr: float
    frame: pl.DataFrame
    pairs: dict[str, Pair]
    sampled: int
    params: dict[str, Tensor]
    loss: float
    ended: str | None = None

    def value(self, probe: str, tensor: str = EVERYTHING, step: int | None = None) -> float | None:
        """A measurement, at a step or the last one that has it; None where there is none."""
        rows = self.frame.filter((pl.col("probe") == probe) & (pl.col("tensor") == tensor)).sort("step")
        rows = rows if step is None else rows.filter(pl.col("step") == step)
        return float(rows["value"][-1]) if len(rows) else None

    def mean(self, probe: str, tensor: str = EVERYTHING) -> float | None:
        """The mean of a measurement over all sampled steps; None where there is none."""
        rows = self.frame.filter((pl.col("probe") == probe) & (pl.col("tensor") == tensor))
        return None if rows.is_empty() else float(rows["value"].to_numpy().mean())


@dataclasses.dataclass(frozen=True, repr=False)
class Inspection:
    """The outcome; `result["apollo"]` is one recipe's.  folder: where the files are, or None."""

    task: tasks.Task
    steps: int
    samples: int
    seed: int
    method: str
    num_vectors: int  # random vectors for a truth, 0 for the exact one
    rows: int  # of the training split
    variants: list[Inspected]
    folder: Path | None
    interrupted: bool = False

    def __getitem__(self, name: str) -> Inspected:
        for one in self.variants:
            if one.recipe.name == name:
                return one
        raise KeyError(suggest.unknown("variant", name, [one.recipe.name for one in self.variants]))

    @property
    def frame(self) -> pl.DataFrame:
        """All measurements: variant, step, tensor, probe, value."""
        named = [one.frame.select(pl.lit(one.recipe.name).alias("variant"), pl.all()) for one in self.variants]
        return pl.concat(named)

    def scatter(self) -> Figure:
        """|estimate| against |diag H|, a row a recipe and a column a tensor."""
        from sandbox.experiments import inspect_report

        return inspect_report.scatter(self)

    def correlations(self) -> Figure:
        """Agreement of |estimate| and |diag H| over the steps."""
        from sandbox.experiments import inspect_report

        return inspect_report.correlations(self)

    def floors(self) -> Figure:
        """Floor occupancy and violations of the condition that D/η grows, over the steps."""
        from sandbox.experiments import inspect_report

        return inspect_report.floors(self)

    def __str__(self) -> str:
        from sandbox.experiments import inspect_report

        return inspect_report.text(self)

    __repr__ = __str__

    def _repr_markdown_(self) -> str:
        from sandbox.experiments import inspect_report

        return inspect_report.markdown(self)


class _Keep:
    """A probe that keeps the vectors of the last step it has seen, all tensors together first."""

    needs = ("truth",)
    __name__ = "keep"

    def __init__(self) -> None:
        self.step, self.pairs = 0, list[Pair]()

    def __call__(self, v: View) -> None:
        if v.estimate is None or v.truth is None:
            return
        t = int(v.t)
        self.pairs = self.pairs if t == self.step else []
        self.step = t
        copied = [None if x is None else x.detach().cpu().clone() for x in (v.estimate, v.truth, v.floor)]
        self.pairs.append(Pair(*copied))  # type: ignore[arg-type]


class _Several(Watch):
    """Watches that look at the same steps, each at its own pace."""

    def __init__(self, *watches: Watch) -> None:
        super().__init__([])
        self.watches = watches

    def observe(self, planned: Any) -> None:
        """Shows the step to each."""
        for watch in self.watches:
            watch.observe(planned)


def inspect(
    recipes: Sequence[str | Recipe],
    task: str | tasks.Task,
    *,
    steps: int | None = None,
    samples: int = 5,
    lr: float | None = None,
    seed: int = 0,
    backend: str = "eager",
    method: str = "exact",
    num_vectors: int = 200,
    probes: Sequence[str | Probe] = (),
    out: str | Path | None = None,
    progress: Progress | None = None,
) -> Inspection:
    """Trains each recipe and compares its estimate of the Hessian's diagonal with the true one.

    recipes: names, recipes, TOML files or "module:attribute".  task: a name or a Task.
    steps: updates, default the task's.  samples: at how many of them, equally far apart and the last one included, the truth
    is taken.  lr: the constant rate of all, default each recipe's own.  seed: of initialisation, batches and random vectors.
    method: of the truth, "exact" (a product with the Hessian for every parameter) or "hutchinson" (`num_vectors` of them).
    probes: more of one's own, measured where the truth is (see `sandbox.probes`).
    out: folder for probes.parquet, diagonal.parquet, table.md and three pictures; default none.
    progress: called after every sample.  Ctrl-C ends it early, with what has been measured and `interrupted` set.
    Raises ValueError for unknown names and impossible numbers.
    """
    made = tasks.get(task)
    found = _recipes(recipes)
    steps = made.steps if steps is None else steps
    for name, value, low, high in (("steps", steps, 1, None), ("samples", samples, 1, steps), ("seed", seed, 0, None)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} must be a whole number, got {value!r}")
        if value < low or (high is not None and value > high):
            raise ValueError(f"{name} must be at least {low}{'' if high is None else f' and at most {high}'}, got {value}")
    if lr is not None and not 0 < lr < math.inf:
        raise ValueError(f"lr must be a number above 0, got {lr}")
    if method not in METHODS:
        raise ValueError(suggest.unknown("method", method, METHODS))
    if method != "exact" and (isinstance(num_vectors, bool) or not isinstance(num_vectors, int) or num_vectors < 2):
        raise ValueError(f"num_vectors must be a whole number of at least 2, got {num_vectors!r}")
    backends.get(backend)
    if out is not None:
        Path(out).mkdir(parents=True, exist_ok=True)
    full = made.full("train")
    rows = len(full[0]) if isinstance(full, tuple) else 1

    def truth(params: dict[str, Tensor]) -> dict[str, Tensor]:
        if not math.isfinite(float(made.loss(params, full))):
            raise FloatingPointError("the loss of the training split is not finite")
        return curvature.diagonal(made.loss, params, full, method, probes=num_vectors, seed=seed, progress=False).values

    total, done, inspected, interrupted = len(found) * samples, 0, list[Inspected](), False
    for recipe in found:

        def sampled(count: int, name: str = recipe.name, before: int = done) -> None:
            if progress:
                progress(before + count, total, name)

        sampled(0)
        keep = _Keep()
        stops = set(sample_steps(steps, samples))
        watches = Watch(OFTEN, every=max(1, steps // 50)), Watch([*SELDOM, *probes, keep], at=stops, truth=truth)
        with threads():
            one = _train(made, recipe, steps, stops, lr, seed, backend, watches, keep, sampled)
        inspected.append(one)
        done += samples
        interrupted = one.ended == INTERRUPTED
        if interrupted:
            break
        sampled(samples)
    number = 0 if method == "exact" else num_vectors
    folder = None if out is None else Path(out)
    result = Inspection(made, steps, samples, seed, method, number, rows, inspected, folder, interrupted)
    if folder is not None:
        from sandbox.experiments import inspect_report

        inspect_report.write(result, folder)
    return result


INTERRUPTED = "interrupted"


def _recipes(recipes: Sequence[str | Recipe]) -> list[Recipe]:
    if isinstance(recipes, str | Recipe) or not recipes:
        raise ValueError("inspect needs a list of at least one recipe")
    found = [lookup.recipe(r) for r in recipes]
    names = [r.name for r in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"two recipes are called {twice!r}; give one another name: recipe.replace(name=…)")
    return found


def sample_steps(steps: int, samples: int) -> list[int]:
    """Where the truth is taken: multiples of steps // samples, counted so that the last step is one of them."""
    every = steps // samples
    return [steps - every * k for k in reversed(range(samples))]


def _train(
    task: tasks.Task,
    recipe: Recipe,
    steps: int,
    stops: set[int],
    lr: float | None,
    seed: int,
    backend: str,
    watches: tuple[Watch, Watch],
    keep: _Keep,
    sampled: Callable[[int], None],
) -> Inspected:
    params = {name: p.clone().requires_grad_() for name, p in task.init(seed).items()}
    optimizer = Optimizer(params.items(), recipe, lr=lr, backend=backend, seed=seed)
    batches, (often, seldom) = task.batches(seed), watches
    ended, step, taken = None, 0, 0
    optimizer.watch = _Several(often, seldom)
    try:
        for step in range(1, steps + 1):
            batch = next(batches)

            def closure(batch: Any = batch) -> Tensor:
                optimizer.zero_grad()
                loss = task.loss(params, batch)
                if not recipe.second_order:
                    loss.backward()
                return loss

            optimizer.step(closure)
            if step in stops:
                taken += 1
                sampled(taken)
    except KeyboardInterrupt:
        ended = INTERRUPTED
    except FloatingPointError:
        ended = f"diverged at step {step}"
    loss, _ = task.evaluate(params, "train")
    frame = pl.concat([often.frame(), seldom.frame()]).sort("step", maintain_order=True)
    names = [EVERYTHING, *params]
    pairs = dict(zip(names, keep.pairs, strict=True)) if len(keep.pairs) == len(names) else {}
    end = {name: p.detach() for name, p in params.items()}
    return Inspected(recipe, optimizer.param_groups[0]["lr"], frame, pairs, keep.step, end, loss, ended)

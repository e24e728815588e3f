"""Runs seeds × configurations: group by structure, chunk to the memory budget, step all of a chunk together."""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from sandbox import schedules
from sandbox.ensemble import heap
from sandbox.ensemble.arguments import configs_of, task_of
from sandbox.ensemble.members import Config, groups, table
from sandbox.ensemble.plan import Piece, Plan
from sandbox.probes.watch import find
from sandbox.recipe import Recipe
from sandbox.tasks import Task

if TYPE_CHECKING:
    import polars as pl

    from sandbox.utils.frames import Frame

Progress = Callable[[int, int], None]  # (member steps done, in all)
# (step, places of members, name -> their values, whether each has been finite so far)
Evaluated = Callable[[int, list[int], dict[str, np.ndarray], np.ndarray], None]


@dataclasses.dataclass(frozen=True)
class Ensemble:
    """What came out; arrays over members, in the order of `members` (recipe, rate, seed; the last moves fastest).

    members: a row a member, a DataFrame: variant, the numbers in which recipes differ, lr (NaN for a function of t), seed.
    loss: (members, steps), on each step's own batch, before the step.  finite: (members, steps): were loss and gradients?
    at: the steps after which `evaluations` were made, 0 first.  evaluations: name -> (members, len(at)): train_loss,
    validation_loss, validation_metric, floor_occupancy (NaN where there is no floor).  probed: the sampled steps; probes:
    name -> (members, len(probed)), NaN where a probe says nothing; said: of the same form, whether it said something, which may
    be NaN too.  params: the final parameters, each with a first axis of members.
    looped: the variants that could not be batched, with the reason.  chunk: the most members that ran together.
    """

    members: pl.DataFrame
    loss: np.ndarray
    finite: np.ndarray
    at: list[int]
    evaluations: dict[str, np.ndarray]
    probed: list[int]
    probes: dict[str, np.ndarray]
    said: dict[str, np.ndarray]
    params: Any
    looped: dict[str, str]
    chunk: int
    seconds: float

    @property
    def diverged(self) -> np.ndarray:
        """The first step at which loss or gradient was not finite, 0 where none."""
        bad = ~self.finite
        return np.where(bad.any(axis=1), bad.argmax(axis=1) + 1, 0)

    @property
    def frame(self) -> Frame:
        """The members with "loss" (of the last batch), the last evaluations and "diverged"."""
        import polars as pl

        from sandbox.utils.frames import Frame

        last = {name: values[:, -1] for name, values in self.evaluations.items() if values.size}
        found = self.loss[:, -1] if self.loss.size else np.full(len(self.members), np.nan)
        columns = {"loss": found, **last, "diverged": self.diverged}
        return Frame(self.members.with_columns(*(pl.Series(name, values) for name, values in columns.items())))


@heap.kept()
def run(
    recipes: str | Recipe | Sequence[str | Recipe],
    task: str | Task | Callable[[Any, Any], Tensor],
    *,
    lr: float | Sequence[float] | None = None,
    seeds: int | Sequence[int] = 1,
    steps: int | None = None,
    warmup: int = 0,
    schedule: str = "constant",
    evaluations: int | Sequence[int] = 0,
    probes: Iterable[Any] = (),
    every: int = 1,
    params: Any = None,
    batches: Callable[[int], Iterable[Any]] | None = None,
    compiled: bool = False,
    memory: int = 1 << 30,
    progress: Progress | None = None,
    evaluated: Evaluated | None = None,
) -> Ensemble:
    """Trains every recipe at every rate with every seed, together.

    recipes: any mix of structures.  task: a task, its name, or any `loss(params, batch)`; then `params`, a tree of tensors with
        which all members start, and `batches`, seed -> iterable of batches (default: the batch None).
    lr: rates for all recipes, default each recipe's own.  seeds: a number of them, or the seeds; each has its own start and
        order of batches, the same for every recipe and rate, as a single run has.
    warmup, schedule, evaluations: as for `sandbox.compare`; evaluations may also be the steps after which to evaluate.
    probes, every: as for `sandbox.probes.Watch`, for all tensors together, without `truth`.
    compiled: compile the step of each group: pays from some hundred thousand member steps on.
    memory: bytes that the members which run together may take, measured on a few of them.
    evaluated: called at every evaluation of members that run together.
    Threads are torch's own; for small models one is as fast as many, and never waits for a busy core.
    A member that diverges goes on in NaN and disturbs no other.  A recipe that vmap refuses runs member by member, with a
    warning that says why.  Raises ValueError for what cannot be, and where `memory` is too small for one member.
    """
    began = time.perf_counter()
    task = task_of(task, params, batches)
    seeds = list(range(seeds)) if isinstance(seeds, int) else [int(s) for s in seeds]
    configs = configs_of(recipes, lr)
    steps = task.steps if steps is None else steps
    for name, value, least in (
        ("steps", steps, 1),
        ("warmup", warmup, 0),
        ("evaluations", evaluations if isinstance(evaluations, int) else 0, 0),
        ("every", every, 1),
    ):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
    if not seeds:
        raise ValueError("seeds must name at least one seed")
    if warmup > steps:
        raise ValueError(f"warmup must lie in [0, {steps}], the number of steps, got {warmup}")
    if not isinstance(schedules.checked(schedule), str):
        raise TypeError("a vectorised run knows schedules by name only")
    factors = schedules.factors(steps, warmup, schedule)
    plan = Plan(task, seeds, steps, factors, evaluations, find(probes), every, compiled, memory)
    members = table(configs, seeds)  # now: what is wrong with it is said before anything is trained
    done = 0

    def advance(members: int) -> None:
        nonlocal done
        done += members
        if progress:
            progress(done, len(configs) * len(seeds) * plan.steps)

    pieces: list[tuple[list[int], Piece]] = []
    looped: dict[str, str] = {}
    largest = 1
    for group in groups(configs):
        chunks, reason = plan.chunks(group)
        if reason is not None:
            name = group.configs[0].recipe.name
            looped[name] = reason
            warnings.warn(f"{name} cannot be batched and runs member by member: {reason}", stacklevel=2)
        for part, some in chunks:
            largest = max(largest, len(part.configs) * len(some) if reason is None else 1)
            where = [place * len(seeds) + seeds.index(seed) for seed in some for place in part.places]

            def told(t: int, values: Any, finite: np.ndarray, where: list[int] = where) -> None:
                if evaluated:
                    evaluated(t, where, values, finite)

            pieces.append((where, plan.together(part, some, advance, told, batched=reason is None)))
    return _assembled(plan, members, pieces, looped, largest, time.perf_counter() - began)


def refusal(recipe: Recipe, task: Task) -> str | None:
    """Why the recipe cannot be batched on the task; None where it can."""
    return Plan(task, [0], 1, [1.0], 0, {}, 1, False, 1).refusal(groups([Config(recipe, 0.0)])[0])


def _assembled(
    plan: Plan,
    members: pl.DataFrame,
    pieces: list[tuple[list[int], Piece]],
    looped: dict[str, str],
    largest: int,
    seconds: float,
) -> Ensemble:
    order = np.argsort(np.concatenate([where for where, _ in pieces]), kind="stable")

    def joined(arrays: list[np.ndarray]) -> np.ndarray:
        return np.concatenate(arrays)[order]

    def together(kind: str) -> dict[str, np.ndarray]:
        return {name: joined([getattr(piece, kind)[name] for _, piece in pieces]) for name in getattr(pieces[0][1], kind)}

    where = torch.as_tensor(order)
    params = pytree.tree_map(lambda *parts: torch.cat(parts)[where], *(piece.params for _, piece in pieces))
    return Ensemble(
        members=members,
        loss=joined([piece.loss for _, piece in pieces]),
        finite=joined([piece.finite for _, piece in pieces]),
        at=plan.at,
        evaluations=together("evaluations"),
        probed=plan.probed,
        probes=together("probes"),
        said=together("said"),
        params=params,
        looped=looped,
        chunk=largest,
        seconds=seconds,
    )

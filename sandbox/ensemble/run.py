"""Runs seeds × configurations: groups by structure, chunks to the memory budget, one step for all of a chunk."""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sandbox import schedules
from sandbox.ensemble import chunks
from sandbox.ensemble.arguments import configs_of, task_of
from sandbox.ensemble.grid import Unbatchable
from sandbox.ensemble.members import Config, Group, groups, table
from sandbox.ensemble.settings import Settings
from sandbox.probes.watch import find
from sandbox.recipe import Recipe
from sandbox.tasks import Task
from sandbox.utils.private_torch import pytree

if TYPE_CHECKING:
    import polars as pl

    from sandbox.utils.frames import Frame

Progress = Callable[[int, int], None]  # (member steps done, in all)
# (step, places of members, name -> their values, whether each has been finite so far)
Evaluated = Callable[[int, list[int], dict[str, np.ndarray], np.ndarray], None]


@dataclasses.dataclass(frozen=True)
class Ensemble:
    """The results; arrays over members, in the order of `members` (recipe, rate, seed; the last moves fastest).

    members: a DataFrame, one row per member: variant, the numbers in which recipes differ, lr (NaN for a function of t), seed.
    loss: (members, steps), on each step's own batch, before the step.  finite: (members, steps), of loss and gradients.
    at: the steps of the `evaluations`, 0 first.  evaluations: name -> (members, len(at)): train_loss,
    validation_loss, validation_metric, floor_occupancy (NaN where there is no floor).  probed: the sampled steps; probes:
    name -> (members, len(probed)), NaN where a probe gives no value; measured: of the same form, whether it gave one, which may
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
    measured: dict[str, np.ndarray]
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
        losses = self.loss[:, -1] if self.loss.size else np.full(len(self.members), np.nan)
        columns = {"loss": losses, **last, "diverged": self.diverged}
        return Frame(self.members.with_columns(*(pl.Series(name, values) for name, values in columns.items())))


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
    full_at: Sequence[int] | None = None,
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
    full_at: the steps after which the loss is taken on the whole training split, and elsewhere on `task.training_sample`; None:
        always.
    probes, every: as for `sandbox.probes.Watch`, for all tensors together, without `truth`.
    compiled: compile the step of each group: pays from some hundred thousand member steps on.
    memory: bytes that the members which run together may take, measured on a few of them.
    evaluated: called at every evaluation of members that run together.
    Threads are torch's own; for small models one is as fast as many, and never waits for a busy core.
    A member that diverges goes on in NaN and disturbs no other.  What vmap refuses, or gives other gradients than a single
    run's, runs member by member, with a warning that says why; an error of such a run is raised.
    Raises ValueError for arguments out of range, and where `memory` is too small for one member.
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
    settings = Settings(task, seeds, steps, factors, evaluations, full_at, find(probes), every, compiled, memory)
    members = table(configs, seeds)  # now: its errors come before anything is trained
    training = _Training(settings, len(configs), progress, evaluated)
    for group in groups(configs):
        training.add(group)
    return training.results(members, time.perf_counter() - began)


def refusal(recipe: Recipe, task: Task) -> str | None:
    """Returns why the recipe cannot be batched on the task; None where it can."""
    settings = Settings(task, [0, 1], 1, [1.0], 0, None, {}, 1, False, 1)
    return chunks.refusal(settings, groups([Config(recipe, 0.0)])[0])


class _Training:
    """Trains groups one after another and gathers what they give."""

    def __init__(self, settings: Settings, configs: int, progress: Progress | None, evaluated: Evaluated | None) -> None:
        self.settings, self.progress, self.evaluated = settings, progress, evaluated
        self.done, self.shown, self.total = 0, 0, configs * len(settings.seeds) * settings.steps
        self.reported: set[tuple[int, int]] = set()  # (step, member)
        self.places: list[int] = []
        self.chunks: list[chunks.Results] = []
        self.looped: dict[str, str] = {}
        self.largest = 1

    def add(self, group: Group) -> None:
        """Trains a group's members together, or one by one where that fails."""
        done, reason = self.done, None
        try:
            parts = chunks.split(self.settings, group)
            results = [self._train(*part) for part in parts]
            self.largest = max(self.largest, *(len(configs.configs) * len(seeds) for configs, seeds in parts))
        except Unbatchable as error:
            reason = str(error)
        if reason is not None:
            self.done, name = done, group.configs[0].recipe.name
            parts = chunks.singles(self.settings, group)
            results = [self._train(*part, batched=False) for part in parts]
            # only now: an error of a single run comes first
            warnings.warn(f"{name} cannot be batched and runs member by member: {reason}", stacklevel=3)
            self.looped[name] = reason
        self.places += [place for configs, seeds in parts for place in self._places(configs, seeds)]
        self.chunks += results

    def _places(self, group: Group, seeds: list[int]) -> list[int]:
        every = self.settings.seeds
        return [place * len(every) + every.index(seed) for seed in seeds for place in group.places]

    def _train(self, group: Group, seeds: list[int], *, batched: bool = True) -> chunks.Results:
        places = self._places(group, seeds)

        def advance(members: int) -> None:
            self.done += members
            if self.progress and self.done > self.shown:  # what is trained again is not progress
                self.shown = self.done
                self.progress(self.done, self.total)

        def report(t: int, values: dict[str, np.ndarray], finite: np.ndarray) -> None:
            new = [k for k, place in enumerate(places) if (t, place) not in self.reported]
            self.reported |= {(t, places[k]) for k in new}
            if self.evaluated and new:
                self.evaluated(t, [places[k] for k in new], {name: v[new] for name, v in values.items()}, finite[new])

        return chunks.train(self.settings, group, seeds, advance, report, batched=batched)

    def results(self, members: pl.DataFrame, seconds: float) -> Ensemble:
        """Returns the results of all groups, in the order of the members."""
        order = np.argsort(self.places, kind="stable")

        def rows(name: str) -> np.ndarray:
            return np.concatenate([getattr(part, name) for part in self.chunks])[order]

        def columns(kind: str) -> dict[str, np.ndarray]:
            parts = [getattr(part, kind) for part in self.chunks]
            return {name: np.concatenate([part[name] for part in parts])[order] for name in parts[0]}

        params = pytree.tree_map(
            lambda *parts: torch.cat(parts)[torch.as_tensor(order)], *(part.params for part in self.chunks)
        )
        return Ensemble(
            members=members, loss=rows("loss"), finite=rows("finite"), at=self.settings.at,
            evaluations=columns("evaluations"), probed=self.settings.probed, probes=columns("probes"),
            measured=columns("measured"), params=params,
            looped=self.looped, chunk=self.largest, seconds=seconds,
        )  # fmt: skip

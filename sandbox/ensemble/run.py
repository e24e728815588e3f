"""Runs seeds × configurations: group by structure, chunk to the memory budget, step all of a chunk together."""

from __future__ import annotations

import dataclasses
import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap
from torch.utils import _pytree as pytree

from sandbox import hessian, kernel, lookup, memory, tasks
from sandbox.ensemble import grid
from sandbox.ensemble.members import Config, Group, groups, table
from sandbox.optimizer import Optimizer
from sandbox.probes.occupancy import mask_of
from sandbox.probes.watch import find, need
from sandbox.recipe import Recipe
from sandbox.study import run as single
from sandbox.tasks import Task

if TYPE_CHECKING:
    import polars as pl

Progress = Callable[[int, int], None]  # (member steps done, in all)


@dataclasses.dataclass(frozen=True)
class Ensemble:
    """What came out; arrays over members, in the order of `members` (recipe, rate, seed; the last moves fastest).

    members: a row a member, a DataFrame: variant, the numbers in which recipes differ, lr (NaN for a function of t), seed.
    loss: (members, steps), on each step's own batch, before the step.  finite: (members, steps): were loss and gradients?
    at: the steps after which `evaluations` were made, 0 first.  evaluations: name -> (members, len(at)): train_loss,
    validation_loss, validation_metric, floor_occupancy (NaN where there is no floor).  probed: the sampled steps; probes:
    name -> (members, len(probed)).  params: the final parameters, each with a first axis of members.
    looped: the variants that could not be batched, with the reason.  chunk: the most members that ran together.
    """

    members: pl.DataFrame
    loss: np.ndarray
    finite: np.ndarray
    at: list[int]
    evaluations: dict[str, np.ndarray]
    probed: list[int]
    probes: dict[str, np.ndarray]
    params: Any
    looped: dict[str, str]
    chunk: int
    seconds: float

    @property
    def diverged(self) -> np.ndarray:
        """The first step at which loss or gradient was not finite, 0 where none."""
        bad = ~self.finite
        return np.where(bad.any(axis=1), bad.argmax(axis=1) + 1, 0)

    def frame(self) -> pl.DataFrame:
        """The members with "loss" (of the last batch), the last evaluations and "diverged"."""
        import polars as pl

        last = {name: values[:, -1] for name, values in self.evaluations.items() if values.size}
        found = self.loss[:, -1] if self.loss.size else np.full(len(self.members), np.nan)
        columns = {"loss": found, **last, "diverged": self.diverged}
        return self.members.with_columns(*(pl.Series(name, values) for name, values in columns.items()))


def run(
    recipes: str | Recipe | Sequence[str | Recipe],
    task: str | Task | Callable[[Any, Any], Tensor],
    *,
    lr: float | Sequence[float] | None = None,
    seeds: int | Sequence[int] = 1,
    steps: int | None = None,
    warmup: int = 0,
    schedule: str = "constant",
    evaluations: int = 0,
    probes: Iterable[Any] = (),
    every: int = 1,
    params: Any = None,
    batches: Callable[[int], Iterable[Any]] | None = None,
    compiled: bool = False,
    memory: int = 1 << 30,
    progress: Progress | None = None,
) -> Ensemble:
    """Trains every recipe at every rate with every seed, together.

    recipes: any mix of structures.  task: a task, its name, or any `loss(params, batch)`; then `params`, a tree of tensors with
        which all members start, and `batches`, seed -> iterable of batches (default: the batch None).
    lr: rates for all recipes, default each recipe's own.  seeds: a number of them, or the seeds; each has its own start and
        order of batches, the same for every recipe and rate, as a single run has.
    warmup, schedule, evaluations: as for `sandbox.compare`.  probes, every: as for `sandbox.probes.Watch`, for all tensors
        together, without `truth`.
    compiled: compile the step of each group: pays from some hundred thousand member steps on.
    memory: bytes that the members which run together may take, measured on a few of them.
    Threads are torch's own; for small models one is as fast as many, and never waits for a busy core.
    A member that diverges goes on in NaN and disturbs no other.  A recipe that vmap refuses runs member by member, with a
    warning that says why.  Raises ValueError for what cannot be, and where `memory` is too small for one member.
    """
    began = time.perf_counter()
    task = _task(task, params, batches)
    seeds = list(range(seeds)) if isinstance(seeds, int) else [int(s) for s in seeds]
    configs = _configs(recipes, lr)
    steps = task.steps if steps is None else steps
    for name, value, least in (
        ("steps", steps, 1),
        ("warmup", warmup, 0),
        ("evaluations", evaluations, 0),
        ("every", every, 1),
    ):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
    if not seeds:
        raise ValueError("seeds must name at least one seed")
    if warmup > steps:
        raise ValueError(f"warmup must lie in [0, {steps}], the number of steps, got {warmup}")
    plan = _Plan(task, seeds, steps, _factors(warmup, schedule, steps), evaluations, find(probes), every, compiled, memory)
    done = 0

    def advance(members: int) -> None:
        nonlocal done
        done += members
        if progress:
            progress(done, len(configs) * len(seeds) * plan.steps)

    pieces: list[tuple[list[int], _Piece]] = []
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
            members = [place * len(seeds) + seeds.index(seed) for seed in some for place in part.places]
            pieces.append((members, plan.together(part, some, advance, batched=reason is None)))
    return _assembled(plan, table(configs, seeds), pieces, looped, largest, time.perf_counter() - began)


def refusal(recipe: Recipe, task: Task) -> str | None:
    """Why the recipe cannot be batched on the task; None where it can."""
    plan = _Plan(task, [0], 1, [1.0], 0, {}, 1, False, 1 << 40)
    return plan.chunks(groups([Config(recipe, 0.0)])[0])[1]


def _configs(recipes: Any, lr: Any) -> list[Config]:
    found = [lookup.recipe(r) for r in ([recipes] if isinstance(recipes, str | Recipe) else recipes)]
    if not found:
        raise ValueError("an ensemble needs at least one recipe")
    if lr is None:
        return [Config(recipe, recipe.lr) for recipe in found]
    rates = [lr] if isinstance(lr, float | int) or callable(lr) else list(lr)
    for rate in rates:
        if not callable(rate) and not 0 <= float(rate) < math.inf:
            raise ValueError(f"lr must lie in [0, inf), got {rate}")
    return [Config(recipe, rate if callable(rate) else float(rate)) for recipe in found for rate in rates]


class _Loss(Task):
    """A bare loss as a task: one start, batches by seed, nothing held out."""

    name, about, convex, metric, higher_is_better, steps = "loss", "", False, "loss", False, 100

    def __init__(self, loss: Any, params: Any, batches: Any) -> None:
        self.loss, self.params, self.stream = loss, params, batches  # type: ignore[method-assign]

    def init(self, seed: int) -> Any:
        return self.params

    def batches(self, seed: int) -> Iterator[Any]:
        while True:
            yield from ([None] if self.stream is None else self.stream(seed))


def _task(task: Any, params: Any, batches: Any) -> Task:
    if isinstance(task, str | Task):
        if params is not None or batches is not None:
            raise ValueError("params and batches belong to a bare loss; a task has its own")
        return tasks.get(task)
    if not callable(task):
        raise TypeError(f"task must be a Task, a task's name or a function loss(params, batch), got {task!r}")
    if params is None:
        raise ValueError("a bare loss needs params: the tree of tensors with which every member starts")
    return _Loss(task, params, batches)


def _factors(warmup: int, schedule: str, steps: int) -> list[float]:
    """η_t over η, from the same schedulers that a single run has."""
    if schedule not in single.SCHEDULES:
        from sandbox import suggest

        raise ValueError(suggest.unknown("schedule", schedule, single.SCHEDULES))
    if not warmup and schedule == "constant":
        return [1.0] * steps
    optimizer = Optimizer([torch.zeros(1)], "sgd", lr=1.0)
    scheduler = single.scheduler(optimizer, steps, warmup, schedule)
    found = []
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*lr_scheduler.step.*")  # nobody steps this optimizer
        for _ in range(steps):
            found.append(float(optimizer.param_groups[0]["lr"]))
            if scheduler is not None:
                scheduler.step()
    return found


@dataclasses.dataclass
class _Piece:
    """What a chunk gave: arrays (seeds · configurations, …)."""

    loss: np.ndarray
    finite: np.ndarray
    evaluations: dict[str, np.ndarray]
    probes: dict[str, np.ndarray]
    params: Any


@dataclasses.dataclass(frozen=True)
class _Plan:
    task: Task
    seeds: list[int]
    steps: int
    factors: list[float]
    evaluations: int
    probes: dict[str, Any]
    every: int
    compiled: bool
    memory: int

    @property
    def at(self) -> list[int]:
        """The steps after which members are evaluated."""
        return [0, *single.evenly(self.steps, self.evaluations)] if self.evaluations else []

    @property
    def probed(self) -> list[int]:
        """The steps that probes see."""
        return [t for t in range(1, self.steps + 1) if t % self.every == 0] if self.probes else []

    # -- how many together -------------------------------------------------------------------------------------------

    def chunks(self, group: Group) -> tuple[list[tuple[Group, list[int]]], str | None]:
        """(configurations, seeds) to run together, and why they cannot be batched, if so."""
        each = [(group.part(i, i + 1), [seed]) for i in range(len(group.configs)) for seed in self.seeds]
        memory.whole("memory (in bytes)", self.memory)
        try:
            one, more = self._bytes(group, 1), self._bytes(group, 2)
        except grid.Unbatchable as error:
            return each, str(error)
        if one > self.memory:
            raise ValueError(f"memory must be at least {one:,} bytes, what one member takes here, got {self.memory:,}")
        together = 1 + int((self.memory - one) // max(more - one, 1))
        seeds, configs = len(self.seeds), len(group.configs)
        # all seeds of some configurations, or some seeds of one; chunks of equal size, so that a graph serves them all
        if together >= seeds:
            size = _even(configs, together // seeds)
            parts = [group.part(i, i + size) for i in range(0, configs, size)]
            return [(part, self.seeds) for part in parts], None
        size = _even(seeds, together)
        some = [self.seeds[i : i + size] for i in range(0, seeds, size)]
        return [(group.part(i, i + 1), s) for i in range(configs) for s in some], None

    def _bytes(self, group: Group, members: int) -> int:
        """What `members` copies of the first configuration take at once: in a step and in an evaluation."""
        some = dataclasses.replace(
            group, configs=group.configs[:1] * members, varied=[v[:1].repeat(members) for v in group.varied]
        )
        grids = _Grid(self, some, self.seeds[:1])
        given = sum(x.numel() * x.element_size() for x in pytree.tree_leaves((grids.state, grids.params)))
        batch = grids.batch()
        step = memory.peak(lambda: grids.look_ahead(batch))
        evaluation = memory.peak(lambda: grids.evaluate(0)) if self.evaluations else 0
        return given + max(step, evaluation)

    # -- running -----------------------------------------------------------------------------------------------------

    def together(self, group: Group, seeds: list[int], advance: Callable[[int], None], *, batched: bool) -> _Piece:
        """All members of a chunk."""
        members = len(group.configs) * len(seeds)
        chunk = _Grid(self, group, seeds, batched=batched)
        losses, finite = np.empty((self.steps, members)), np.empty((self.steps, members), dtype=bool)
        evaluations, probes = [], []
        stops, sampled = set(self.at), set(self.probed)
        before = need(self.probes, "D_old")
        if 0 in stops:
            evaluations.append(chunk.evaluate(0))
        for t in range(1, self.steps + 1):
            look = t in sampled or (before and t + 1 in sampled)
            value, ok, measured = chunk.step(t, look)
            losses[t - 1], finite[t - 1] = value.reshape(-1).cpu().numpy(), ok.reshape(-1).cpu().numpy()
            if t in sampled:
                probes.append({name: v.reshape(-1).cpu().numpy() for name, v in measured.items()})
            if t in stops:
                evaluations.append(chunk.evaluate(t))
            advance(members)
        # a member whose rate its decay does not allow never runs
        top = max(self.factors)
        allowed = [single.allowed(c.recipe, top * max(c.rate(1), c.rate(self.steps))) for c in group.configs]
        lost = np.tile(~np.array(allowed), len(seeds))
        losses[:, lost], finite[:, lost] = np.inf, False
        params = pytree.tree_map(lambda p: p.detach().flatten(0, 1), chunk.params)
        return _Piece(losses.T, finite.T, _columns(evaluations), _columns(probes), params)


def _even(count: int, most: int) -> int:
    """The size of the fewest parts of at most `most`, as equal as can be."""
    parts = -(-count // min(count, most))
    return -(-count // parts)


def _columns(rows: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    names = {name: None for row in rows for name in row}
    lacking = np.full_like(next(iter(rows[0].values())), np.nan) if rows and rows[0] else np.zeros(0)
    return {name: np.stack([row.get(name, lacking) for row in rows], axis=1) for name in names}


class _Grid:
    """Seeds × configurations in lockstep: parameters and state with two first axes."""

    def __init__(self, plan: _Plan, group: Group, seeds: list[int], *, batched: bool = True) -> None:
        self.plan, self.task, self.batched = plan, plan.task, batched
        configs = len(group.configs)
        starts = grid.stack([plan.task.init(seed) for seed in seeds])
        self.device = pytree.tree_leaves(starts)[0].device
        self.group = group = dataclasses.replace(group, varied=[v.to(self.device) for v in group.varied])
        self.params = pytree.tree_map(lambda p: p[:, None].expand(-1, configs, *p.shape[1:]).clone(), starts)
        self.recipe = group.recipe([float(v[0]) for v in group.varied])
        one = pytree.tree_map(lambda p: p[0, 0], self.params)
        state = self.recipe.init(one)
        self.state = pytree.tree_map(lambda s: s.expand(len(seeds), configs, *s.shape).clone(), state)
        if group.varied and any(block.initial(name) for _, block in self.recipe.blocks() for name in block.state):
            # numbers that differ may be in the first state
            rows = zip(*(v.tolist() for v in group.varied), strict=True)
            states = grid.stack([group.recipe(numbers).init(one) for numbers in rows])
            self.state = pytree.tree_map(lambda s: s.expand(len(seeds), *s.shape).clone(), states)
        self.streams = [iter(plan.task.batches(seed)) for seed in seeds]
        self.generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        self.old: Any = ()
        moving = any(callable(c.lr) for c in group.configs)
        rates = None if moving else torch.tensor([c.lr for c in group.configs], dtype=torch.float64)
        self.plain = None if rates is None else rates.to(self.device)
        self._steps: dict[bool, Callable[..., Any]] = {}

    def batch(self) -> tuple[Any, Any]:
        """The next batch of each seed, and the probes z of a second-order recipe."""
        rows = [next(stream) for stream in self.streams]
        batch = grid.stack(rows) if pytree.tree_leaves(rows[0]) != [None] else None
        z = None
        if self.recipe.second_order:
            one = pytree.tree_map(lambda p: p[0, 0], self.params)
            z = grid.stack([pytree.tree_map(lambda p, g=g: hessian.rademacher(p, g), one) for g in self.generators])
        return batch, z

    def _rates(self, t: int) -> Tensor:
        if self.plain is None:
            rates = torch.tensor([c.rate(t) for c in self.group.configs], dtype=torch.float64, device=self.device)
            return self.plan.factors[t - 1] * rates
        return self.plan.factors[t - 1] * self.plain

    def _function(self, look: bool) -> Callable[..., Any]:
        """The step of the whole grid, with or without probes."""
        if look not in self._steps:
            probes = self.plan.probes if look else {}
            one = grid.member_step(self.group, self.task.loss, probes, need(probes, "D_old"))
            self._steps[look] = grid.over_grid(one) if self.batched else grid.alone(one)
        return self._steps[look]

    def look_ahead(self, batch: tuple[Any, Any]) -> Any:
        """A first step that changes nothing here, with probes if there are any."""
        rows, z = batch
        function = self._function(bool(self.plan.probes))
        return grid.checked(function, self.group.varied, self._rates(1), self.state, self.params, rows, z, ())

    def step(self, t: int, look: bool) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """One step of all members: loss and finiteness (seeds, configurations), and what probes measured."""
        rows, z = self.batch()
        function = self._function(look)
        inputs = (self.group.varied, self._rates(t), self.state, self.params, rows, z, self.old if look else ())
        if self.plan.compiled and self.batched and not look:
            function = self._compiled(function, inputs)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*batching rule.*")
            self.state, self.params, loss, finite, measured, self.old = function(*inputs)
        return loss, finite, measured

    def _compiled(self, function: Callable[..., Any], inputs: Any) -> Callable[..., Any]:
        from sandbox.ensemble.compiled import compiled

        return compiled(self.group, self.task, function, inputs)

    @torch.no_grad()
    def evaluate(self, t: int) -> dict[str, np.ndarray]:
        """Losses and metric on whole splits, and floor occupancy, of all members."""
        task = self.task
        found: dict[str, np.ndarray] = {}
        flat = pytree.tree_map(lambda p: p.detach().flatten(0, 1), self.params)
        for split, names in (("train", ("train_loss",)), ("validation", ("validation_loss", "validation_metric"))):
            full = task.full(split)

            def both(params: Any, full: Any = full, score: bool = len(names) > 1) -> tuple[Tensor, ...]:
                return (task.loss(params, full), task.score(params, full)) if score else (task.loss(params, full),)

            values = self._mapped(both, flat)
            found |= {name: v.to(torch.float64).cpu().numpy() for name, v in zip(names, values, strict=True)}
        return found | {"floor_occupancy": self._floors(t)}

    def _mapped(self, function: Callable[[Any], tuple[Tensor, ...]], flat: Any) -> tuple[Tensor, ...]:
        members = pytree.tree_leaves(flat)[0].shape[0]
        if self.batched:
            size = max(1, min(members, EVALUATED))
            return vmap(function, chunk_size=size)(flat)
        rows = [function(pytree.tree_map(lambda p, i=i: p[i], flat)) for i in range(members)]
        return tuple(torch.stack(column) for column in zip(*rows, strict=True))

    def _floors(self, t: int) -> np.ndarray:
        """Share of the coordinates on the floor, NaN where there is none."""
        seeds, configs = pytree.tree_leaves(self.params)[0].shape[:2]

        def share(varied: Any, state: Any, params: Any) -> Tensor:
            recipe = kernel.at(self.group.recipe(varied), t)
            leaves, spec = pytree.tree_flatten(params)
            masks = [mask_of(recipe, own, p) for own, p in zip(spec.flatten_up_to(state), leaves, strict=True)]
            if any(mask is None for mask in masks):
                return torch.full((), math.nan, dtype=torch.float64)
            return torch.cat([m.reshape(-1) for m in masks if m is not None]).to(torch.float64).mean()

        if not t:
            return np.full(seeds * configs, np.nan)
        inputs = self.group.varied, self.state, self.params
        if self.batched:
            found = vmap(vmap(share, in_dims=(0, 0, 0)), in_dims=(None, 0, 0))(*inputs)
        else:
            found = share([float(v[0]) for v in inputs[0]], *pytree.tree_map(lambda x: x[0, 0], inputs[1:]))[None]
        return found.reshape(-1).cpu().numpy()


EVALUATED = 32  # members evaluated together: a whole split takes more room than a batch


def _assembled(
    plan: _Plan,
    rows: list[dict[str, Any]],
    pieces: list[tuple[list[int], _Piece]],
    looped: dict[str, str],
    largest: int,
    seconds: float,
) -> Ensemble:
    import polars as pl

    order = np.argsort(np.concatenate([members for members, _ in pieces]), kind="stable")

    def joined(arrays: list[np.ndarray]) -> np.ndarray:
        return np.concatenate(arrays)[order]

    def together(kind: str) -> dict[str, np.ndarray]:
        names = {name: None for _, piece in pieces for name in getattr(piece, kind)}
        length = len(plan.at) if kind == "evaluations" else len(plan.probed)
        return {
            name: joined([getattr(p, kind).get(name, np.full((len(m), length), np.nan)) for m, p in pieces]) for name in names
        }

    where = torch.as_tensor(order)
    params = pytree.tree_map(lambda *parts: torch.cat(parts)[where], *(piece.params for _, piece in pieces))
    return Ensemble(
        members=pl.DataFrame(rows),
        loss=joined([piece.loss for _, piece in pieces]),
        finite=joined([piece.finite for _, piece in pieces]),
        at=plan.at,
        evaluations=together("evaluations"),
        probed=plan.probed,
        probes=together("probes"),
        params=params,
        looped=looped,
        chunk=largest,
        seconds=seconds,
    )

"""Seeds × configurations in lockstep: one batch per seed, one step of all members."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from sandbox.curvature import hessian
from sandbox.ensemble import grid, recorded
from sandbox.ensemble.members import Group
from sandbox.ensemble.settings import Settings
from sandbox.probes.occupancy import mask_of
from sandbox.probes.watch import need
from sandbox.recipe import Recipe, parts
from sandbox.tasks import Task, streams
from sandbox.tasks.data import concatenate
from sandbox.utils import interrupts
from sandbox.utils.private_torch import pytree

EVALUATED = 32  # members evaluated together: a whole split takes more room than a batch
TOLERANCE = 1e-2  # of a member's first gradient under vmap: far above rounding, far below what a wrong rule gives


class Lockstep:
    """Parameters and state of a chunk's members, with two first axes: seeds and configurations.

    Under vmap, or not `batched` and a single member.  Methods raise `grid.Unbatchable` where vmap cannot do what they need.
    """

    def __init__(self, settings: Settings, group: Group, seeds: list[int], *, batched: bool = True) -> None:
        self.settings, self.task, self.batched = settings, settings.task, batched
        self.held = self.task.generators()
        # a method of this would make a cycle: steps hold it
        self._loss: Any = functools.partial(self.task.apply, self.task.loss)
        if not batched:
            self._loss = _Rewound(self.task, seeds[0])
        configs = len(group.configs)
        starts = grid.stack([self._start(seed) for seed in seeds])
        self.device = pytree.tree_leaves(starts)[0].device
        self.group = group = dataclasses.replace(
            group, varied=[v.to(self.device) for v in group.varied], roles=_roles(self.task, group.first)
        )
        self.params = pytree.tree_map(lambda p: p[:, None].expand(-1, configs, *p.shape[1:]).clone(), starts)
        self.recipe = group.first
        one = pytree.tree_map(lambda p: p[0, 0], self.params)
        state, self.each = self.recipe.init(one, roles=group.roles), self.recipe.each(one, group.roles)
        self.state = pytree.tree_map(lambda s: s.expand(len(seeds), configs, *s.shape).clone(), state)
        every = [pair for own in self.each for pair in own.blocks()]
        if group.varied and any(block.initial(name) for _, block in every for name in block.state):
            # numbers that differ may be in the first state
            rows = zip(*(v.tolist() for v in group.varied), strict=True)
            states = grid.stack([group.recipe(numbers).init(one, roles=group.roles) for numbers in rows])
            self.state = pytree.tree_map(lambda s: s.expand(len(seeds), *s.shape).clone(), states)
        self.streams = [iter(self.task.batches(seed)) for seed in seeds]
        self.seeds, self.draws = seeds, 0
        self.old: Any = ()
        moving = any(callable(c.lr) for c in group.configs)
        rates = None if moving else torch.tensor([c.lr for c in group.configs], dtype=torch.float64)
        self.plain = None if rates is None else rates.to(self.device)
        self._steps: dict[bool, Callable[..., Any]] = {}
        self._recorded: Callable[..., Any] | None = None

    def _start(self, seed: int) -> Any:
        with streams.Generators(seed, "init", held=self.held):
            return self.task.init(seed)

    def batch(self) -> tuple[Any, Any]:
        """Returns the next batch of each seed, stacked, and what is drawn for the recipe's inputs."""
        rows = [next(stream) for stream in self.streams]
        batch = None
        if any(leaf is not None for leaf in pytree.tree_leaves(rows)):
            try:
                batch = grid.stack(rows)
            except (RuntimeError, TypeError, ValueError) as error:
                if len(rows) > 1:
                    raise grid.Unbatchable(f"its batches differ in shape from seed to seed: {error}") from error
                raise ValueError(f"batches must be trees of tensors: {error}") from error
        z: dict[str, Any] = {}
        if "hessian" in self.recipe.analysis.inputs:
            one = pytree.tree_map(lambda p: p[0, 0], self.params)
            draws = [hessian.generator(seed, self.draws) for seed in self.seeds]
            z["hessian"] = grid.stack([pytree.tree_map(lambda p, g=g: hessian.rademacher(p, g), one) for g in draws])
        if self.recipe.analysis.draws_labels:
            z["sampled"] = torch.tensor([hessian.key(seed, self.draws) for seed in self.seeds])
        self.draws += bool(z)
        return batch, z or None

    def _rates(self, t: int) -> Tensor:
        if self.plain is None:
            rates = torch.tensor([c.rate(t) for c in self.group.configs], dtype=torch.float64, device=self.device)
            return self.settings.factors[t - 1] * rates
        return self.settings.factors[t - 1] * self.plain

    def _function(self, probed: bool) -> Callable[..., Any]:
        """Returns the step of the whole grid, with or without probes."""
        if probed not in self._steps:
            probes = self.settings.probes if probed else {}
            one = grid.member_step(self.group, self._loss, probes, need(probes, "D_old"))
            self._steps[probed] = grid.over_grid(one) if self.batched else grid.alone(one)
        return self._steps[probed]

    @interrupts.postponed()
    def look_ahead(self, batch: tuple[Any, Any]) -> None:
        """Makes a first step that changes nothing here, with probes if there are any."""
        rows, z = batch
        function = self._function(bool(self.settings.probes))
        grid.run_batched(function, self.group.varied, self._rates(1), self.state, self.params, rows, z, ())

    @interrupts.postponed()
    def step(self, t: int, probed: bool) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Makes step t of all members; returns loss and finiteness (seeds, configurations), and what probes measured."""
        rows, z = self.batch()
        function = self._function(probed)
        inputs = (self.group.varied, self._rates(t), self.state, self.params, rows, z, self.old if probed else ())
        if not self.batched:
            with self._loss:
                out = function(*inputs)
        else:
            if t == 1:
                grid.run_batched(self._check, self.group.varied, self.state, self.params, rows, z)
            out = grid.run_batched(function if probed else self._faster(function, inputs), *inputs)
        self.state, self.params, loss, finite, measured, self.old = out
        return loss, finite, measured

    def _check(self, *inputs: Any) -> None:
        """Raises `Unbatchable` where losses draw, or where vmap gives two of the members a gradient that is not their own.

        torch's rules for nested vmaps can be wrong without an error: that of PReLU swaps seeds and configurations.
        """
        seeds, configs = (min(2, n) for n in pytree.tree_leaves(self.params)[0].shape[:2])
        cut = {grid.CONFIGURATION: slice(configs), grid.SEED: slice(seeds), grid.MEMBER: (slice(seeds), slice(configs))}
        inputs = tuple(grid.index(tree, cut[axes]) for tree, axes in zip(inputs, grid.LOOK, strict=True))
        look, together = grid.first_look(self.group, self._loss), list[Any]()
        if streams.draws(lambda: together.append(grid.over_grid(look, grid.LOOK)(*inputs)), self.held):
            raise grid.Unbatchable("its loss draws random numbers, which members would share")
        for seed, config in {(seeds - 1, 0), (0, configs - 1)}:
            expected = [b for b in pytree.tree_leaves(look(*grid.member(inputs, grid.LOOK, seed, config))) if b.numel()]
            values = [a[seed, config] for a in pytree.tree_leaves(together) if a.numel()]
            sizes = [float(b.to(torch.float64).nan_to_num(posinf=0.0, neginf=0.0).abs().amax()) for b in expected]
            for a, b, size in zip(values, expected, sizes, strict=True):
                if b.is_floating_point():
                    bound = TOLERANCE * size + 100 * torch.finfo(b.dtype).eps * max(sizes)
                    if not torch.allclose(a, b, rtol=0, atol=bound, equal_nan=True):
                        raise grid.Unbatchable("under vmap its loss or gradient has not the values of a single run")

    def _faster(self, function: Callable[..., Any], inputs: Any) -> Callable[..., Any]:
        """Returns the same step compiled, or recorded where Python would take most of its time."""
        if self.settings.compiled:
            from sandbox.ensemble.compiled import compiled

            return compiled(self.group, self.task, function, inputs)
        if self._recorded is None:
            # a function of t is a user's code, and called at every step
            fixed = not any(own.analysis.has_schedules for own in self.each)
            small = recorded.fits(self.params, self.settings.memory)
            self._recorded = recorded.grid_step(self.group, self._loss) if small and fixed else function
        return self._recorded

    @interrupts.postponed()
    @torch.no_grad()
    def evaluate(self, t: int) -> dict[str, np.ndarray]:
        """Returns losses and metrics on whole splits, or on the training sample, and floor occupancy, of all members."""
        task = self.task
        values: dict[str, np.ndarray] = {}
        flat = pytree.tree_map(lambda p: p.detach().flatten(0, 1), self._evaluated_weights())
        metrics = ["validation_metric", *(f"validation_{name}" for name in list(task.scores())[1:])]
        sample = None if self.settings.full_at is None else task.training_sample
        wanted: list[tuple[list[str], Any, Any]] = [(["validation_loss", *metrics], task.full("validation"), task.measure)]
        if sample is not None:
            wanted.append((["sample_loss"], concatenate(sample), self._loss_alone))
        if sample is None or not self.settings.sampled(t):
            wanted.append((["train_loss"], task.full("train"), self._loss_alone))
        for names, batch, function in wanted:

            def measure(params: Any, batch: Any = batch, function: Any = function) -> tuple[Tensor, ...]:
                return tuple(map(torch.as_tensor, task.apply(function, params, batch, training=False)))

            columns = grid.run_batched(self._of_members, measure, flat) if self.batched else self._of_members(measure, flat)
            values |= {name: v.to(torch.float64).cpu().numpy() for name, v in zip(names, columns, strict=True)}
        return {"train_loss": values.get("sample_loss"), **values, "floor_occupancy": self._floors(t)}  # type: ignore[dict-item]

    def _evaluated_weights(self) -> Any:
        """Returns the weights to evaluate."""
        if not any(own.analysis.reads_out for own in self.each):
            return self.params

        def read(varied: Any, state: Any, params: Any) -> Any:
            return self.group.recipe(varied).evaluated(state, params, roles=self.group.roles)

        inputs, axes = (self.group.varied, self.state, self.params), (grid.CONFIGURATION, grid.MEMBER, grid.MEMBER)
        if self.batched:
            return grid.over_grid(read, axes)(*inputs)
        return pytree.tree_map(lambda p: p[None, None], read(*grid.member(inputs, axes, 0, 0)))

    def _loss_alone(self, model: Any, batch: Any) -> tuple[Tensor]:
        return (self.task.loss(model, batch),)

    def _of_members(self, function: Callable[[Any], tuple[Tensor, ...]], flat: Any) -> tuple[Tensor, ...]:
        members = pytree.tree_leaves(flat)[0].shape[0]
        if self.batched:
            return vmap(function, chunk_size=min(members, EVALUATED))(flat)
        with streams.Generators(0, "evaluation", held=self.held):
            return tuple(torch.as_tensor(v)[None] for v in function(pytree.tree_map(lambda p: p[0], flat)))

    def _floors(self, t: int) -> np.ndarray:
        """Returns the share of the coordinates on the floor, NaN where there is none."""
        seeds, configs = pytree.tree_leaves(self.params)[0].shape[:2]

        def share(varied: Any, state: Any, params: Any) -> Tensor:
            recipe = parts.at_step(self.group.recipe(varied), t)
            leaves, spec = pytree.tree_flatten(params)
            masks = map(mask_of, recipe.each(params, self.group.roles), spec.flatten_up_to(state), leaves)
            floors = [m.reshape(-1) for m in masks if m is not None]
            return torch.cat(floors).to(torch.float64).mean() if floors else torch.full((), math.nan, dtype=torch.float64)

        if not t:
            return np.full(seeds * configs, np.nan)
        inputs, axes = (self.group.varied, self.state, self.params), (grid.CONFIGURATION, grid.MEMBER, grid.MEMBER)
        shares = grid.over_grid(share, axes)(*inputs) if self.batched else share(*grid.member(inputs, axes, 0, 0))
        return shares.reshape(-1).cpu().numpy()


def _roles(task: Task, recipe: Recipe) -> Any:
    """Returns the roles of the task's parameters, for a recipe that has some."""
    return {name: found.role for name, found in task.parameter_roles().items()} if recipe.roles else None


class _Rewound(streams.Generators):
    """The loss of a single run, with its noise: each evaluation within one step draws the same random numbers."""

    def __init__(self, task: Task, seed: int) -> None:
        super().__init__(seed, "noise", held=task.generators())
        self.task = task

    def __enter__(self) -> streams.Generators:
        super().__enter__()
        self.start = self.mark()
        return self

    def __call__(self, params: Any, batch: Any) -> Tensor:
        self.back_to(self.start)
        return self.task.apply(self.task.loss, params, batch)

"""Seeds × configurations in lockstep: one batch a seed, one step of all members."""

from __future__ import annotations

import dataclasses
import functools
import math
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from sandbox.curvature import hessian
from sandbox.ensemble import grid, recorded
from sandbox.ensemble.members import Group
from sandbox.probes.occupancy import mask_of
from sandbox.probes.watch import need
from sandbox.recipe import parts
from sandbox.utils import interrupts
from sandbox.utils.private_torch import pytree

if TYPE_CHECKING:
    from sandbox.ensemble.plan import Plan

EVALUATED = 32  # members evaluated together: a whole split takes more room than a batch


class Lockstep:
    """Parameters and state of a chunk's members, with two first axes: seeds and configurations."""

    def __init__(self, plan: Plan, group: Group, seeds: list[int], *, batched: bool = True) -> None:
        self.plan, self.task, self.batched = plan, plan.task, batched
        self._loss = functools.partial(plan.task.apply, plan.task.loss)  # a method of this would make a cycle: steps hold it
        configs = len(group.configs)
        starts = grid.stack([plan.task.init(seed) for seed in seeds])
        self.device = pytree.tree_leaves(starts)[0].device
        self.group = group = dataclasses.replace(group, varied=[v.to(self.device) for v in group.varied])
        self.params = pytree.tree_map(lambda p: p[:, None].expand(-1, configs, *p.shape[1:]).clone(), starts)
        self.recipe = group.recipe([float(v[0]) for v in group.varied])
        one = pytree.tree_map(lambda p: p[0, 0], self.params)
        state = self.recipe.init(one)
        self.state = pytree.tree_map(lambda s: s.expand(len(seeds), configs, *s.shape).clone(), state)
        every = [pair for p in pytree.tree_leaves(one) for pair in self.recipe.of(p).blocks()]
        if group.varied and any(block.initial(name) for _, block in every for name in block.state):
            # numbers that differ may be in the first state
            rows = zip(*(v.tolist() for v in group.varied), strict=True)
            states = grid.stack([group.recipe(numbers).init(one) for numbers in rows])
            self.state = pytree.tree_map(lambda s: s.expand(len(seeds), *s.shape).clone(), states)
        self.streams = [iter(plan.task.batches(seed)) for seed in seeds]
        self.seeds, self.draws = seeds, 0
        self.old: Any = ()
        moving = any(callable(c.lr) for c in group.configs)
        rates = None if moving else torch.tensor([c.lr for c in group.configs], dtype=torch.float64)
        self.plain = None if rates is None else rates.to(self.device)
        self._steps: dict[bool, Callable[..., Any]] = {}
        self._recorded: Callable[..., Any] | None = None

    def batch(self) -> tuple[Any, Any]:
        """The next batch of each seed, and what is drawn for the recipe's inputs."""
        rows = [next(stream) for stream in self.streams]
        batch = None
        if any(leaf is not None for leaf in pytree.tree_leaves(rows)):
            try:
                batch = grid.stack(rows)
            except (RuntimeError, TypeError, ValueError) as error:
                raise ValueError(
                    f"batches must be trees of tensors, at each step of equal shapes for all seeds: {error}"
                ) from error
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
            return self.plan.factors[t - 1] * rates
        return self.plan.factors[t - 1] * self.plain

    def _function(self, look: bool) -> Callable[..., Any]:
        """The step of the whole grid, with or without probes."""
        if look not in self._steps:
            probes = self.plan.probes if look else {}
            one = grid.member_step(self.group, self._loss, probes, need(probes, "D_old"))
            self._steps[look] = grid.over_grid(one) if self.batched else grid.alone(one)
        return self._steps[look]

    @interrupts.postponed()
    def look_ahead(self, batch: tuple[Any, Any]) -> Any:
        """A first step that changes nothing here, with probes if there are any."""
        rows, z = batch
        function = self._function(bool(self.plan.probes))
        return grid.checked(function, self.group.varied, self._rates(1), self.state, self.params, rows, z, ())

    @interrupts.postponed()
    def step(self, t: int, look: bool) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """One step of all members: loss and finiteness (seeds, configurations), and what probes measured."""
        rows, z = self.batch()
        function = self._function(look)
        inputs = (self.group.varied, self._rates(t), self.state, self.params, rows, z, self.old if look else ())
        if self.batched and not look:
            function = self._faster(function, inputs)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*batching rule.*")
            self.state, self.params, loss, finite, measured, self.old = function(*inputs)
        return loss, finite, measured

    def _faster(self, function: Callable[..., Any], inputs: Any) -> Callable[..., Any]:
        """The same step compiled, or recorded where Python would take most of its time."""
        if self.plan.compiled:
            from sandbox.ensemble.compiled import compiled

            return compiled(self.group, self.task, function, inputs)
        if self._recorded is None:
            # a function of t is a user's code, and called at every step
            fixed = not any(self.recipe.of(p[0, 0]).analysis.has_schedules for p in pytree.tree_leaves(self.params))
            small = recorded.fits(self.params, self.plan.memory)
            self._recorded = recorded.step_of(self.group, self._loss) if small and fixed else function
        return self._recorded

    @interrupts.postponed()
    @torch.no_grad()
    def evaluate(self, t: int) -> dict[str, np.ndarray]:
        """Losses and metric on whole splits, and floor occupancy, of all members."""
        task = self.task
        found: dict[str, np.ndarray] = {}
        flat = pytree.tree_map(lambda p: p.detach().flatten(0, 1), self.params)
        for split, names in (("train", ("train_loss",)), ("validation", ("validation_loss", *self._metrics()))):
            full = task.full(split)

            functions = [task.loss, *task.scores().values()][: len(names)]

            def all_of(params: Any, full: Any = full, functions: Any = functions) -> tuple[Tensor, ...]:
                return tuple(torch.as_tensor(task.apply(f, params, full, training=False)) for f in functions)

            values = self._mapped(all_of, flat)
            found |= {name: v.to(torch.float64).cpu().numpy() for name, v in zip(names, values, strict=True)}
        return found | {"floor_occupancy": self._floors(t)}

    def _metrics(self) -> list[str]:
        _, *more = self.task.scores()
        return ["validation_metric", *(f"validation_{name}" for name in more)]

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
            recipe = parts.at_step(self.group.recipe(varied), t)
            leaves, spec = pytree.tree_flatten(params)
            masks = [mask_of(recipe, own, p) for own, p in zip(spec.flatten_up_to(state), leaves, strict=True)]
            floors = [m.reshape(-1) for m in masks if m is not None]
            return torch.cat(floors).to(torch.float64).mean() if floors else torch.full((), math.nan, dtype=torch.float64)

        if not t:
            return np.full(seeds * configs, np.nan)
        inputs = self.group.varied, self.state, self.params
        if self.batched:
            found = vmap(vmap(share, in_dims=(0, 0, 0)), in_dims=(None, 0, 0))(*inputs)
        else:
            found = share([float(v[0]) for v in inputs[0]], *pytree.tree_map(lambda x: x[0, 0], inputs[1:]))[None]
        return found.reshape(-1).cpu().numpy()

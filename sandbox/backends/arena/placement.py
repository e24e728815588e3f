"""Where a cohort's tensors lie for a graph, and its step: what the eager and the compiled backend have in common.

Small tensors live in an arena: with one buffer per state, of which `optimizer.state[p][…]` are views.  A step copies
their gradients in, runs one kernel over the whole arena, and takes the step off the parameters.  A large tensor (131,072
entries or more on a CPU) goes through a kernel of its own kind, where it is, without a copy.  Kernels serve all sizes and are
kept for the process: a recipe's structure needs one for arenas and one for large tensors, whatever models follow.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from sandbox.backends import reference
from sandbox.backends.arena import leaves
from sandbox.backends.arena.leaves import Large, Small, make_views
from sandbox.backends.arena.phases import PhasedKernel, PhasedLeaf, checks, phases
from sandbox.backends.base import Cohort, Step, needs_sums, totals
from sandbox.backends.tracing import graph, layout
from sandbox.blocks import ELEMENT, SCOPE, scope
from sandbox.distributed.ranks import SumRequests
from sandbox.recipe import Recipe, rounding
from sandbox.recipe.pure import state_dtype
from sandbox.utils.private_torch import copy_each, subtract_each


class Kernel(Protocol):
    """One step of one signature.  steps_only: whether it writes the step in θ's place."""

    steps_only: bool

    def bind(self, theta: Tensor) -> Any:
        """Returns what makes a step on a leaf like theta from the graph's inputs (`BoundKernel`, or a `PhasedKernel`)."""
        ...


class KernelBackend:
    """A backend whose steps are kernels on the leaves of a cohort; `kernel` says which."""

    name: str
    flat, rounds = False, True

    def kernel(self, recipe: Recipe, signature: graph.Signature, *, step_only: bool, phased: bool) -> Kernel:
        """Returns the kernel of a signature.  step_only: it may write the step in θ's place.  phased: it must be able to stop
        for sums over several ranks (`PhasedKernel`).  Raises NoGraph."""
        raise NotImplementedError

    def load(self, cohort: Cohort, step: Step, *, check: bool) -> list[Tensor]:
        """Copies the gradients of small tensors into their arenas, whose sums are then one number for all of them."""
        now = step.recipe, cohort.steps + 1, step.lr, cohort.last
        values, names = graph.values_of(*now)
        if cohort.cache is not None and names != cohort.cache.names:
            cohort.cache = cohort.cache.others.get(tuple(names), cohort.cache)
        if cohort.cache is None or names != cohort.cache.names or not cohort.cache.fits(step):
            values, structure = graph.numbers_of(*now, evaluated=True)
            cohort.check(step.grads)
            if cohort.cache is None or cohort.cache.structure != structure or not cohort.cache.describes(step):
                others = cohort.cache.others if cohort.cache is not None else {}
                with torch.device("cpu"):  # not on another default device
                    cohort.cache = Placement(cohort, step, structure, self)
                # states stay where they are, so placements for steps with other things due stay right
                if step.recipe.analysis.own_layout:
                    cohort.cache.others = others
                    others[tuple(names)] = cohort.cache
            cohort.cache.recipe, cohort.cache.names = step.recipe, names
        try:
            return cohort.cache.load(step, values, cohort.steps + 1, check=check)
        except RuntimeError:
            cohort.check(step.grads)
            raise

    def phases(self, cohort: Cohort, step: Step) -> SumRequests[Callable[[], None]]:
        """See `Backend`."""
        return phases(cohort.cache.phased_leaves(step), cohort, step)

    def step(self, cohort: Cohort, step: Step) -> None:
        """Makes one step of the cohort: one call for each arena and each large tensor."""
        cohort.cache.step(cohort, step)


class Placement:
    """Which leaf each tensor of a cohort belongs to, and every buffer and view that a step needs."""

    def __init__(self, cohort: Cohort, step: Step, structure: Any, backend: KernelBackend) -> None:
        self.recipe, self.structure, self.flat, self.kernel = (
            step.recipe,
            structure,
            backend.flat,
            functools.partial(backend.kernel, phased=needs_sums(cohort, step)),
        )
        self.names: list[str] = []  # of the coefficients, and what is due
        self.others: dict[tuple[str, ...], Placement] = {}  # by these names
        self.threads = torch.get_num_threads()  # Inductor writes it into its code
        self.stored = step.state_dtype
        kinds = {(state_dtype(p.dtype), p.device) for p in cohort.params}
        length = structure.num_leaves
        # filled and never replaced: graphs and their calls keep them
        self.numbers = {(dtype, device): torch.zeros(length, dtype=dtype, device=device) for dtype, device in kinds}
        self.keys = {device: torch.zeros(1, dtype=torch.int32, device=device) for _, device in kinds if self.stored}
        self.norms = {key: [torch.zeros(1, dtype=key[0], device=key[1])] * self.recipe.analysis.needs_norm for key in kinds}
        self.large: list[Large] = []
        self.tensorwise: list[int] = []  # matrices of one row or column: a graph would take the 1 for a constant
        small: dict[Any, list[int]] = {}
        for i, (p, g) in enumerate(zip(cohort.params, step.grads, strict=True)):
            if self.recipe.analysis.own_layout and min(scope.matrix(p) if self.recipe.analysis.matrix else (p.numel(),)) < 2:
                self.tensorwise.append(i)
            elif self._is_large(p):
                self._add_large(cohort, i, p, g)
            else:
                small.setdefault((state_dtype(p.dtype), p.device), []).append(i)
        if self.recipe.scope == "global" and len(small) > 1:
            raise ValueError("scope 'global' needs all tensors of a group on one device and in one precision")
        self.small = [self._arena(cohort, indices, *key) for key, indices in small.items()]

    def fits(self, step: Step) -> bool:
        """Whether nothing has changed but rates."""
        return self.recipe is step.recipe and self.describes(step)

    def describes(self, step: Step) -> bool:
        """Whether the placement is still right: a model may have been cast since (an arena does not mind), threads added."""
        return self.threads == torch.get_num_threads() and all(large.fits(step.grads[large.index]) for large in self.large)

    # -- building ----------------------------------------------------------------------------------------------------

    def _is_large(self, p: Tensor) -> bool:
        if self.recipe.analysis.own_layout:
            return True
        if (
            p.numel() < leaves.LARGE.get(p.device.type, leaves.LARGE["cuda"])
            or self.recipe.scope == "global"
            or not p.is_contiguous()
        ):
            return False
        return layout.kind_of(self.recipe, p) == "whole" or (p.shape[0] > 1 and p.numel() > p.shape[0])

    def _signature(
        self, kind: str, theta: torch.dtype, device: torch.device, grad: torch.dtype, width: int = 0
    ) -> graph.Signature:
        numbers = theta, grad, state_dtype(theta)
        return graph.Signature(self.structure, kind, width, self.recipe.scope, *numbers, str(device), True, self.stored)

    def _places(self, signature: graph.Signature, first: Tensor) -> list[Tensor]:
        """Returns what `layout.counter` takes, where states are rounded."""
        return [self.keys[first.device], first, layout.columns(signature.row, first.device)] if self.stored else []

    def _add_large(self, cohort: Cohort, i: int, p: Tensor, g: Tensor) -> None:
        kind = layout.kind_of(self.recipe, p)
        signature = self._signature(kind, p.dtype, p.device, g.dtype)
        kernel = self.kernel(self.recipe, signature, step_only=False)
        states = []
        for name, shape in self.recipe.analysis.state_kinds.items():
            # a model may have been cast: the graph reads states in the precision in which it computes
            value = cohort.states[i][name].to(p.device, rounding.dtype_of(self.recipe, name, state_dtype(p.dtype), self.stored))
            value = value.contiguous()
            cohort.replace_state(i, name, value)
            if shape in (ELEMENT, SCOPE) and value.ndim:
                value = layout.flatten(kind, value)
            states.append(value if value.ndim else value.view(1))
        key = state_dtype(p.dtype), p.device
        first = torch.tensor([rounding.signed(cohort.first(i))], dtype=torch.int32, device=p.device)
        extra = self.numbers[key], self.norms[key], self._places(signature, first)
        self.large.append(Large(i, kind, p, g.dtype, states, *extra, kernel.bind(p), self.recipe.analysis.own_layout))

    def _arena(self, cohort: Cohort, indices: list[int], dtype: torch.dtype, device: torch.device) -> Small:
        recipe, params = self.recipe, [cohort.params[i] for i in indices]
        if self.flat and any(p.dtype != dtype for p in params):
            raise ValueError("flat=True needs parameters in float32 or float64, the precision in which a step computes")
        width = 1 if recipe.scope == "channel" else layout.WIDTH
        signature = self._signature("arena", dtype, device, dtype, width)
        kernel = self.kernel(recipe, signature, step_only=not self.flat)
        sizes = [p.numel() for p in params]
        # at least two owners and two rows, one of them empty where needed: no graph then takes a size for the constant 1
        empty = [0] * (2 - len(sizes))
        tensors = each = layout.rows_of(sizes + empty, width, device)
        if recipe.scope == "channel":
            each = layout.rows_of([n for p in params for n in layout.channel_sizes(p)] + empty, width, device)
        total = len(tensors.owner)
        starts = [width * int(n) for n in (tensors.lengths.cumsum(0) - tensors.lengths)[: len(sizes)]]

        def buffer(dtype: torch.dtype = dtype) -> tuple[Tensor, list[Tensor]]:
            whole = torch.zeros(total, width, dtype=dtype, device=device)
            return whole, [whole.view(-1)[a : a + n].view(p.shape) for a, n, p in zip(starts, sizes, params, strict=True)]

        states = []
        for name, kind in recipe.analysis.state_kinds.items():
            few = kind != ELEMENT and not (kind == SCOPE and recipe.scope == "coordinate")
            if few:
                counts = [math.prod(scope.shape_of(recipe.scope, p)) if kind == SCOPE else 1 for p in params]
                owners = len(each.lengths) if kind == SCOPE else len(tensors.lengths)
                whole = torch.ones(owners, dtype=dtype, device=device)
                parts = whole[: sum(counts)].split(counts)
                views = [part.view(cohort.states[i][name].shape) for part, i in zip(parts, indices, strict=True)]
            else:
                whole, views = buffer(rounding.dtype_of(recipe, name, dtype, self.stored))
            for view, i in zip(views, indices, strict=True):
                view.copy_(cohort.states[i][name])
                cohort.replace_state(i, name, view)
            states.append(whole)
        theta, theta_views = buffer()
        g, g_views = buffer()
        inputs = {name: buffer() for name in recipe.analysis.inputs}
        rows = [t for r in (tensors, each) for t in (r.owner, r.lengths, r.valid)]
        small = Small(
            indices=indices,
            rows=rows,
            theta=theta,
            theta_views=theta_views,
            addresses=[v.data_ptr() for v in theta_views],
            g=g,
            g_views=g_views,
            inputs=inputs,
            states=states,
            numbers=self.numbers[dtype, device],
            norm=self.norms[dtype, device],
            places=self._places(signature, layout.first_places(tensors, [cohort.first(i) for i in indices], width)),
            kernel=kernel.bind(theta),
            steps_only=kernel.steps_only,
            params=params,
        )
        if self.flat:
            make_views(small)
        return small

    # -- running -----------------------------------------------------------------------------------------------------

    def load(self, step: Step, values: list[float], t: int, *, check: bool) -> list[Tensor]:
        """Copies numbers, and the gradients of small tensors, into the tensors that graphs read; see `KernelBackend.load`."""
        for (dtype, device), numbers in self.numbers.items():
            if device.type == "cpu":  # two calls of torch would cost more
                numbers.numpy()[:] = values
            else:
                numbers.copy_(torch.tensor(values, dtype=dtype, device="cpu"))
        for key in self.keys.values():
            key.fill_(rounding.key(step.seed, t))
        for norm in self.norms.values():
            for place in norm:
                place.copy_(cast(Tensor, step.norm))
        for small in self.small:
            everything = len(small.indices) == len(step.grads)
            copy_each(small.g_views, step.grads if everything else [step.grads[i] for i in small.indices])
        if not check:
            return []
        others = [x.index for x in self.large if not checks(x.kernel)] + self.tensorwise
        return [x.g.sum() for x in self.small if not checks(x.kernel)] + totals([step.grads[i] for i in others])

    def step(self, cohort: Cohort, step: Step) -> None:
        """Makes the step that has been loaded."""
        for large in self.large:
            large.step(step.grads[large.index], [row[large.index] for row in step.inputs.values()])
        for small in self.small:
            self._run_arena(small, step)
        if self.tensorwise:
            reference.advance(cohort, step, [[i] for i in self.tensorwise])

    def phased_leaves(self, step: Step) -> list[PhasedLeaf]:
        """Returns arenas and large tensors, for a step in phases."""
        result = []
        for large in self.large:
            kernel, inputs = cast(PhasedKernel, large.kernel), large.inputs(step.grads[large.index], [])
            result.append(PhasedLeaf([large.index], kernel, inputs, lambda: None))
        for small in self.small:
            kernel, inputs = cast(PhasedKernel, small.kernel), self._inputs(small, step)
            result.append(PhasedLeaf(small.indices, kernel, inputs, functools.partial(self._write, small)))
        return result

    def _run_arena(self, small: Small, step: Step) -> None:
        small.kernel(self._inputs(small, step))
        self._write(small)

    def _inputs(self, small: Small, step: Step) -> list[Tensor]:
        extra = list(small.norm)
        for name, (whole, views) in small.inputs.items():
            copy_each(views, [step.inputs[name][i] for i in small.indices])
            extra.append(whole)
        if self.flat:
            if [*map(Tensor.data_ptr, small.params)] != small.addresses:
                make_views(small)
        elif not small.steps_only:
            copy_each(small.theta_views, small.params)
        return [small.numbers, *small.rows, small.theta, small.g, *extra, *small.places, *small.states]

    def _write(self, small: Small) -> None:
        if small.steps_only:
            subtract_each(small.params, small.theta_views)
        elif not self.flat:
            copy_each(small.params, small.theta_views)

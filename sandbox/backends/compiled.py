"""A step compiled by Inductor: one graph for all models, at the speed of the memory bus.

Small tensors live in an arena: their state in one buffer a state, of which `optimizer.state[p][…]` are views.  A step copies
their gradients in, runs one graph over the whole arena, and takes the step off the parameters.  A large tensor (131,072
entries or more on a CPU) goes through a graph of its own kind, where it is, without a copy.  Graphs have symbolic sizes and
are kept for the process: a recipe's structure is compiled once for arenas and once for large tensors, whatever models follow.

`flat=True`: parameters become views of one buffer, so that nothing is copied back.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch._inductor.compile_fx import compile_fx_inner
from torch._inductor.virtualized import V
from torch.fx import GraphModule

from sandbox import scope
from sandbox.backends import Cohort, Step, graph, layout, selfcheck, totals
from sandbox.blocks import ELEMENT, SCOPE
from sandbox.recipe import Recipe, state_dtype

Run = Callable[[list[Tensor]], Any]

# From this size on, a call of its own costs less than copying gradient and step (a GPU copies faster and waits longer).
LARGE = {"cpu": 2**17, "cuda": 2**22}

# Compiled steps by what they depend on, for the process.  `compilations` counts them, for tests and the curious.
_COMPILED: dict[Any, Kernel] = {}
compilations: list[graph.Signature] = []


class Kernel:
    """The compiled graph of one signature.

    Inductor gets the graph with the symbolic sizes of its trace, without Dynamo, whose checks cost more than a small step, and
    without AOTAutograd, whose wrappers cost 20 µs a call where the step comes after a backward pass: there is no gradient.
    What Inductor takes for granted about sizes is then checked by nobody: `guards` lists it (unless Inductor's cache knew the
    graph).  It compares a size with 4096, which decides whether a float32 sum is added up in chunks: right for every size.
    It may count indices in 31 bits: Dynamo compiles for longer tensors, and for a `mode`.
    """

    def __init__(self, recipe: Recipe, signature: graph.Signature, *, step_only: bool, mode: str | None) -> None:
        self.recipe, self.signature, self.step_only, self.mode = recipe, signature, step_only, mode
        self._dynamo: Callable[..., None] | None = None
        self._direct: Run | None = None
        self.guards: list[str] = []
        traced = self._trace()
        if mode is None:
            sizes = [n.meta["val"] for n in traced.graph.nodes if n.op == "placeholder"]
            fake = sizes[0].fake_mode
            with torch._guards.tracing(torch._guards.TracingContext(fake)), V.set_fake_mode(fake), _settings():
                self._direct = compile_fx_inner(traced, sizes, is_inference=True)
            self.guards = [str(guard.expr) for guard in fake.shape_env.guards]

    def _trace(self) -> GraphModule:
        """The graph; sets `steps_only`, whether it writes the step instead of θ (where asked for and possible)."""
        traced = graph.trace(self.recipe, self.signature, opaque=True, scale=_scale(self.signature))
        self.steps_only = self.step_only and graph.write_step_only(traced)
        selfcheck.check(self.recipe, self.signature, traced, self.steps_only)
        return traced

    def run_for(self, theta: Tensor) -> Run:
        """What makes a step on a leaf as long as theta; it takes the graph's inputs as a list, and empties the list."""
        if self._direct and theta.numel() < 2**31:
            return self._direct
        through = self._through_dynamo()
        return lambda inputs: through(*inputs)

    def _through_dynamo(self) -> Callable[..., None]:
        if self._dynamo is None:
            self._dynamo = torch.compile(self._trace(), fullgraph=True, dynamic=False, mode=self.mode)
            inputs = graph.example(self.recipe, self.signature, _scale(self.signature))
            for tensor in inputs[1:]:
                _mark_dynamic(tensor, self.signature)
            for tensor in inputs:
                # CUDA graphs take tensors that are written in place only if they stay where they are, as ours do
                torch._dynamo.mark_static_address(tensor, guard=False)
            with _settings():
                self._dynamo(*inputs)
        return self._dynamo


def kernel_of(recipe: Recipe, signature: graph.Signature, *, step_only: bool, mode: str | None) -> Kernel:
    """The kernel of a signature, compiled at the first call in the process."""
    # Inductor writes the number of threads into its code
    key = signature, step_only, mode, torch.get_num_threads()
    if key not in _COMPILED:
        compilations.append(signature)
        _COMPILED[key] = Kernel(recipe, signature, step_only=step_only, mode=mode)
    return _COMPILED[key]


def _scale(signature: graph.Signature) -> int:
    """Inductor parallelises by the sizes that it first sees: large ones."""
    return 512 if signature.kind == "arena" else 1024


def _settings() -> Any:
    # d is computed twice rather than stored between the two passes: a word of memory traffic a parameter costs more
    return torch._inductor.config.patch(
        realize_reads_threshold=64, realize_opcount_threshold=512, realize_acc_reads_threshold=64
    )


def _mark_dynamic(tensor: Tensor, signature: graph.Signature) -> None:
    if tensor.ndim and len(tensor) > 1:
        torch._dynamo.mark_dynamic(tensor, 0)
    if signature.kind == "channels" and tensor.ndim == 2 and tensor.shape[1] > 1:
        torch._dynamo.mark_dynamic(tensor, 1)


@dataclasses.dataclass
class Large:
    """One tensor that goes its own way.  Views are made once and kept: in a step each would cost a microsecond or two."""

    index: int
    kind: str
    p: Tensor
    grad: torch.dtype
    states: list[Tensor]  # in the layout `kind`, views of the optimizer's
    numbers: Tensor
    norm: list[Tensor]
    run: Run

    def __post_init__(self) -> None:
        self.theta_as = self.p.dtype, self.p.device
        self.look()

    def look(self) -> None:
        """Takes θ where it is now."""
        self.address, self.theta = self.p.data_ptr(), layout.flatten(self.kind, self.p.detach())

    def fits(self, g: Tensor) -> bool:
        """Whether parameter and gradient are still what the graph was made for."""
        return (self.p.dtype, self.p.device) == self.theta_as and g.dtype == self.grad and self.p.is_contiguous()

    def step(self, g: Tensor, h: Tensor | None) -> None:
        """Makes the step whose numbers were loaded."""
        if self.p.data_ptr() != self.address:
            self.look()
        extra = [] if h is None else [layout.flatten(self.kind, h.contiguous())]
        self.run([self.numbers, self.theta, layout.flatten(self.kind, g.contiguous()), *self.norm, *extra, *self.states])


@dataclasses.dataclass
class Small:
    """Tensors of one dtype and device in one arena."""

    indices: list[int]
    rows: list[Tensor]
    theta: Tensor  # θ, or the step
    theta_views: list[Tensor]
    addresses: list[int]  # of theta_views
    g: Tensor
    g_views: list[Tensor]
    hessian: Tensor | None
    hessian_views: list[Tensor]
    states: list[Tensor]
    numbers: Tensor
    norm: list[Tensor]
    run: Run
    steps_only: bool
    params: list[Tensor]


class Compiled:
    """The compiled backend.  mode: torch.compile's ("reduce-overhead" for CUDA graphs).  flat: see the module."""

    name = "compiled"

    def __init__(self, *, flat: bool = False, mode: str | None = None) -> None:
        self.flat, self.mode = flat, mode

    def load(self, cohort: Cohort, step: Step, *, check: bool) -> list[Tensor]:
        """Copies the gradients of small tensors into their arenas, whose sums are then one number for all of them."""
        now = step.recipe, cohort.steps + 1, step.lr, cohort.lr_old, step.old
        values, names = graph.values_of(*now)
        if cohort.plan is None or names != cohort.plan.names or not cohort.plan.fits(step):
            values, structure = graph.numbers_of(*now, evaluated=True)
            if cohort.plan is None or cohort.plan.structure != structure or not cohort.plan.describes(step):
                cohort.plan = Plan(cohort, step, structure, self)
            cohort.plan.recipe, cohort.plan.names = step.recipe, names
        return cohort.plan.load(step, values, check=check)

    def step(self, cohort: Cohort, step: Step) -> None:
        """One step of the cohort: a graph for each arena, one call for each large tensor."""
        cohort.plan.step(cohort, step)


class Plan:
    """How a cohort runs: which tensors go where, and every buffer and view that a step needs."""

    def __init__(self, cohort: Cohort, step: Step, structure: Any, backend: Compiled) -> None:
        self.recipe, self.structure, self.flat, self.mode = step.recipe, structure, backend.flat, backend.mode
        self.names: list[str] = []  # of the coefficients
        kinds = {(state_dtype(p.dtype), p.device) for p in cohort.params}
        length = structure.num_leaves
        # filled and never replaced: graphs and their calls keep them
        self.numbers = {(dtype, device): torch.zeros(length, dtype=dtype, device=device) for dtype, device in kinds}
        self.norms = {key: [torch.zeros(1, dtype=key[0], device=key[1])] * self.recipe.needs_norm for key in kinds}
        self.large: list[Large] = []
        small: dict[Any, list[int]] = {}
        for i, (p, g) in enumerate(zip(cohort.params, step.grads, strict=True)):
            if self._is_large(p):
                self._add_large(cohort, i, p, g)
            else:
                small.setdefault((state_dtype(p.dtype), p.device), []).append(i)
        if self.recipe.scope == "global" and len(small) > 1:
            raise ValueError("scope 'global' needs all tensors of a group on one device and in one precision")
        self.small = [self._arena(cohort, indices, *key) for key, indices in small.items()]
        self._share_counts(cohort)

    def fits(self, step: Step) -> bool:
        """Whether nothing has changed but rates."""
        return self.recipe is step.recipe and self.describes(step)

    def describes(self, step: Step) -> bool:
        """Whether the plan still describes the large tensors; a model may have been cast since (an arena does not mind)."""
        return all(large.fits(step.grads[large.index]) for large in self.large)

    # -- building ----------------------------------------------------------------------------------------------------

    def _is_large(self, p: Tensor) -> bool:
        if p.numel() < LARGE.get(p.device.type, LARGE["cuda"]) or self.recipe.scope == "global" or not p.is_contiguous():
            return False
        return layout.kind_of(self.recipe.scope, p) == "whole" or (p.shape[0] > 1 and p.numel() > p.shape[0])

    def _signature(self, kind: str, theta: Tensor, grad: torch.dtype, width: int = 0) -> graph.Signature:
        dtype = state_dtype(theta.dtype)
        return graph.Signature(
            self.structure, kind, width, self.recipe.scope, theta.dtype, grad, dtype, str(theta.device), evaluated=True
        )

    def _add_large(self, cohort: Cohort, i: int, p: Tensor, g: Tensor) -> None:
        kind = layout.kind_of(self.recipe.scope, p)
        kernel = kernel_of(self.recipe, self._signature(kind, p, g.dtype), step_only=False, mode=self.mode)
        states = []
        for name, shape in self.recipe.state_kinds().items():
            # a model may have been cast: the graph reads states in the precision in which it computes
            value = cohort.states[i][name].to(p.device, state_dtype(p.dtype))
            value = value.contiguous() if shape in (ELEMENT, SCOPE) else value
            cohort.states[i][name] = value
            if shape in (ELEMENT, SCOPE) and value.ndim:
                value = layout.flatten(kind, value)
            states.append(value if value.ndim else value.view(1))
        key = state_dtype(p.dtype), p.device
        self.large.append(Large(i, kind, p, g.dtype, states, self.numbers[key], self.norms[key], kernel.run_for(p)))

    def _arena(self, cohort: Cohort, indices: list[int], dtype: torch.dtype, device: torch.device) -> Small:
        recipe, params = self.recipe, [cohort.params[i] for i in indices]
        if self.flat and any(p.dtype != dtype for p in params):
            raise ValueError("flat=True needs parameters in float32 or float64, the precision in which a step computes")
        width = 1 if recipe.scope == "channel" else layout.WIDTH
        sizes = [p.numel() for p in params]
        # at least two owners and two rows, one of them empty where needed: no graph then takes a size for the constant 1
        empty = [0] * (2 - len(sizes))
        tensors = each = layout.rows_of(sizes + empty, width, device)
        if recipe.scope == "channel":
            each = layout.rows_of([n for p in params for n in layout.channel_sizes(p)] + empty, width, device)
        total = len(tensors.owner)
        starts = [width * int(n) for n in (tensors.lengths.cumsum(0) - tensors.lengths)[: len(sizes)]]

        def buffer() -> tuple[Tensor, list[Tensor]]:
            made = torch.zeros(total, width, dtype=dtype, device=device)
            return made, [made.view(-1)[a : a + n].view(p.shape) for a, n, p in zip(starts, sizes, params, strict=True)]

        states = []
        for name, kind in recipe.state_kinds().items():
            few = kind != ELEMENT and not (kind == SCOPE and recipe.scope == "coordinate")
            if few:
                counts = [math.prod(scope.shape_of(recipe.scope, p)) if kind == SCOPE else 1 for p in params]
                owners = len(each.lengths) if kind == SCOPE else len(tensors.lengths)
                made = torch.ones(owners, dtype=dtype, device=device)
                parts = made[: sum(counts)].split(counts)
                views = [part.view(cohort.states[i][name].shape) for part, i in zip(parts, indices, strict=True)]
            else:
                made, views = buffer()
            for view, i in zip(views, indices, strict=True):
                view.copy_(cohort.states[i][name])
                cohort.states[i][name] = view
            states.append(made)
        theta, theta_views = buffer()
        g, g_views = buffer()
        hessian, hessian_views = buffer() if recipe.second_order else (None, [])
        rows = [t for r in (tensors, each) for t in (r.owner, r.lengths, r.valid)]
        kernel = kernel_of(recipe, self._signature("arena", theta, dtype, width), step_only=not self.flat, mode=self.mode)
        arena = Small(
            indices=indices,
            rows=rows,
            theta=theta,
            theta_views=theta_views,
            addresses=[v.data_ptr() for v in theta_views],
            g=g,
            g_views=g_views,
            hessian=hessian,
            hessian_views=hessian_views,
            states=states,
            numbers=self.numbers[dtype, device],
            norm=self.norms[dtype, device],
            run=kernel.run_for(theta),
            steps_only=kernel.steps_only,
            params=params,
        )
        if self.flat:
            _flatten(arena)
        return arena

    def _share_counts(self, cohort: Cohort) -> None:
        """ "step" and "lr" of all members as views of two vectors, so that counting is two operations."""
        n = len(cohort.params)
        self.steps = torch.full((n,), cohort.steps, dtype=torch.int64)
        self.rates = torch.full((n,), cohort.lr_old, dtype=torch.float64)
        for i, state in enumerate(cohort.states):
            state["step"], state["lr"] = self.steps[i], self.rates[i]
        self.version = self.steps._version

    def counted(self) -> bool:
        """Whether nobody else has written to the steps."""
        return self.steps._version == self.version

    # -- running -----------------------------------------------------------------------------------------------------

    def load(self, step: Step, values: list[float], *, check: bool) -> list[Tensor]:
        """Numbers and the gradients of small tensors, into the tensors that graphs read."""
        for (dtype, _), numbers in self.numbers.items():
            numbers.copy_(torch.tensor(values, dtype=dtype))
        for norm in self.norms.values():
            for kept in norm:
                kept.copy_(cast(Tensor, step.norm))
        for small in self.small:
            everything = len(small.indices) == len(step.grads)
            torch._foreach_copy_(small.g_views, step.grads if everything else [step.grads[i] for i in small.indices])
        if not check:
            return []
        return [small.g.sum() for small in self.small] + totals([step.grads[large.index] for large in self.large])

    def step(self, cohort: Cohort, step: Step) -> None:
        """Makes the step that was loaded."""
        for large in self.large:
            large.step(step.grads[large.index], step.hessians[large.index])
        for small in self.small:
            self._run_arena(small, step)
        self.steps += 1
        self.version = self.steps._version
        self.rates.fill_(step.lr)
        cohort.steps, cohort.lr_old = cohort.steps + 1, step.lr

    def _run_arena(self, small: Small, step: Step) -> None:
        extra = list(small.norm)
        if small.hessian is not None:
            torch._foreach_copy_(small.hessian_views, _some(step.hessians, small.indices))
            extra.append(small.hessian)
        if self.flat:
            if [p.data_ptr() for p in small.params] != small.addresses:
                _flatten(small)
        elif not small.steps_only:
            torch._foreach_copy_(small.theta_views, small.params)
        small.run([small.numbers, *small.rows, small.theta, small.g, *extra, *small.states])
        if small.steps_only:
            torch._foreach_sub_(small.params, small.theta_views)
        elif not self.flat:
            torch._foreach_copy_(small.params, small.theta_views)


def _some(tensors: list[Tensor | None], indices: list[int]) -> list[Tensor]:
    return [t for i in indices if (t := tensors[i]) is not None]


def _flatten(small: Small) -> None:
    """Makes parameters views of the arena's buffer, with the values that they have now; contiguous ones.

    Raises ValueError where a parameter has got another dtype or device since: it is not cast back.
    """
    for p, view in zip(small.params, small.theta_views, strict=True):
        if (p.dtype, p.device) != (view.dtype, view.device):
            raise ValueError(
                f"flat=True: a parameter was {view.dtype} on {view.device} and is {p.dtype} on {p.device} now; "
                "make a new optimizer and load the old one's state_dict"
            )
    for p, view in zip(small.params, small.theta_views, strict=True):
        view.copy_(p.detach())
        p.data = view

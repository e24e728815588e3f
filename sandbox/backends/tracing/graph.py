"""One step of a recipe as an FX graph of aten operators, the same for every shape.

The pure kernel is traced once per structure.  With symbolic shapes by functorch's make_fx (`trace`): the compiled backend hands
that graph to Inductor, the scripted one to TorchScript, and neither ever sees a dataclass.  By recording it (`recorded`), which
takes milliseconds and no compiler: the eager backend writes it out as Python.
"""

from __future__ import annotations

import dataclasses
import re
import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from sandbox.backends.tracing import layout
from sandbox.backends.tracing.record import record
from sandbox.blocks import COLUMNS, ELEMENT, INPUTS, LEFT, RIGHT, ROWS, SCOPE, SQUARE, TENSOR
from sandbox.recipe import Recipe, kernel, rounding
from sandbox.utils import suggest
from sandbox.utils.private_torch import pytree

# Tracing and compiling change what belongs to the whole process: one thread at a time.
LOCK = threading.RLock()


class NoGraph(ValueError):
    """No graph computes a recipe: some block chooses by values, or does not act coordinate by coordinate."""


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes to trace with: all different, so that no two are taken for the same symbol."""

    rows: int = 24
    owners: int = 5
    scopes: int = 7
    length: int = 1000
    channels: int = 11
    rest: int = 36

    def times(self, scale: int) -> Sizes:
        """Returns these sizes with the long ones multiplied (Inductor parallelises by what it first sees)."""
        long = {name: getattr(self, name) * scale for name in ("rows", "length", "channels")}
        return dataclasses.replace(self, **long)


# A second set to record with, so large that a block which chooses by size takes another way.
OTHER = Sizes(rows=3000, owners=6, scopes=9, length=300_007, channels=7001, rest=44)


@dataclasses.dataclass(frozen=True)
class Signature:
    """What a graph depends on: the recipe's structure (a TreeSpec of its numbers), the layout, and dtypes."""

    structure: Any
    kind: str
    width: int
    scope: str
    theta: torch.dtype
    grad: torch.dtype
    dtype: torch.dtype
    device: str
    evaluated: bool  # numbers come from `kernel.evaluate` on the host; else the graph evaluates them
    stored: torch.dtype | None = None  # of states with one number per coordinate, rounded at random; None: `dtype`

    @property
    def place_of_theta(self) -> int:
        """The place of θ among the graph's inputs, after numbers and rows (see `trace`); the gradient follows."""
        return 7 if self.kind == "arena" else 1

    @property
    def row(self) -> int:
        """The length of a row, as `layout.counter` takes it."""
        return self.width if self.kind == "arena" else layout.WIDTH


def numbers_of(recipe: Recipe, t: Any, lr: Any, last: Mapping[str, Any], *, evaluated: bool) -> tuple[list[Any], Any]:
    """Returns all that a step needs of t and hyperparameters, in a fixed order, and the tree whose leaves they are.

    Where the graph evaluates them itself they end with t, η_t and `last`; there the graph writes the next step's `last`.
    """
    if evaluated:
        return pytree.tree_flatten(kernel.evaluate(recipe, t, lr, last))
    before = {name: last[name] for name in ("lr", *recipe.analysis.recalled)}
    return pytree.tree_flatten((dataclasses.replace(recipe, lr=0.0), t, lr, before))


def values_of(recipe: Recipe, t: Any, lr: Any, last: Mapping[str, Any]) -> tuple[list[Any], list[str]]:
    """Returns the evaluated numbers of `numbers_of`, and the coefficients' names and what is due, which may change.

    For a recipe whose structure is known this takes a third of the time.
    """
    p = kernel.evaluate(recipe, t, lr, last)
    values = [value for coefficients in p.coefficients.values() for value in coefficients.values()]
    values = [*p.recipe.leaves, *values, p.t, p.lr, *p.last.values(), p.a]
    names = [name for coefficients in p.coefficients.values() for name in coefficients]
    return values, names + [f"{path} due {due}" for path, due in p.due.items()]


def trace(
    recipe: Recipe,
    signature: Signature,
    *,
    opaque: bool,
    scale: int = 1,
    marked: bool = False,
    decompositions: Mapping[Any, Any] | None = None,
) -> GraphModule:
    """Traces step(numbers, *rows, theta, g, *norm, *inputs, *places, *state), which changes theta and state in place.

    numbers: (n,), the leaves of `numbers_of`.  rows: owner, lengths and valid of tensors, then of scopes, for an arena.
    norm and inputs (in the order of `recipe.analysis.inputs`): where the recipe needs them.  places: key, first and column of
    `layout.counter`, where states are rounded.
    opaque: for Inductor, which wants operators that it knows, and nothing written in place but inputs.
    marked: name the sums over scopes, so that the graph can be cut there (`sandbox.backends.tracing.cut`).
    decompositions: of operators, as Inductor wants them.
    """
    from torch.fx.experimental.proxy_tensor import make_fx

    step = _step(recipe, signature, torch.ops.apollo_sandbox.hold if opaque else torch.clone, opaque=opaque, marked=marked)
    inputs = example(recipe, signature, Sizes().times(scale))
    try:
        function = torch.func.functionalize(step) if opaque else step
        traced = make_fx(function, decompositions, tracing_mode="symbolic")(*inputs)
    except Exception as error:
        raise no_graph(recipe, error) from error
    _check_sizes(recipe, traced, signature)
    _write_back(recipe, signature, traced)
    return traced


def recorded(recipe: Recipe, signature: Signature) -> GraphModule:
    """Records the same step by `sandbox.backends.tracing.record`, marked, with the sums of an arena's rows as one operator.

    Raises NoGraph.
    """
    step = _step(recipe, signature, torch.ops.apollo_sandbox.hold, opaque=True, marked=True, rowwise=True)
    try:
        graph = record(step, example(recipe, signature), example(recipe, signature, OTHER))
    except Exception as error:
        raise no_graph(recipe, error) from error
    _write_back(recipe, signature, graph)
    return graph


def no_graph(recipe: Recipe, error: Exception) -> NoGraph:
    """Returns the error for a recipe whose step cannot be traced."""
    hint, message = "", str(error)
    if any(words in message for words in ("data-dependent", "Boolean value", "item()", "numpy", "tolist")):
        hint = "\nA block must not choose by the values of numbers or tensors; torch.where does"
    elif "size" in message or "shape" in message:
        hint = "\nA scalar of a scope needs x.scope.spread before it meets coordinates"
    where = "".join(f" ({note})" for note in getattr(error, "__notes__", [])[:1])
    return NoGraph(f"recipe {recipe.name!r} has no graph: {suggest.short(error)}{where}{hint}")


def _step(recipe: Recipe, signature: Signature, copy: Callable[[Tensor], Tensor], **form: bool) -> Callable[..., list[Tensor]]:
    """Returns what is traced: (numbers, *rows, theta, g, *norm, *inputs, *places, *state) -> [*new state, new theta].

    copy: of what is written elsewhere before it is read; Inductor takes a clone for nothing, an operator of ours it must leave.
    form: of `layout.scopes`.
    """
    names = list(recipe.analysis.state_kinds)

    def step(numbers: Tensor, *rest: Tensor) -> list[Tensor]:
        rows, states = (rest[:6], list(rest[6:])) if signature.kind == "arena" else ((), list(rest))
        theta, g = states.pop(0), states.pop(0)
        norm = states.pop(0).view(()) if recipe.analysis.needs_norm else None
        inputs = {name: states.pop(0).to(signature.dtype) for name in recipe.analysis.inputs}
        places = [states.pop(0) for _ in range(3)] if signature.stored else []
        exact = pytree.tree_unflatten(list(numbers.unbind()), signature.structure)
        if not signature.evaluated:
            exact = kernel.evaluate(*exact)
        prepared = pytree.tree_map(lambda v: torch.as_tensor(v).to(signature.dtype), exact)
        pair = (layout.Rows(*rows[:3]), layout.Rows(*rows[3:])) if rows else None
        tensor, within = layout.scopes(signature.kind, signature.scope, pair, **form)
        dtypes = [rounding.dtype_of(recipe, name, signature.dtype) for name in names]
        state = {name: value.to(dtype) for name, dtype, value in zip(names, dtypes, states, strict=True)}
        wide = theta.to(signature.dtype), g.to(signature.dtype)
        new, after = kernel.advance(prepared, state, *wide, tensor, within, norm, inputs)
        if places:
            new = rounding.round_states(recipe.analysis.state_kinds, new, layout.counter(signature.kind, theta, *places))
        if not signature.evaluated:
            next_last = [torch.as_tensor(v).to(numbers.dtype).view(()) for v in exact.applied.values()]
            numbers.narrow(0, signature.structure.num_leaves - len(next_last), len(next_last)).copy_(torch.stack(next_last))
        return kernel.dealias([*states, theta], [*(new[name] for name in names), after.to(signature.theta)], copy)

    return step


def check_one_step(recipe: Recipe) -> None:
    """Raises ValueError for a recipe that has another one for vectors, and for one that takes factors of layers."""
    if recipe.inner or recipe.roles:
        raise ValueError(
            f"recipe {recipe.name!r} has another step for tensors with fewer than two axes: one program cannot be both; take "
            "recipe.matrices and recipe.for_vectors, each for its own tensors"
        )
    if recipe.basis.factors:
        raise ValueError(
            f"recipe {recipe.name!r} takes factors of layers, which sandbox.Optimizer sees while the closure runs: a program "
            "of one step has none"
        )


def _check_sizes(recipe: Recipe, traced: GraphModule, signature: Signature) -> None:
    """Raises ValueError where tracing has taken a size for granted that neither the numbers nor the layout fix."""
    first, *rest = [n.meta["val"] for n in traced.graph.nodes if n.op == "placeholder"]
    guards = [str(guard.expr) for guard in first.fake_mode.shape_env.guards]
    expected = [rf"Eq\(\w+, {signature.structure.num_leaves}\)"]
    if signature.kind in ("tall", "wide"):
        m, n = rest[0].shape
        expected += [f"{m} <= {n}", f"{n} >= {m}"] if signature.kind == "wide" else [f"{m} > {n}", f"{n} < {m}"]
    taken = [guard for guard in guards if not re.fullmatch("|".join(expected), guard)]
    if taken:
        raise NoGraph(
            f"recipe {recipe.name!r} has no graph for all sizes: some block asks for a size ({taken[0]} was taken for granted)"
        )


def _write_back(recipe: Recipe, signature: Signature, traced: GraphModule) -> None:
    """Makes a graph that returns new states and θ write them over the old ones; θ last."""
    rows, states = 6 if signature.kind == "arena" else 0, len(recipe.analysis.state_kinds)
    inputs = [n for n in traced.graph.nodes if n.op == "placeholder"]
    output = next(n for n in traced.graph.nodes if n.op == "output")
    with traced.graph.inserting_before(output):
        for old, new in zip([*inputs[len(inputs) - states :], inputs[1 + rows]], output.args[0], strict=True):
            if new is not old:
                traced.graph.call_function(torch.ops.aten.copy_.default, (old, new))
    output.args = ((),)  # a tuple of outputs, none, as Inductor wants it
    traced.graph.eliminate_dead_code()
    traced.recompile()


def example(recipe: Recipe, signature: Signature, sizes: Sizes | None = None) -> list[Tensor]:
    """Returns inputs of a graph, of made-up sizes."""
    sizes = sizes or Sizes()
    device, kind = torch.device(signature.device), signature.kind
    joint = signature.scope == "global"

    def filled(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.full(shape, 0.5, dtype=dtype, device=device)

    leaves = signature.structure.num_leaves

    def other(size: int) -> int:  # than the number of numbers
        return size if size != leaves else size + 101

    owners, scopes = other(sizes.owners), other(sizes.owners if joint else sizes.scopes)
    kinds = recipe.analysis.state_kinds
    plain = Sizes().length if SQUARE in kinds.values() else sizes.length
    length = other({"arena": sizes.rows, "channels": sizes.channels}.get(kind, plain))
    m, n = sorted((other(sizes.channels), other(sizes.rest)), reverse=kind == "tall")
    matrices = {"channels": (length, other(sizes.rest)), "wide": (m, n), "tall": (m, n)}
    shape = {"arena": (length, signature.width), **matrices}.get(kind, (length,))
    # a number of a whole tensor has shape (1,): what Inductor writes to a 0-d CPU tensor of float64 is lost
    each = (scopes,) if kind == "arena" else (shape[0], 1) if signature.scope == "channel" else (1,)
    if signature.scope == "coordinate" or (signature.scope == "channel" and kind == "whole"):
        each = shape

    def rows(count: int) -> list[Tensor]:
        lengths = torch.full((count,), length // count, dtype=torch.int64, device=device)
        lengths[0] += length - int(lengths.sum())
        owner = torch.repeat_interleave(torch.arange(count, device=device), lengths)
        return [owner, lengths, torch.full((length,), signature.width, dtype=torch.int32, device=device)]

    shapes = {ELEMENT: shape, SCOPE: each, TENSOR: (owners,) if kind == "arena" else (1,)}
    shapes |= {ROWS: (m, 1), COLUMNS: (1, n), LEFT: (m, m), RIGHT: (n, n), SQUARE: (length, length)}
    numbers = filled((leaves,), signature.dtype if signature.evaluated else torch.float64)
    inputs = [numbers]
    if kind == "arena":
        inputs += [*rows(owners), *rows(scopes)]
    inputs += [filled(shape, signature.theta), filled(shape, signature.grad)]
    inputs += [filled((1,), signature.dtype)] if recipe.analysis.needs_norm else []
    inputs += [filled(shapes[INPUTS[name]], signature.grad) for name in recipe.analysis.inputs]
    if signature.stored:
        first = torch.zeros(length if kind == "arena" else 1, dtype=torch.int32, device=device)
        inputs += [torch.zeros(1, dtype=torch.int32, device=device), first, layout.columns(signature.row, device)]
    dtypes = [(kind, rounding.dtype_of(recipe, name, signature.dtype, signature.stored)) for name, kind in kinds.items()]
    return inputs + [filled(shapes[k], dtype) for k, dtype in dtypes]


def write_step_only(graph: GraphModule) -> bool:
    """Where θ is used for nothing but the final θ - ηd, makes the graph write ηd in θ's place; returns whether it did.

    So θ need not be gathered into an arena: the step is taken off the parameters where they are.
    """
    copies = [n for n in graph.graph.nodes if n.target is torch.ops.aten.copy_.default]
    last = copies[-1]  # θ is written last
    theta, new = last.args
    if not isinstance(new, Node) or new.target is not torch.ops.aten.sub.Tensor or new.args[0] is not theta:
        return False
    if not isinstance(theta, Node) or set(theta.users) != {last, new} or set(new.users) != {last} or new.kwargs:
        return False
    last.args = (theta, new.args[1])
    graph.graph.erase_node(new)
    graph.recompile()
    return True

"""One step of a recipe as an FX graph of aten operators, the same for every shape.

The pure kernel is traced once per structure by functorch's make_fx with symbolic shapes.  The compiled backend hands the graph
to Inductor, the scripted one to TorchScript: neither ever sees a dataclass.
"""

from __future__ import annotations

import dataclasses
import re
import threading
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch._inductor.decomposition import select_decomp_table
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from sandbox import kernel, suggest
from sandbox.backends import layout
from sandbox.blocks import COLUMNS, ELEMENT, LEFT, RIGHT, ROWS, SCOPE, SQUARE, TENSOR
from sandbox.recipe import Recipe

# Tracing and compiling change what belongs to the whole process: one thread at a time.
LOCK = threading.RLock()

# Sizes to trace with: all different, so that no two are taken for the same symbol.
_ROWS, _OWNERS, _SCOPES, _LENGTH, _CHANNELS, _REST = 24, 5, 7, 1000, 11, 36


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


def numbers_of(recipe: Recipe, t: Any, lr: Any, last: Mapping[str, Any], *, evaluated: bool) -> tuple[list[Any], Any]:
    """All that a step needs of t and hyperparameters, in a fixed order, and the tree whose leaves they are.

    Where the graph evaluates them itself they end with t, η_t and `last`; there the graph writes the next step's `last`.
    """
    if evaluated:
        return pytree.tree_flatten(kernel.evaluate(recipe, t, lr, last))
    before = {name: last[name] for name in ("lr", *recipe.recalled)}
    return pytree.tree_flatten((dataclasses.replace(recipe, lr=0.0), t, lr, before))


def values_of(recipe: Recipe, t: Any, lr: Any, last: Mapping[str, Any]) -> tuple[list[Any], list[str]]:
    """The evaluated numbers of `numbers_of` alone, for a recipe whose structure is known: a third of the time; and the
    coefficients' names and what is due, which may change."""
    p = kernel.evaluate(recipe, t, lr, last)
    own = [value for coefficients in p.coefficients.values() for value in coefficients.values()]
    values = [*p.recipe.leaves, *own, p.t, p.lr, *p.last.values(), p.a]
    names = [name for coefficients in p.coefficients.values() for name in coefficients]
    return values, names + [f"{path} due {due}" for path, due in p.due.items()]


def trace(recipe: Recipe, signature: Signature, *, opaque: bool, scale: int = 1) -> GraphModule:
    """The graph of step(numbers, *rows, theta, g, *norm, *inputs, *state), which changes theta and state in place.

    numbers: (n,), the leaves of `numbers_of`.  rows: owner, lengths and valid of tensors, then of scopes, for an arena.
    norm and inputs (in the order of `recipe.inputs`): where the recipe needs them.
    opaque: for Inductor, which wants operators that it knows, and nothing written in place but inputs.
    """
    names = list(recipe.state_kinds())

    def step(numbers: Tensor, *rest: Tensor) -> list[Tensor]:
        rows, states = (rest[:6], list(rest[6:])) if signature.kind == "arena" else ((), list(rest))
        theta, g = states.pop(0), states.pop(0)
        norm = states.pop(0).view(()) if recipe.needs_norm else None
        inputs = {name: states.pop(0).to(signature.dtype) for name in recipe.inputs}
        exact = pytree.tree_unflatten(list(numbers.unbind()), signature.structure)
        if not signature.evaluated:
            exact = kernel.evaluate(*exact)
        prepared = pytree.tree_map(lambda v: torch.as_tensor(v).to(signature.dtype), exact)
        pair = (layout.Rows(*rows[:3]), layout.Rows(*rows[3:])) if rows else None
        tensor, within = layout.scopes(signature.kind, signature.scope, pair, opaque=opaque)
        state = dict(zip(names, states, strict=True))
        wide = theta.to(signature.dtype), g.to(signature.dtype)
        new, after = kernel.advance(prepared, state, *wide, tensor, within, norm, inputs)
        # Inductor takes a clone for nothing, even of what is written afterwards; an operator of ours it must leave
        copy = torch.ops.apollo_sandbox.hold if opaque else torch.clone
        if not signature.evaluated:
            next_last = [torch.as_tensor(v).to(numbers.dtype).view(()) for v in exact.applied.values()]
            numbers.narrow(0, signature.structure.num_leaves - len(next_last), len(next_last)).copy_(torch.stack(next_last))
        return kernel.dealias([*states, theta], [*(new[name] for name in names), after.to(signature.theta)], copy)

    inputs = example(recipe, signature, scale)
    try:
        if opaque:
            traced = make_fx(torch.func.functionalize(step), select_decomp_table(), tracing_mode="symbolic")(*inputs)
        else:
            traced = make_fx(step, tracing_mode="symbolic")(*inputs)
    except Exception as error:
        raise ValueError(
            f"recipe {recipe.name!r} has no graph: {suggest.short(error)}\nA block must not choose by the values of numbers or "
            "tensors (torch.where does), and a scalar of a scope needs x.scope.spread before it meets coordinates"
        ) from error
    _check_sizes(recipe, traced, signature)
    _write_back(traced, 6 if signature.kind == "arena" else 0, len(names))
    return traced


def check_one_step(recipe: Recipe) -> None:
    """Raises ValueError for a recipe that makes another step for tensors with fewer than two axes."""
    if recipe.for_vectors is not recipe.matrices:
        raise ValueError(
            f"recipe {recipe.name!r} has another step for tensors with fewer than two axes: one program cannot be both; take "
            "recipe.matrices and recipe.for_vectors, each for its own tensors"
        )


def _check_sizes(recipe: Recipe, traced: GraphModule, signature: Signature) -> None:
    """Raises ValueError where tracing has taken a size for granted that neither the numbers nor the layout fix."""
    first, *rest = [n.meta["val"] for n in traced.graph.nodes if n.op == "placeholder"]
    guards = [str(guard.expr) for guard in first.fake_mode.shape_env.guards]
    known = [rf"Eq\(\w+, {signature.structure.num_leaves}\)"]
    if signature.kind in ("tall", "wide"):
        m, n = rest[0].shape
        known += [f"{m} <= {n}", f"{n} >= {m}"] if signature.kind == "wide" else [f"{m} > {n}", f"{n} < {m}"]
    taken = [guard for guard in guards if not re.fullmatch("|".join(known), guard)]
    if taken:
        raise ValueError(
            f"recipe {recipe.name!r} has no graph for all sizes: some block asks for a size ({taken[0]} was taken for granted)"
        )


def _write_back(traced: GraphModule, rows: int, states: int) -> None:
    """Makes a graph that returns new states and θ write them over the old ones; θ last."""
    inputs = [n for n in traced.graph.nodes if n.op == "placeholder"]
    output = next(n for n in traced.graph.nodes if n.op == "output")
    with traced.graph.inserting_before(output):
        for old, new in zip([*inputs[len(inputs) - states :], inputs[1 + rows]], output.args[0], strict=True):
            if new is not old:
                traced.graph.call_function(torch.ops.aten.copy_.default, (old, new))
    output.args = ((),)  # a tuple of outputs, none, as Inductor wants it
    traced.graph.eliminate_dead_code()
    traced.recompile()


def example(recipe: Recipe, signature: Signature, scale: int = 1) -> list[Tensor]:
    """Inputs of a graph, of made-up sizes; `scale` multiplies the long ones (Inductor parallelises by what it first sees)."""
    device, kind = torch.device(signature.device), signature.kind
    joint = signature.scope == "global"

    def filled(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.full(shape, 0.5, dtype=dtype, device=device)

    leaves = signature.structure.num_leaves

    def other(size: int) -> int:  # than the number of numbers
        return size if size != leaves else size + 101

    owners, scopes = other(_OWNERS), other(_OWNERS if joint else _SCOPES)
    kinds = recipe.state_kinds()
    length = {"arena": other(_ROWS * scale), "channels": other(_CHANNELS * scale)}.get(kind, other(_LENGTH * scale))
    length = other(_LENGTH) if SQUARE in kinds.values() else length
    m, n = sorted((other(_CHANNELS), other(_REST)), reverse=kind == "tall")
    matrices = {"channels": (length, other(_REST)), "wide": (m, n), "tall": (m, n)}
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
    inputs += [filled((1,), signature.dtype)] if recipe.needs_norm else []
    inputs += [filled(shape, signature.grad) for _ in recipe.inputs]
    return inputs + [filled(shapes[k], signature.dtype) for k in kinds.values()]


def write_step_only(graph: GraphModule) -> bool:
    """Where θ is used for nothing but the final θ - ηd, makes the graph write ηd in θ's place; says whether it did.

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

"""The pure functions of a recipe on trees of tensors: first state, and one step."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from sandbox.blocks import COLUMNS, ELEMENT, INPUTS, LEFT, QUADRATIC, RIGHT, ROWS, SCOPE, SQUARE, Flow, scope
from sandbox.recipe import kernel, parts, rounding
from sandbox.utils import suggest
from sandbox.utils.private_torch import pytree

_MEANT = {
    "hessian": "z ⊙ Hz for each parameter; sandbox.curvature.hessian.hutchinson computes it, and sandbox.Optimizer does when "
    "step(closure) gets a closure that returns the loss",
    "product": "the Hessian times recipe.product_vector(state, params), which sandbox.Optimizer makes when step(closure) gets "
    "a closure that returns the loss",
    "sampled": "the gradient of the loss at labels drawn from the model, which sandbox.Optimizer makes from step(closure)",
    "displaced": "the batch's gradient at recipe.displaced(params, grads), which sandbox.Optimizer makes from step(closure)",
    "G": "E[h hᵀ] of the gradients after each layer, (m, m), which sandbox.Optimizer makes from step(closure)",
    "A": "E[a aᵀ] of what goes into each layer, (n, n), which sandbox.Optimizer makes from step(closure)",
}


def first_numbers(recipe: Any) -> dict[str, Any]:
    """The host's numbers before the first step, by `recipe.analysis.host_names`."""
    first = parts.at_step(recipe, 1.0) if recipe.analysis.has_schedules else recipe
    return {"step": 0.0, "lr": 0.0, **{name: parts.value_at(first, name) for name in recipe.analysis.recalled}}


def listed(roles: Any, spec: Any) -> list[Any]:
    """The roles of a tree's leaves; None for each where none are given."""
    return [None] * spec.num_leaves if roles is None else spec.flatten_up_to(roles)


def init(recipe: Any, p: Tensor, narrow: torch.dtype | None = None) -> dict[str, Tensor]:
    """State of one tensor before the first step of its recipe; see `Recipe.init`.  narrow: dtype of per-coordinate states."""
    if not p.is_floating_point():
        raise TypeError(f"a recipe updates floating-point tensors, got one of {p.dtype}")
    host = first_numbers(recipe).items()
    state = {name: torch.as_tensor(value, dtype=torch.float64, device=p.device).clone() for name, value in host}
    initial = {f"{path}.{name}": block.initial(name) for path, block in recipe.blocks() for name in block.state}
    for name, kind in recipe.analysis.state_kinds.items():
        dtype = rounding.dtype_of(recipe, name, state_dtype(p.dtype), narrow)
        zeros = torch.zeros(state_shape(recipe, kind, p), dtype=dtype, device=p.device)
        value = initial.get(name, 0.0)
        if kind in QUADRATIC and (isinstance(value, Tensor) or value):
            value = value * torch.eye(zeros.shape[0], dtype=zeros.dtype, device=p.device)
        state[name] = zeros + value if isinstance(value, Tensor) or value else zeros
    return state


def state_shape(recipe: Any, kind: str, p: Tensor) -> tuple[int, ...]:
    """Shape of a state of this kind for the tensor `p`."""
    if kind == SCOPE:
        return scope.shape_of(recipe.scope, p)
    (m, n), N = scope.matrix(p), p.numel()
    shapes = {ELEMENT: tuple(p.shape), ROWS: (m, 1), COLUMNS: (1, n), LEFT: (m, m), RIGHT: (n, n), SQUARE: (N, N)}
    return shapes.get(kind, ())


def laid_out(recipe: Any, p: Tensor, state: kernel.State) -> kernel.State:
    """The blocks' state of a tensor as a step takes it: in its precision, per-coordinate states as matrices if the recipe
    wants them."""
    dtype = state_dtype(p.dtype)
    state = {name: state[name].to(rounding.dtype_of(recipe, name, dtype)) for name in recipe.analysis.state_kinds}
    if not recipe.analysis.matrix:
        return state
    m, n = scope.matrix(p)
    few = {"channel": (m, 1), "coordinate": (m, n)}.get(recipe.scope, ())
    shapes = {ELEMENT: (m, n), SCOPE: few}
    return {
        name: state[name].reshape(shapes.get(kind, state[name].shape)) for name, kind in recipe.analysis.state_kinds.items()
    }


def last_step(recipe: Any, state: kernel.State, p: Tensor) -> tuple[Any, kernel.State, Flow]:
    """The last step of one tensor, as `kernel.on_floor` and `kernel.rectified` take it: recipe, state and flow."""
    recipe = kernel.as_it_was(recipe, state)
    theta = p.reshape(scope.matrix(p)) if recipe.analysis.matrix else p
    tensor, within = scope.Over(scope.OneTensor(), theta), scope.Over(scope.of_tensor(recipe.scope), theta)
    t, lr = state["step"], state["lr"]
    x = Flow(t=t, lr=lr, lr_old=lr, theta=theta, g=theta, tensor=tensor, scope=within)
    return recipe, laid_out(recipe, p, state), x


def update(
    recipe: Any,
    state: Any,
    params: Any,
    grads: Any,
    *,
    lr: Any,
    inputs: dict[str, Any],
    observe: Callable[[list[int], kernel.Flow], None] | None,
    roles: Any = None,
) -> tuple[Any, Any]:
    """One step; see `Recipe.update`."""
    leaves, spec = pytree.tree_flatten(params)
    states, grads = spec.flatten_up_to(state), spec.flatten_up_to(grads)
    for name in inputs:
        if name not in INPUTS:
            raise TypeError(suggest.unknown("input of a step", name, INPUTS))
    for name in recipe.analysis.inputs:
        if inputs.get(name) is None:
            raise ValueError(f"recipe {recipe.name!r} needs `{name}`: {_MEANT[name]}")
    given = {name: spec.flatten_up_to(inputs[name]) for name in recipe.analysis.inputs}
    extras = [{name: rows[i] for name, rows in given.items()} for i in range(len(leaves))]
    branches = [recipe.branch(p, role) for p, role in zip(leaves, listed(roles, spec), strict=True)]
    recipes = [recipe.member(branch) for branch in branches]
    missing = [
        name
        for r, s in zip(recipes, states, strict=True)
        for name in (*r.analysis.host_names, *r.analysis.state_kinds)
        if name not in s
    ]
    if missing:
        raise ValueError(f"the state is not one of recipe {recipe.name!r}: it lacks {', '.join(sorted(set(missing)))}")
    active = [i for i, g in enumerate(grads) if g is not None]
    for i in active:
        if grads[i].shape != leaves[i].shape:
            raise ValueError(f"gradient of shape {tuple(grads[i].shape)} for a parameter of {tuple(leaves[i].shape)}")
    norm = global_norm([grads[i] for i in active]) if recipe.analysis.needs_norm and active else None
    groups: dict[Any, list[int]] = {}
    for i in active:
        groups.setdefault(id(recipes[i]) if recipes[i].scope == "global" else -1 - i, []).append(i)
    for group in groups.values():
        one, p, own = states[group[0]], leaves[group[0]], recipes[group[0]]
        exact = kernel.evaluate(own, (one["step"] + 1).to(torch.float64), recipe.rate_of(branches[group[0]], lr), one)
        prepared = exact.to(state_dtype(p.dtype), p.device)
        rows = [[row[i] for i in group] for row in (states, leaves, grads, extras)]
        after = together(own, prepared, rows, norm, observe and functools.partial(observe, group))
        for i, (new, theta) in zip(group, after, strict=True):
            host = {"step": states[i]["step"] + 1, **{name: _like(v, states[i][name]) for name, v in exact.applied.items()}}
            # names in the order that they had: a program made for the tree takes its leaves by their places
            complete = {**host, **new}
            states[i], leaves[i] = {name: complete[name] for name in states[i] if name in complete}, theta
    return pytree.tree_unflatten(states, spec), pytree.tree_unflatten(leaves, spec)


Across = Callable[[scope.Scope, scope.Scope], tuple[scope.Scope, scope.Scope]]


def _here(tensor: scope.Scope, within: scope.Scope) -> tuple[scope.Scope, scope.Scope]:
    return tensor, within


def together(
    recipe: Any,
    prepared: kernel.Prepared,
    rows: Sequence[Any],
    norm: Tensor | None,
    observe: kernel.Observer | None = None,
    across: Across | None = None,
) -> list[tuple[dict[str, Tensor], Tensor]]:
    """New state (without the 0-d numbers of the host) and θ of tensors that make one step together: one, or all under "global".

    rows: lists of states, parameters, gradients and dicts of inputs, one entry per tensor.
    observe: see `kernel.advance`; tensors that make a step together are one vector there.
    across: where each tensor is a part of one, the scopes over all parts, from those over tensors and over the recipe's scope.
    """
    states, params, grads, extras = rows
    dtype, kinds = prepared.lr.dtype, recipe.analysis.state_kinds
    norm = None if norm is None else norm.to(dtype)
    wide: list[list[Any]] = [[v.to(dtype) for v in row] for row in (params, grads)]
    inputs = {name: [each[name].to(dtype) for each in extras] for name in recipe.analysis.inputs}
    alone, across = across is None, across or _here
    if len(params) == 1 and (alone or recipe.scope != "global"):
        (theta,), (g,), one = *wide, {name: row[0] for name, row in inputs.items()}
        state, over = laid_out(recipe, params[0], states[0]), across(scope.OneTensor(), scope.of_tensor(recipe.scope))
        if recipe.analysis.matrix:
            shape = scope.matrix(params[0])
            theta, g = theta.reshape(shape), g.reshape(shape)
            one = {name: v.reshape(shape) if INPUTS[name] == ELEMENT else v for name, v in one.items()}
        new, theta = kernel.advance(prepared, state, theta, g, *over, norm, one, observe)
        if recipe.analysis.matrix:
            theta = theta.reshape(params[0].shape)
            new = {name: value.reshape(states[0][name].shape) for name, value in new.items()}
        return [(new, theta.to(params[0].dtype))]
    layout = scope.Joined(params)
    theta, g = layout.pack(wide[0]), layout.pack(wide[1])
    packed = {name: layout.pack(row) for name, row in inputs.items()}
    pack = {name: layout.pack if kind == ELEMENT else torch.stack for name, kind in kinds.items()}
    state = {name: pack[name]([s[name].to(rounding.dtype_of(recipe, name, dtype)) for s in states]) for name in kinds}
    new, theta = kernel.advance(prepared, state, theta, g, *across(layout.tensor, layout.everything), norm, packed, observe)
    apart = {n: layout.unpack(v) if kinds[n] == ELEMENT else list(v.unbind()) for n, v in new.items()}
    each = [{name: parts[i] for name, parts in apart.items()} for i in range(len(params))]
    return [(s, th.to(p.dtype)) for s, th, p in zip(each, layout.unpack(theta), params, strict=True)]


def product_vector(recipe: Any, state: dict[str, Any], p: Tensor) -> Tensor:
    """The v with which one tensor's step wants H v."""
    dtype = state_dtype(p.dtype)
    wide = {name: state[name].to(dtype) for name in recipe.analysis.state_kinds}
    own = kernel.block_state("pairs", recipe.pairs, wide)
    return recipe.pairs.vector(state["step"] + 1, p.to(dtype), wide.get("direction.d"), **own).to(p.dtype)


def displaced(blocks: Sequence[Any], params: Sequence[Tensor], grads: Sequence[Tensor]) -> list[Tensor]:
    """θ + e of each tensor, by the block that asks for the gradient there; see `sandbox.blocks.Sharpness`."""
    norm = global_norm([block.weights(p) * g for block, p, g in zip(blocks, params, grads, strict=True)])
    rows = zip(blocks, params, grads, strict=True)
    return [p + block.displacement(p, g, norm.to(g.device, g.dtype)) for block, p, g in rows]


def evaluated(recipe: Any, state: dict[str, Any], p: Tensor) -> Tensor:
    """The weights of one tensor to evaluate by its recipe; a part of it, where its state is one."""
    if not recipe.analysis.reads_out:
        return p
    recipe = parts.at_step(recipe, state["step"]) if recipe.analysis.has_schedules else recipe
    dtype = state_dtype(p.dtype)
    wide = {name: state[name].to(dtype) for name in recipe.analysis.state_kinds if name.startswith("readout.")}
    weights = recipe.readout.evaluated(p.to(dtype), **kernel.block_state("readout", recipe.readout, wide)).to(p.dtype)
    return torch.where((state["step"] > 0).to(p.device), weights, p)


def _like(value: Any, old: Tensor) -> Tensor:
    """A number as a 0-d state."""
    return torch.as_tensor(value, dtype=old.dtype, device=old.device).expand(old.shape)


def state_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of state and arithmetic for parameters of `dtype`: at least float32."""
    return torch.float32 if dtype.itemsize < 4 else dtype


def global_norm(grads: list[Tensor]) -> Tensor:
    """‖g‖₂ over all tensors, as `torch.nn.utils.clip_grad_norm_` takes it."""
    wide = [torch.linalg.vector_norm(g.to(state_dtype(g.dtype))) for g in grads]
    return torch.linalg.vector_norm(torch.stack([n.to(wide[0].device, wide[0].dtype) for n in wide]))

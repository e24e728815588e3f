"""One step of seeds × configurations at once: the pure update of one member under two torch.func.vmap."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, grad_and_value, vjp, vmap

from sandbox.curvature import factors, labels
from sandbox.ensemble.members import Group
from sandbox.probes import view as views
from sandbox.probes.measures import Probe
from sandbox.recipe import Recipe
from sandbox.utils import suggest
from sandbox.utils.private_torch import pytree

Loss = Callable[[Any, Any], Tensor]


class Unbatchable(Exception):
    """A recipe or loss that does not run under vmap; the text says why."""


def member_step(group: Group, loss: Loss, probes: dict[str, Probe], before: bool) -> Callable[..., Any]:
    """Returns step(varied, lr, state, params, batch, z, old) of one member -> (state, params, loss, finite, measured, old).

    z: as for `first_look`.  old: D and η of the step before, where a probe needs them (`before`), else ().
    measured: probe -> 0-d tensor, over all tensors together.
    """
    return in_sequence(first_look(group, loss), member_update(group, probes, before), second_look(group, loss))


def in_sequence(
    look: Callable[..., Any], update: Callable[..., Any], look_again: Callable[..., Any] | None
) -> Callable[..., Any]:
    """Returns the step made of its three parts, each of one member or each of all."""

    def step(varied: Any, lr: Tensor, state: Any, params: Any, batch: Any, z: Any, old: Any) -> Any:
        state, grads, inputs, value, finite = look(varied, state, params, batch, z)
        state, params, measured, old = update(varied, lr, state, params, grads, inputs, old)
        if look_again is not None:
            state = look_again(varied, state, params, batch)
        return state, params, value, finite, measured, old

    return step


def first_look(group: Group, loss: Loss) -> Callable[..., Any]:
    """Returns look(varied, state, params, batch, z) of one member -> (state, grads, inputs, loss, finite): what a step takes.

    z: a dict of what is drawn for the recipe's inputs: "hessian", ±1; "sampled", a key.  None where nothing is.
    """

    def look(varied: Any, state: Any, params: Any, batch: Any, z: Any) -> Any:
        recipe = group.recipe(varied)
        inputs = {}
        observed, at = _FactorLoss(loss, recipe, group.roles), recipe.basis.factors
        grads, value = grad_and_value(observed if at == "given" else loss)(params, batch)
        if recipe.analysis.second_order:
            # Hz as the gradient of ∇f(θ)ᵀz
            back = vjp(lambda p: grad(loss)(p, batch), params)[1]
        if "hessian" in recipe.analysis.inputs:
            inputs["hessian"] = pytree.tree_map(recipe.curvature.hessian, z["hessian"], back(z["hessian"])[0])
        if "product" in recipe.analysis.inputs:
            inputs["product"] = back(recipe.product_vector(state, params))[0]
        if recipe.analysis.draws_labels:
            with labels.Drawn(z["sampled"]):
                other = grad(observed if at == "sampled" else loss)(params, batch)
            if "sampled" in recipe.analysis.inputs:
                inputs["sampled"] = other
        if "displaced" in recipe.analysis.inputs:
            inputs["displaced"] = grad(loss)(recipe.displaced(params, grads), batch)
        if at:
            inputs |= observed.factors(params)
        finite = value.isfinite() & torch.stack([g.sum() for g in pytree.tree_leaves(grads)]).isfinite().all()
        return state, grads, inputs, value.detach(), finite

    return look


def member_update(group: Group, probes: dict[str, Probe], before: bool) -> Callable[..., Any]:
    """Returns update(varied, lr, state, params, grads, inputs, old) of one member -> (state, params, measured, old)."""

    def update(varied: Any, lr: Tensor, state: Any, params: Any, grads: Any, inputs: Any, old: Any) -> Any:
        recipe = group.recipe(varied)
        if not probes:
            return *recipe.update(state, params, grads, lr=lr, roles=group.roles, **inputs), {}, ()
        leaves, each = pytree.tree_leaves(params), recipe.each(params, group.roles)
        by_leaf: dict[int, views.View] = {}
        sizes = [p.numel() for p in leaves]

        def observe(members: list[int], x: Any) -> None:
            parts = views.split(views.from_flow(each[members[0]], x), [sizes[i] for i in members])
            by_leaf.update(zip(members, parts, strict=True))

        state, params = recipe.update(state, params, grads, lr=lr, roles=group.roles, observe=observe, **inputs)
        view = views.join([by_leaf[i] for i in sorted(by_leaf)])
        if old:
            view = dataclasses.replace(view, D_old=old[0], lr_before=old[1])
        values = {name: probe(view) for name, probe in probes.items()}
        measured = {name: torch.as_tensor(v, dtype=torch.float64) for name, v in values.items() if v is not None}
        return state, params, measured, (view.D, torch.as_tensor(view.lr)) if before else ()

    return update


def second_look(group: Group, loss: Loss) -> Callable[..., Any] | None:
    """Returns look(varied, state, params, batch) of one member -> state, with the same batch's gradient where the step led.

    None where the recipe takes no second gradient.
    """
    if not group.first.analysis.second_gradient:
        return None
    return lambda varied, state, params, batch: group.recipe(varied).with_second_gradient(state, grad(loss)(params, batch))


class _FactorLoss:
    """A loss that collects K-FAC's factors of the layers whose weight has a recipe that takes them."""

    def __init__(self, loss: Loss, recipe: Recipe, roles: Any) -> None:
        self.loss, self.recipe, self.roles = loss, recipe, roles

    def __call__(self, params: Any, batch: Any) -> Tensor:
        leaves = pytree.tree_leaves(params)
        self.layers = [i for i, one in enumerate(self.recipe.each(params, self.roles)) if one.basis.factors]
        self.seen = factors.Seen([leaves[i] for i in self.layers], drawn=self.recipe.basis.factors == "sampled")
        with self.seen.watching():
            return self.loss(params, batch)

    def factors(self, params: Any) -> dict[str, Any]:
        """The inputs "G" and "A" of a step, with 0 for a tensor that takes none."""
        leaves, spec = pytree.tree_flatten(params)
        pairs = [(p.new_zeros(()), p.new_zeros(())) for p in leaves]
        for place, i in enumerate(self.layers):
            pairs[i] = self.seen.pair(place)
        return {name: pytree.tree_unflatten(each, spec) for name, each in zip("GA", zip(*pairs, strict=True), strict=True)}


# How an argument of a member's function differs between members: its axes under the inner vmap and the outer one.
CONFIGURATION, SEED, MEMBER = (0, None), (None, 0), (0, 0)
LOOK = (CONFIGURATION, MEMBER, MEMBER, SEED, SEED)
STEP = (CONFIGURATION, *LOOK, MEMBER)


def over_grid(one: Callable[..., Any], axes: Sequence[tuple[int | None, int | None]] = STEP) -> Callable[..., Any]:
    """Returns a member's function over (seeds, configurations)."""
    inner = vmap(one, in_dims=tuple(over_configurations for over_configurations, _ in axes))

    def many(*arguments: Any) -> Any:
        absent = [pytree.tree_leaves(x) == [None] for x in arguments]
        outer = tuple(None if none else over_seeds for none, (_, over_seeds) in zip(absent, axes, strict=True))
        return vmap(inner, in_dims=outer)(*arguments)

    return many


def alone(step: Callable[..., Any]) -> Callable[..., Any]:
    """Returns what `over_grid` does, for a single member and without vmap."""

    def one(varied: Any, lr: Tensor, state: Any, params: Any, batch: Any, z: Any, old: Any) -> Any:
        out = step(*member((varied, lr, state, params, batch, z, old), STEP, 0, 0))
        return pytree.tree_map_only(Tensor, lambda x: x[None, None], out)

    return one


def member(arguments: Sequence[Any], axes: Sequence[tuple[int | None, int | None]], seed: int, configuration: int) -> list[Any]:
    """Returns one member's part of the arguments of a grid; the first ones, the numbers that vary, as floats."""
    parts = []
    for tree, axis in zip(arguments, axes, strict=True):
        place = {CONFIGURATION: (configuration,), SEED: (seed,), MEMBER: (seed, configuration)}[axis]
        parts.append(index(tree, place))
    return [[float(v) for v in parts[0]], *parts[1:]]


def index(tree: Any, place: Any) -> Any:
    """Returns every tensor of a tree at an index or slice."""
    return pytree.tree_map_only(Tensor, lambda x: x[place], tree)


def run_batched(step: Callable[..., Any], *inputs: Any) -> Any:
    """Returns step(*inputs); raises `Unbatchable` with the reason where vmap refuses it, with whatever error."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*batching rule.*")  # slower, not wrong
            return step(*inputs)
    except Unbatchable:
        raise
    except Exception as error:
        raise Unbatchable(suggest.short(error)) from error


def stack(trees: Sequence[Any]) -> Any:
    """Stacks trees of tensors along a new first axis."""
    return pytree.tree_map(lambda *leaves: torch.stack(leaves), *trees)

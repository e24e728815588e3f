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
    """step(varied, lr, state, params, batch, z, old) of one member -> (state, params, loss, finite, measured, old).

    z: as for `first_look`.  old: D and η of the step before, where a probe needs them (`before`), else ().
    measured: probe -> 0-d tensor, over all tensors together.
    """
    first, second = first_look(group, loss), second_look(group, loss)

    def step(varied: Any, lr: Tensor, state: Any, params: Any, batch: Any, z: Any, old: Any) -> Any:
        recipe = group.recipe(varied)
        state, grads, inputs, value, finite = first(varied, state, params, batch, z)
        leaves = pytree.tree_leaves(params)
        seen: dict[int, views.View] = {}
        sizes = [p.numel() for p in leaves]

        def observe(members: list[int], x: Any) -> None:
            own = recipe.of(leaves[members[0]])
            parts = views.split(views.of(own, x), [sizes[i] for i in members])
            seen.update(zip(members, parts, strict=True))

        state, params = recipe.update(state, params, grads, lr=lr, observe=observe if probes else None, **inputs)
        if recipe.analysis.second_gradient:
            state = second(varied, state, params, batch)
        measured: dict[str, Tensor] = {}
        if probes:
            whole = views.join([seen[i] for i in sorted(seen)])
            if old:
                whole = dataclasses.replace(whole, D_old=old[0], lr_before=old[1])
            found = {name: probe(whole) for name, probe in probes.items()}
            measured = {name: torch.as_tensor(v, dtype=torch.float64) for name, v in found.items() if v is not None}
            old = (whole.D, torch.as_tensor(whole.lr)) if before else ()
        else:
            old = ()
        return state, params, value, finite, measured, old

    return step


def first_look(group: Group, loss: Loss) -> Callable[..., Any]:
    """look(varied, state, params, batch, z) of one member -> (state, grads, inputs, loss, finite): all that a step takes.

    z: a dict of what is drawn for the recipe's inputs: "hessian", ±1; "sampled", a key.  None where nothing is.
    """

    def look(varied: Any, state: Any, params: Any, batch: Any, z: Any) -> Any:
        recipe = group.recipe(varied)
        inputs = {}
        watched, at = _Watched(loss, recipe), recipe.basis.factors
        grads, value = grad_and_value(watched if at == "given" else loss)(params, batch)
        if recipe.analysis.second_order:
            # Hz as the gradient of ∇f(θ)ᵀz
            back = vjp(lambda p: grad(loss)(p, batch), params)[1]
        if "hessian" in recipe.analysis.inputs:
            inputs["hessian"] = pytree.tree_map(recipe.curvature.hessian, z["hessian"], back(z["hessian"])[0])
        if "product" in recipe.analysis.inputs:
            inputs["product"] = back(recipe.product_vector(state, params))[0]
        if recipe.analysis.draws_labels:
            with labels.Drawn(z["sampled"]):
                other = grad(watched if at == "sampled" else loss)(params, batch)
            if "sampled" in recipe.analysis.inputs:
                inputs["sampled"] = other
        if at:
            inputs |= watched.factors(params)
        finite = value.isfinite() & torch.stack([g.sum() for g in pytree.tree_leaves(grads)]).isfinite().all()
        return state, grads, inputs, value.detach(), finite

    return look


def second_look(group: Group, loss: Loss) -> Callable[..., Any]:
    """look(varied, state, params, batch) of one member -> state, with the same batch's gradient where the step led."""

    def look(varied: Any, state: Any, params: Any, batch: Any) -> Any:
        return group.recipe(varied).with_second_gradient(state, grad(loss)(params, batch))

    return look


class _Watched:
    """A loss whose layers are watched for K-FAC's factors: those with a weight whose recipe takes them."""

    def __init__(self, loss: Loss, recipe: Recipe) -> None:
        self.loss, self.recipe = loss, recipe

    def __call__(self, params: Any, batch: Any) -> Tensor:
        leaves = pytree.tree_leaves(params)
        self.layers = [i for i, p in enumerate(leaves) if self.recipe.of(p).basis.factors]
        self.seen = factors.Seen([leaves[i] for i in self.layers], drawn=self.recipe.basis.factors == "sampled")
        with self.seen.watching():
            return self.loss(params, batch)

    def factors(self, params: Any) -> dict[str, Any]:
        """The inputs "G" and "A" of a step, with 0 for a tensor that takes none."""
        leaves, spec = pytree.tree_flatten(params)
        pairs = [(p.new_zeros(()), p.new_zeros(())) for p in leaves]
        for place, i in enumerate(self.layers):
            pairs[i] = self.seen.of(place)
        return {name: pytree.tree_unflatten(each, spec) for name, each in zip("GA", zip(*pairs, strict=True), strict=True)}


# What an argument of a member's function differs between: its axes under the inner vmap and the outer one.
CONFIGURATION, SEED, MEMBER = (0, None), (None, 0), (0, 0)
STEP = (CONFIGURATION, CONFIGURATION, MEMBER, MEMBER, SEED, SEED, MEMBER)


def over_grid(one: Callable[..., Any], axes: Sequence[tuple[int | None, int | None]] = STEP) -> Callable[..., Any]:
    """A member's function over (seeds, configurations)."""
    inner = vmap(one, in_dims=tuple(over_configurations for over_configurations, _ in axes))

    def many(*arguments: Any) -> Any:
        absent = [pytree.tree_leaves(x) == [None] for x in arguments]
        outer = tuple(None if none else over_seeds for none, (_, over_seeds) in zip(absent, axes, strict=True))
        return vmap(inner, in_dims=outer)(*arguments)

    return many


def alone(step: Callable[..., Any]) -> Callable[..., Any]:
    """What `over_grid` does, for a single member and without vmap."""

    def one(varied: Any, lr: Tensor, state: Any, params: Any, batch: Any, z: Any, old: Any) -> Any:
        state, params, old = (_only(_only(tree)) for tree in (state, params, old))
        out = step([float(v[0]) for v in varied], lr[0], state, params, _only(batch), _only(z), old)
        return pytree.tree_map_only(Tensor, lambda x: x[None, None], out)

    return one


def _only(tree: Any) -> Any:
    """The first entry of each tensor."""
    return pytree.tree_map_only(Tensor, lambda x: x[0], tree)


def checked(step: Callable[..., Any], *inputs: Any) -> Any:
    """step(*inputs), with the reason as `Unbatchable` where vmap refuses it."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*batching rule.*")  # slower, not wrong
            return step(*inputs)
    except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
        raise Unbatchable(suggest.short(error)) from error


def stack(trees: Sequence[Any]) -> Any:
    """Trees of tensors, one on another along a new first axis."""
    return pytree.tree_map(lambda *leaves: torch.stack(leaves), *trees)

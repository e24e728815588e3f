"""Who steps together: the tensors of a group that have a gradient, by the numbers of their last step."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from sandbox.backends import Cohort
from sandbox.distributed import shards
from sandbox.optimizer import groups
from sandbox.recipe import Recipe, pure

States = dict[Any, Any]  # the optimizer's, by parameter


class Cohorts:
    """The cohorts of one group, valid while the same tensors have a gradient and their states are what the last step left."""

    def __init__(
        self,
        group: dict[str, Any],
        recipe: Recipe,
        present: list[bool],
        states: States,
        name: Callable[[int], str],
        part: Callable[[Tensor], shards.Part] | None,
        state_dtype: torch.dtype | None,
    ) -> None:
        self._base, self._params, self._present = group["recipe"], list(group["params"]), present
        self._locals, self._sharded = list(map(shards.local, self._params)), any(map(shards.is_sharded, self._params))
        alike: dict[tuple[Any, ...], list[int]] = {}
        for i, (p, role) in enumerate(zip(self._params, groups.roles(group), strict=True)):
            if present[i] and p.numel():
                branch = recipe.branch(p, role)
                one = recipe.member(branch)
                complete(one, p, states, name(i), state_dtype)
                alike.setdefault((branch, *(float(states[p][key]) for key in one.analysis.host_names)), []).append(i)
        self.each, self._roles = [], None if group.get("roles") is None else list(group["roles"])
        for (branch, *numbers), places in alike.items():
            whole = [self._params[i] for i in places]
            parts = None if part is None else list(map(part, whole))
            last = dict(zip(recipe.member(branch).analysis.host_names, numbers, strict=True))
            local, held = [self._locals[i] for i in places], [states[p] for p in whole]
            self.each.append(Cohort(places, local, held, last, name, parts, branch))

    def still_valid(self, group: dict[str, Any], present: list[bool]) -> bool:
        """Whether these are still the cohorts of the group; not where one has caught up with another."""
        if group["recipe"] is not self._base or group.get("roles") != self._roles or present != self._present:
            return False
        if not same_objects(group["params"], self._params):
            return False
        # fully_shard exchanges them, where a model is cast
        if self._sharded and not same_objects([*map(shards.local, self._params)], self._locals):
            return False
        now = {(c.branch, *c.last.values()) for c in self.each}
        return all(c.unchanged() for c in self.each) and len(now) == len(self.each)


def same_objects(one: Sequence[Any], two: Sequence[Any]) -> bool:
    """Whether two sequences hold the same objects in the same order; every step asks, so this runs in C."""
    return len(one) == len(two) and all(map(operator.is_, one, two))


def complete(recipe: Recipe, p: Tensor, states: States, name: str, state_dtype: torch.dtype | None) -> None:
    """Fills in what is missing in the state of a parameter with what it is before the first step of its recipe.

    state_dtype: see `sandbox.recipe.rounding`.

    Raises ValueError for a tensor of another shape than it had, TypeError for an entry that is no tensor.
    """
    if not isinstance(states[p], dict):
        states[p] = dict(states[p])
    state, kinds, part = states[p], recipe.analysis.state_kinds, shards.local(p)
    fresh = None
    for key in (*recipe.analysis.host_names, *kinds):
        if key not in state:
            fresh = fresh or pure.init(recipe, part.detach(), state_dtype)
            state[key] = fresh[key].cpu() if key in recipe.analysis.host_names else fresh[key]
        elif key in kinds and not isinstance(state[key], Tensor):
            raise TypeError(f"state {key!r} of parameter {name} must be a tensor, got {state[key]!r}")
        elif key in kinds and state[key].is_inference() and not torch.is_inference_mode_enabled():
            state[key] = state[key].clone()  # made under inference_mode, it could not be written to outside
        if key in kinds and state[key].shape != (shape := pure.state_shape(recipe, kinds[key], part)):
            raise ValueError(f"state {key!r} of parameter {name} must have shape {tuple(shape)}, got {tuple(state[key].shape)}")


def tidy(param_groups: list[dict[str, Any]], states: States, state_dtype: torch.dtype | None) -> None:
    """A state for each parameter, none for what is in no group any more."""
    places = {p: (k, i) for k, group in enumerate(param_groups) for i, p in enumerate(group["params"])}
    for p in [p for p in states if p not in places]:
        del states[p]
    each = [groups.recipes(group, groups.recipe_of(group)) for group in param_groups]
    for p, (k, i) in places.items():
        complete(each[k][i], p, states, groups.name(param_groups, k, i), state_dtype)


def norm_of(cohorts: list[tuple[int, Cohort, list[Tensor | None]]]) -> Tensor | None:
    """‖g‖₂ over all gradients; cohorts: with the gradients of their groups.  Raises as `Cohort.check` does."""
    mine = [[cast(Tensor, row[i]) for i in cohort.members] for _, cohort, row in cohorts]
    for (_, cohort, _), grads in zip(cohorts, mine, strict=True):
        cohort.check(grads)
    return pure.global_norm([g for grads in mine for g in grads]) if mine else None

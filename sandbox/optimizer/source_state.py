"""Checkpoints of `sandbox.Optimizer` and of a written file, each from the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sandbox.forms.source import file
from sandbox.forms.source.role import Role
from sandbox.optimizer import groups
from sandbox.recipe import Recipe
from sandbox.recipe.roles import ROLES

StateDict = dict[str, Any]


def to_file(recipe: str | Recipe, state_dict: StateDict, *, fixed: Sequence[str] = ()) -> StateDict:
    """Returns a `state_dict` of `sandbox.Optimizer` as one of the class that `source(recipe, fixed=fixed)` defines.

    Steps go on as they would have.  A group with roles becomes two, as the file's class wants them: matrices, and the rest.
    Raises ValueError for a recipe that no file can hold.
    """
    written = file.File(recipe, fixed=fixed)
    recipe, entries = written.recipe, _entries(written)
    new_groups: list[dict[str, Any]] = []
    for group in state_dict["param_groups"]:
        values = {entries[key]: value for key, value in group.items() if key in entries}
        new_groups += [{**some, **_paired(values)} for some in _divided(recipe, group)]
    new_states = {}
    for key, state in state_dict["state"].items():
        role = next(role for role in _largest_first(written) if set(role.names.states) <= set(state))
        kept = {text: state[name].clone() for name, text in role.names.states.items()}
        numbers = {text: state[name].to(torch.float64).clone() for name, text in _recalled(role).items()}
        new_states[key] = {"step": state["step"].to(torch.float32), **kept, **numbers}
    return {"state": new_states, "param_groups": new_groups}


def from_file(recipe: str | Recipe, state_dict: StateDict, *, fixed: Sequence[str] = ()) -> StateDict:
    """Returns a `state_dict` of the class that `source(recipe, fixed=fixed)` defines as one of `sandbox.Optimizer`.

    Every tensor must have made a step in the file's class, which makes a tensor's state at its first one.
    """
    written = file.File(recipe, fixed=fixed)
    recipe, entries = written.recipe, _entries(written)
    new_groups = []
    group_of: dict[Any, dict[str, Any]] = {}
    for group in state_dict["param_groups"]:
        single = {**group, **dict(zip(("beta1", "beta2"), group.get("betas", ()), strict=False))}
        values = {key: single[text] for key, text in entries.items() if text in single}
        structure = {**recipe.structure(), "lr": "number"}
        new_groups.append({"params": group["params"], **values, "recipe": {"name": recipe.name, **structure}})
        group_of |= dict.fromkeys(group["params"], single)
    new_states = {}
    for key, state in state_dict["state"].items():
        role = next(role for role in _largest_first(written) if set(role.names.states.values()) <= set(state))
        single, defaults = group_of[key], role.recipe.hyperparameters()
        numbers = {"lr": _number(role.ratio * single["lr"])}
        for name in role.recipe.analysis.recalled:
            numbers[name] = _number(single.get(role.prefix + role.numbers.get(name, ""), defaults.get(name)))
        numbers |= {name: state[text].to(torch.float64) for name, text in _recalled(role).items()}
        kept = {name: state[text].clone() for name, text in role.names.states.items()}
        new_states[key] = {"step": state["step"].to(torch.float64), **numbers, **kept}
    return {"state": new_states, "param_groups": new_groups}


def _divided(recipe: Recipe, group: dict[str, Any]) -> list[dict[str, Any]]:
    """The parameters of a group; those of roles that are no matrices in a second one, as the file's class wants them."""
    if not recipe.roles:
        return [{"params": group["params"]}]
    if group.get("roles") is None:
        return [{"params": group["params"], "matrices": True}]
    apart = {role for role in ROLES if recipe.branch(torch.empty(2, 2, device="meta"), role)}
    rows: list[dict[str, Any]] = [{"params": [], "matrices": True}, {"params": [], "matrices": False}]
    for key, role in zip(group["params"], group["roles"], strict=True):
        rows[role in apart]["params"].append(key)
    return [row for row in rows if row["params"]]


def _largest_first(written: file.File) -> list[Role]:
    return sorted(written.roles, key=lambda role: -len(role.names.states))


def _entries(written: file.File) -> dict[str, str]:
    """The entries of a group of `sandbox.Optimizer`, and what the file calls them; the pair of β by its two parts."""
    entries, paths = {"lr": "lr"}, {path: key for key, path in groups.paths(written.recipe).items()}
    for role in written.roles:
        for path, name in role.numbers.items():
            # of a role of its own: the path with the role's name before it
            own = [whole for whole in paths if (whole.endswith(f".{path}") if role.prefix else whole == path)]
            entries |= {paths[whole]: role.prefix + name for whole in own}
    return entries


def _recalled(role: Role) -> dict[str, str]:
    return {name: text for name, text in role.names.recalled.items() if text in role.recalled}


def _paired(values: dict[str, Any]) -> dict[str, Any]:
    """A group's numbers, two β of moment and curvature as one pair."""
    pair = tuple(values.pop(name) for name in ("beta1", "beta2") if name in values)
    return {**values, "betas": pair} if pair else values


def _number(value: Any) -> Tensor:
    return torch.as_tensor(value, dtype=torch.float64)

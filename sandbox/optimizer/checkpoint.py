"""Checkpoints of `sandbox.Optimizer`: tensors, numbers and texts only, exact, and independent of the backend."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sandbox.blocks.number import is_function
from sandbox.distributed import shards
from sandbox.optimizer import from_torch, groups
from sandbox.optimizer.cohorts import complete
from sandbox.optimizer.torch_base import load_hooks
from sandbox.recipe import Recipe, parts

TRAINED = "readout.train"  # of each parameter's state between eval() and train(): the weights as they are trained

_UNNAMED = {slot: parts.structure(block) for slot, block in parts.PLAIN.items()}


def pack(state_dict: dict[str, Any], param_groups: list[dict[str, Any]]) -> dict[str, Any]:
    """torch's state_dict as a snapshot, each recipe as the texts of its slots; of DTensors the states are DTensors too."""
    each = [groups.recipes(group, groups.recipe_of(group)) for group in param_groups]
    owners = [
        pair for group, recipes in zip(param_groups, each, strict=True) for pair in zip(recipes, group["params"], strict=True)
    ]
    packed = [
        {**groups.plain(group), "recipe": {"name": groups.recipe_of(group).name, **_structure(group)}}
        for group in state_dict["param_groups"]
    ]
    states = {key: snapshot(value) for key, value in state_dict["state"].items()}
    for key, state in states.items():
        recipe, p = owners[key]
        state |= {name: shards.wrap(recipe, kind, p, state[name]) for name, kind in recipe.analysis.state_kinds.items()}
    return {**state_dict, "state": states, "param_groups": packed}


def snapshot(state: dict[str, Any]) -> dict[str, Any]:
    """A copy of a state whose tensors share no memory with it, nor with each other."""
    return {name: value.clone() if isinstance(value, Tensor) else value for name, value in state.items()}


def unpack(optimizer: Any, state_dict: dict[str, Any]) -> None:
    """Copies a checkpoint into a `sandbox.Optimizer`, states into their dtypes; nothing is changed where it does not fit."""
    for hook in load_hooks(optimizer, "pre"):
        changed = hook(optimizer, state_dict)
        state_dict = state_dict if changed is None else changed
    if not {"state", "param_groups"} <= set(state_dict):
        raise ValueError(f"not a state_dict of an optimizer: it has {', '.join(map(str, state_dict)) or 'nothing'}")
    if from_torch.is_adam(state_dict):
        state_dict = from_torch.adam(optimizer, state_dict)
    pairs = _matched(optimizer.param_groups, state_dict["param_groups"])
    saved, evaluating = dict(state_dict["state"]), any(group.get("evaluating") for group in state_dict["param_groups"])
    for recipe, key, p, name in pairs:
        complete(recipe, p, optimizer.state, name, optimizer.state_dtype)
        if key in saved:
            local = {n: shards.unwrap(recipe, kind, p, saved[key].get(n)) for n, kind in recipe.analysis.state_kinds.items()}
            saved[key] = {**saved[key], **{n: value for n, value in local.items() if value is not None}}
        _check_state(optimizer.state[p], saved.get(key), (*recipe.analysis.host_names, *recipe.analysis.state_kinds), name)
        if evaluating and recipe.analysis.reads_out and saved[key]["step"] > 0 and TRAINED not in saved[key]:
            raise ValueError(
                f"the checkpoint was written between eval() and train(), and lacks the weights to train of parameter {name} "
                f"({TRAINED!r}): write it in train mode where something else gathers the state"
            )
    for group, old in zip(optimizer.param_groups, state_dict["param_groups"], strict=True):
        for key, value in old.items():
            if key not in ("params", "param_names", "roles", "recipe", *groups.WHOLE) and not (
                key == "lr" and isinstance(value, str)
            ):
                _assign(group, key, value)
        group["evaluating"] = int(evaluating)
    for recipe, key, p, _ in pairs:
        for name in (*recipe.analysis.host_names, *recipe.analysis.state_kinds):
            optimizer.state[p][name].copy_(saved[key][name])
        optimizer.state[p].pop(TRAINED, None)
        if TRAINED in saved[key]:
            optimizer.state[p][TRAINED] = torch.empty_like(p).copy_(saved[key][TRAINED])
    for post in load_hooks(optimizer, "post"):
        post(optimizer)


def _structure(group: dict[str, Any]) -> dict[str, str]:
    """The recipe's structure, and whether its rate is a number or which function of t."""
    lr = group["lr"]
    return {**groups.recipe_of(group).structure(), "lr": groups.rate_name(lr) if is_function(lr) else "number"}


def _matched(mine: list[dict[str, Any]], old: list[dict[str, Any]]) -> list[tuple[Any, Any, Tensor, str]]:
    """(recipe, key in the checkpoint, parameter, its name), after checking that groups and recipes agree."""
    if len(mine) != len(old):
        raise ValueError(f"the checkpoint has {len(old)} parameter groups, the optimizer {len(mine)}")
    matched: list[tuple[Any, Any, Tensor, str]] = []
    for index, (group, saved) in enumerate(zip(mine, old, strict=True)):
        params, keys = group["params"], saved["params"]
        if len(params) != len(keys):
            raise ValueError(f"group {index}: the checkpoint has {len(keys)} parameters, the optimizer {len(params)}")
        _check_recipe(index, group, saved)
        _check_roles(index, group, saved)
        names, there = group.get("param_names"), saved.get("param_names")
        if names and there:
            lacking = [name for name in names if name not in there]
            if lacking:
                raise ValueError(f"group {index}: the checkpoint has no parameter called {', '.join(map(repr, lacking))}")
            by_name = dict(zip(there, keys, strict=True))
            keys = [by_name[name] for name in names]
        shown = [groups.name(mine, index, i) for i in range(len(params))]
        matched += zip(groups.recipes(group, groups.recipe_of(group)), keys, params, shown, strict=True)
    return matched


def _check_recipe(index: int, group: dict[str, Any], entries: dict[str, Any]) -> None:
    saved = entries.get("recipe")
    if isinstance(saved, str | Recipe):  # as a wrapper was given it
        saved = {"name": str(getattr(saved, "name", saved)), **_structure({**entries})}
    if not isinstance(saved, dict):
        raise ValueError(f"group {index}: no recipe in the checkpoint; it is not one of sandbox.Optimizer")
    here, saved = _structure(group), {**_UNNAMED, **saved}
    differing = [f"{slot}: {saved.get(slot)} there, {here[slot]} here" for slot in here if saved.get(slot) != here[slot]]
    if differing:
        raise ValueError(
            f"group {index}: the checkpoint belongs to recipe {saved.get('name')!r}, which differs from "
            f"{groups.recipe_of(group).name!r} in {'; '.join(differing)}"
        )


def _check_roles(index: int, group: dict[str, Any], saved: dict[str, Any]) -> None:
    """Raises ValueError where the same parameters had other roles."""
    if not groups.recipe_of(group).roles or saved.get("roles") is None:  # then the states themselves must fit
        return
    named = group.get("param_names") and saved.get("param_names")
    here, there = (
        dict(zip(g["param_names"] if named else range(len(g["params"])), groups.roles(g), strict=True)) for g in (group, saved)
    )
    for name, role in here.items():
        if there.get(name) != role:
            raise ValueError(
                f"group {index}: parameter {name!r} has role {there.get(name)!r} in the checkpoint and {role!r} here"
            )


def _check_state(mine: dict[str, Tensor], saved: dict[str, Tensor] | None, names: tuple[str, ...], name: str) -> None:
    if saved is None:
        raise ValueError(f"the checkpoint has no state of parameter {name}")
    for key in names:
        if key not in saved:
            raise ValueError(f"the checkpoint lacks the state {key!r} of parameter {name}")
        if saved[key].shape != mine[key].shape:
            raise ValueError(
                f"state {key!r} of parameter {name}: shape {tuple(saved[key].shape)} there, {tuple(mine[key].shape)} here"
            )


def _assign(group: dict[str, Any], key: str, value: Any) -> None:
    """Numbers held as tensors are filled and never replaced, so that whoever holds them sees the change."""
    if isinstance(group.get(key), Tensor):
        group[key].fill_(float(value))
    else:
        group[key] = value.clone() if isinstance(value, Tensor) else value

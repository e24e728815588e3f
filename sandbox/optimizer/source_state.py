"""Checkpoints of `sandbox.Optimizer` and of a written file, each from the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sandbox.forms import lookup
from sandbox.forms.source import file
from sandbox.optimizer import groups
from sandbox.recipe import Recipe

StateDict = dict[str, Any]


def to_file(recipe: str | Recipe, state_dict: StateDict, *, fixed: Sequence[str] = ()) -> StateDict:
    """Returns a `state_dict` of `sandbox.Optimizer` as one of the class that `source(recipe, fixed=fixed)` defines.

    Steps go on as they would have.  Raises ValueError for a recipe that no file can hold.
    """
    names, states, recalled = _names(recipe, fixed)
    new_groups = []
    for group in state_dict["param_groups"]:
        values = {names[key]: value for key, value in group.items() if key in names}
        new_groups.append({"params": group["params"], **_paired(values)})
    new_states = {}
    for key, state in state_dict["state"].items():
        kept = {text: state[name].clone() for name, text in states.items()}
        numbers = {text: state[name].to(torch.float64).clone() for name, text in recalled.items()}
        new_states[key] = {"step": state["step"].to(torch.float32), **kept, **numbers}
    return {"state": new_states, "param_groups": new_groups}


def from_file(recipe: str | Recipe, state_dict: StateDict, *, fixed: Sequence[str] = ()) -> StateDict:
    """Returns a `state_dict` of the class that `source(recipe, fixed=fixed)` defines as one of `sandbox.Optimizer`.

    Every tensor must have made a step in the file's class, which makes a tensor's state at its first one.
    """
    recipe = lookup.recipe(recipe)
    names, states, recalled = _names(recipe, fixed)
    paths = {"lr": "lr", **groups.paths(recipe)}
    new_groups: list[dict[str, Any]] = []
    by_key: dict[Any, dict[str, Any]] = {}
    for group in state_dict["param_groups"]:
        single = {**group, **dict(zip(("beta1", "beta2"), group.get("betas", ()), strict=False))}
        values = {key: single[text] for key, text in names.items() if text in single}
        structure = {**recipe.structure(), "lr": "number"}
        new_groups.append({"params": group["params"], **values, "recipe": {"name": recipe.name, **structure}})
        now = {path: values.get(key, recipe.hyperparameters().get(path)) for key, path in paths.items()}
        by_key |= dict.fromkeys(group["params"], now)
    new_states = {}
    for key, state in state_dict["state"].items():
        numbers = {name: _number(by_key[key][name]) for name in ("lr", *recipe.analysis.recalled)}
        numbers |= {name: state[text].to(torch.float64) for name, text in recalled.items()}
        kept = {name: state[text].clone() for name, text in states.items()}
        new_states[key] = {"step": state["step"].to(torch.float64), **numbers, **kept}
    return {"state": new_states, "param_groups": new_groups}


def _names(recipe: str | Recipe, fixed: Sequence[str]) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """What the file calls the entries of a group, the states, and the numbers of the last step that it keeps."""
    written = file.File(recipe, fixed=fixed)
    paths = groups.paths(written.recipe)
    entries = {"lr": "lr", **{key: written.numbers[path] for key, path in paths.items() if path in written.numbers}}
    recalled = {name: text for name, text in written.names.recalled.items() if text in written.recalled}
    return entries, written.names.states, recalled


def _paired(values: dict[str, Any]) -> dict[str, Any]:
    """A group's numbers, two β of moment and curvature as one pair."""
    pair = tuple(values.pop(name) for name in ("beta1", "beta2") if name in values)
    return {**values, "betas": pair} if pair else values


def _number(value: Any) -> Tensor:
    return torch.as_tensor(value, dtype=torch.float64)

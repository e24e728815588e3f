"""What torch.optim calls otherwise: `betas`, `eps`, `fused` and `foreach`, and the checkpoints of Adam and AdamW."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from sandbox.blocks import AdamWDecay, L2Decay, RawEMA, SecondMoment, SquareRoot
from sandbox.optimizer import groups
from sandbox.recipe import Recipe

# Requests for a fast step of torch's own; here `backend` says how a step runs.
HINTS = ("foreach", "fused")

# torch's names of Adam's state, and those of the recipe's blocks.
_STATES = {"step": "step", "exp_avg": "moment.m", "exp_avg_sq": "curvature.v", "max_exp_avg_sq": "curvature.v_max"}


def numbers(recipe: Recipe) -> dict[str, tuple[str, ...]]:
    """Returns the hyperparameters, by their names in a group, that "beta1", "beta2" and "eps" of torch.optim are.

    beta1 is the moment's β, beta2 the curvature's, or Lion's second; each with the repetitions in other slots that have its
    value now.  eps is the rectifier's, with the curvature's where that has the same value, or the only one of the recipe.
    What a recipe does not have, or has in a sense of its own (Adan's three β), is left out.
    """
    paths = {name: path for name, path in groups.paths(recipe).items() if not path.startswith(groups.INNER)}
    values = groups.hyperparameters(recipe)

    def named(slot: str, last: str) -> list[str]:
        return [n for n, path in paths.items() if path.startswith(f"{slot}.") and path.rpartition(".")[2].endswith(last)]

    def repeated(first: list[str], slots: tuple[str, ...], last: str) -> tuple[str, ...]:
        same = [n for slot in slots for n in named(slot, last) if first and values[n] == values[first[0]]]
        return (*first, *(n for n in same if n not in first))

    moment, curvature = [n for n in paths if n == "momentum"], named("curvature", "beta")
    more = [n for n in named("moment", "beta") if n not in moment]
    found: dict[str, tuple[str, ...]] = {}
    if not (more and curvature):
        found["beta2"] = repeated((curvature or more)[:1], ("rectifier", "basis"), "beta")
        found["beta1"] = tuple(n for n in repeated(moment, ("gradient", "rectifier"), "beta") if n not in found["beta2"])
    rectifier, every = named("rectifier", "eps"), [n for n in paths if n.rpartition(".")[2] == "eps"]
    if not named("basis", "eps"):
        found["eps"] = repeated(rectifier[:1] or (every if len(every) == 1 else []), ("curvature",), "eps")
    return {key: names for key, names in found.items() if names}


def translated(recipe: Recipe, entries: Mapping[str, Any]) -> dict[str, Any]:
    """Returns keywords or the entries of a group with the recipe's names in place of torch's; `fused` and `foreach` dropped.

    Raises ValueError for betas or eps that the recipe does not have, and where one of them is given under both names.
    """
    new = {key: value for key, value in entries.items() if key not in (*HINTS, "betas", "eps")}
    pair = entries.get("betas")
    if "betas" in entries and (not isinstance(pair, tuple | list) or len(pair) != 2):
        raise ValueError(f"betas must be a pair of numbers, (0.9, 0.999) for one, got {pair!r}")
    given = {"eps": entries["eps"]} if "eps" in entries else {}
    given |= {} if pair is None else {"beta1": pair[0], "beta2": pair[1]}
    names = numbers(recipe)
    for key, value in given.items():
        if key not in names:
            raise ValueError(groups.refusal(recipe, "eps" if key == "eps" else "betas"))
        for name in names[key]:
            if name in new:
                raise ValueError(f"{name!r} is given twice, once as {'eps' if key == 'eps' else 'betas'}")
            new[name] = value
    return new


def is_adam(state_dict: Mapping[str, Any]) -> bool:
    """Whether a checkpoint is one of torch.optim.Adam or AdamW."""
    return bool(state_dict["param_groups"]) and all(
        "recipe" not in g and {"betas", "eps", "amsgrad"} <= set(g) for g in state_dict["param_groups"]
    )


def adam(optimizer: Any, state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a checkpoint of torch.optim.Adam or AdamW as one of `optimizer`; parameters without a state have made no step.

    Raises ValueError for an optimizer whose recipe is another method, or whose weight decay is made otherwise.
    """
    states: dict[Any, Any] = {}
    rows: list[dict[str, Any]] = []
    if len(optimizer.param_groups) != len(state_dict["param_groups"]):
        return dict(state_dict)  # to be refused for that
    for index, (group, saved) in enumerate(zip(optimizer.param_groups, state_dict["param_groups"], strict=True)):
        recipe = groups.recipe_of(group)
        _check(index, recipe, saved)
        kept = {key: saved[key] for key in ("lr", "params", "param_names", "maximize", "betas", "eps") if key in saved}
        decay = {"weight_decay": saved["weight_decay"]} if "weight_decay" in groups.paths(recipe) else {}
        rows.append({**translated(recipe, kept), **decay, "recipe": recipe})
        for p, key in zip(group["params"], saved["params"], strict=False):
            state = state_dict["state"].get(key, {})
            lr = torch.as_tensor(saved["lr"], dtype=torch.float64)
            moved = {mine: state[name] for name, mine in _STATES.items() if name in state}
            states[key] = {**recipe.init(p.detach()), "lr": lr, **moved}
    return {"state": states, "param_groups": rows}


def _check(index: int, recipe: Recipe, saved: Mapping[str, Any]) -> None:
    """Raises ValueError where a group of torch.optim.Adam or AdamW makes other steps than the recipe."""
    decays: tuple[Recipe, ...] = (Recipe(), Recipe(decay=AdamWDecay()), Recipe(gradient=(L2Decay(),)))
    if saved["weight_decay"]:
        decays = decays[1:2] if saved.get("decoupled_weight_decay", True) else decays[2:]
    base = {"moment": RawEMA(), "curvature": SecondMoment(maximum=saved["amsgrad"]), "rectifier": SquareRoot()}
    if recipe.structure() not in [decay.replace(**base).structure() for decay in decays]:
        options = ", ".join(
            f"{key}={saved[key]}" for key in ("amsgrad", "weight_decay", "decoupled_weight_decay") if key in saved
        )
        raise ValueError(
            f"group {index}: the checkpoint is one of torch.optim.Adam or AdamW ({options}), and recipe {recipe.name!r} "
            "makes other steps; it loads into 'adamw', 'adam' or 'amsgrad', with a weight decay like the checkpoint's"
        )

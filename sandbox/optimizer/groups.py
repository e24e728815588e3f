"""What a parameter group holds: "lr", the recipe's hyperparameters under their dotted names, and counts of the optimizer.

Two hyperparameters have the names that torch's schedulers know: the moment's first is "momentum", that of weight decay
"weight_decay".
"""

from __future__ import annotations

import difflib
import math
import numbers
import warnings
from typing import Any

import torch
from torch import Tensor

from sandbox.blocks.number import is_function, show
from sandbox.forms import lookup
from sandbox.recipe import Recipe
from sandbox.utils import suggest

# Entries of every group that are no hyperparameters, with their first values.  Since they are numbers in the groups, every kind
# of checkpoint keeps them.  seed: of random vectors; draws: how many times some have been drawn.  evaluating: 1 between eval()
# and train().
OWN_ENTRIES: dict[str, Any] = {"maximize": False, "seed": 0, "draws": 0, "skipped_steps": 0, "evaluating": 0}

# Options of the whole optimizer, which wrappers (ZeroRedundancyOptimizer) copy into groups.
WHOLE = ("backend", "flat", "nonfinite", "state_dtype")

INNER = ("vectors.", "roles.")  # how the hyperparameters of recipes in a recipe begin

TRAINABLE = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

_TORCHS = ("weight_decay", "momentum", "betas", "eps", "alpha", "dampening", "nesterov", "amsgrad", "lr_decay", "rho")


def paths(recipe: Recipe) -> dict[str, str]:
    """Name in a parameter group -> dotted path of the hyperparameter, for all of a recipe but lr."""
    names = [path for path in recipe.hyperparameters() if path.partition(".")[0] != "lr"]
    moment = next((path for path in names if path.count(".") == 1 and path.startswith("moment.")), None)
    decays = (path for path in names if path.endswith(".weight_decay") and not path.startswith(INNER))
    decay = next(iter(sorted(decays)), None)
    return {{moment: "momentum", decay: "weight_decay"}.get(path, path): path for path in names}


def hyperparameters(recipe: Recipe) -> dict[str, Any]:
    """What a parameter group of this recipe holds: "lr" and every hyperparameter by its name there."""
    values = recipe.hyperparameters()
    return {"lr": recipe.lr, **{name: values[path] for name, path in paths(recipe).items()}}


def check_keywords(recipe: Recipe, given: dict[str, Any]) -> None:
    """Raises ValueError for a keyword that is no hyperparameter of the recipe."""
    for key in given:
        if key not in paths(recipe) and key not in OWN_ENTRIES and key != "lr" and not _is_no_decay(key, given[key]):
            raise ValueError(refusal(recipe, key))


def check_entries(recipe: Recipe, group: dict[str, Any], *, new: bool = False) -> None:
    """Raises ValueError for an entry of a group that is meant as a hyperparameter and is none of the recipe's.

    As in torch.optim a group may hold entries of its user's own (a tag, a scale of layers), and schedulers add theirs; they
    mean nothing here.  new: of a group that is just being added, where something almost named like a hyperparameter is a slip.
    """
    names = paths(recipe)
    allowed = {"params", "param_names", "roles", "lr", "recipe", "initial_lr", *OWN_ENTRIES, *names}
    for key in group:
        if not isinstance(key, str) or key in allowed or _is_no_decay(key, group[key]):
            continue
        if "." in key or key in _TORCHS or (new and difflib.get_close_matches(key, ["lr", *names], 1, 0.8)):
            raise ValueError(refusal(recipe, key))


def _is_no_decay(key: str, value: Any) -> bool:
    """Whether an entry asks for no weight decay, which every recipe can give: trainers say so for each group of theirs."""
    return key == "weight_decay" and isinstance(value, int | float) and value == 0


def refusal(recipe: Recipe, key: str) -> str:
    """Returns the message for an entry of a group that is no hyperparameter of the recipe under this name."""
    names = paths(recipe)
    if key == "weight_decay":
        return (
            f"recipe {recipe.name!r} has no weight decay; give it some: recipe.replace(decay=Decoupled()), "
            "decay=AdamWDecay() or gradient=(L2Decay(),)"
        )
    renamed = {path: name for name, path in names.items() if name != path}
    if key in renamed:
        return f"{key!r} is called {renamed[key]!r} in a parameter group"
    if key == "betas":
        pair = [name for name, path in names.items() if path.rpartition(".")[2].endswith("beta") or name == "momentum"]
        return f"'betas' are separate hyperparameters here: {' and '.join(map(repr, pair)) or 'this recipe has none'}"
    alike = [name for name in names if name.rpartition(".")[2] == key]
    if alike:
        return f"{key!r} is called {' or '.join(map(repr, alike))} here: **{{{alike[0]!r}: …}}"
    return suggest.unknown("hyperparameter of a parameter group", key, ["lr", *names])


def name(param_groups: list[dict[str, Any]], group: int, i: int) -> str:
    """What a parameter is called in messages."""
    names = param_groups[group].get("param_names")
    return repr(names[i]) if names else f"{i} of group {group}"


def listed(params: Any) -> Any:
    """What a group is given as "params", in a list where it is a sequence.  Raises ValueError for a parameter twice in it."""
    if isinstance(params, Tensor | set):  # torch's own cases: one tensor, and an error
        return params
    params = list(params)
    seen: dict[int, int] = {}
    for i, p in enumerate(params):
        first = seen.setdefault(id(p[1] if isinstance(p, tuple) else p), i)
        if first != i:
            raise ValueError(f"a group lists the same parameter twice, at places {first} and {i}")
    return params


def check_parameter(p: Tensor, name: str) -> None:
    """Raises TypeError for a tensor that cannot be trained, ValueError for one without values."""
    if p.is_complex():
        raise TypeError(f"parameter {name} is complex ({p.dtype}); train torch.view_as_real of it instead")
    if p.dtype not in TRAINABLE:
        raise TypeError(f"parameter {name} has dtype {p.dtype}; only {', '.join(map(str, TRAINABLE))} can be trained")
    if p.is_meta:
        raise ValueError(f"parameter {name} is on the meta device and has no values yet; make the optimizer after to_empty()")
    if p.is_inference():
        raise ValueError(f"parameter {name} was made under torch.inference_mode(), which forbids training it: train a clone()")
    if p.layout != torch.strided:
        raise TypeError(f"parameter {name} is sparse ({p.layout}); only dense parameters can be trained")


def filled(group: dict[str, Any], recipe: Recipe, given: dict[str, Any]) -> dict[str, Any]:
    """A new group with what it lacks: first from the optimizer's keywords, then from the recipe.

    Tensors are copied: one that two groups share would be changed twice by a scheduler.
    """
    entries = {**OWN_ENTRIES, **hyperparameters(recipe)}
    chosen = {**given, **group}
    entries |= {name: value for name, value in chosen.items() if name in entries or name in group}
    entries["recipe"] = recipe
    if "weight_decay" in chosen:  # said of all tensors of the group
        inner = [name for name in entries if name.startswith(INNER) and name.endswith(".weight_decay")]
        entries |= {name: chosen.get(name, entries["weight_decay"]) for name in inner}
    for name, value in entries.items():
        if isinstance(value, Tensor) and name != "params":
            if value.numel() != 1:
                raise ValueError(f"{name} must be a number or a tensor of one entry, got shape {tuple(value.shape)}")
            entries[name] = value.detach().clone()
    return entries


def recipe_of(group: dict[str, Any]) -> Recipe:
    """The group's recipe as it was given; an entry that names one (a text) becomes it."""
    if not isinstance(group["recipe"], Recipe):
        group["recipe"] = lookup.recipe(group["recipe"])
    recipe: Recipe = group["recipe"]
    return recipe


def recipes(group: dict[str, Any], recipe: Recipe) -> list[Recipe]:
    """The recipe of each parameter of a group whose own is `recipe`, by its role or its shape."""
    return [recipe.of(p, role) for p, role in zip(group["params"], roles(group), strict=True)]


def check_roles(group: dict[str, Any], recipe: Recipe, names: list[str]) -> None:
    """Raises ValueError for matrices of which nobody knows what they do, under a recipe that must know; warns where no role is
    known at all."""
    if not recipe.roles:
        return
    if group.get("roles") is None and any(p.ndim > 1 for p in group["params"]):
        apart = " and ".join(f"{role!r}" for role in recipe.roles.given())
        warnings.warn(
            f"recipe {recipe.name!r} treats tensors of role {apart} apart, and bare tensors do not say what they are: every "
            "tensor with two axes or more is trained as a matrix.  Give the model itself, sandbox.Optimizer(model, "
            f"{recipe.name!r}), or roles=",
            stacklevel=5,
        )
    unknown = [
        name
        for name, p, role in zip(names, group["params"], roles(group), strict=True)
        if role == "other" and p.ndim > 1 and recipe.roles.other is None
    ]
    if unknown:
        raise ValueError(
            f"recipe {recipe.name!r} must know what a matrix does, and no rule covers {', '.join(unknown[:5])}"
            f'{" and others" if len(unknown) > 5 else ""}: name their roles, roles={{{unknown[0]}: "embedding"}}, or say who '
            'trains such tensors, recipe.replace(roles={…, "other": "matrices"})'
        )


def roles(group: dict[str, Any]) -> list[str | None]:
    """The role of each parameter of a group, None where it is not known.  Raises ValueError for a list of another length."""
    given, count = group.get("roles"), len(group["params"])
    if given is not None and len(given) != count:
        raise ValueError(f"a group has {count} parameters and {len(given)} roles: change both lists together")
    return [None] * count if given is None else [role or None for role in given]


def current(group: dict[str, Any]) -> Recipe:
    """The group's recipe with the hyperparameters that its entries have now."""
    recipe = recipe_of(group)
    check_entries(recipe, group)
    values = {path: group[name] for name, path in paths(recipe).items()}
    return recipe.with_hyperparameters({path: float(v) if isinstance(v, Tensor) else v for path, v in values.items()})


def rate(group: dict[str, Any], t: int) -> float:
    """η_t of a group.  Raises TypeError and ValueError for what is no rate."""
    lr = group["lr"]
    if isinstance(lr, bool | str):
        raise TypeError(f"lr must be a number, a tensor or a function of t, got {lr!r}")
    lr = float(lr(t) if is_function(lr) else lr)
    if not 0 <= lr < math.inf:
        raise ValueError(f"lr must lie in [0, inf), got {show(lr)}")
    return lr


def rate_name(lr: Any) -> str:
    """What a rate that is a function of t is called."""
    return f"function of t {show(lr)}"


def plain(group: dict[str, Any]) -> dict[str, Any]:
    """A group's entries as a checkpoint holds them: no functions (of a rate its name), numbers of Python's own types."""
    group = {**group, "lr": rate_name(group["lr"])} if is_function(group["lr"]) else group
    entries = {key: value for key, value in group.items() if isinstance(value, Tensor) or not callable(value)}
    return {key: _python(value) for key, value in entries.items()}


def _python(value: Any) -> Any:
    if isinstance(value, bool | int | float | Tensor) and type(value).__module__ in ("builtins", "torch"):
        return value
    if hasattr(value, "item") and not isinstance(value, Tensor) and getattr(value, "ndim", 1) == 0:
        return value.item()  # NumPy's bool_ is no numbers.Number
    if isinstance(value, numbers.Integral):
        return int(value)
    return float(value) if isinstance(value, numbers.Real) else value

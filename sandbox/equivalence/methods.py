"""An optimizer as a side of a comparison: a recipe, or a torch optimizer, with the numbers that both kinds have."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sandbox.forms import lookup
from sandbox.optimizer import Optimizer, from_torch, groups
from sandbox.recipe import Recipe
from sandbox.utils import imports

_CALL = re.compile(r"([^()]+)(\(.*\))\s*", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Method:
    """One side of a comparison.

    recipe, or else factory: a torch optimizer's class, or a function of (params, lr=…).  options: its further arguments.
    sign: of the gradients that it is shown.  missing_is_zero: whether it is shown zeros where a gradient is missing.
    keeps_first_rate: whether it goes on with the rate of its construction.
    counts_together: whether a recipe's tensors have one count of steps, those without a gradient too.  factor: of the rates.
    """

    name: str
    recipe: Recipe | None = None
    factory: Callable[..., Any] | None = None
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    sign: float = 1.0
    missing_is_zero: bool = False
    keeps_first_rate: bool = False
    counts_together: bool = False
    factor: float = 1.0

    @property
    def attached(self) -> bool:
        """Whether the closure leaves backward() to the optimizer."""
        return self.recipe is not None and self.recipe.analysis.second_order

    @property
    def lr(self) -> float | None:
        """The rate that it declares; None where it declares no number."""
        rate = self.recipe.lr if self.recipe is not None else arguments(self.factory).get("lr")
        return float(rate) if isinstance(rate, int | float | Tensor) and float(rate) > 0 else None

    def build(self, params: list[Tensor], lr: float) -> Any:
        """Returns its optimizer of these tensors."""
        if self.recipe is not None:
            return Optimizer(params, self.recipe, lr=lr, backend="reference", nonfinite="pass", roles={})
        assert self.factory is not None
        optimizer = self.factory(params, **{"lr": lr, **self.options})
        if hasattr(optimizer, "train"):  # schedule-free methods
            optimizer.train()
        return optimizer

    def numbers(self) -> dict[str, float]:
        """Returns what it declares of beta1, beta2, eps and weight_decay."""
        optimizer = self.build([torch.zeros(2, 2, dtype=torch.float64, requires_grad=True)], self.lr or 1e-3)
        return {name: value for name in NUMBERS if (value := read(optimizer, name)) is not None}


NUMBERS = ("beta1", "beta2", "eps", "weight_decay")


def _places(optimizer: Any, name: str) -> list[Any]:
    """The entries of a group that hold a number: keys, and for torch's pairs (key, place)."""
    group = optimizer.param_groups[0]
    if isinstance(optimizer, Optimizer):
        if name == "weight_decay":
            return [key for key in group if key == name or (key.startswith(groups.INNER) and key.endswith(f".{name}"))]
        return list(from_torch.numbers(groups.recipe_of(group)).get(name, ()))
    betas = group.get("betas")
    if name in ("beta1", "beta2") and isinstance(betas, tuple | list) and len(betas) == 2:
        return [("betas", int(name[-1]) - 1)]
    others = {"beta1": ("momentum",), "beta2": ("alpha", "rho")}.get(name, ())
    keys = [key for key in (name, *others) if isinstance(group.get(key), float | int) and not isinstance(group[key], bool)]
    return [key for key in keys if not others or 0 <= group[key] < 1][:1]


def read(optimizer: Any, name: str) -> float | None:
    """Returns a number of the first group; None where there is none."""
    for place in _places(optimizer, name):
        group = optimizer.param_groups[0]
        value = group[place[0]][place[1]] if isinstance(place, tuple) else group[place]
        return float(value) if isinstance(value, int | float | Tensor) else None
    return None


def write(optimizer: Any, name: str, value: float) -> bool:
    """Sets a number in every group; returns whether there is one."""
    places = ["lr"] if name == "lr" else _places(optimizer, name)
    for group in optimizer.param_groups:
        for place in places:
            if isinstance(place, tuple):
                pair = list(group[place[0]])
                pair[place[1]] = value
                group[place[0]] = tuple(pair)
            elif isinstance(group.get(place), Tensor):
                group[place].fill_(value)
            else:
                group[place] = value
    return bool(places)


def resolve(what: Any) -> Method:
    """Returns the method that a user names.

    A Recipe; a torch optimizer's class, or a function of (params, lr=…); or a text: a variant's name, a TOML file, a name of
    torch.optim ("AdamW"), "module:Class" or "file.py:Class", each with further arguments as in "AdamW(eps=1e-6)".
    Raises ValueError and TypeError for what is none of these.
    """
    if isinstance(what, Method):
        return what
    if isinstance(what, Recipe):
        return Method(what.name, recipe=what)
    if callable(what):
        return Method(getattr(what, "__name__", repr(what)), factory=what)
    if not isinstance(what, str):
        raise TypeError(f"an optimizer is a recipe, a class, or a text that names one, got {what!r}")
    match = _CALL.fullmatch(what)
    text, options = (match[1].strip(), _options(what, match[2])) if match and not Path(what).exists() else (what, {})
    target = _target(text)
    if not isinstance(target, Recipe):
        return Method(what, factory=target, options=options)
    if options:
        lr = options.pop("lr", target.lr)
        optimizer = Optimizer([torch.zeros(2, 2, requires_grad=True)], target, lr=lr, **options)
        target = optimizer.current_recipe(0).at_rate(lr)
    return Method(what, recipe=target)


def _target(text: str) -> Any:
    if text.startswith("torch.optim."):
        text = "torch.optim:" + text.removeprefix("torch.optim.")
    named = getattr(torch.optim, text, None)
    if isinstance(named, type) and issubclass(named, torch.optim.Optimizer):
        return named
    if ":" not in text:
        return lookup.recipe(text)
    value = imports.attribute(text)
    if isinstance(value, type) and issubclass(value, torch.optim.Optimizer):
        return value
    if isinstance(value, Recipe) or not (callable(value) and arguments(value)):
        return lookup.recipe(text)
    return value


def _options(what: str, call: str) -> dict[str, Any]:
    try:
        node = ast.parse(f"f{call}", mode="eval").body
        if not isinstance(node, ast.Call) or node.args or any(k.arg is None for k in node.keywords):
            raise ValueError
        return {str(k.arg): ast.literal_eval(k.value) for k in node.keywords}
    except (ValueError, SyntaxError) as error:
        raise ValueError(f"{what!r}: write literal keyword arguments, as in AdamW(betas=(0.9, 0.99))") from error


def arguments(factory: Any) -> dict[str, Any]:
    """The arguments of a class or function with their defaults."""
    try:
        return {name: p.default for name, p in inspect.signature(factory).parameters.items()}
    except (TypeError, ValueError):
        return {}

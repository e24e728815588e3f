"""Grids of variants: the cross product of what slots may hold, or one change at a time."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from sandbox.forms import lookup
from sandbox.recipe import Recipe
from sandbox.utils.private_torch import pytree


def ablate(base: str | Recipe, *, one_at_a_time: bool = False, **choices: Sequence[Any]) -> list[Recipe]:
    """Every combination of the given choices, each named by what differs from `base`.

        ablate(apollo, rectifier=[AbsoluteFloor(), SoftAbsolute()], **{"moment.beta": [0.0, 0.9]})

    Keys are slots, "scope", "lr" or dotted names of numbers; values are sequences.  With `one_at_a_time` the base comes
    first, then one recipe for every single change.  `base` may be a
    variant's name.  What equals the base keeps its name; repetitions are dropped.
    Raises ValueError for an unknown key or an empty sequence.
    """
    base = lookup.recipe(base)
    for key, values in choices.items():
        if isinstance(values, str) or not isinstance(values, Sequence):
            raise TypeError(f"ablate: {key} must be a list of choices, got {values!r}")
        if not values:
            raise ValueError(f"ablate: {key} has no choices")
    if one_at_a_time:
        recipes = [base] + [base.replace(**{key: value}) for key, values in choices.items() for value in values]
    else:
        recipes = [base.replace(**dict(zip(choices, row, strict=True))) for row in itertools.product(*choices.values())]
    return _distinct(recipes)


def _distinct(recipes: list[Recipe]) -> list[Recipe]:
    """The recipes without repetitions; different ones that would be called the same get a number behind their name."""
    distinct: list[Recipe] = []
    names = Counter[str]()
    for recipe in recipes:
        if any(_same(recipe, other) for other in distinct):
            continue
        names[recipe.name] += 1
        count = names[recipe.name]
        distinct.append(recipe if count == 1 else recipe.replace(name=f"{recipe.name} #{count}"))
    return distinct


def _same(a: Recipe, b: Recipe) -> bool:
    (x, one), (y, two) = (pytree.tree_flatten(r.replace(name="")) for r in (a, b))
    return one == two and all(torch.equal(_exact(v), _exact(w)) for v, w in zip(x, y, strict=True))


def _exact(value: Any) -> torch.Tensor:
    return torch.as_tensor(value, dtype=torch.float64)

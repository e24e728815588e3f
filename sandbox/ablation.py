"""Grids of variants: the cross product of what slots may hold, or one change at a time."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from sandbox.recipe import Recipe


def ablate(base: Recipe, *, one_at_a_time: bool = False, **choices: Sequence[Any]) -> list[Recipe]:
    """Every combination of the given choices, each named by what differs from `base`.

        ablate(apollo, rectifier=[AbsoluteFloor(), SoftAbsolute()], **{"moment.beta": [0.0, 0.9]})

    Keys are slots, "scope", "lr" or dotted names of numbers; values are sequences.  With `one_at_a_time` the base comes
    first, then one recipe for every single change.  What equals the base keeps its name; duplicates are dropped.
    Raises ValueError for an unknown key or an empty sequence.
    """
    for key, values in choices.items():
        if isinstance(values, str) or not isinstance(values, Sequence):
            raise TypeError(f"ablate: {key} must be a list of choices, got {values!r}")
        if not values:
            raise ValueError(f"ablate: {key} has no choices")
    if one_at_a_time:
        made = [base] + [base.replace(**{key: value}) for key, values in choices.items() for value in values]
    else:
        made = [base.replace(**dict(zip(choices, row, strict=True))) for row in itertools.product(*choices.values())]
    unique = {recipe.name: recipe for recipe in reversed(made)}
    return list(unique.values())[::-1]

"""Which tensors of a step are not finite, and what made a parameter so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sandbox import backends
from sandbox.distributed import shards
from sandbox.distributed.ranks import Ranks
from sandbox.optimizer import groups
from sandbox.recipe import Recipe, kernel, parts, pure


def not_finite(
    totals: list[Tensor], param_groups: list[dict[str, Any]], tensors: Sequence[Sequence[Tensor | None]], ranks: Ranks | None
) -> list[str]:
    """The names of the parameters whose tensor holds NaN or infinity, on any of the ranks; none where all totals are finite."""
    if backends.all_finite(totals):
        return []
    named = [  # a sum may overflow where every entry is finite
        groups.name(param_groups, index, i)
        for index, row in enumerate(tensors)
        for i, g in enumerate(row)
        if g is not None and not bool(shards.local(g).isfinite().all())
    ]
    everywhere = [named] if ranks is None else ranks.gather(named)
    return list(dict.fromkeys(name for names in everywhere for name in names))


def blame(recipe: Recipe, state: dict[str, Tensor], p: Tensor, name: str) -> str | None:
    """What made a parameter that is not finite so: its last step, and the block where that can be told; None if it is finite.

    recipe: of this parameter, with its hyperparameters.
    """
    t = int(state["step"])
    if not t or bool(p.isfinite().all()):
        return None
    message = f"parameter {name} itself is not finite since its last step, number {t}"
    if not all(getattr(recipe, slot).recalls for slot in ("curvature", "averaging", "rectifier")):
        return message
    D = torch.as_tensor(kernel.rectified(*pure.last_step(parts.at_step(recipe, t), state, p.detach())))
    wrong = ~(D > 0)
    if not bool(wrong.any()):
        return message
    return (
        f"{message}: block {type(recipe.rectifier).__name__} in slot 'rectifier' gave D = {float(D[wrong][0]):g} at "
        f"{int(wrong.sum())} of {wrong.numel()} coordinates; D must be above 0"
    )

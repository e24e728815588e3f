"""Measurements of what an optimizer's state says, without touching it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sandbox.distributed.shards import check_whole
from sandbox.recipe import kernel, parts, pure

if TYPE_CHECKING:
    from sandbox.optimizer import Optimizer
    from sandbox.recipe import Recipe


@torch.no_grad()
def floor_occupancy(optimizer: Optimizer) -> float | None:
    """Returns the share of coordinates whose D is the rectifier's floor, not the curvature; None where no recipe has a floor.

    Where |B| is under the floor Apollo is momentum SGD, so this is the first thing to know about a run.
    Raises TypeError for parameters that are DTensors.
    """
    on_floor = total = 0
    for index, group in enumerate(optimizer.param_groups):
        check_whole(group["params"], "floor_occupancy")
        for p, recipe in zip(group["params"], optimizer.current_recipes(index), strict=True):
            state = optimizer.state[p]
            if not int(state["step"]):
                continue
            mask = mask_of(parts.at_step(recipe, int(state["step"])), state, p)
            if mask is not None:
                on_floor, total = on_floor + int(mask.sum()), total + p.numel()
    return on_floor / total if total else None


def mask_of(recipe: Recipe, state: kernel.State, p: Tensor) -> Tensor | None:
    """Returns the mask of the coordinates on the floor at a tensor's last step; None without a floor or a recalled B.

    recipe: the tensor's own, with its functions of t as they were at that step; what the state remembers is taken from there.
    """
    if not all(getattr(recipe, slot).recalls for slot in ("curvature", "averaging")):
        return None
    return kernel.on_floor(*pure.last_step(recipe, state, p))

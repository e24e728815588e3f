"""Measurements of what an optimizer's state says, without touching it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from sandbox import kernel, scope
from sandbox.blocks import Flow

if TYPE_CHECKING:
    from sandbox.optimizer import Optimizer


@torch.no_grad()
def floor_occupancy(optimizer: Optimizer) -> float | None:
    """Share of coordinates whose D is the rectifier's floor and not the curvature; None where no recipe has a floor.

    Where |B| is under the floor Apollo is momentum SGD, so this is the first thing to know about a run.
    """
    on_floor = total = 0
    for index, group in enumerate(optimizer.param_groups):
        recipe = optimizer._recipe(index)
        if not all(getattr(recipe, slot).recalls for slot in ("curvature", "averaging")):
            continue
        for p in group["params"]:
            state = optimizer.state[p]
            if not int(state["step"]):
                continue
            now = kernel.at(recipe, int(state["step"]))
            lr = state["lr"]
            within = scope.of_tensor(recipe.scope)
            x = Flow(t=state["step"], lr=lr, lr_old=lr, theta=p, g=p, tensor=scope.OneTensor(), scope=within)
            mask = kernel.on_floor(now, state, x)
            if mask is not None:
                on_floor, total = on_floor + int(mask.sum()), total + p.numel()
    return on_floor / total if total else None

"""Averaging of the curvature estimate before it is rectified; `EMA` (moment.py) fits here too."""

from __future__ import annotations

import torch
from torch import Tensor

from sandbox.blocks.base import ELEMENT, Flow, block
from sandbox.blocks.slots import Averaging


@block
class NoAveraging(Averaging):
    """B̄ = B"""

    latex = r"\bar B_t = B_t"


@block
class RunningMaximum(Averaging):
    """B̄ = max(B̄, B)   (AMSGrad's idea applied to whatever the curvature block gives)."""

    latex = r"\bar B_t = \max(\bar B_{t-1}, B_t)"

    state = {"B": ELEMENT}

    def update(self, x: Flow, *, B: Tensor) -> dict[str, Tensor]:
        """The larger of the two."""
        # B̄_t = max(B̄_{t-1}, B_t)
        return {"B": torch.maximum(B, x.value)}

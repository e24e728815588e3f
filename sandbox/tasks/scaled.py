"""digits-mlp with its loss multiplied by a constant: which methods notice?"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from sandbox.tasks.nonconvex import DigitsMLP


class ScaledDigitsMLP(DigitsMLP):
    """The 64-64-10 network on digits, its loss multiplied by a constant (1,024)."""

    name, about = "digits-mlp-scaled", __doc__ or ""

    def __init__(self, factor: float = 1024.0, dtype: torch.dtype = torch.float32) -> None:
        """factor: > 0; a power of two changes no digit.  Raises ValueError for others."""
        if not 0 < factor < math.inf:
            raise ValueError(f"factor must be above 0 and finite, got {factor}")
        super().__init__(dtype)
        self.factor = factor

    def criterion(self, output: Tensor, batch: Any) -> Tensor:
        """Returns factor times the mean cross-entropy."""
        return self.factor * super().criterion(output, batch)

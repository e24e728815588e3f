"""The parameters of a driver as one vector."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector


class OneVector(torch.optim.Optimizer):
    """Base of drivers, whose step is one vector of all parameters: they stand in one group.

    Raises ValueError for a second group, and where no parameter requires a gradient.
    """

    second_order = True  # the closure leaves backward() to the step

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Takes one group, at construction."""
        name = type(self).__name__
        if self.param_groups:
            raise ValueError(f"{name} takes all parameters in one group: its step is one vector")
        super().add_param_group(param_group)
        if not self._params:
            raise ValueError(f"{name}: no parameter requires a gradient")

    @property
    def _params(self) -> list[Tensor]:
        return [p for p in self.param_groups[0]["params"] if p.requires_grad]

    def _flat(self, tensors: list[Tensor | None]) -> Tensor:
        return parameters_to_vector(
            [torch.zeros_like(p) if v is None else v for p, v in zip(self._params, tensors, strict=True)]
        )

    def _apart(self, vector: Tensor) -> list[Tensor]:
        parts = vector.split([p.numel() for p in self._params])
        return [part.view_as(p) for part, p in zip(parts, self._params, strict=True)]

"""Calls a function of a module while other tensors stand in for the module's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn


class Frame(nn.Module):
    """A module around a network, so that `torch.func.functional_call` reaches the network inside any function of it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, function: Callable[[Any, Any], Any], batch: Any) -> Any:
        """Returns function(model, batch)."""
        return function(self.model, batch)

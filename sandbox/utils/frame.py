"""Calls a function of a module while other tensors stand in for the module's own, or without a trace."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
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


@contextlib.contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """A context in evaluation mode, after which modes and buffers are what they were."""
    modes = [(module, module.training) for module in model.modules()]
    buffers = [
        (module, name, b, b.clone())
        for module in model.modules()
        for name, b in module.named_buffers(recurse=False, remove_duplicate=False)
    ]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
        for module, name, buffer, value in buffers:
            buffer.data = value  # also where a forward pass has put another tensor in its place
            setattr(module, name, buffer)

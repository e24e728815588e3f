"""Checks of a network, evaluations that leave it unchanged, and parameter groups."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import nn

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def check_network(task: str, network: Any) -> None:
    """Raises TypeError for what is no Module, ValueError for one with lazy modules, whose parameters have no shape yet."""
    if not isinstance(network, nn.Module):
        raise TypeError(f"task {task!r}: model() must return a torch.nn.Module, it returned a {type(network).__name__}")
    for name, p in (*network.named_parameters(), *network.named_buffers()):
        if nn.parameter.is_lazy(p):
            raise ValueError(
                f"task {task!r}: {name} of its network has no shape yet: give the lazy module its sizes, or call the network "
                "once on a batch inside model()"
            )


def hand_out(model: nn.Module) -> nn.Module:
    """Returns the network itself."""
    return model


@contextlib.contextmanager
def collecting(model: nn.Module) -> Iterator[bool]:
    """A context in which BatchNorm layers, alone in training mode, take their running statistics anew: means over all batches
    that pass.  Gives whether there are any.  Within `untouched`, which puts buffers and modes back."""
    norms = [m for m in model.modules() if isinstance(m, _NORMS) and m.track_running_stats]
    momenta = [m.momentum for m in norms]
    try:
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None
            norm.train()
        yield bool(norms)
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
            norm.eval()


def no_decay(model: nn.Module, weight_decay: float = 0.0) -> list[dict[str, Any]]:
    """Returns two parameter groups: matrices and kernels, and the vectors (biases, norms), the latter with `weight_decay`."""
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    decayed = [(name, p) for name, p in named if p.ndim >= 2]
    rest = [(name, p) for name, p in named if p.ndim < 2]
    groups: list[dict[str, Any]] = [{"params": decayed}, {"params": rest, "weight_decay": weight_decay}]
    return [group for group in groups if group["params"]]

"""Ranks with whole tensors: replicas that see different batches (DDP), or each with tensors of its own (ZeRO)."""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from sandbox.distributed.ranks import collective

HOW = (
    "sandbox.Optimizer(…, process_group=torch.distributed.group.WORLD), or the group of this rank's replicas "
    "(torch.distributed.new_group([rank]) for a rank that trains alone)"
)


def several(group: ProcessGroup | None = None) -> bool:
    """Whether this process is one of several, in a group or at all."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size(group) > 1


def partitioning() -> ProcessGroup | None:
    """Returns the group over which a ZeroRedundancyOptimizer that is constructing an optimizer deals out its tensors.

    It does not pass the group to its local optimizers, so its frame is searched for among the callers.
    """
    module: Any = sys.modules.get("torch.distributed.optim.zero_redundancy_optimizer")
    frame = sys._getframe(1) if module is not None else None
    while frame is not None:
        if frame.f_code.co_filename == module.__file__:
            owner = frame.f_locals.get("self")
            if isinstance(owner, module.ZeroRedundancyOptimizer):
                return owner.process_group
        frame = frame.f_back
    return None


def average(tensors: list[Tensor | None], likes: list[Tensor], group: ProcessGroup) -> list[Tensor | None]:
    """Averages each tensor over the ranks, in one all_reduce per dtype; None counts as 0, and stays where all ranks have it."""
    means: list[Tensor | None] = [None] * len(tensors)
    for kind in dict.fromkeys((like.dtype, like.device) for like in likes):
        places = [i for i, like in enumerate(likes) if (like.dtype, like.device) == kind]
        parts = [torch.zeros_like(likes[i]) if (t := tensors[i]) is None else t for i in places]
        present = torch.tensor([tensors[i] is not None for i in places], dtype=kind[0], device=kind[1])
        vector = torch.cat([present, *(part.reshape(-1) for part in parts)])
        collective(functools.partial(dist.all_reduce, vector, group=group), group, "averaging over replicas")
        owners, values = vector[: len(places)].tolist(), vector[len(places) :] / dist.get_world_size(group)
        for i, owned, value in zip(places, owners, values.split([p.numel() for p in parts]), strict=True):
            means[i] = value.view(likes[i].shape) if owned else None
    return means

"""Refuses parameters whose entries share memory: a step writes each entry once, and would lose all updates but one."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor

from sandbox.distributed import shards
from sandbox.optimizer import groups
from sandbox.utils.private_torch import storage_id


def check(param_groups: list[dict[str, Any]]) -> None:
    """Raises ValueError where entries of parameters that require gradients share memory, naming the parameters."""
    by_storage: dict[int, list[tuple[Tensor, str]]] = defaultdict(list)
    for k, group in enumerate(param_groups):
        for i, p in enumerate(group["params"]):
            part = shards.local(p).detach()
            if p.requires_grad and part.numel():
                by_storage[storage_id(part)].append((part, groups.name(param_groups, k, i)))
    for tensors in by_storage.values():
        earlier: list[tuple[Tensor, str]] = []
        for part, name in sorted(tensors, key=lambda pair: pair[0].data_ptr()):
            if not _spread(part) and _places(part).unique().numel() < part.numel():
                raise ValueError(
                    f"entries of parameter {name} share memory (its strides are {part.stride()}, as after expand): "
                    "train a clone() of it"
                )
            earlier = [pair for pair in earlier if _end(pair[0]) > part.data_ptr()]
            for other, called in earlier:
                if other.element_size() != part.element_size() or bool(torch.isin(_places(part), _places(other)).any()):
                    raise ValueError(
                        f"parameters {called} and {name} share memory, as after a.data = b.data, so that a step would lose "
                        "an update: tie modules by one Parameter for both (a.weight = b.weight)"
                    )
            earlier.append((part, name))


def _reach(part: Tensor) -> int:
    """Returns the distance, in entries, from the first to the last in memory."""
    return sum(stride * (size - 1) for size, stride in zip(part.shape, part.stride(), strict=True))


def _end(part: Tensor) -> int:
    return part.data_ptr() + (_reach(part) + 1) * part.element_size()


def _spread(part: Tensor) -> bool:
    """Whether each stride exceeds what the smaller ones span, so that no two entries can be in one place."""
    reach = 0
    for stride, size in sorted((stride, size) for size, stride in zip(part.shape, part.stride(), strict=True) if size > 1):
        if stride <= reach:
            return False
        reach += stride * (size - 1)
    return True


def _places(part: Tensor) -> Tensor:
    """Returns the address of each entry."""
    places = torch.arange(_reach(part) + 1, device="cpu").as_strided(part.shape, part.stride()).reshape(-1)
    return part.data_ptr() + part.element_size() * places

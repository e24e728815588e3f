"""Private names of DTensor, device meshes and process groups; they are taken from torch here and nowhere else."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

without_override: Any = torch._C.DisableTorchFunctionSubclass  # a context in which a subclass's __torch_function__ is ignored


def local(p: Tensor) -> Tensor:
    """Returns this rank's part of `p`, the same object until somebody exchanges it; `p` itself where it is whole."""
    return getattr(p, "_local_tensor", p)  # to_local() makes a new view each time


def spec(p: Tensor) -> Any:
    """Returns the mesh and placements of a DTensor, None for a whole tensor."""
    return getattr(p, "_spec", None)


def is_flattened(p: Tensor) -> bool:
    """Whether FullyShardedDataParallel has flattened a parameter."""
    return getattr(p, "_fsdp_flattened", False)


def first_place(p: Any) -> int:
    """Returns the place in a DTensor of the first entry that this rank holds."""
    (chunk,) = p.__create_chunk_list__()
    return sum(offset * math.prod(p.shape[d + 1 :]) for d, offset in enumerate(chunk.offsets))


def root_mesh(mesh: Any) -> Any:
    """Returns the device mesh of which `mesh` is a part."""
    return mesh._get_root_mesh()


def store() -> dist.Store:
    """Returns the store that all ranks share."""
    return dist.distributed_c10d._get_default_store()


def without_data(subclass: type, like: Tensor) -> Any:
    """Returns a tensor of a subclass that has the shape, dtype and device of `like` and no memory."""
    return Tensor._make_wrapper_subclass(subclass, like.shape, dtype=like.dtype, device=like.device)

"""Parameters of which each rank holds a part: the DTensors of fully_shard and parallelize_module.

Parameter groups and checkpoints hold DTensors.  Inside the optimizer there are local tensors only, and a `Part` says which part
of its tensor one is.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from sandbox.blocks import ELEMENT, SCOPE
from sandbox.blocks.scope import Scope, shape_of
from sandbox.distributed.private import first_place, is_flattened, local, root_mesh, spec
from sandbox.distributed.sums import Reduced, Sums
from sandbox.recipe import Recipe
from sandbox.recipe.pure import state_shape


@dataclasses.dataclass(frozen=True)
class Part:
    """What this rank holds of a tensor.

    count: entries of the whole tensor.  rows: its leading indices.  weight: 1/(number of ranks with the same part).
    split: whether other ranks hold other parts.  alike: whether all ranks have this tensor, in parts or as replicas.
    row_groups: over which ranks a leading index is split.  first: the place of its first entry in the whole tensor.
    """

    count: int
    rows: int
    weight: float
    split: bool
    alike: bool = True
    row_groups: tuple[ProcessGroup, ...] = ()
    first: int = 0


def is_sharded(p: Tensor) -> bool:
    """Whether `p` is a DTensor."""
    return _is_sharded(type(p))


@functools.cache  # every step asks, of every tensor
def _is_sharded(kind: type) -> bool:
    return hasattr(kind, "device_mesh") and hasattr(kind, "placements")


def check_whole(tensors: Iterable[Any], what: str) -> None:
    """Raises TypeError where some of them are DTensors."""
    if any(map(is_sharded, tensors)):
        raise TypeError(f"{what} needs whole tensors, and of a DTensor each rank has a part; give its full_tensor()")


def local_gradient(p: Any, g: Any) -> Tensor | None:
    """Returns this rank's part of p's gradient g; None where it is placed otherwise than p, see `exchange`.

    Raises TypeError where only one of them is a DTensor.
    """
    own, other = spec(p), spec(g)  # every step asks, of every tensor
    if own is not other:
        if own is None or other is None or (own.mesh is not other.mesh and own.mesh != other.mesh):
            raise TypeError("a parameter and its gradient must be DTensors of one device mesh, or both plain tensors")
        if own.placements != other.placements:
            return None
    return local(g)


def exchange(p: Any, g: Any) -> Tensor:
    """Returns this rank's part of p's gradient g after a collective that places it as p: partial sums are added up."""
    return g.redistribute(placements=p.placements).to_local()


def check(p: Any, name: str) -> None:
    """Raises TypeError for parts of tensors of unknown placement."""
    if is_flattened(p):
        raise TypeError(
            f"parameter {name} belongs to FullyShardedDataParallel, which flattens what it shards, so that no scope can be "
            "told any more; use torch.distributed.fsdp.fully_shard"
        )
    if type(p).__name__ == "ShardedTensor":
        raise TypeError(f"parameter {name} is a ShardedTensor, which has no device mesh; DTensors are needed (fully_shard)")
    if is_sharded(p) and any(place.is_partial() for place in p.placements):
        raise TypeError(f"parameter {name} is a partial sum ({p.placements}); only shards and replicas can be trained")


def part(p: Any, ranks: int, *, dealt: bool) -> Part:
    """Returns which part of `p` this rank holds, where `ranks` of them make a step together.

    dealt: each rank has whole tensors of its own; else a plain tensor is a replica, as among DTensors.
    """
    whole = int(p.numel()), int(p.shape[0]) if p.ndim else 1
    if not is_sharded(p):
        return Part(*whole, 1.0 if dealt else 1 / ranks, split=False, alike=not dealt)
    cuts = [i for i, place in enumerate(p.placements) if not place.is_replicate()]
    others = [i for i in cuts if p.placements[i].dim % max(p.ndim, 1) != 0]
    shards = math.prod(p.device_mesh.size(i) for i in cuts)
    groups = tuple(p.device_mesh.get_group(i) for i in others)
    return Part(*whole, shards / ranks, shards > 1, row_groups=groups, first=first_place(p))


def scopes_of_one(part: Part, sums: Sums, tensor: Scope, within: Scope, name: str, ndim: int) -> tuple[Scope, Scope]:
    """Returns the scopes of a local tensor over all ranks: over tensors, and over the recipe's scope called `name`."""
    over = Reduced(tensor, sums, part.count, part.weight) if part.split else tensor
    if name == "parameter":
        return over, over
    if name == "channel" and ndim > 1 and part.row_groups:
        return over, Reduced(within, sums, part.count // max(part.rows, 1), groups=part.row_groups)
    return over, within


def scopes_of_joined(parts: list[Part], sums: Sums, tensor: Scope, like: Tensor) -> tuple[Scope, Scope]:
    """Returns the scopes of several local tensors laid end to end, all of which share the recipe's scalars ("global")."""
    weight = torch.tensor([p.weight for p in parts], dtype=like.dtype, device=like.device)
    count = torch.tensor([p.count for p in parts], dtype=like.dtype, device=like.device)
    over = Reduced(tensor, sums, count, weight)
    return over, Reduced(tensor, sums, float(sum(p.count for p in parts)), weight, joint=True)


# -- states -----------------------------------------------------------------------------------------------------------


def wrap(recipe: Recipe, kind: str, p: Any, value: Tensor) -> Tensor:
    """Returns a state of this rank as a checkpoint holds it: a DTensor where ranks hold different parts of it."""
    shape = state_shape(recipe, kind, p)
    if not is_sharded(p) or not shape:
        return value
    from torch.distributed.tensor import DTensor

    stride = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
    places = _placements(recipe, kind, p)
    return DTensor.from_local(value, p.device_mesh, places, run_check=False, shape=torch.Size(shape), stride=stride)


def unwrap(recipe: Recipe, kind: str, p: Any, saved: Any) -> Any:
    """Returns this rank's part of a state of a checkpoint, which may be whole or come from other placements."""
    if not isinstance(saved, Tensor) or tuple(saved.shape) != state_shape(recipe, kind, p):
        return saved
    if is_sharded(saved) and not is_sharded(p):
        return saved.full_tensor()  # type: ignore[attr-defined]
    if not is_sharded(p) or not saved.ndim:
        return saved
    from torch.distributed.tensor import distribute_tensor

    places = _placements(recipe, kind, p)
    if is_sharded(saved):
        if saved.device_mesh == p.device_mesh:  # type: ignore[attr-defined]
            return saved.redistribute(placements=places).to_local()  # type: ignore[attr-defined]
        saved = saved.full_tensor()  # type: ignore[attr-defined]
    # each rank has the whole: nothing to send
    return distribute_tensor(saved.to(local(p).device), p.device_mesh, places, src_data_rank=None).to_local()


def _placements(recipe: Recipe, kind: str, p: Any) -> list[Any]:
    """Returns p's placements, with replicas where only axes are split that the state does not have."""
    from torch.distributed.tensor import Replicate

    long = kind == ELEMENT or (kind == SCOPE and shape_of(recipe.scope, p) == tuple(p.shape) and recipe.scope != "channel")
    long = long or p.ndim < 2
    placed = [place.is_replicate() or long or place.dim % p.ndim == 0 for place in p.placements]
    return [place if same else Replicate() for place, same in zip(p.placements, placed, strict=True)]


def group_of(params: list[Any]) -> ProcessGroup | None:
    """Returns the ranks over which DTensors are spread, None without any.

    Raises ValueError where they have several device meshes that are not parts of one with named dimensions.
    """
    meshes = {id(p.device_mesh): p.device_mesh for p in params if is_sharded(p)}
    if not meshes:
        return None
    distinct = list(meshes.values())
    mesh = distinct[0]
    if any(other != mesh for other in distinct):
        roots = [root_mesh(m) for m in distinct]
        used = {name for m in distinct for name in m.mesh_dim_names or ()}
        names = tuple(name for name in roots[0].mesh_dim_names or () if name in used)
        if any(root != roots[0] for root in roots) or not all(m.mesh_dim_names for m in distinct) or set(names) != used:
            raise ValueError(
                "the parameters lie on several device meshes that are not parts of one with named dimensions; say which ranks "
                "make a step together: Optimizer(…, process_group=group)"
            )
        mesh = roots[0] if names == roots[0].mesh_dim_names else roots[0][names]
    return mesh.get_group() if mesh.ndim == 1 else _group(tuple(sorted(mesh.mesh.flatten().tolist())))


_GROUPS: dict[tuple[int, ...], ProcessGroup | None] = {}


def _group(ranks: tuple[int, ...]) -> ProcessGroup | None:
    """Returns the process group of these ranks, which is made once."""
    import torch.distributed as dist

    if len(ranks) == dist.get_world_size():
        return dist.group.WORLD
    if ranks not in _GROUPS:
        _GROUPS[ranks] = dist.new_group(list(ranks), use_local_synchronization=True)
    return _GROUPS[ranks]

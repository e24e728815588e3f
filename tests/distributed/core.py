"""What two ranks run in one start of their processes."""

from __future__ import annotations

from torch.distributed.device_mesh import init_device_mesh

from tests.distributed import agreement, cases, checkpoints, readouts, whole_tensors
from tests.distributed.ranks import outcome


def everything(rank, world, folder):
    """Results by the name of what was tried; a text where it raised."""
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("shard",))
    found = {
        "equality": cases.equality(rank, world, cases.CORE, "eager"),
        "large": cases.large(rank, world, cases.LARGE, "eager"),
    }
    found |= {name: outcome(case, mesh, rank, world) for name, case in {**agreement.CASES, **whole_tensors.CASES}.items()}
    found["saved"] = {name: outcome(checkpoints.save, name, mesh, rank, world, folder) for name in checkpoints.CORE}
    found["loaded"] = {name: outcome(checkpoints.load, name, mesh, rank, world, folder) for name in checkpoints.CORE}
    found["half"] = outcome(cases.half, mesh, rank, world)
    found["evaluated"] = outcome(readouts.look, mesh, rank, world)
    found["from one process"] = outcome(checkpoints.from_one_process, mesh, rank, world)
    return found

"""Steps on DTensors of two ranks, interleaved: what an FSDP2 user runs (AdamW fused) against recipes."""

from __future__ import annotations

import statistics
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import sandbox
from tests.benchmarks.contenders import SHAPES

BASE = "torch AdamW fused"
CONTENDERS = {
    BASE: lambda params: torch.optim.AdamW(params, fused=True),
    "apollo eager": lambda params: sandbox.Optimizer(params, "apollo"),
    "apollo compiled": lambda params: sandbox.Optimizer(params, "apollo", backend="compiled"),
    "scale-invariant compiled": lambda params: sandbox.Optimizer(params, "scale-invariant", backend="compiled"),
    "adamw (recipe) compiled": lambda params: sandbox.Optimizer(params, "adamw", backend="compiled"),
}


def parameters(shape, mesh):
    """Parameters of a shape's sizes, split by their leading index as fully_shard does, with gradients; float32."""
    torch.manual_seed(0)
    params = []
    for size in SHAPES[shape]:
        p = torch.nn.Parameter(distribute_tensor(0.1 * torch.randn(size), mesh, [Shard(0)]))
        p.grad = distribute_tensor(0.01 * torch.randn(size), mesh, [Shard(0)])
        params.append(p)
    return params


def medians(rank, world, shape, rounds):
    """Median milliseconds of a step by contender, a barrier before each."""
    mesh = init_device_mesh("cpu", (world,))
    made = {name: make(parameters(shape, mesh)) for name, make in CONTENDERS.items()}
    times: dict[str, list[float]] = {name: [] for name in made}
    for k in range(rounds + 3):
        for name, optimizer in made.items():
            dist.barrier()
            start = time.perf_counter()
            optimizer.step()
            if k >= 3:
                times[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(found) for name, found in times.items()}

"""Meshes of two dimensions, and tensors split in other ways than by their leading index, on four ranks."""

from __future__ import annotations

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

import sandbox
from tests.distributed import cases
from tests.distributed.ranks import outcome

NAMES = ["apollo", "scale-invariant", "channel-secant", "global-secant", "apollo-stable", "clip-global-norm"]


class Layers(torch.nn.Module):
    """On (batch, 4, 6): a norm, a layer split by rows, one split by columns, and one that nobody splits."""

    def __init__(self):
        super().__init__()
        self.norm, self.up = torch.nn.LayerNorm(6), torch.nn.Linear(6, 10)
        self.down, self.out = torch.nn.Linear(10, 3), torch.nn.Linear(3, 1)

    def forward(self, x):
        return self.out(torch.tanh(self.down(torch.tanh(self.up(self.norm(x))))))


def layers():
    torch.manual_seed(0)
    return Layers().double()


def loss(model, step, part=0, parts=1, sequence=slice(None)):
    draw = torch.Generator().manual_seed(step)
    x, y = (torch.randn(4, 4, size, dtype=torch.float64, generator=draw).chunk(parts)[part] for size in (6, 1))
    return (model(x[:, sequence]) - y).square().mean()


def train(model, optimizer, *how):
    for step in range(4):
        optimizer.zero_grad()
        loss(model, step, *how).backward()
        optimizer.step()


def compared(name, model, *how, **options):
    single = layers()
    train(single, sandbox.Optimizer(single.parameters(), cases.recipe_of(name)))
    train(model, sandbox.Optimizer(model.parameters(), cases.recipe_of(name), **options), *how)
    whole = [cases.whole(p) for p in model.parameters()]
    alike = all(cases.agree(p) for p in whole)
    return {"error": cases.distance(model, single), "moved": cases.distance(single, layers()), "alike": alike}


SPLIT = {"up": ColwiseParallel(), "down": RowwiseParallel()}


def hybrid(rank, grid, line):
    model = layers()
    for layer in (model.up, model.down, model):
        fully_shard(layer, mesh=grid)
    return model, (rank, 4)


def tensor(rank, grid, line):
    return parallelize_module(layers(), line, SPLIT), ()


def sequence(rank, grid, line):
    plan = {
        "norm": SequenceParallel(sequence_dim=1),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Replicate()),
    }
    return parallelize_module(layers(), line, plan), (0, 1, slice(rank, rank + 1))


def both(rank, grid, line):
    model = parallelize_module(layers(), grid["shard"], SPLIT)
    for layer in (model.up, model.down, model):
        fully_shard(layer, mesh=grid["copies"])
    return model, (rank // 2, 2)


HOW = {"hybrid": hybrid, "tensor": tensor, "sequence": sequence, "both": both}


def everything(rank, world):
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "shard"))
    line = init_device_mesh("cpu", (4,), mesh_dim_names=("line",))
    found = {}
    for kind, make in HOW.items():
        for name in NAMES:

            def case(make=make, name=name):
                model, how = make(rank, grid, line)
                return compared(name, model, *how)

            found[kind, name] = outcome(case)
    return found

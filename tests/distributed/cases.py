"""A network whose tensors do not divide evenly, trained by one process and by several on parts of the same batches."""

from __future__ import annotations

from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import sandbox
import variants
from sandbox.backends.arena import leaves
from sandbox.blocks import ClipGlobalNorm, ClipParameterNorm
from tests.distributed.ranks import outcome
from tests.light import light

STEPS = 6
CLIPS = {
    "clip-global-norm": lambda: variants.get("apollo").replace(gradient=(ClipGlobalNorm(max_norm=0.05),)),
    "clip-parameter-norm": lambda: variants.get("scale-invariant").replace(gradient=(ClipParameterNorm(max_norm=0.01),)),
}
FIRST_ORDER = [
    name
    for name in variants.names()
    if variants.get(name).analysis.evaluations == 1 and not variants.get(name).analysis.own_layout
]
SECOND_ORDER = [name for name in variants.names() if variants.get(name).analysis.second_order]
LARGE = ["apollo", "scale-invariant", "apollo-stable", "clip-parameter-norm"]
CORE = ["apollo", "scale-invariant", "apollo-stable", "global-secant", "channel-secant", "coordinate-secant", "adamw", *CLIPS]


def recipe_of(name):
    """At a tenth of its rate: Apollo's first steps, without a warm-up, would make the network chaotic; histories of two pairs."""
    recipe = CLIPS[name]() if name in CLIPS else light(name, pairs=2)
    return recipe.replace(lr=recipe.lr / 10, name=name)


class Network(torch.nn.Module):
    """Leading sizes 3, 7 (uneven on 2 ranks and on 4), 8 (even) and 1 (on all ranks but the first the shard is empty)."""

    def __init__(self):
        super().__init__()
        self.conv, self.inner = torch.nn.Conv1d(1, 3, 2), torch.nn.Linear(12, 7)
        self.norm, self.even, self.outer = torch.nn.LayerNorm(7), torch.nn.Linear(7, 8), torch.nn.Linear(8, 1)

    def forward(self, x):
        x = torch.tanh(self.inner(torch.tanh(self.conv(x[:, None])).flatten(1)))
        return self.outer(torch.tanh(self.even(self.norm(x))))


def network():
    torch.manual_seed(0)
    return Network().double()


def batch(step):
    draw = torch.Generator().manual_seed(step)
    return torch.randn(8, 5, dtype=torch.float64, generator=draw), torch.randn(8, 1, dtype=torch.float64, generator=draw)


def loss(model, step, rank=0, world=1):
    """Mean square on this rank's part of the batch of a step."""
    x, y = batch(step)
    return (model(x.chunk(world)[rank]) - y.chunk(world)[rank]).square().mean()


def sharded(mesh):
    """The network under fully_shard, its layers each for itself."""
    model = network()
    for layer in (model.inner, model.even, model.outer, model):
        fully_shard(layer, mesh=mesh)
    return model


def train(model, optimizer, steps, rank=0, world=1):
    for step in steps:
        optimizer.zero_grad()
        loss(model, step, rank, world).backward()
        optimizer.step()


def whole(tensor):
    return tensor.full_tensor().detach() if hasattr(tensor, "full_tensor") else tensor.detach()


def distance(one, two):
    """max |θ - θ'| over all tensors."""
    return max(float((whole(p) - whole(q)).abs().max()) for p, q in zip(one.parameters(), two.parameters(), strict=True))


def alone(name, steps=STEPS, **options):
    """One process on the whole batches."""
    model = network()
    optimizer = sandbox.Optimizer(model.named_parameters(), recipe_of(name), **options)
    train(model, optimizer, range(steps))
    return model, optimizer


def compared(name, model, rank, world, steps=STEPS, **options):
    """Error against one process, distance from the start, and what the optimizer's last step has sent: numbers a collective."""
    optimizer = sandbox.Optimizer(model.named_parameters(), recipe_of(name), **options)
    train(model, optimizer, range(steps - 1), rank, world)
    with mock.patch.object(dist, "all_reduce", wraps=dist.all_reduce) as sending:
        train(model, optimizer, range(steps - 1, steps), rank, world)
    sent = [call.args[0].numel() for call in sending.call_args_list]
    single, _ = alone(name, steps)
    return {"error": distance(model, single), "moved": distance(single, network()), "sent": sent}


def equality(rank, world, names, backend):
    """Each recipe under fully_shard against one process."""
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("shard",))
    return {name: outcome(lambda name=name: compared(name, sharded(mesh), rank, world, backend=backend)) for name in names}


def half(mesh, rank, world):
    """Error of runs whose state is bfloat16 against one process: the entries of a shard are rounded as those of the whole."""

    def error(name):
        options = {"state_dtype": torch.bfloat16, "seed": 3}
        model, (single, _) = sharded(mesh), alone(name, **options)
        train(model, sandbox.Optimizer(model.named_parameters(), recipe_of(name), **options), range(STEPS), rank, world)
        return distance(model, single)

    return {name: error(name) for name in ("apollo", "scale-invariant", "global-secant")}


def histories(rank, world, names):
    """Recipes with ten pairs, which make so many steps that a pair leaves the history."""
    mesh, found = init_device_mesh("cpu", (world,), mesh_dim_names=("shard",)), {}
    for name in names:
        recipe = light(name, pairs=10)
        recipe = recipe.replace(lr=recipe.lr / 10)
        model, single = sharded(mesh), network()
        train(model, sandbox.Optimizer(model.named_parameters(), recipe), range(14), rank, world)
        train(single, sandbox.Optimizer(single.named_parameters(), recipe), range(14))
        found[name] = {"error": distance(model, single), "moved": distance(single, network())}
    return found


def table(rank, world, names, backends):
    """Equality by (backend, whether some tensors count as large), the latter for a few recipes."""
    both = ((equality, names), (large, LARGE))
    return {(backend, sizes.__name__): sizes(rank, world, some, backend) for backend in backends for sizes, some in both}


def large(rank, world, names, backend):
    """The same where a tensor of 40 entries counts as large: inner.weight (48 and 36 on two ranks) on the first rank alone."""
    before, leaves.LARGE["cpu"] = leaves.LARGE["cpu"], 40
    try:
        return equality(rank, world, names, backend)
    finally:
        leaves.LARGE["cpu"] = before


def agree(value):
    """Whether a tensor is the same, bit for bit, on all ranks."""
    found = [torch.empty_like(value) for _ in range(dist.get_world_size())]
    dist.all_gather(found, value.contiguous())
    return all(torch.equal(found[0], other) for other in found)

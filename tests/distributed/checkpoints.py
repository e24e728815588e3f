"""Checkpoints by torch.distributed.checkpoint: saved on some ranks, loaded on more, fewer or one."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh

import sandbox
from tests.distributed import cases
from tests.distributed.ranks import outcome

SAVED = 3  # steps made before
CORE = ["apollo", "scale-invariant", "channel-secant", "apollo-stable"]


def falling(t):
    """A rate as a function of t."""
    return 0.01 / t


def options_of(name):
    """Each second recipe goes flattened, and the first one with a rate that is a function of t."""
    flat = CORE.index(name) % 2 == 0 if name in CORE else len(name) % 2 == 0
    return StateDictOptions(flatten_optimizer_state_dict=flat), {"lr": falling} if name == "apollo" else {}


def made(name, mesh):
    model = cases.network() if mesh is None else cases.sharded(mesh)
    _, options = options_of(name)
    return model, sandbox.Optimizer(model.named_parameters(), cases.recipe_of(name), **options)


def save(name, mesh, rank, world, folder):
    model, optimizer = made(name, mesh)
    cases.train(model, optimizer, range(SAVED), rank, world)
    optimizer.param_groups[0]["momentum" if "momentum" in optimizer.param_groups[0] else "lr"] *= 0.5  # after the last step
    optimizer.param_groups[0]["skipped_steps"] = 2
    states = get_state_dict(model, optimizer, options=options_of(name)[0])
    dcp.save(dict(zip(("model", "optimizer"), states, strict=True)), checkpoint_id=Path(folder, name))


def load(name, mesh, rank, world, folder):
    """Error of the resumed run against one process, uninterrupted."""
    model, optimizer = made(name, mesh)
    states = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer, options=options_of(name)[0]), strict=True))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        dcp.load(states, checkpoint_id=Path(folder, name), no_dist=not dist.is_initialized())
    set_state_dict(
        model,
        optimizer,
        model_state_dict=states["model"],
        optim_state_dict=states["optimizer"],
        options=options_of(name)[0],
    )
    cases.train(model, optimizer, range(SAVED, cases.STEPS), rank, world)
    single, uninterrupted = made(name, None)
    cases.train(single, uninterrupted, range(SAVED))
    uninterrupted.param_groups[0]["momentum" if "momentum" in uninterrupted.param_groups[0] else "lr"] *= 0.5
    cases.train(single, uninterrupted, range(SAVED, cases.STEPS))
    return {
        "error": cases.distance(model, single),
        "moved": cases.distance(single, cases.network()),
        "skipped": optimizer.skipped_steps,
    }


def from_one_process(mesh, rank, world):
    """A state_dict of one process, loaded on shards."""
    found = {}
    for name in CORE:
        single, old = made(name, None)
        cases.train(single, old, range(SAVED))
        model, optimizer = made(name, mesh)
        cases.train(
            model,
            sandbox.Optimizer(model.parameters(), cases.recipe_of(name), **options_of(name)[1]),
            range(SAVED),
            rank,
            world,
        )
        optimizer.load_state_dict(old.state_dict())
        cases.train(model, optimizer, range(SAVED, cases.STEPS), rank, world)
        cases.train(single, old, range(SAVED, cases.STEPS))
        found[name] = cases.distance(model, single)
    return found


def matrix(rank, world, names, source, target):
    """Loads all of `names` from one folder and saves them into another, where these are given."""
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("shard",))
    loaded = {name: outcome(load, name, mesh, rank, world, source) for name in names if source}
    return loaded, {name: outcome(save, name, mesh, rank, world, target) for name in names if target}

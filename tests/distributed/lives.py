"""A training run of which one rank is killed, and that goes on from its last checkpoint."""

from __future__ import annotations

import datetime
import os
import signal
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh

import sandbox
from sandbox.distributed import ranks
from tests.distributed import cases

STEPS, EVERY = 8, 2


def training(rank, world, folder, name, killed_at):
    """Trains from the last checkpoint to the end; rank 1 is killed before it takes part in step number `killed_at`."""
    ranks.ANSWER = datetime.timedelta(seconds=2)
    model = cases.sharded(init_device_mesh("cpu", (world,)))
    optimizer = sandbox.Optimizer(model.named_parameters(), cases.recipe_of(name))
    done, last = torch.zeros((), dtype=torch.int64), Path(folder, "last")
    states = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    if last.exists():
        dcp.load({"done": done, **states}, checkpoint_id=last)
        set_state_dict(model, optimizer, model_state_dict=states["model"], optim_state_dict=states["optimizer"])
    started = int(done)
    for step in range(started, STEPS):
        optimizer.zero_grad()
        cases.loss(model, step, rank, world).backward()
        if rank == 1 and step == killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        done += 1
        if int(done) % EVERY == 0:
            states = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
            dcp.save({"done": done, **states}, checkpoint_id=last)
    return {"started": started, "error": cases.distance(model, cases.alone(name, STEPS)[0])}

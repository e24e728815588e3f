"""Weights to evaluate of a sharded network, against those of one process."""

from __future__ import annotations

import sandbox
from tests.distributed import cases

NAMES = ["schedule-free-adamw", "ema-adamw", "gpa-adamw"]
STEPS = 4


def look(mesh, rank, world):
    """name -> errors of the weights to evaluate, and of those to train after a look."""
    errors = {}
    for name in NAMES:
        pairs = []
        for model, where in ((cases.sharded(mesh), (rank, world)), (cases.network(), (0, 1))):
            optimizer = sandbox.Optimizer(model.named_parameters(), cases.recipe_of(name))
            cases.train(model, optimizer, range(STEPS), *where)
            pairs.append((model, optimizer))
        (mine, optimizer), (whole, other) = pairs
        optimizer.eval()
        other.eval()
        evaluated = cases.distance(mine, whole)
        optimizer.train()
        moved = cases.distance(mine, whole)
        other.train()
        errors[name] = {"evaluated": evaluated, "moved": moved, "trained": cases.distance(mine, whole)}
    return errors

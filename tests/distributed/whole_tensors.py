"""Ranks that hold whole tensors: replicas (DDP) with second-order recipes, and tensors dealt out (ZeRO)."""

from __future__ import annotations

import warnings

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer

import sandbox
from tests.distributed import cases
from tests.distributed.agreement import raised


def second_order(model, optimizer, steps, rank=0, world=1):
    for step in steps:
        optimizer.step(lambda step=step: cases.loss(model, step, rank, world))


def replicas(mesh, rank, world):
    """Second-order recipes on replicas against one process."""
    found = {}
    for name in cases.SECOND_ORDER:
        recipe, model, single = cases.recipe_of(name), cases.network(), cases.network()
        optimizer = sandbox.Optimizer(model.parameters(), recipe, process_group=dist.group.WORLD)
        wrapped = torch.nn.parallel.DistributedDataParallel(model)
        second_order(wrapped, optimizer, range(cases.STEPS), rank, world)
        alone = dist.new_group([rank], use_local_synchronization=True)
        second_order(single, sandbox.Optimizer(single.parameters(), recipe, process_group=alone), range(cases.STEPS))
        alike = all(cases.agree(p.detach()) for p in model.parameters())
        found[name] = {"error": cases.distance(model, single), "moved": cases.distance(single, cases.network()), "alike": alike}
    unknown = sandbox.Optimizer(cases.network().parameters(), "adahessian")
    found["refused"] = raised(lambda: unknown.step(lambda: None))
    return found


def dealt_out(model, recipe, **options):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning)
        return ZeroRedundancyOptimizer(model.parameters(), sandbox.Optimizer, recipe=recipe, **options)


def zero(mesh, rank, world):
    """ZeroRedundancyOptimizer against one process, and its consolidated state in a plain Optimizer."""
    found = {}
    for name in ("apollo", "global-secant", "clip-global-norm", "channel-secant"):
        model, recipe = cases.network(), cases.recipe_of(name)
        optimizer = dealt_out(model, recipe, nonfinite="skip", backend="eager", seed=3)
        cases.train(model, optimizer, range(cases.STEPS))
        single, _ = cases.alone(name)
        optimizer.consolidate_state_dict(to=0)
        error = cases.distance(model, single)
        if rank == 0:
            plain = sandbox.Optimizer(model.parameters(), recipe)
            plain.load_state_dict(optimizer.state_dict())
            cases.train(model, plain, range(cases.STEPS, cases.STEPS + 2))
            error = max(error, cases.distance(model, cases.alone(name, cases.STEPS + 2)[0]))
        found[name] = {"error": error, "moved": cases.distance(single, cases.network())}
    found["second order"] = raised(lambda: dealt_out(cases.network(), "adahessian"))
    found["scripted"] = raised(lambda: dealt_out(cases.network(), "global-secant", backend="scripted"))
    return found


CASES = {"replicas": replicas, "zero": zero}

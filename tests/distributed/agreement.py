"""Cases in which one rank sees something else than the other."""

from __future__ import annotations

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.functional import mse_loss

import sandbox
import variants
from sandbox import curvature, probes
from sandbox.backends.arena import leaves
from sandbox.curvature import hessian
from sandbox.experiments.runs.shares import Shares
from tests.distributed import cases


def made(mesh, **options):
    model = cases.sharded(mesh)
    return model, sandbox.Optimizer(model.named_parameters(), cases.recipe_of("apollo"), **options)


def backward(model, step, rank, world):
    for p in model.parameters():
        p.grad = None
    cases.loss(model, step, rank, world).backward()


def raised(call):
    """The error that a call raises, as (type, text)."""
    try:
        call()
    except Exception as error:
        return type(error).__name__, str(error)
    return None


def not_finite(mesh, rank, world, backend="eager"):
    """NaN in the shard of one rank only: both raise, or both skip, and nothing moves."""
    found = {}
    for nonfinite in ("raise", "skip"):
        model, optimizer = made(mesh, nonfinite=nonfinite, backend=backend)
        cases.train(model, optimizer, range(2), rank, world)
        before = [p.full_tensor().detach().clone() for p in model.parameters()]
        backward(model, 2, rank, world)
        if rank == 1:
            model.inner.weight.grad.to_local()[0, 0] = float("nan")
        error = raised(optimizer.step)
        same = all(torch.equal(p.full_tensor(), q) for p, q in zip(model.parameters(), before, strict=True))
        found[nonfinite] = error, optimizer.skipped_steps, same
    return found


def not_finite_compiled(rank, world):
    """The same where the check is part of the first phase, of an arena and of large tensors."""
    mesh, leaves.LARGE["cpu"] = init_device_mesh("cpu", (world,)), 40
    return not_finite(mesh, rank, world, "compiled")


def differing(mesh, rank, world):
    """A rank with other hyperparameters, without a gradient, or with an error of its own; then all goes on as if nothing was."""
    model, optimizer = made(mesh)
    group, errors = optimizer.param_groups[0], {}
    cases.train(model, optimizer, range(2), rank, world)
    backward(model, 2, rank, world)
    rate, sigma, grad = group["lr"], group["rectifier.sigma"], model.norm.weight.grad
    group["lr"] = rate * (1 + rank)
    errors["rate"] = raised(optimizer.step)
    group["lr"], group["rectifier.sigma"] = rate, -1.0 if rank == 1 else sigma
    errors["error"] = raised(optimizer.step)
    group["rectifier.sigma"] = sigma
    model.norm.weight.grad = None if rank == 1 else grad
    errors["gradient"] = raised(optimizer.step)
    model.norm.weight.grad = grad
    cases.train(model, optimizer, range(2, cases.STEPS), rank, world)
    return errors, cases.distance(model, cases.alone("apollo")[0])


def late_gradients(mesh, rank, world):
    """A tensor without a gradient in some steps, on all ranks, makes fewer of them."""
    models = cases.sharded(mesh), cases.network()
    optimizers = [sandbox.Optimizer(model.named_parameters(), cases.recipe_of("global-secant")) for model in models]
    for step in range(cases.STEPS):
        for model, optimizer, mine in zip(models, optimizers, ((rank, world), (0, 1)), strict=True):
            backward(model, step, *mine)
            if step in (0, 3):
                model.norm.weight.grad = None
            optimizer.step()
    return cases.distance(*models)


def exchanged(mesh, rank, world):
    """Local tensors that are replaced between two steps, as fully_shard does where a model is moved or loaded."""
    model, optimizer = made(mesh)
    cases.train(model, optimizer, range(3), rank, world)
    before = [p._local_tensor for p in model.parameters()]
    model._apply(lambda t: t.clone())  # as .to() does
    assert all(p._local_tensor is not t for p, t in zip(model.parameters(), before, strict=True))
    cases.train(model, optimizer, range(3, cases.STEPS), rank, world)
    own = sandbox.Optimizer(list(model.parameters()), cases.recipe_of("apollo"))
    weights = {name: state.shape for name, state in own.state[model.outer.weight].items() if state.ndim}
    return cases.distance(model, cases.alone("apollo")[0]), weights


def mixed(mesh, rank, world):
    """A tensor in parts, one as replicas on a mesh, and one that is no DTensor, against the same three whole."""
    sizes, found = [(5, 3), (4, 2), (3,)], {}

    def tensors(seed):
        draw = torch.Generator().manual_seed(seed)
        return [torch.randn(size, dtype=torch.float64, generator=draw) for size in sizes]

    def parts(seed):
        cut, copy, plain = tensors(seed)
        return [distribute_tensor(cut, mesh, [Shard(0)]), distribute_tensor(copy, mesh, [Replicate()]), plain]

    for name in ("global-secant", "clip-global-norm", "scale-invariant"):
        params = [[torch.nn.Parameter(p) for p in make(0)] for make in (parts, tensors)]
        for mine, make in zip(params, (parts, tensors), strict=True):
            optimizer = sandbox.Optimizer(mine, cases.recipe_of(name))
            for step in range(1, 5):
                for p, g in zip(mine, make(step), strict=True):
                    p.grad = g
                optimizer.step()
        found[name] = max(float((cases.whole(p) - q.detach()).abs().max()) for p, q in zip(*params, strict=True))
    return found


def maximized(mesh, rank, world):
    """maximize=True climbs, and climbs the same on all ranks."""
    model, single = cases.sharded(mesh), cases.network()
    for one, mine in ((model, (rank, world)), (single, (0, 1))):
        optimizer = sandbox.Optimizer(one.parameters(), cases.recipe_of("scale-invariant"), maximize=True)
        cases.train(one, optimizer, range(3), *mine)
    return cases.distance(model, single)


def refused(mesh, rank, world):
    """What is not right on parts of tensors."""
    model, optimizer = made(mesh)
    optimizer.watch = probes.Watch(["floor_occupancy"])
    backward(model, 0, rank, world)
    return {
        "scripted": raised(lambda: made(mesh, backend="scripted")),
        "second order": raised(lambda: sandbox.Optimizer(model.parameters(), "adahessian")),
        "watch": raised(optimizer.step),
        "occupancy": raised(lambda: probes.floor_occupancy(optimizer)),
        "product": raised(lambda: hessian.hutchinson(cases.loss(model, 0, rank, world), list(model.parameters()))),
        "curvature": raised(lambda: curvature.diagonal(lambda m, b: mse_loss(m(b[0]), b[1]), model, cases.batch(0))),
        **{
            (name, "replicas"): raised(
                lambda name=name: sandbox.Optimizer(cases.network().parameters(), name).step(lambda: None)
            )
            for name in ("sophia-g", "kfac")
        },
        **{
            name: raised(lambda name=name: sandbox.Optimizer(model.parameters(), name))
            for name in variants.names()
            if name not in cases.FIRST_ORDER and name not in cases.SECOND_ORDER
        },
    }


def clocks(mesh, rank, world):
    """Whether a run ends where only the last rank's time is over, and where nobody's is."""
    shares = Shares(None, mesh.get_group())
    return shares.any(rank == world - 1), shares.any(False)


CASES = {
    "not finite": not_finite,
    "differing": differing,
    "late gradients": late_gradients,
    "exchanged": exchanged,
    "mixed": mixed,
    "maximized": maximized,
    "refused": refused,
    "clocks": clocks,
}

"""An optimizer in other threads, ranks, devices and checkpoints; float64 and values by an independent recursion."""

import copy
import threading
import warnings

import numpy as np
import pytest
import torch

import sandbox
import variants
from tests.optimizer.leaves import BACKENDS, leaf, through_a_file


@pytest.mark.parametrize("counts", [(1, 3), pytest.param((2, 2, 3, 4, 1, 2), marks=pytest.mark.slow)])
def test_threads_added_after_a_compiled_step(counts):
    """Inductor writes the number of threads into its code; more of them once wrote past a buffer."""
    before = torch.get_num_threads()
    try:
        p = torch.ones(2**20, dtype=torch.float64, requires_grad=True)
        optimizer = sandbox.Optimizer([p], "apollo", lr=0.01, backend="compiled")
        for threads in counts:
            torch.set_num_threads(threads)
            p.grad = torch.full_like(p, 0.5)
            optimizer.step()
        assert torch.equal(p.detach(), torch.full_like(p, p.detach()[0].item()))
        assert p.detach()[0].item() == pytest.approx(1 - 0.5 * len(counts), abs=1e-12)  # d = g/max(|B|, σ) = .5/.01, times η
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("backend", BACKENDS)
def test_optimizers_of_one_structure_in_two_threads(backend):
    """Each thread its own numbers; also where both make the first step of a structure, which is compiled then."""
    recipe = variants.get("apollo").replace(averaging=sandbox.blocks.EMA(beta=0.5))  # compiled by no other test

    def run(sigma, out):
        p = leaf(*np.linspace(-1, 1, 50))
        optimizer = sandbox.Optimizer([p], recipe, lr=0.1, backend=backend, **{"rectifier.sigma": sigma})
        for _ in range(20):
            p.grad = 3 * p.detach() + 1
            optimizer.step()
        out.append(p.detach())

    def each(sigma, barrier, out):
        barrier.wait()
        run(sigma, out)

    barrier, found = threading.Barrier(2), ([], [])
    threads = [threading.Thread(target=each, args=(s, barrier, out)) for s, out in zip((0.2, 0.7), found, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for sigma, out in zip((0.2, 0.7), found, strict=True):
        alone = []
        run(sigma, alone)
        assert len(out) == 1
        assert torch.equal(out[0], alone[0])


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)).double()


def train(model, optimizer, steps):
    x = torch.linspace(-1, 1, 15, dtype=torch.float64).reshape(5, 3)

    def closure():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        if optimizer.param_groups[0]["recipe"].name != "adahessian":
            loss.backward()
        return loss

    for _ in range(steps):
        optimizer.step(closure)


@pytest.mark.parametrize("name", ["adahessian", "apollo", "scale-invariant", "adamw", "belief"])
def test_a_distributed_checkpoint_keeps_everything(name, tmp_path):
    """Through torch.distributed.checkpoint, which knows states and groups only: the random stream, and what was counted."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

    model, again = network(), network()
    optimizer = sandbox.Optimizer(model.parameters(), name, seed=3, maximize=True, nonfinite="skip")
    train(model, optimizer, 3)
    for group in optimizer.param_groups:
        group["skipped_steps"] = 2
    saved = {"optimizer": get_optimizer_state_dict(model, optimizer)}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        dcp.save(saved, checkpoint_id=tmp_path, no_dist=True)
    again.load_state_dict(model.state_dict())
    other = sandbox.Optimizer(again.parameters(), name)
    empty = {"optimizer": get_optimizer_state_dict(again, other)}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        dcp.load(empty, checkpoint_id=tmp_path, no_dist=True)
    set_optimizer_state_dict(again, other, empty["optimizer"])
    assert other.param_groups[0]["maximize"]
    assert other.skipped_steps == 2
    train(model, optimizer, 3)
    train(again, other, 3)
    for p, q in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(p, q)


def test_checkpoints_are_matched_by_name():
    a, b = leaf(1.0, 2.0), leaf(3.0, 4.0)
    one = sandbox.Optimizer([("a", a), ("b", b)], "apollo")
    a.grad, b.grad = torch.ones_like(a), 5 * torch.ones_like(b)
    one.step()
    c, d = leaf(3.0, 4.0), leaf(1.0, 2.0)
    other = sandbox.Optimizer([("b", c), ("a", d)], "apollo")
    other.load_state_dict(through_a_file(one.state_dict()))
    assert torch.equal(other.state[d]["moment.m"], one.state[a]["moment.m"])
    assert torch.equal(other.state[c]["moment.m"], one.state[b]["moment.m"])
    strange = sandbox.Optimizer([("b", c), ("z", d)], "apollo")
    with pytest.raises(ValueError, match="no parameter called 'z'"):
        strange.load_state_dict(one.state_dict())


def test_a_state_dict_is_a_snapshot():
    """All of it, whatever the backend keeps as views: later steps change nothing in it."""
    for backend in BACKENDS:
        p = leaf(1.0, 2.0)
        optimizer = sandbox.Optimizer([p], "apollo", backend=backend)
        p.grad = torch.ones_like(p)
        optimizer.step()
        kept = optimizer.state_dict()
        before = copy.deepcopy(kept)
        optimizer.step()
        for name, value in before["state"][0].items():
            assert torch.equal(value, kept["state"][0][name])


@pytest.mark.parametrize("backend", BACKENDS)
def test_another_default_device(backend):
    p = leaf(1.0, -2.0)
    with torch.device("meta"):
        optimizer = sandbox.Optimizer([p], "adahessian", lr=0.1, backend=backend)
        for _ in range(2):
            optimizer.step(lambda: p.square().sum())
    assert p.isfinite().all()
    assert int(optimizer.state[p]["step"]) == 2


def test_under_zero_redundancy_optimizer():
    """It copies its own keywords into the groups, `backend` and `nonfinite` among them, and back after every step."""
    import torch.distributed as dist
    from torch.distributed.optim import ZeroRedundancyOptimizer

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model, alone = network(), network()
        keywords = {
            "recipe": "soft-absolute",
            "lr": 0.05,
            "backend": "scripted",
            "nonfinite": "skip",
            "seed": 3,
            "maximize": True,
        }
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=FutureWarning)
            wrapped = ZeroRedundancyOptimizer(model.parameters(), sandbox.Optimizer, **keywords)
        plain = sandbox.Optimizer(alone.parameters(), **keywords)
        for _ in range(3):
            for m, optimizer in ((model, wrapped), (alone, plain)):
                optimizer.zero_grad()
                m(torch.ones(2, 3, dtype=torch.float64)).square().mean().backward()
                optimizer.step()
            wrapped.param_groups[0]["lr"] = plain.param_groups[0]["lr"] = 0.01
        wrapped.consolidate_state_dict()
        for p, q in zip(model.parameters(), alone.parameters(), strict=True):
            assert torch.equal(p, q)
        fresh = sandbox.Optimizer(alone.parameters(), "soft-absolute")
        fresh.load_state_dict(plain.state_dict())
    finally:
        dist.destroy_process_group()

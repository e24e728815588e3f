"""The rate: a tensor, torch's schedulers, functions of t."""

import pytest
import torch
from torch.optim import lr_scheduler as schedulers

import sandbox
from sandbox.blocks import EMA
from sandbox.recipe import Recipe
from tests.optimizer.network import network, same, train


def test_a_tensor_rate_is_filled_never_shared_or_replaced():
    lr = torch.tensor(0.1)
    a, b = (torch.ones(2, requires_grad=True) for _ in range(2))
    optimizer = sandbox.Optimizer([{"params": [a]}, {"params": [b]}], "apollo", lr=lr)
    rates = [g["lr"] for g in optimizer.param_groups]
    schedule = schedulers.ExponentialLR(optimizer, 0.5)
    for _ in range(2):
        a.grad, b.grad = torch.ones(2), torch.ones(2)
        optimizer.step()
        schedule.step()
    assert [g["lr"] is r for g, r in zip(optimizer.param_groups, rates, strict=True)] == [True, True]
    assert [float(r) for r in rates] == pytest.approx([0.025, 0.025])  # not 0.00625: the groups do not alias
    assert float(lr) == pytest.approx(0.1)


@pytest.mark.parametrize(
    "make",
    [
        lambda o: schedulers.LambdaLR(o, lambda k: 0.9**k),
        lambda o: schedulers.MultiplicativeLR(o, lambda k: 0.9),
        lambda o: schedulers.StepLR(o, 3),
        lambda o: schedulers.MultiStepLR(o, [2, 5]),
        lambda o: schedulers.ConstantLR(o, 0.5, 3),
        lambda o: schedulers.LinearLR(o, 0.5, total_iters=4),
        lambda o: schedulers.ExponentialLR(o, 0.9),
        lambda o: schedulers.PolynomialLR(o, 8),
        lambda o: schedulers.CosineAnnealingLR(o, 8),
        lambda o: schedulers.CosineAnnealingWarmRestarts(o, 3),
        lambda o: schedulers.ReduceLROnPlateau(o, patience=1, threshold=10.0),
        lambda o: schedulers.CyclicLR(o, 0.001, 0.01, 3, base_momentum=0.7, max_momentum=0.8),
        lambda o: schedulers.OneCycleLR(o, 0.01, 8),
        lambda o: schedulers.SequentialLR(o, [schedulers.ConstantLR(o, 0.1, 3), schedulers.ExponentialLR(o, 0.9)], [3]),
        lambda o: schedulers.ChainedScheduler([schedulers.ConstantLR(o, 0.1, 3), schedulers.ExponentialLR(o, 0.9)]),
    ],
)
def test_every_scheduler_of_torch(make):
    """Rates (and cycled momenta) are those that a torch optimizer gets, and each of them is the one that a step uses."""
    p, q = (torch.ones((), dtype=torch.float64, requires_grad=True) for _ in range(2))
    mine = sandbox.Optimizer([p], Recipe(moment=EMA(beta=0.75)), lr=0.01, **{"rectifier.sigma": 1e6})
    peer = torch.optim.SGD([q], lr=0.01, momentum=0.75)
    ours, theirs = make(mine), make(peer)
    for _ in range(7):
        p.grad, q.grad = torch.ones_like(p), torch.ones_like(q)
        before, m = p.detach().clone(), mine.state[p]["moment.m"].clone()
        rate, beta, t = mine.param_groups[0]["lr"], mine.param_groups[0]["momentum"], int(mine.state[p]["step"]) + 1
        assert rate == peer.param_groups[0]["lr"]
        assert beta == peer.param_groups[0]["momentum"]
        mine.step()
        peer.step()
        m = beta * (1 - beta ** (t - 1)) / (1 - beta**t) * m + (1 - beta) / (1 - beta**t)
        assert float(before - p.detach()) == pytest.approx(
            float(rate * m / 1e6), rel=1e-6
        )  # θ = 1, step 1e-8: 1e-16/1e-8 and more
        for s in (ours, theirs):
            s.step(1.0) if isinstance(s, schedulers.ReduceLROnPlateau) else s.step()


def test_loading_fills_tensors_that_others_hold():
    p = torch.ones(3, requires_grad=True)
    saved = sandbox.Optimizer([p], "apollo", lr=0.5, **{"rectifier.sigma": 0.25}).state_dict()
    optimizer = sandbox.Optimizer([p], "apollo", lr=torch.tensor(0.1), **{"rectifier.sigma": torch.tensor(0.2)})
    group = optimizer.param_groups[0]
    held = group["lr"], group["rectifier.sigma"]
    optimizer.load_state_dict(saved)
    assert (group["lr"] is held[0], group["rectifier.sigma"] is held[1]) == (True, True)
    assert list(map(float, held)) == [0.5, 0.25]


def test_schedulers_survive_checkpoints():
    model, again = network(), network()
    optimizer, other = (sandbox.Optimizer(m.parameters(), "apollo", lr=0.01) for m in (model, again))
    schedule, second = (schedulers.CosineAnnealingLR(o, 20) for o in (optimizer, other))
    train(optimizer, model, 8, schedule)
    again.load_state_dict(model.state_dict())
    other.load_state_dict(optimizer.state_dict())
    second.load_state_dict(schedule.state_dict())
    train(optimizer, model, 8, schedule)
    train(other, again, 8, second)
    assert same(model, again)


@pytest.mark.parametrize("lr", ["0.1", True])
def test_a_rate_that_is_no_number(lr):
    with pytest.raises(TypeError, match="lr must be a number, a tensor or a function of t"):
        sandbox.Optimizer([torch.ones(2, requires_grad=True)], "apollo", lr=lr)


def test_a_warm_up_of_a_rate_that_is_a_function_of_t_is_refused():
    from sandbox.schedules import Geometric, warmup

    optimizer = sandbox.Optimizer([torch.ones(2, requires_grad=True)], "apollo", lr=Geometric(first=0.1, ratio=0.9))
    with pytest.raises(ValueError, match="the rate of group 0 is a function of t already"):
        warmup(optimizer, 5)

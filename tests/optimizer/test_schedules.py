"""Warm-up, and numbers as functions of t."""

import re

import pytest
import torch
from torch.optim.lr_scheduler import ChainedScheduler, CosineAnnealingLR, ExponentialLR, ReduceLROnPlateau

import sandbox
from sandbox.schedules import Geometric, InverseSquareRoot, InverseTime, warmup


def optimizer_with(*rates):
    groups = [{"params": [torch.ones(1, requires_grad=True)], "lr": lr} for lr in rates]
    return sandbox.Optimizer(groups, "apollo")


def rates_of(optimizer, schedule, steps):
    seen = []
    for _ in range(steps):
        seen.append([float(g["lr"]) for g in optimizer.param_groups])
        for g in optimizer.param_groups:
            g["params"][0].grad = torch.ones(1)
        optimizer.step()
        schedule.step()
    return seen


def test_the_authors_rule():
    """Rate at update k, from 0: init + (lr - init) k/warmup, init = lr/1000; each group its own."""
    optimizer = optimizer_with(1.0, 0.1)
    seen = rates_of(optimizer, warmup(optimizer, 4), 7)
    expected = [[lr / 1000 + (lr - lr / 1000) * min(k / 4, 1) for lr in (1.0, 0.1)] for k in range(7)]
    for a, b in zip(seen, expected, strict=True):
        assert a == pytest.approx(b)


@pytest.mark.parametrize("rate", [0.5, torch.tensor(0.5, dtype=torch.float64)])
def test_composes_with_any_scheduler(rate):
    """After the warm-up, the other scheduler goes as it would have from its own beginning."""
    for make in (lambda o: CosineAnnealingLR(o, 10), lambda o: ExponentialLR(o, 0.9)):
        optimizer, alone = optimizer_with(rate, 0.1), optimizer_with(rate, 0.1)
        seen = rates_of(optimizer, warmup(optimizer, 3, init=[0.1, 0.01], then=make(optimizer)), 12)
        plain = rates_of(alone, make(alone), 9)
        assert seen[0] == pytest.approx([0.1, 0.01])
        assert seen[2] == pytest.approx([0.1 + 0.4 * 2 / 3, 0.01 + 0.09 * 2 / 3])
        for a, b in zip(seen[3:], plain, strict=True):
            assert a == pytest.approx(b)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (dict(steps=5, init=0.2), "the initial rate must lie in [0, 0.1], the rate of group 1, got 0.2"),
        (dict(steps=5, init=-0.1), "the initial rate must lie in [0, 1], the rate of group 0, got -0.1"),
        (dict(steps=-1), "steps must be at least 0, got -1"),
        (dict(steps=5, init=[0.1]), "1 initial rates for 2 parameter groups"),
    ],
)
def test_bad_arguments(arguments, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        warmup(optimizer_with(1.0, 0.1), **arguments)


def test_functions_of_t():
    assert [InverseSquareRoot(first=2.0)(t) for t in (1, 4)] == [2.0, 1.0]
    assert [Geometric(first=0.8, ratio=0.5)(t) for t in (1, 3)] == [0.8, 0.2]
    assert [InverseTime(first=3.0, decay=0.5)(t) for t in (1, 3)] == [3.0, 1.5]


def test_other_schedulers_may_act_beside_it():
    """Stepped side by side or chained, factors multiply, as with torch's own chainable schedulers."""
    for together in (False, True):
        optimizer = optimizer_with(1.0, 0.1)
        pair = [warmup(optimizer, 4, init=[0.2, 0.1]), ExponentialLR(optimizer, 0.5)]
        if together:
            chained = ChainedScheduler(pair)
            seen = rates_of(optimizer, chained, 8)
        else:
            both = type("Both", (), {"step": lambda self, pair=pair: [s.step() for s in pair]})()
            seen = rates_of(optimizer, both, 8)
        expected = [[(0.2 + 0.8 * min(k / 4, 1)) * 0.5**k, 0.1 * 0.5**k] for k in range(8)]
        for a, b in zip(seen, expected, strict=True):
            assert a == pytest.approx(b)


def test_plateau_beside_it_keeps_its_reductions():
    optimizer = optimizer_with(1.0, 0.1)
    schedule, plateau = warmup(optimizer, 2), ReduceLROnPlateau(optimizer, patience=2)
    for _ in range(8):
        optimizer.step()
        schedule.step()
        plateau.step(1.0)
    assert float(optimizer.param_groups[0]["lr"]) == pytest.approx(0.01)  # reduced twice, and left there
    with pytest.raises(TypeError, match="make it beside the warm-up and step both"):
        warmup(optimizer, 2, then=plateau)


def test_a_rate_scheduled_before_is_not_the_target():
    """`initial_lr`, which another scheduler keeps, is what the warm-up aims at; and a group added later starts at a thousandth."""
    optimizer = optimizer_with(1.0)
    earlier = ExponentialLR(optimizer, 0.5)
    optimizer.step()
    earlier.step()
    schedule = warmup(optimizer, 4, init=0.9)  # above 0.5, where the rate is now, below 1.0
    assert schedule.base_lrs == [1.0]
    schedule.base_lrs.append(0.5)
    optimizer.add_param_group({"params": [torch.ones(1, requires_grad=True)], "lr": 0.0005})
    for _ in range(4):
        optimizer.step()
        schedule.step()
    assert float(optimizer.param_groups[1]["lr"]) == pytest.approx(0.5)


def test_a_length_that_is_no_whole_number():
    with pytest.raises(TypeError, match=r"steps must be a whole number, got 2\.5"):
        warmup(optimizer_with(1.0), 2.5)

"""Peers against torch.optim, step for step in float64: six tensors, 60 steps, the rate cut at 30, decay on and off.

Tolerance: the same numbers in another order of operations; 60 steps of a stiff function amplify 1e-16 by less than 1e4.
"""

import numpy as np
import pytest
import torch

import sandbox
import variants
from sandbox.blocks import AdamWDecay, HeavyBall, L2Decay
from sandbox.schedules import InverseTime
from tests.problem import Problem

L2, SHRINK = {"gradient": (L2Decay(weight_decay=0.1),)}, {"decay": AdamWDecay(weight_decay=0.1)}


def cases():
    o = torch.optim
    plain = [
        ("sgd", {}, o.SGD, dict(momentum=0.9), L2, 0.01),
        ("sgd", {"moment": HeavyBall(momentum=0.8, dampening=0.5)}, o.SGD, dict(momentum=0.8, dampening=0.5), L2, 0.01),
        ("nesterov", {}, o.SGD, dict(momentum=0.9, nesterov=True), L2, 0.01),
        ("adam", {}, o.Adam, {}, L2, 0.01),
        ("adamw", {"decay": AdamWDecay(weight_decay=0.0)}, o.AdamW, dict(weight_decay=0.0), SHRINK, 0.01),
        ("amsgrad", {}, o.Adam, dict(amsgrad=True), L2, 0.1),
        ("radam", {}, o.RAdam, dict(decoupled_weight_decay=True), SHRINK, 0.05),
        ("radam", {}, o.RAdam, {}, L2, 0.05),
        ("adagrad", {}, o.Adagrad, {}, L2, 0.1),
        ("adagrad", {"curvature.start": 0.3}, o.Adagrad, dict(initial_accumulator_value=0.3), L2, 0.1),
        ("rmsprop", {}, o.RMSprop, {}, L2, 0.01),
        ("rmsprop-centered", {}, o.RMSprop, dict(centered=True), L2, 0.01),
        ("adadelta", {}, o.Adadelta, {}, L2, 1.0),
    ]
    for name, change, peer, options, decay, lr in plain:
        label = name + "".join(f"-{key}" for key in change)
        yield pytest.param(name, change, peer, options, lr, id=label)
        yield pytest.param(name, {**change, **decay}, peer, {**options, "weight_decay": 0.1}, lr, id=f"{label}-decay")


def follow(recipe, make_peer, lr, maximize=False):
    ours, theirs = Problem(), Problem()
    params, others = ours.tensors(), theirs.tensors()
    mine, peer = sandbox.Optimizer(params, recipe, lr=lr, maximize=maximize), make_peer(others)
    schedulers = [torch.optim.lr_scheduler.MultiStepLR(o, [30], gamma=0.3) for o in (mine, peer)]
    for step in range(60):
        ours.set_gradients(step, params)
        theirs.set_gradients(step, others)
        for optimizer, scheduler in zip((mine, peer), schedulers, strict=True):
            optimizer.step()
            scheduler.step()
        for p, q in zip(params, others, strict=True):
            np.testing.assert_allclose(p.detach().numpy(), q.detach().numpy(), rtol=1e-9, atol=1e-11, err_msg=f"step {step}")


@pytest.mark.parametrize(("name", "change", "peer", "options", "lr"), cases())
def test_equal_to_torch(name, change, peer, options, lr):
    follow(variants.get(name).replace(**change), lambda params: peer(params, lr=lr, **options), lr)


@pytest.mark.parametrize(
    ("name", "peer"), [("adam", torch.optim.Adam), ("sgd", lambda p, **k: torch.optim.SGD(p, momentum=0.9, **k))]
)
def test_maximize(name, peer):
    follow(variants.get(name), lambda params: peer(params, lr=1e-3, maximize=True), 1e-3, maximize=True)


def test_adagrad_with_decaying_rate_as_a_function_of_t():
    """lr_decay of torch is a function of t here; no scheduler on top, since the rate is no number any more."""
    ours, theirs = Problem(), Problem()
    params, others = ours.tensors(), theirs.tensors()
    mine = sandbox.Optimizer(params, variants.get("adagrad"), lr=InverseTime(first=0.1, decay=0.05))
    peer = torch.optim.Adagrad(others, lr=0.1, lr_decay=0.05)
    for step in range(50):
        ours.set_gradients(step, params)
        theirs.set_gradients(step, others)
        mine.step()
        peer.step()
        for p, q in zip(params, others, strict=True):
            np.testing.assert_allclose(p.detach().numpy(), q.detach().numpy(), rtol=1e-9, atol=1e-12)


def test_ema_equals_adams_first_moment():
    """The paper's recursion gives m̂, Adam's corrected average (paper, section 3.1)."""
    problem, raw = Problem(), 0.0
    params = problem.tensors()
    optimizer = sandbox.Optimizer(params, "apollo", lr=1e-3)
    for step in range(50):
        problem.set_gradients(step, params)
        raw = 0.9 * raw + 0.1 * params[0].grad.numpy()
        optimizer.step()
        expected = raw / (1 - 0.9 ** (step + 1))
        np.testing.assert_allclose(optimizer.state[params[0]]["moment.m"].numpy(), expected, rtol=1e-12)

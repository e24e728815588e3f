"""Checkpoints: exact, of another recipe, old ones, and what they keep."""

import math
import pickle
import re

import pytest
import torch

import sandbox
import variants
from sandbox.blocks import EMA, Rectifier, SoftAbsolute, block
from tests.light import NAMES, each, light
from tests.optimizer.leaves import through_a_file
from tests.optimizer.network import network, same, train

Namesake = block(
    type(
        "SoftAbsolute",
        (Rectifier,),
        {
            "__doc__": "D = |B| + 1, by a block called as another one.",
            "__module__": __name__,
            "read": lambda self, B: B.abs() + 1,
        },
    )
)


@pytest.mark.parametrize("dtype", [torch.float64, pytest.param(torch.float32, marks=pytest.mark.slow), torch.bfloat16])
@pytest.mark.parametrize("name", each(NAMES))
def test_checkpoints_are_exact(name, dtype):
    """Resumed from a file, a run is bitwise the run that was not interrupted."""
    model, again = network(dtype=dtype), network(seed=5, dtype=dtype)
    optimizer, other = (sandbox.Optimizer(m.parameters(), light(name), seed=k) for k, m in enumerate((model, again)))
    for o, m, steps in ((optimizer, model, 4), (other, again, 2)):
        train(o, m, steps, dtype=dtype)
    optimizer.param_groups[0]["lr"] = 0.003
    again.load_state_dict(model.state_dict())
    other.load_state_dict(through_a_file(optimizer.state_dict()))
    train(optimizer, model, 4, dtype=dtype)
    train(other, again, 4, dtype=dtype)
    assert same(model, again)
    for p, q in zip(model.parameters(), again.parameters(), strict=True):
        assert all(
            torch.equal(v, other.state[q][k]) and v.dtype == other.state[q][k].dtype for k, v in optimizer.state[p].items()
        )
        if dtype == torch.bfloat16:
            exact = light(name).of(p).analysis.exact
            kept = {k: v.dtype for k, v in optimizer.state[p].items() if v.ndim}
            assert kept == {k: torch.float64 if k in exact else torch.float32 for k in kept}


def test_checkpoints_of_another_recipe_name_the_slots_that_differ():
    model = network()
    saved = sandbox.Optimizer(model.parameters(), "hessian-ema").state_dict()
    other = sandbox.Optimizer(model.parameters(), variants.get("apollo").replace(rectifier=SoftAbsolute()))
    with pytest.raises(ValueError, match="belongs to recipe 'hessian-ema'") as caught:
        other.load_state_dict(saved)
    assert "averaging: EMA(bias_correction=True) there, NoAveraging() here" in str(caught.value)
    assert "rectifier: AbsoluteFloor() there, SoftAbsolute() here" in str(caught.value)
    assert "curvature" not in str(caught.value).split("differs")[1]
    theirs = sandbox.Optimizer(model.parameters(), variants.get("apollo").replace(rectifier=Namesake()))
    with pytest.raises(
        ValueError, match=r"rectifier: SoftAbsolute\(\) there, tests.optimizer.test_checkpoints:SoftAbsolute\(\) here"
    ):
        theirs.load_state_dict(other.state_dict())
    with pytest.raises(ValueError, match=r"not one of sandbox.Optimizer"):
        other.load_state_dict(torch.optim.SGD(model.parameters(), lr=0.1).state_dict())
    with pytest.raises(ValueError, match="1 parameter groups, the optimizer 2"):
        halves = list(model.parameters())
        two = sandbox.Optimizer([{"params": halves[:1]}, {"params": halves[1:]}], "hessian-ema")
        two.load_state_dict(saved)
    with pytest.raises(ValueError, match="the checkpoint has 6 parameters, the optimizer 1"):
        sandbox.Optimizer(halves[:1], "hessian-ema").load_state_dict(saved)
    wider = [torch.ones(p.numel() + 1, requires_grad=True) for p in model.parameters()]
    with pytest.raises(
        ValueError, match=re.escape("state 'moment.m' of parameter 0 of group 0: shape (7, 5) there, (36,) here")
    ):
        sandbox.Optimizer(wider, "hessian-ema").load_state_dict(saved)


def test_old_checkpoints_keep_what_they_lack_and_numbers_come_from_them():
    model = network()
    saved = sandbox.Optimizer(model.parameters(), "apollo", lr=0.5, **{"rectifier.sigma": 0.3}).state_dict()
    del saved["param_groups"][0]["curvature.eps"]
    optimizer = sandbox.Optimizer(model.parameters(), "apollo", **{"curvature.eps": 0.7})
    tensor_rate = sandbox.Optimizer(model.parameters(), "apollo", lr=torch.tensor(0.1))
    held = tensor_rate.param_groups[0]["lr"]
    for o in (optimizer, tensor_rate):
        o.load_state_dict(saved)
    group = optimizer.param_groups[0]
    assert (group["lr"], group["rectifier.sigma"], group["curvature.eps"]) == (0.5, 0.3, 0.7)
    assert tensor_rate.param_groups[0]["lr"] is held
    assert float(held) == 0.5


def test_load_state_dict_hooks_run():
    model, seen = network(), []
    optimizer = sandbox.Optimizer(model.parameters(), "apollo")
    optimizer.register_load_state_dict_pre_hook(lambda o, s: seen.append("pre"))
    optimizer.register_load_state_dict_post_hook(lambda o: seen.append("post"))
    optimizer.load_state_dict(optimizer.state_dict())
    assert seen == ["pre", "post"]


def test_checkpoints_know_functions_of_t():
    from sandbox.schedules import Geometric, InverseSquareRoot

    p = torch.ones(2, requires_grad=True)
    plain = variants.get("apollo")
    moving = plain.replace(moment=EMA(beta=Geometric(first=0.9, ratio=0.9), bias_correction=True))
    one, two = sandbox.Optimizer([p], plain), sandbox.Optimizer([p], moving)
    for a, b in ((one, two), (two, one)):
        with pytest.raises(ValueError, match="moment: EMA"):
            a.load_state_dict(b.state_dict())
    running = sandbox.Optimizer([p], plain, lr=InverseSquareRoot(first=0.1))
    with pytest.raises(ValueError, match="lr: function of t"):
        one.load_state_dict(running.state_dict())
    with pytest.raises(ValueError, match="lr: number there, function of t"):
        running.load_state_dict(one.state_dict())
    running.load_state_dict(through_a_file(running.state_dict()))
    with pytest.raises(ValueError, match="not a state_dict of an optimizer: it has nothing"):
        one.load_state_dict({})


def test_checkpoints_keep_direction_and_counts():
    p = torch.ones(2, requires_grad=True)
    climbing = sandbox.Optimizer([p], "apollo", maximize=True, nonfinite="skip")
    p.grad = torch.full((2,), math.nan)
    climbing.step()
    other = sandbox.Optimizer([p], "apollo")
    other.load_state_dict(climbing.state_dict())
    assert other.param_groups[0]["maximize"]
    assert other.skipped_steps == 1


def test_pickles_of_a_compiled_optimizer_hold_its_states_once():
    params = [torch.zeros(100, requires_grad=True) for _ in range(50)]
    for p in params:
        p.grad = torch.ones(100)
    optimizer = sandbox.Optimizer(params, "apollo", backend="compiled")
    optimizer.step()
    numbers = 50 * 100 * 4 * 4  # θ, its gradient, m and B
    assert len(pickle.dumps(optimizer)) < 3 * numbers
    assert len(pickle.dumps(optimizer.state_dict())) < 3 * numbers

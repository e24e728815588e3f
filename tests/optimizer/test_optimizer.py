"""torch's habits: hooks, closures, copies, precisions, gradients that are not finite, tensors of any shape."""

import copy
import math
import pickle
import re
import warnings

import pytest
import torch

import sandbox
import variants
from tests.optimizer.network import loss_of, network, same, train
from tests.problem import SHAPES, Problem


def test_hooks_closures_and_named_parameters():
    model, seen = network(), []
    optimizer = sandbox.Optimizer(model.named_parameters(), "apollo", lr=0.01)
    optimizer.register_step_pre_hook(lambda o, a, k: seen.append("before"))
    optimizer.register_step_post_hook(lambda o, a, k: seen.append("after"))
    losses = train(optimizer, model, 3)
    assert seen == ["before", "after"] * 3
    assert losses[2] < losses[0]
    assert optimizer.param_groups[0]["param_names"][0] == "0.weight"
    assert "apollo at lr 0.01 on 6 tensors" in repr(optimizer)


@pytest.mark.parametrize("how", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_go_on_alike(how):
    model = network()
    optimizer = sandbox.Optimizer(model.parameters(), "adahessian", lr=0.01, nonfinite="skip", seed=3)
    train(optimizer, model, 3)
    model2, optimizer2 = how((model, optimizer))
    train(optimizer, model, 3)
    train(optimizer2, model2, 3)
    assert same(model, model2)
    assert optimizer2.nonfinite == "skip"


def test_state_is_made_at_construction_under_stable_names():
    p = torch.ones(3, 2, dtype=torch.bfloat16, requires_grad=True)
    optimizer = sandbox.Optimizer([p], "hessian-ema")
    assert {k: (v.dtype, tuple(v.shape)) for k, v in optimizer.state[p].items()} == {
        "step": (torch.float64, ()),
        "lr": (torch.float64, ()),
        "rectifier.sigma": (torch.float64, ()),
        "moment.m": (torch.float32, (3, 2)),
        "curvature.B": (torch.float32, (3, 2)),
        "averaging.m": (torch.float32, (3, 2)),
    }


def test_low_precision_parameters_are_computed_in_float32():
    problem = Problem()
    params = [p.detach().to(torch.bfloat16).requires_grad_() for p in problem.tensors()]
    optimizer = sandbox.Optimizer(params, "apollo", lr=0.003)
    wide = [p.detach().float().requires_grad_() for p in params]
    reference = sandbox.Optimizer(wide, "apollo", lr=0.003)
    for step in range(10):
        problem.set_gradients(step, params)
        for p, q in zip(params, wide, strict=True):
            q.data.copy_(p.detach())
            q.grad = p.grad.float()
        optimizer.step()
        reference.step()
        for p, q in zip(params, wide, strict=True):
            assert torch.equal(p, q.to(torch.bfloat16))
            assert torch.equal(optimizer.state[p]["curvature.B"], reference.state[q]["curvature.B"])


@pytest.mark.parametrize("name", ["apollo", "apollow"])
def test_grad_scaler(name):
    """Scaled by powers of two, so equal bitwise; an overflow is skipped by the scaler and leaves everything as it was."""
    model, plain = network(dtype=torch.float32), network(dtype=torch.float32)
    optimizer, other = (sandbox.Optimizer(m.parameters(), name, lr=0.01) for m in (model, plain))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for step in range(4):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, torch.float32) * (math.inf if step == 2 else 1)).backward()
        scaler.step(optimizer)
        scaler.update()
        if step != 2:
            other.zero_grad()
            loss_of(plain, torch.float32).backward()
            other.step()
        assert same(model, plain)
    assert int(optimizer.state[next(model.parameters())]["step"]) == 3


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nonfinite_gradients(bad):
    def make(nonfinite):
        model = network()
        optimizer = sandbox.Optimizer(model.named_parameters(), "apollo", lr=0.01, nonfinite=nonfinite)
        train(optimizer, model, 2)
        optimizer.zero_grad()
        loss_of(model).backward()
        model[2].bias.grad[1] = bad
        kept = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        return model, optimizer, kept

    def untouched(model, optimizer, kept):
        state = optimizer.state_dict()["state"]
        return all(torch.equal(v, kept[0][k]) for k, v in model.state_dict().items()) and all(
            torch.equal(v, kept[1]["state"][i][k]) for i in state for k, v in state[i].items()
        )

    model, optimizer, kept = make("raise")
    with pytest.raises(FloatingPointError, match=r"gradient of parameter '2.bias'; nothing was changed"):
        optimizer.step()
    assert untouched(model, optimizer, kept)
    model, optimizer, kept = make("skip")
    optimizer.step()
    assert untouched(model, optimizer, kept)
    assert optimizer.skipped_steps == 1
    assert optimizer.state_dict()["param_groups"][0]["skipped_steps"] == 1
    model, optimizer, kept = make("pass")
    optimizer.step()
    assert not model[2].bias.isfinite().all()
    assert model[0].weight.isfinite().all()


def test_optimizer_equals_the_pure_update():
    problem = Problem()
    for name in ("global-secant", "scale-invariant", "apollow"):
        params, recipe = problem.tensors(), variants.get(name)
        optimizer = sandbox.Optimizer(params, recipe, lr=0.003)
        theta = [p.detach().clone() for p in params]
        state = recipe.init(theta)
        for step in range(6):
            problem.set_gradients(step, params)
            state, theta = recipe.update(state, theta, [p.grad.clone() for p in params], lr=0.003)
            optimizer.step()
            for p, x in zip(params, theta, strict=True):
                torch.testing.assert_close(p.detach(), x, rtol=1e-12, atol=1e-14)  # β^t by math.pow or torch.pow


def test_empty_and_noncontiguous_tensors():
    problem = Problem()
    params, others = problem.tensors(), problem.tensors()
    turned = torch.tensor(problem.start[0]).t().contiguous().t().requires_grad_()
    assert not turned.is_contiguous()
    empty = torch.zeros(0, 3, dtype=torch.float64, requires_grad=True)
    for name in ("apollo", "global-secant", "channel-secant", "scale-invariant"):
        mine = sandbox.Optimizer([turned, empty, *params[1:]], name, lr=0.003)
        plain = sandbox.Optimizer(others, name, lr=0.003)
        for step in range(3):
            problem.set_gradients(step, others)
            for p, q in zip([turned, *params[1:]], others, strict=True):
                p.grad = q.grad.clone()
            empty.grad = torch.zeros_like(empty)
            mine.step()
            plain.step()
            for p, q in zip([turned, *params[1:]], others, strict=True):
                torch.testing.assert_close(p, q, rtol=1e-13, atol=0)
        assert SHAPES[0] == tuple(turned.shape)


def test_no_warnings_and_no_gradient_history():
    model = network()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer = sandbox.Optimizer(model.parameters(), "adahessian")
        train(optimizer, model, 2)
    assert all(p.grad.grad_fn is None and p.is_leaf for p in model.parameters())
    assert all(not v.requires_grad for s in optimizer.state.values() for v in s.values())


def test_huge_but_finite_gradients_pass():
    """1e200 is finite in float64, and so are entries whose sum overflows."""
    for values in ([1e200, 1.0], [1.7e308, 1.7e308]):
        p = torch.zeros(2, dtype=torch.float64, requires_grad=True)
        optimizer = sandbox.Optimizer([p], "sgd", lr=1e-300)
        p.grad = torch.tensor(values, dtype=torch.float64)
        optimizer.step()
        assert p.isfinite().all()
        assert p[0] != 0


def test_nonfinite_curvature_is_found_too():
    """Gradient 0, but Hz is NaN: |p|^1.5 at 0."""
    p = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    optimizer = sandbox.Optimizer([("p", p)], "adahessian")
    with pytest.raises(FloatingPointError, match="NaN or infinity in the Hessian-vector product of parameter 'p'"):
        optimizer.step(lambda: (p.abs() ** 1.5).sum())
    assert torch.equal(p, torch.zeros(2, dtype=torch.float64))
    assert int(optimizer.state[p]["step"]) == 0


def test_a_decay_of_exactly_one_leaves_no_nan():
    """γη/mean(D) = 1: θ holds no trace of the decay, and the next secant step goes without it."""
    p = torch.tensor([0.5, -1.0], dtype=torch.float64, requires_grad=True)
    optimizer = sandbox.Optimizer([p], "apollo-stable", lr=0.01, weight_decay=1.0)
    for _ in range(4):
        p.grad = torch.tensor([1e-5, 2e-5], dtype=torch.float64)
        optimizer.step()
        assert p.isfinite().all()


def test_a_step_is_whole_or_not_at_all():
    """A number that is wrong in the second group is found before the first group moves."""
    a, b = (torch.ones(2, requires_grad=True) for _ in range(2))
    optimizer = sandbox.Optimizer([{"params": [a]}, {"params": [b], "weight_decay": 50.0}], "apollow", lr=0.001)
    for group in optimizer.param_groups:
        group["lr"] = 0.5
    a.grad, b.grad = torch.ones(2), torch.ones(2)
    with pytest.raises(ValueError, match=re.escape("weight_decay * lr must be below 1, got 50 * 0.5")):
        optimizer.step()
    assert torch.equal(a, torch.ones(2))
    assert int(optimizer.state[a]["step"]) == 0


def test_a_frozen_parameter_makes_no_step_of_second_order():
    """Even with an old gradient; the others go on."""
    for backend in sandbox.backends.NAMES:
        a, b = (torch.ones(3, dtype=torch.float64, requires_grad=True) for _ in range(2))
        optimizer = sandbox.Optimizer([a, b], "adahessian", lr=0.1, backend=backend)
        optimizer.step(lambda a=a, b=b: (a.square() + b.square()).sum())
        a.requires_grad_(False)
        kept = a.detach().clone()
        optimizer.step(lambda a=a, b=b: (a.square() + b.square()).sum())
        assert torch.equal(a, kept)
        assert float(b[0].detach()) < 0.85

"""SAM and ASAM against davda54's two half steps written out, and what an optimizer with two calls must keep."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import sandbox
import variants
from sandbox.blocks import ClipGlobalNorm, Sharpness
from tests.light import BACKENDS


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def batch(t: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(t)
    return torch.randn(6, 4, generator=draw, dtype=torch.float64), torch.randint(0, 3, (6,), generator=draw)


def loss(model: nn.Module, t: int) -> Tensor:
    X, y = batch(t)
    return nn.functional.cross_entropy(model(X), y)


def train(model, optimizer, steps):
    values = []
    for t in range(steps):

        def closure(t: int = t) -> Tensor:
            optimizer.zero_grad()
            value = loss(model, t)
            value.backward()
            return value

        values.append(float(optimizer.step(closure).detach()))
    return values


def literal(model, steps, lr, rho, shift):
    """davda54/sam's first_step and second_step around torch.optim.SGD; ASAM's w where a shift is given."""
    base, values = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9), []
    for t in range(steps):
        base.zero_grad()
        value = loss(model, t)
        value.backward()
        values.append(float(value.detach()))
        params = list(model.parameters())
        w = [torch.ones_like(p) if shift is None else p.detach().abs() + shift for p in params]
        norm = torch.stack([(a * p.grad).norm() for a, p in zip(w, params, strict=True)]).norm()
        old = [p.detach().clone() for p in params]
        with torch.no_grad():
            for a, p in zip(w, params, strict=True):
                p.add_(rho * a**2 * p.grad / (norm + 1e-12))
        base.zero_grad()
        loss(model, t).backward()
        with torch.no_grad():
            for p, q in zip(params, old, strict=True):
                p.copy_(q)
        base.step()
    return values


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("name", "rho", "shift"), [("sam", 0.05, None), ("asam", 0.5, 0.01)])
def test_equal_to_the_two_half_steps(name, rho, shift, backend):
    """Fifty steps in float64, to rounding; the loss returned is that at θ."""
    mine, theirs = network(), network()
    got = train(mine, sandbox.Optimizer(mine.parameters(), name, lr=0.1, backend=backend), 50)
    expected = literal(theirs, 50, 0.1, rho, shift)
    np.testing.assert_allclose(got, expected, rtol=1e-10)
    torch.testing.assert_close(list(mine.parameters()), list(theirs.parameters()), rtol=1e-9, atol=1e-11)


def test_the_pure_form_and_a_grid():
    """`displaced` gives the point, `update` takes the gradient there; a vectorised grid makes the same steps."""
    task, recipe = sandbox.tasks.get("digits-mlp", dtype=torch.float64), variants.get("sam")
    params = task.init(0)
    state = recipe.init(params)
    for rows, _ in zip(task.batches(0), range(3), strict=False):
        gradient = torch.func.grad(task.loss)
        grads = gradient(params, rows)
        state, params = recipe.update(state, params, grads, lr=0.1, displaced=gradient(recipe.displaced(params, grads), rows))
    grid = sandbox.ensemble.run(recipe, task, lr=[0.1, 0.2], seeds=[0], steps=3, evaluations=1)
    for name, p in params.items():
        torch.testing.assert_close(grid.params[name][0], p, rtol=1e-9, atol=1e-11)


def test_parameters_come_back_to_the_bit_and_numbers_are_those_of_the_group():
    """θ is restored where the second call fails; ρ may be changed between steps; frozen parameters do not move."""
    model = network()
    optimizer = sandbox.Optimizer(model.parameters(), "sam", lr=0.1)
    before, calls = [p.detach().clone() for p in model.parameters()], []

    def failing() -> Tensor:
        calls.append(None)
        if len(calls) == 2:
            assert not torch.equal(next(model.parameters()), before[0])
            raise RuntimeError("the second call")
        optimizer.zero_grad()
        value = loss(model, 0)
        value.backward()
        return value

    with pytest.raises(RuntimeError, match="the second call"):
        optimizer.step(failing)
    assert all(map(torch.equal, model.parameters(), before))
    optimizer.param_groups[0]["gradient.0.rho"] = 0.0
    other = network()
    plain = sandbox.Optimizer(other.parameters(), "sgd", lr=0.1)
    train(model, optimizer, 3)
    train(other, plain, 3)
    torch.testing.assert_close(list(model.parameters()), list(other.parameters()), rtol=1e-12, atol=1e-14)


def test_dropout_drops_the_same_units_in_both_calls():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 50), nn.Dropout(0.5), nn.Linear(50, 3)).double()
    optimizer, masks = sandbox.Optimizer(model.parameters(), "sam", lr=0.1), list[Tensor]()
    model[1].register_forward_hook(lambda m, x, y: masks.append(y == 0))

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss(model, 0)
        value.backward()
        return value

    optimizer.step(closure)
    assert len(masks) == 2
    assert torch.equal(*masks)


def test_a_gradient_that_is_not_finite_moves_nothing():
    model = network()
    optimizer = sandbox.Optimizer(model.parameters(), "sam", lr=0.1)
    before = [p.detach().clone() for p in model.parameters()]

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss(model, 0) * float("inf")
        value.backward()
        return value

    with pytest.raises(FloatingPointError, match="gradient of parameter"):
        optimizer.step(closure)
    assert all(map(torch.equal, model.parameters(), before))


def test_refusals():
    with pytest.raises(ValueError, match="must come first in `gradient`"):
        variants.get("sgd").replace(gradient=(ClipGlobalNorm(), Sharpness()))
    with pytest.raises(ValueError, match="no block may ask for a third"):
        variants.get("adahessian").replace(gradient=(Sharpness(),))
    with pytest.raises(ValueError, match="vectors must take the gradient at a displaced point"):
        variants.get("muon").replace(gradient=(Sharpness(),))
    with pytest.raises(RuntimeError, match=r"needs step\(closure\)"):
        sandbox.Optimizer(network().parameters(), "sam").step()
    recipe = variants.get("sam")
    with pytest.raises(ValueError, match=r"needs `displaced`"):
        recipe.update(recipe.init(torch.ones(2)), torch.ones(2), torch.ones(2))


def test_two_gradients_per_step_are_counted():
    assert variants.get("sam").analysis.evaluations == 2

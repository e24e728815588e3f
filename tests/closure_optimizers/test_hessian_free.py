"""Hessian-free optimisation against dense linear algebra."""

import copy
import pickle

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, hessian, jacrev
from torch.nn import functional as F

from sandbox import closure_optimizers, tasks
from sandbox.closure_optimizers import krylov
from sandbox.experiments.runs.methods import method
from sandbox.experiments.runs.run import Run
from sandbox.experiments.runs.torch_optimizer import TorchOptimizer
from sandbox.experiments.runs.training import train


def indefinite(n=8, seed=0, shift=0.0):
    draw = np.random.default_rng(seed)
    Q, _ = np.linalg.qr(draw.standard_normal((n, n)))
    values = np.linspace(-2, 3, n) + shift
    return torch.tensor(Q @ np.diag(values) @ Q.T), torch.tensor(draw.standard_normal(n))


def optimizer_on(A, b, **options):
    p = torch.zeros(len(b), dtype=torch.float64, requires_grad=True)
    return p, closure_optimizers.HessianFree([p], **options), lambda: 0.5 * p @ A @ p + b @ p


def test_one_step_solves_the_damped_system():
    """n steps of conjugate gradients in exact arithmetic; 1e-9 for rounding at a condition number of 30."""
    A, b = indefinite(shift=2.2)
    for damping in (0.0, 0.7):
        p, optimizer, closure = optimizer_on(A, b, damping=damping, tolerance=0.0)
        optimizer.step(closure)
        expected = -np.linalg.solve(A.numpy() + damping * np.eye(8), b.numpy())
        np.testing.assert_allclose(p.detach().numpy(), expected, rtol=1e-9, atol=1e-10)
        assert torch.equal(p.grad, b)
        # a quadratic's model is exact: ρ = 1 without damping
        assert optimizer.damping == pytest.approx(damping / 1.5)


def test_conjugate_gradients_end_where_progress_does_and_before_negative_curvature():
    A, b = indefinite(shift=2.2)
    count = 0

    def product(v):
        nonlocal count
        count += 1
        return A @ v

    p, q = krylov.conjugate_gradients(product, b, torch.zeros_like(b), 100, 0.0)
    torch.testing.assert_close(A @ p, -b, rtol=1e-9, atol=1e-10)
    assert q == pytest.approx(float(b @ p + 0.5 * p @ A @ p), rel=1e-12)
    assert count <= 20
    start = torch.ones_like(b)
    again, _ = krylov.conjugate_gradients(lambda v: A @ v, b, start, 100, 0.0)
    torch.testing.assert_close(again, p, rtol=1e-8, atol=1e-9)
    A, b = indefinite()
    p, q = krylov.conjugate_gradients(lambda v: A @ v, b, torch.zeros_like(b), 100, 0.0)
    assert float(b @ p) < 0
    assert q < 0 or torch.equal(p, -b)
    assert torch.equal(krylov.conjugate_gradients(lambda v: -v, b, torch.zeros_like(b), 9, 0.0)[0], -b)


def test_lanczos_is_an_orthonormal_basis_in_which_the_matrix_is_tridiagonal():
    A, b = indefinite()
    for most in (3, 8, 20):
        V, T = krylov.lanczos(lambda v: A @ v, b, most)
        assert V.shape == (8, min(most, 8))
        torch.testing.assert_close(V.T @ V, torch.eye(V.shape[1], dtype=torch.float64), rtol=0, atol=1e-12)
        torch.testing.assert_close(T, V.T @ A @ V, rtol=0, atol=1e-12)
    V, _ = krylov.lanczos(lambda v: 2 * v, b, 5)  # one vector spans all there is
    assert V.shape == (8, 1)


def test_saddle_free_newton_takes_the_size_of_the_curvature():
    """p = -|A|⁻¹g in the whole space (1e-9, condition number 30)."""
    A, b = indefinite()
    p, optimizer, closure = optimizer_on(A, b, damping=0.1, saddle_free=True)
    optimizer.step(closure)
    values, vectors = np.linalg.eigh(A.numpy())
    expected = -vectors @ ((vectors.T @ b.numpy()) / (np.abs(values) + 0.1))
    np.testing.assert_allclose(p.detach().numpy(), expected, rtol=1e-9, atol=1e-10)


def network():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Dropout(0.2), nn.Linear(5, 3)).double()
    draw = torch.Generator().manual_seed(1)
    X, y = torch.randn(30, 4, generator=draw, dtype=torch.float64), torch.randint(0, 3, (30,), generator=draw)
    return model, X, y


def test_gauss_newton_where_the_closure_returns_outputs():
    """Against JᵀLJ from functorch's Jacobians; dropout drops the same units in all calls of a step."""
    model, X, y = network()
    model[2].p = 0.0
    names = list(dict(model.named_parameters()))

    def outputs(*params):
        return functional_call(model, dict(zip(names, params, strict=True)), (X,))

    params = [p.detach() for p in model.parameters()]
    J = torch.cat([j.reshape(90, -1) for j in jacrev(outputs, argnums=tuple(range(4)))(*params)], 1)
    L = hessian(lambda z: F.cross_entropy(z, y))(outputs(*params)).reshape(90, 90)
    g = torch.cat([v.reshape(-1) for v in torch.func.grad(lambda ps: F.cross_entropy(outputs(*ps), y))(params)])
    optimizer = closure_optimizers.HessianFree(model.parameters(), damping=0.3, iterations=200, tolerance=0.0)

    def closure():
        z = model(X)
        return F.cross_entropy(z, y), z

    optimizer.step(closure)
    expected = -torch.linalg.solve(J.T @ L @ J + 0.3 * torch.eye(len(g), dtype=torch.float64), g)
    torch.testing.assert_close(optimizer.state[next(model.parameters())]["p"], expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("saddle_free", [False, True])
def test_the_loss_falls_and_a_checkpoint_goes_on(saddle_free):
    model, X, y = network()
    other = copy.deepcopy(model)

    def run(model, optimizer, start, stop):
        values = []
        for step in range(start, stop):
            torch.manual_seed(step)
            values.append(float(optimizer.step(lambda: F.cross_entropy(model(X), y))))
            assert torch.rand(()) != 0
        return values

    optimizer = closure_optimizers.HessianFree(model.parameters(), saddle_free=saddle_free, iterations=15)
    values = run(model, optimizer, 0, 4)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    values += run(model, optimizer, 4, 8)
    resumed = closure_optimizers.HessianFree(other.parameters(), saddle_free=saddle_free, iterations=15)
    other.load_state_dict(saved[0])
    resumed.load_state_dict(saved[1])
    assert run(other, resumed, 4, 8) == values[4:]
    model.eval()
    assert float(F.cross_entropy(model(X), y).detach()) < 0.9 * values[0]


def test_a_step_that_helps_nobody_is_left_out():
    p = torch.ones(2, dtype=torch.float64, requires_grad=True)
    calls = 0

    def closure():
        nonlocal calls
        calls += 1
        return p.square().sum() + 10 * (calls > 1)  # every other look is worse

    optimizer = closure_optimizers.HessianFree([p], damping=1.0)
    optimizer.step(closure)
    assert torch.equal(p.detach(), torch.ones(2, dtype=torch.float64))
    assert optimizer.damping == pytest.approx(1.5)


def test_in_an_experiment():
    """Through the training loop, where the closure leaves backward() to it."""
    made = method(TorchOptimizer("sandbox.closure_optimizers:HessianFree", iterations=10))
    assert made.second_order
    rows = train(tasks.get("digits-mlp"), made, Run(task="", method="", lr=1.0, steps=6, at=(6,), seed=0, role="tuning"))
    assert rows[-1]["train_loss"] < 0.7 * rows[0]["train_loss"]


def test_what_is_refused():
    p = torch.ones(2, requires_grad=True)
    for options, said in (
        ({"damping": -1.0}, "damping must lie in"),
        ({"memory": 1.0}, "memory must lie in"),
        ({"lr": 0.0}, "lr must"),
    ):
        with pytest.raises(ValueError, match=said):
            closure_optimizers.HessianFree([p], **options)
    with pytest.raises(ValueError, match="one group"):
        closure_optimizers.HessianFree([{"params": [p]}, {"params": [torch.ones(2, requires_grad=True)]}])
    with pytest.raises(RuntimeError, match="without a graph"):
        closure_optimizers.HessianFree([p]).step(lambda: torch.tensor(1.0))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda both: pickle.loads(pickle.dumps(both))])
def test_a_copy_goes_on_alike(copied):
    A, b = indefinite(shift=2.2)
    p, optimizer, closure = optimizer_on(A, b, iterations=3)
    optimizer.step(closure)
    q, other = copied((p, optimizer))
    optimizer.step(closure)
    other.step(lambda: 0.5 * q @ A @ q + b @ q)
    assert torch.equal(p, q)

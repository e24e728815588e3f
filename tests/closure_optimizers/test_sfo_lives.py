"""SFO when steps fail, when it is saved or copied, when a function changes, and what it refuses."""

import copy
import io
import pickle

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sandbox import closure_optimizers, tasks
from sandbox.closure_optimizers import quadratic, subspace
from sandbox.closure_optimizers.models import Models
from sandbox.experiments.runs.methods import method
from sandbox.experiments.runs.run import Run
from sandbox.experiments.runs.training import train
from tests.closure_optimizers.sums import N, logistic, quadratics


def settled():
    loss, _ = quadratics()
    p = torch.ones(6, dtype=torch.float64, requires_grad=True)
    optimizer = closure_optimizers.SFO([p], N, curvature=10.0, active=N)
    for _ in range(2 * N + 3):
        optimizer.step(lambda i: loss(p, i))
    return loss, p, optimizer, optimizer.state[p]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e6])
def test_a_step_that_failed_is_taken_back(bad):
    loss, p, optimizer, state = settled()
    before, scale, calls, points = state["theta"].clone(), float(state["scale"]), 0, []

    def closure(i):
        nonlocal calls
        calls += 1
        points.append(p.detach().clone())
        return loss(p, i) + (bad * p.sum() / p.sum().detach() if calls in (1, 3) else 0.0)

    value = optimizer.step(closure)
    assert calls == 4
    assert torch.equal(points[1], before)
    # the third and fourth look: 1 % and 0.01 % of the way
    torch.testing.assert_close(points[2] - before, 0.01 * (points[0] - before), rtol=1e-9, atol=0)
    torch.testing.assert_close(points[3] - before, 1e-4 * (points[0] - before), rtol=1e-9, atol=0)
    assert float(state["scale"]) == scale / 2
    assert any(torch.equal(state["theta"], x) for x in (points[1], points[3]))
    assert torch.isfinite(p).all()
    assert np.isfinite(float(value))


def test_a_function_that_is_nowhere_finite_goes_back_and_changes_nothing():
    loss, p, optimizer, state = settled()
    kept, where = copy.deepcopy(optimizer.state_dict()), p.detach().clone()
    always = state["theta"].clone()
    calls = 0

    def once(i):
        nonlocal calls
        calls += 1
        return loss(p, i) if calls == 2 else loss(p, i) * float("nan")

    with pytest.raises(FloatingPointError, match="in function"):
        optimizer.step(lambda i: loss(p, i) * float("nan"))
    with pytest.raises(IndexError, match="no such batch"):
        optimizer.step(lambda i: (_ for _ in ()).throw(IndexError("no such batch")))
    assert torch.equal(p.detach(), where)
    same = optimizer.state_dict()["state"][0]
    assert all(torch.equal(v, same[k]) or k in ("draws", "f") for k, v in kept["state"][0].items())
    optimizer.step(once)
    assert calls == 12  # 10 approaches, all in vain
    assert torch.equal(state["theta"], always)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("way", ["save", "deepcopy", "pickle"])
def test_a_checkpoint_goes_on_as_if_nothing_had_been(way, dtype):
    """Bitwise, in a basis that shrinks twice; draws included."""
    loss, p = logistic(40)
    weight = nn.Parameter(p.detach().to(dtype))
    frozen = nn.Parameter(torch.ones(3), requires_grad=False)

    def run(weight, optimizer, steps):
        return [float(optimizer.step(lambda i: loss(weight.double(), i))) for _ in range(steps)]

    optimizer = closure_optimizers.SFO([frozen, weight], N, curvature=10.0, seed=4)
    run(weight, optimizer, 22)
    if way == "save":
        buffer = io.BytesIO()
        torch.save((weight.detach(), optimizer.state_dict()), buffer)
        buffer.seek(0)
        start, state = torch.load(buffer, weights_only=True)
        other = nn.Parameter(start)
        resumed = closure_optimizers.SFO([nn.Parameter(torch.ones(3), requires_grad=False), other], N)
        resumed.load_state_dict(state)
    else:
        pair = [weight, optimizer]
        other, resumed = copy.deepcopy(pair) if way == "deepcopy" else pickle.loads(pickle.dumps(pair))
    expected = run(weight, optimizer, 25)
    assert run(other, resumed, 25) == expected
    assert torch.equal(weight, other)
    assert optimizer.state[frozen]["H"].dtype == resumed.state[resumed.param_groups[0]["params"][0]]["H"].dtype == torch.float64
    P = optimizer.state[frozen]["P"]
    assert P.shape == (40, 18)
    k = int(optimizer.state[frozen]["columns"])
    torch.testing.assert_close(
        P[:, :k].T @ P[:, :k], torch.eye(k, dtype=dtype), rtol=0, atol=1e-12 if dtype == torch.float64 else 1e-5
    )


def test_a_function_that_is_replaced_is_learned_anew():
    loss, _ = quadratics()
    p = torch.zeros(6, dtype=torch.float64, requires_grad=True)
    optimizer = closure_optimizers.SFO([p], N, curvature=10.0)
    for _ in range(6 * N):
        optimizer.step(lambda i: loss(p, i))
    target, asked = torch.full((6,), 4.0, dtype=torch.float64), []

    def other(i):
        asked.append(i)
        return 50 * (p - target).square().sum() if i == 2 else loss(p, i)

    optimizer.replace(2)
    optimizer.step(other)
    state = optimizer.state[p]
    torch.testing.assert_close(state["Y"][2], 100 * state["S"][2], rtol=1e-5, atol=1e-9)  # no pair across the change
    for _ in range(25 * N):
        optimizer.step(other)
    assert asked[0] == 2
    total = sum(other(i) for i in range(N))
    assert float(torch.autograd.grad(total, p)[0].norm()) < 1e-3  # 100 is the curvature
    for i in (-1, N):
        with pytest.raises(IndexError, match=f"functions 0 to {N - 1}"):
            optimizer.replace(i)


def test_bfgs_meets_the_newest_pair_and_stays_positive():
    """1e-10: a few products of well conditioned matrices."""
    draw = np.random.default_rng(0)
    for n, shift in ((4, 0.5), (12, 0.5), (12, -2.0)):
        A = draw.standard_normal((n, n))
        A = torch.tensor(A @ A.T / n + shift * np.eye(n))
        S = torch.tensor(draw.standard_normal((4, n)))
        lam, B, c = quadratic.bfgs(S, S @ A, 7.0)
        H = lam * torch.eye(n, dtype=torch.float64) + B.T @ (c[:, None] * B)
        assert B.shape == (min(8, n), n)
        assert float(torch.linalg.eigvalsh(H).min()) > 0
        if shift > 0:
            torch.testing.assert_close(H @ S[0], A @ S[0], rtol=1e-10, atol=1e-10)
    S = torch.eye(3, dtype=torch.float64)[:2]
    lam, B, c = quadratic.bfgs(S, torch.stack([S[0], 0 * S[0]]), 7.0)  # a gradient that did not change
    assert lam == 7.0


def test_a_basis_keeps_what_it_shrinks_to():
    draw = torch.Generator().manual_seed(0)
    vectors = torch.randn(6, 30, generator=draw, dtype=torch.float64)
    P, k = torch.zeros(30, 7, dtype=torch.float64), 0
    for v in (*vectors, vectors[0] + vectors[1], 1e-13 * vectors[2]):
        k = subspace.extend(P, k, v)
    assert k == 6
    x = vectors @ P
    Q, T, k = subspace.collapse(P, torch.stack([x[0], x[3], x[0] - 2 * x[3]]))
    assert k == 2
    torch.testing.assert_close(Q[:, :2].T @ Q[:, :2], torch.eye(2, dtype=torch.float64), rtol=0, atol=1e-12)
    torch.testing.assert_close(Q @ (T @ x[3]), vectors[3], rtol=0, atol=1e-12)
    torch.testing.assert_close(T @ x[5], Q.T @ vectors[5], rtol=0, atol=1e-12)


def test_the_models_are_projected_when_the_basis_shrinks():
    """1e-10: products of vectors of sizes up to 10."""
    loss, p = logistic(40)
    optimizer = closure_optimizers.SFO([p], N, curvature=10.0, active=N)
    state = optimizer.state[p]
    for _ in range(3 * N):
        optimizer.step(lambda i: loss(p, i))
    before, draw = copy.deepcopy(state), torch.Generator().manual_seed(0)
    while int(state["columns"]) >= int(before["columns"]):
        Models(state).span([torch.randn(40, generator=draw, dtype=torch.float64)])
    P = state["P"]
    for name in ("x", "x_old", "X", "G", "S", "Y", "B"):
        expected = (before[name] @ before["P"].T) @ P
        torch.testing.assert_close(state[name], expected, rtol=0, atol=1e-10)
    for name in ("x", "X", "G"):  # nothing of these is lost
        torch.testing.assert_close(state[name] @ P.T, before[name] @ before["P"].T, rtol=0, atol=1e-10)
    H = sum(B.T @ torch.diag(c) @ B for B, c in zip(state["B"], state["c"], strict=True))
    torch.testing.assert_close(state["H"], H, rtol=0, atol=1e-10)


def test_a_network_of_two_layers():
    """The example of the docstring."""
    torch.manual_seed(0)
    X, y = torch.randn(250, 8), torch.randint(0, 3, (250,))
    batches = list(zip(X.split(10), y.split(10), strict=True))
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))

    def loss(i):
        inputs, labels = batches[i]
        return F.cross_entropy(model(inputs), labels)

    optimizer = closure_optimizers.SFO(model.parameters(), count=len(batches))
    with torch.no_grad():
        start = float(F.cross_entropy(model(X), y))
    for _ in range(10 * len(batches)):
        value = optimizer.step(loss)
    assert value.dtype == torch.float32
    assert all(p.grad is not None for p in model.parameters())
    with torch.no_grad():
        assert float(F.cross_entropy(model(X), y)) < 0.7 * start


def test_in_an_experiment():
    """Through the training loop, whose closure takes the first `count` batches of the stream by number."""
    made = method("sandbox.closure_optimizers:SFO(count=25)")
    assert made.functions == 25
    rows = train(tasks.get("digits-mlp"), made, Run(task="", method="", lr=1.0, steps=75, at=(75,), seed=0, role="tuning"))
    assert rows[-1]["train_loss"] < 0.7 * rows[0]["train_loss"]
    assert 75 <= rows[-1]["gradients"] < 120
    with pytest.raises(ValueError, match="use one rank"):
        made.make([{"params": [torch.ones(2, requires_grad=True)]}], 1.0, {"process_group": object()})
    assert method("adamw").functions == method("torch.optim:AdamW").functions == 0


def test_what_is_refused():
    p = torch.ones(2, requires_grad=True)
    for options, said in (
        ({"count": 0}, "count must be a whole number"),
        ({"memory": 0}, "memory must be"),
        ({"active": True}, "active must be"),
        ({"curvature": 0.0}, "curvature must lie in"),
        ({"longest": -1.0}, "longest must lie in"),
        ({"lr": float("nan")}, "lr must lie in"),
        ({"selection": "cycle"}, "cyclic"),
    ):
        with pytest.raises(ValueError, match=said):
            closure_optimizers.SFO([p], **{"count": 3, **options})
    with pytest.raises(ValueError, match="one group"):
        closure_optimizers.SFO([{"params": [p]}, {"params": [torch.ones(2, requires_grad=True)]}], 3)
    with pytest.raises(ValueError, match="requires a gradient"):
        closure_optimizers.SFO([torch.ones(2)], 3)
    with pytest.raises(RuntimeError, match="without a graph"):
        closure_optimizers.SFO([p], 3).step(lambda i: torch.tensor(1.0))
    with pytest.raises(ValueError, match="another count, memory"):
        closure_optimizers.SFO([p], 3).load_state_dict(closure_optimizers.SFO([p], 4).state_dict())
    assert int(closure_optimizers.SFO([p], 1).state[p]["active"].sum()) == 1

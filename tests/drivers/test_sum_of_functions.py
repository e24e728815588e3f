"""The Sum of Functions Optimizer against a literal recursion in dense NumPy matrices."""

import copy
import io
import pickle

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sandbox import drivers, tasks
from sandbox.drivers import quadratic, subspace
from sandbox.experiments.methods import method
from sandbox.experiments.run import train
from sandbox.experiments.settings import Run

N = 5


class Literal:
    """Every H_i an (n, n) matrix, in the whole space; which function comes next is told.  For convex functions."""

    def __init__(self, value, theta, active, curvature, h):
        n = len(theta)
        self.value, self.theta, self.old, self.h = value, theta.copy(), theta.copy(), h
        self.lam, self.low = np.where(active, curvature, 0.0), np.zeros((N, n, n))  # H_i = lam I + low
        self.points, self.gradients, self.f = np.tile(theta, (N, 1)), np.zeros((N, n)), np.full(N, np.nan)
        self.pairs, self.seen = [[] for _ in range(N)], np.zeros(N, int)
        self.scale, self.length, self.gain, self.calls, self.waited, self.grown = 1.0, 0.0, 0.0, 0, 0, False

    def H(self, i):
        return self.lam[i] * np.eye(len(self.theta)) + self.low[i]

    def record(self, i, x, f, g):
        if not np.isnan(self.f[i]):
            self.pairs[i] = [(x - self.points[i], g - self.gradients[i]), *self.pairs[i]][: self.h]
        self.points[i], self.gradients[i], self.f[i] = x, g, f

    def step(self, i, active):
        f, g = self.value(i, self.theta)
        d = self.theta - self.points[i]
        q = self.f[i] + self.gradients[i] @ d + 0.5 * d @ self.H(i) @ d
        if self.seen[i] == 0:
            known = self.f[self.seen > 1]
            failed = len(known) > 0 and f > known.mean() + 3 * known.std()
        else:
            failed = f > self.f[i] and f - q > self.gain - (self.f[i] - q)
        self.scale = max(self.scale / 2, 1e-5) if failed else 1 / N + self.scale * (1 - 1 / N)
        if failed:
            f_old, g_old = self.value(i, self.old)
            expected = abs(f - f_old) if np.isnan(self.f[i]) else abs(q - self.f[i])
            assert f - f_old < 10 * expected, "no need of an approach here: it is tested by itself"
            if f < f_old:
                self.record(i, self.old, f_old, g_old)
            else:
                self.record(i, self.theta, f, g)
                self.theta, f, g = self.old, f_old, g_old
        self.calls += 1 + failed
        self.seen[i] += 1 + failed
        self.record(i, self.theta, f, g)
        self.length += np.linalg.norm(self.theta - self.old)
        if self.pairs[i]:
            S, Y = (np.array(v).T for v in zip(*self.pairs[i], strict=True))
            sizes = np.linalg.svd(Y @ np.linalg.pinv(S), compute_uv=False)[: S.shape[1]]
            self.lam[i] = max(sizes.min(), sizes.max() / 1e8)
            H = self.lam[i] * np.eye(len(d))
            for s, y in zip(S.T[::-1], Y.T[::-1], strict=True):
                H = H + np.outer(y, y) / (y @ s) - np.outer(H @ s, H @ s) / (s @ H @ s)
            self.low[i] = H - self.lam[i] * np.eye(len(d))
        else:
            total = self.lam[active].sum() * np.eye(len(d)) + self.low.sum(0)
            self.lam[i] = np.median(np.linalg.eigvalsh(total)) / active.sum()
        H = self.lam[active].sum() * np.eye(len(d)) + self.low.sum(0)
        gradient = sum(self.gradients[j] + self.H(j) @ (self.theta - self.points[j]) for j in range(N))
        move = -self.scale * np.linalg.solve(H, gradient)
        move *= max(1.0, 1e-8 / np.linalg.norm(move))
        if self.calls > N:
            move *= min(1.0, 10 * self.length / self.calls / np.linalg.norm(move))
        self.old, self.theta, self.gain = self.theta, self.theta + move, 0.5 * move @ H @ move
        G, a = self.gradients[active], active.sum()
        centre, inverse = G.mean(0), np.linalg.inv(H)
        error = sum((g - centre) @ inverse @ (g - centre) for g in G) / (a * (a - 1))
        self.grown = (
            (error >= centre @ inverse @ centre or failed or self.waited > a) and self.seen[active].min() >= 2 and a < N
        )
        self.waited = 0 if self.grown else self.waited + 1
        return f


def logistic(n, seed=0):
    """N losses of 20 examples each, strictly convex."""
    draw = np.random.default_rng(seed)
    Z = draw.standard_normal((N, 20, n))
    y = np.sign(Z @ draw.standard_normal(n) + 0.5 * draw.standard_normal((N, 20)))
    Z, y = torch.tensor(Z * y[..., None]), draw.standard_normal(n)
    return (lambda p, i: F.softplus(-(Z[i] @ p)).mean() + 0.01 * p @ p), torch.tensor(y).requires_grad_()


def numbers(loss):
    def value(i, theta):
        p = torch.tensor(theta, requires_grad=True)
        made = loss(p, i)
        return float(made.detach()), torch.autograd.grad(made, p)[0].numpy()

    return value


@pytest.mark.parametrize(
    ("n", "steps", "options"),
    [
        (6, 60, {"selection": "cyclic", "active": N}),
        (6, 60, {"selection": "cyclic", "curvature": 2.0, "memory": 3}),
        (6, 60, {"selection": "distance", "curvature": 100.0}),
        (40, 14, {"selection": "random", "curvature": 10.0}),  # in a basis of 18 columns, before it is full
    ],
)
def test_the_literal_recursion(n, steps, options):
    """1e-7: pairs get short near the minimum, so a pair's rounding (1e-16 over a length of 1e-4) is amplified by later steps."""
    loss, p = logistic(n)
    optimizer, asked = drivers.SFO([p], N, **options), []
    state = optimizer.state[p]
    active = state["active"].numpy().copy()
    literal = Literal(numbers(loss), p.detach().numpy(), active, options.get("curvature", 1e5), options.get("memory", 10))
    failures = 0
    for _ in range(steps):
        asked.clear()
        value = optimizer.step(lambda i: asked.append(i) or loss(p, i))
        failures += len(asked) > 1
        assert float(value) == pytest.approx(literal.step(asked[0], active), rel=1e-7)
        np.testing.assert_allclose(p.detach().numpy(), literal.theta, rtol=1e-7, atol=1e-7)
        assert (state["active"].numpy() != active).sum() == literal.grown
        active = state["active"].numpy().copy()
    assert active.all() or n == 40
    assert failures or options.get("active") != N


def quadratics(n=6, seed=3):
    draw = np.random.default_rng(seed)
    A = draw.standard_normal((N, n, n))
    A, b = torch.tensor(A @ A.transpose(0, 2, 1) / n + 0.3 * np.eye(n)), torch.tensor(draw.standard_normal((N, n)))
    return (lambda p, i: 0.5 * p @ A[i] @ p + b[i] @ p), torch.linalg.solve(A.sum(0), -b.sum(0))


@pytest.mark.parametrize("selection", ["distance", "cyclic", "random"])
def test_quadratics_end_at_the_minimum_of_their_sum(selection):
    """1e-6: steps are never shorter than 1e-8."""
    loss, best = quadratics()
    p = torch.zeros(6, dtype=torch.float64, requires_grad=True)
    optimizer, asked = drivers.SFO([p], N, selection=selection, curvature=10.0), []
    for _ in range(30 * N):
        optimizer.step(lambda i: asked.append(i) or loss(p, i))
    torch.testing.assert_close(p.detach(), best, rtol=0, atol=1e-6)
    if selection == "cyclic":
        looks = [a for a, b in zip(asked, [None, *asked], strict=False) if a != b][-3 * N :]  # a failed step looks twice
        assert looks == [(looks[0] + k) % N for k in range(3 * N)]


def settled():
    loss, _ = quadratics()
    p = torch.ones(6, dtype=torch.float64, requires_grad=True)
    optimizer = drivers.SFO([p], N, curvature=10.0, active=N)
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

    optimizer = drivers.SFO([frozen, weight], N, curvature=10.0, seed=4)
    run(weight, optimizer, 22)
    if way == "save":
        buffer = io.BytesIO()
        torch.save((weight.detach(), optimizer.state_dict()), buffer)
        buffer.seek(0)
        start, state = torch.load(buffer, weights_only=True)
        other = nn.Parameter(start)
        resumed = drivers.SFO([nn.Parameter(torch.ones(3), requires_grad=False), other], N)
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
    optimizer = drivers.SFO([p], N, curvature=10.0)
    for _ in range(6 * N):
        optimizer.step(lambda i: loss(p, i))
    target, asked = torch.full((6,), 4.0, dtype=torch.float64), []

    def other(i):
        asked.append(i)
        return 50 * (p - target).square().sum() if i == 2 else loss(p, i)

    optimizer.replace(2)
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


def test_a_network_of_two_layers():
    """The example of the docstring."""
    torch.manual_seed(0)
    X, y = torch.randn(250, 8), torch.randint(0, 3, (250,))
    batches = list(zip(X.split(10), y.split(10), strict=True))
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))

    def loss(i):
        inputs, labels = batches[i]
        return F.cross_entropy(model(inputs), labels)

    optimizer = drivers.SFO(model.parameters(), count=len(batches))
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
    made = method("sandbox.drivers:SFO(count=25)")
    assert made.functions == 25
    rows = train(tasks.get("digits-mlp"), made, Run(task="", method="", lr=1.0, steps=75, at=(75,), seed=0, role="tuning"))
    assert rows[-1]["train_loss"] < 0.7 * rows[0]["train_loss"]
    assert 75 <= rows[-1]["gradients"] < 120
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
            drivers.SFO([p], **{"count": 3, **options})
    with pytest.raises(ValueError, match="one group"):
        drivers.SFO([{"params": [p]}, {"params": [torch.ones(2, requires_grad=True)]}], 3)
    with pytest.raises(ValueError, match="requires a gradient"):
        drivers.SFO([torch.ones(2)], 3)
    with pytest.raises(RuntimeError, match="without a graph"):
        drivers.SFO([p], 3).step(lambda i: torch.tensor(1.0))
    with pytest.raises(ValueError, match="another count, memory"):
        drivers.SFO([p], 3).load_state_dict(drivers.SFO([p], 4).state_dict())
    assert int(drivers.SFO([p], 1).state[p]["active"].sum()) == 1

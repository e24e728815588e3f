"""Quasi-Newton methods with a history against torch.optim.LBFGS, or against dense matrices and literal recursions in NumPy.

Six tensors in float64 as one vector, 40 steps of noisy gradients, through the pure update.  Tolerance 1e-8 of the largest entry:
rounding of 1e-16 that steps of up to a hundred times the gradient amplify.
"""

import numpy as np
import pytest
import torch

import sandbox
import variants
from sandbox.blocks import Broyden
from tests.blocks import dense
from tests.problem import Problem


def curvature(problem, theta):
    """The diagonal of the Hessian at a flat θ."""
    parts = dense.shaped(theta, problem.start)
    return dense.flat([h + w * np.cos(x) for h, w, x in zip(problem.h, problem.w, parts, strict=True)])


def path(recipe, lr, steps):
    """Flat θ after each step of the pure update."""
    problem = Problem()
    params = [torch.tensor(x) for x in problem.start]
    state = recipe.init(params)
    for t in range(steps):
        grads = [torch.tensor(g) for g in problem.gradient(t, [p.numpy() for p in params])]
        given = {}
        if recipe.inputs:
            v = dense.flat([v.numpy() for v in recipe.asked(state, params)])
            Hv = curvature(problem, dense.flat([p.numpy() for p in params])) * v
            given["product"] = [torch.tensor(x) for x in dense.shaped(Hv, problem.start)]
        state, params = recipe.update(state, params, grads, lr=lr, **given)
        if recipe.looks_again:
            grads = problem.gradient(t, [p.numpy() for p in params])
            state = recipe.seen(state, [torch.tensor(g) for g in grads])
        yield dense.flat([p.numpy() for p in params])


class Literal:
    """θ ← θ - η direction(t, θ, g): what the methods have in common."""

    def __init__(self, memory=10):
        self.problem, self.theta = dense.problem_and_start()
        self.memory, self.pairs, self.last = memory, [], None

    def g(self, t, theta):
        return dense.gradient(self.problem, t - 1, theta)

    def step(self, t, lr):
        old = self.theta
        self.theta = old - lr * self.direction(t, old, self.g(t, old))
        self.last = old
        return self.theta

    def same_batch(self, t, theta):
        """s and y of the last step, on its batch."""
        return theta - self.last, self.g(t - 1, theta) - self.g(t - 1, self.last)

    def keep(self, s, y):
        self.pairs = [*self.pairs, (s, y)][-self.memory :]


class OLBFGS(Literal):
    """2015: H₀ = sᵀy/yᵀy of the last pair."""

    def direction(self, t, theta, g):
        if t > 1:
            s, y = self.same_batch(t, theta)
            if s @ y > 1e-4 * (s @ s):
                self.keep(s, y)
        s, y = self.pairs[-1] if self.pairs else (np.ones(1), np.ones(1))
        return dense.inverse(self.pairs, (s @ y) / (y @ y) * np.eye(len(g))) @ g


class Paper(Literal):
    """SdLBFGS as published: γ = max(yᵀy/sᵀy, δ), every pair damped against γ and kept."""

    gamma = 1.0

    def direction(self, t, theta, g):
        if t > 1:
            s, y = self.same_batch(t, theta)
            self.gamma = max(y @ y / (s @ y), 0.01) if s @ y > 0 else 0.01
            self.keep(s, dense.wang(s, y, np.full(len(g), self.gamma)))
        return dense.inverse(self.pairs, np.eye(len(g)) / self.gamma) @ g


class RES(Literal):
    """The dense matrix, a pair of vᵀr ≤ 0 left out."""

    B = None

    def direction(self, t, theta, g):
        n = len(g)
        self.B = np.eye(n) if self.B is None else self.B
        if t > 1:
            v, r = self.same_batch(t, theta)
            r = r - 1e-3 * v
            if v @ r > 0:
                Bv = self.B @ v
                self.B = self.B + np.outer(r, r) / (v @ r) - np.outer(Bv, Bv) / (v @ Bv) + 1e-3 * np.eye(n)
        return np.linalg.solve(self.B, g) + 1e-4 * g


class Averaged(Literal):
    """Means of twenty iterates (here of five), summed before the step; the pair is used from the next step on."""

    every, total, mean = 5, 0.0, None
    pair = None

    def averaged(self, t, theta):
        """(w̄, w̄') where a second mean is complete."""
        found = None
        if t > 1 and (t - 1) % self.every == 0:
            now, self.total = self.total / self.every, 0.0
            found = None if self.mean is None else (now, self.mean)
            if self.mean is None:
                self.mean = now
        self.total = self.total + theta
        return found


class SQN(Averaged):
    def direction(self, t, theta, g):
        found = self.averaged(t, theta)
        if found is not None:
            s = found[0] - found[1]
            y = curvature(self.problem, theta) * s
            self.mean = found[0]
            if s @ y > 1e-4 * (s @ s):
                self.keep(s, y)
        s, y = self.pairs[-1] if self.pairs else (np.ones(1), np.ones(1))
        return dense.inverse(self.pairs, (s @ y) / (y @ y) * np.eye(len(g))) @ g


class AdaQN(Averaged):
    def __init__(self, memory, fisher):
        super().__init__(memory)
        self.F, self.fisher, self.sum = [], fisher, 1e-4

    def direction(self, t, theta, g):
        found = self.averaged(t, theta)
        if found is not None:
            s, F = found[0] - found[1], np.array(self.F)
            y = F.T @ (F @ s) / len(F)
            if s @ y > 1e-4 * (s @ s):
                self.keep(s, y)
                self.mean = found[0]
        self.F = [*self.F, g][-self.fisher :]
        self.sum = self.sum + g**2
        return dense.inverse(self.pairs, np.diag(1 / np.sqrt(self.sum))) @ g


class Quotient(Literal):
    """One rate, sᵀy/yᵀy; or sᵀs/sᵀy."""

    B, long = 1.0, False

    def direction(self, t, theta, g):
        if t > 1:
            s, y = self.same_batch(t, theta)
            if s @ y > 0:
                self.B = (s @ y) / (s @ s) if self.long else (y @ y) / (s @ y)
        return g / self.B


class Long(Quotient):
    long = True


class Diagonal(Literal):
    B = 1.0

    def direction(self, t, theta, g):
        if t > 1:
            s, y = self.same_batch(t, theta)
            if s @ y > 0:
                mu = np.mean(s**2)
                B = (s * y + mu * self.B) / (s**2 + mu)
                self.B = np.clip(B, (s @ y) / (s @ s), (y @ y) / (s @ y))
        return g / self.B


class SgdQn(Literal):
    """B₀ = λt₀; B += min(max(y/s, .1λ), 100λ)."""

    B, rate = 0.02 * 100, 0.02

    def direction(self, t, theta, g):
        if t > 1:
            s, y = self.same_batch(t, theta)
            self.B = self.B + np.clip(y / s, 0.1 * self.rate, 100 * self.rate)
        return g / self.B


SHORT = {"pairs.every": 5}
CASES = {
    "olbfgs": ("olbfgs", {}, lambda: OLBFGS(10), 0.1),
    "sdlbfgs-paper": ("sdlbfgs-paper", {}, lambda: Paper(20), 0.05),
    "res": ("res", {"solve.memory": 45}, lambda: RES(), 0.05),
    "sqn": ("sqn", SHORT, lambda: SQN(10), 0.1),
    "adaqn": ("adaqn", {**SHORT, "pairs.memory": 12}, lambda: AdaQN(10, 12), 0.05),
    "adaqn-short": ("adaqn", {**SHORT, "pairs.memory": 100, "solve.memory": 2}, lambda: AdaQN(2, 100), 0.05),
    "barzilai-borwein": ("barzilai-borwein", {}, Quotient, 0.3),
    "barzilai-borwein-long": ("barzilai-borwein", {"curvature.long": True}, Long, 0.1),
    "barzilai-borwein-diagonal": ("barzilai-borwein-diagonal", {}, Diagonal, 0.3),
    "sgd-qn": ("sgd-qn", {"curvature.rate": 0.02, "curvature.start": 100.0}, SgdQn, 1.0),
}


def changed(recipe, fields):
    """The recipe with fields of blocks replaced that are structure, by dotted name."""
    from sandbox import parts

    for name, value in fields.items():
        recipe = parts.replaced(recipe, name, value)
    return recipe


@pytest.mark.parametrize("case", CASES)
def test_equal_to_a_literal_recursion(case):
    name, fields, literal, lr = CASES[case]
    recipe, other = changed(variants.get(name), fields), literal()
    moved = 0.0
    for t, theta in enumerate(path(recipe, lr, 40), 1):
        expected = other.step(t, lr)
        np.testing.assert_allclose(theta, expected, rtol=1e-8, atol=1e-8 * max(1, abs(expected).max()), err_msg=f"step {t}")
        moved = max(moved, float(abs(expected).max()))
    assert np.isfinite(moved)


@pytest.mark.parametrize("memory", [4, 10])
def test_lbfgs_is_torchs(memory):
    """torch.optim.LBFGS with one iteration a step and no tolerance at which it stops; 60 noisy steps (1e-9: rounding amplified)."""
    ours, theirs = Problem(), Problem()
    params, others = ours.tensors(), theirs.tensors()
    recipe = changed(variants.get("lbfgs"), {"solve.memory": memory})
    mine = sandbox.Optimizer(params, recipe, lr=0.5)
    other = torch.optim.LBFGS(others, lr=0.5, max_iter=1, history_size=memory, tolerance_grad=0, tolerance_change=0)
    for step in range(60):
        ours.set_gradients(step, params)
        mine.step()

        def closure(step=step):
            theirs.set_gradients(step, others)
            return 0.0

        other.step(closure)
        for p, q in zip(params, others, strict=True):
            torch.testing.assert_close(p, q, rtol=1e-9, atol=1e-9, msg=lambda m, step=step: f"step {step}: {m}")


# -- classical properties --------------------------------------------------------------------------------------------


def quadratic(n=7, seed=0):
    draw = np.random.default_rng(seed)
    half = draw.standard_normal((n, n))
    return half @ half.T + 0.5 * np.eye(n), draw.standard_normal(n)


def exact_steps(recipe, A, b, steps):
    """Steps of exact length along each direction: the points, and the flows of the steps."""
    theta, points, flows = torch.zeros(len(b), dtype=torch.float64), [], []
    state = recipe.init(theta)
    for _ in range(steps):
        g = A @ theta.numpy() - b
        seen = []
        recipe.update(state, theta, torch.tensor(g), lr=1.0, observe=lambda i, x: seen.append(x))  # noqa: B023
        d = seen[0].d.numpy()
        lr = float(g @ d / (d @ A @ d))
        state, theta = recipe.update(state, theta, torch.tensor(g), lr=abs(lr), observe=lambda i, x: flows.append(x))
        points.append(theta.numpy())
    return points, flows


def conjugate_gradients(A, b, steps):
    x, r = np.zeros(len(b)), b.copy()
    p, points = r.copy(), []
    for _ in range(steps):
        a = r @ r / (p @ A @ p)
        x, old = x + a * p, r
        r = r - a * A @ p
        p = r + (r @ r) / (old @ old) * p
        points.append(x)
    return points


@pytest.mark.parametrize("solve", ["lbfgs", "dfp", "bfgs", "sr1"])
def test_exact_steps_on_a_quadratic_end_in_n_steps(solve):
    """With memory for all pairs the gradient vanishes after n steps (to 1e-8 of its size, rounding), H = A⁻¹ on the steps, and
    the path of L-BFGS from H₀ = 1, DFP and BFGS is that of conjugate gradients."""
    A, b = quadratic()
    n = len(b)
    recipe = variants.get("bfgs").replace(scope="parameter")
    if solve == "lbfgs":
        recipe = recipe.replace(solve=sandbox.blocks.TwoLoop(memory=n))
    else:
        recipe = recipe.replace(solve=Broyden(rule=solve, memory=n))
    points, flows = exact_steps(recipe, A, b, n)
    assert np.linalg.norm(A @ points[-1] - b) < 1e-8 * np.linalg.norm(b)
    if solve != "sr1":
        for p, q in zip(points, conjugate_gradients(A, b, n), strict=True):
            np.testing.assert_allclose(p, q, rtol=1e-7, atol=1e-8)
    for x in flows[1:]:  # H y = s of the newest pair
        old = {k.removeprefix("solve."): v for k, v in x.after.items() if k.startswith("solve.")}
        Hy = times(recipe.solve, old, x.y)
        torch.testing.assert_close(Hy, x.s, rtol=1e-8, atol=1e-8 * float(x.s.abs().max()))


def times(solver, state, v):
    """H v from a solver's state: by the factors that Broyden keeps, or by dense BFGS."""
    if isinstance(solver, Broyden):
        out = v.clone()
        for k in range(solver.memory):
            s, p = state[f"s{k}"], state[f"p{k}"]
            out += state[f"ss{k}"] * s * (s @ v) + state[f"pp{k}"] * p * (p @ v) + state[f"sp{k}"] * (s * (p @ v) + p * (s @ v))
        return out
    pairs = [(state[f"s{k}"].numpy(), state[f"y{k}"].numpy()) for k in reversed(range(solver.memory))]
    return torch.tensor(dense.inverse([p for p in pairs if p[0].any()], np.eye(len(v))) @ v.numpy())


def dense_rule(rule, H, s, y):
    if rule == "bfgs":
        return dense.bfgs(H, s, y)
    Hy = H @ y
    if rule == "dfp":
        return H + np.outer(s, s) / (s @ y) - np.outer(Hy, Hy) / (y @ Hy)
    w = s - Hy
    return H + np.outer(w, w) / (w @ y)


@pytest.mark.parametrize("rule", ["dfp", "bfgs", "sr1"])
@pytest.mark.parametrize("memory", [30, 4])
def test_sums_of_changes_are_the_dense_matrices(rule, memory):
    """Noisy gradients, pairs of little curvature left out, and the matrix begun again when the memory is full."""
    recipe = variants.get(rule).replace(solve=Broyden(rule=rule, memory=memory), scope="global")

    class Dense(Literal):
        H, count, old = None, 0, None

        def direction(self, t, theta, g):
            self.H = np.eye(len(g)) if self.H is None else self.H
            if t > 1:
                s, y = theta - self.last, g - self.old
                H0 = np.eye(len(g)) if self.count == memory else self.H
                w = s - H0 @ y
                good = abs(w @ y) > 1e-8 * np.linalg.norm(w) * np.linalg.norm(y) if rule == "sr1" else s @ y > 1e-10
                if good:
                    self.H = dense_rule(rule, H0, s, y)
                    self.count = 1 if self.count == memory else self.count + 1
            self.old = g
            return self.H @ g

    other = Dense()
    for t, theta in enumerate(path(recipe, 0.02, 25), 1):
        expected = other.step(t, 0.02)
        np.testing.assert_allclose(theta, expected, rtol=1e-7, atol=1e-7 * max(1, abs(expected).max()), err_msg=f"step {t}")
    assert other.count > 1

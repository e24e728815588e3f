"""Classical properties of quasi-Newton methods on quadratics: finite termination, and the matrices that their sums are."""

import numpy as np
import pytest
import torch

import sandbox
import variants
from sandbox.blocks import Broyden
from tests.blocks import dense
from tests.variants.recursions import Literal, path


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

"""Recipes that evaluate other weights than they train: both points against NumPy recursions and published code, in float64.

Tolerance 1e-9 after 80 steps: the recursions differ from the package's in the order of operations alone, 1e-16 a step, which
the function's curvature (rates times Hessian near 1) does not let grow.
"""

import copy

import numpy as np
import pytest
import torch

import sandbox
import variants
from sandbox.blocks import DelayedKronecker
from tests.light import BACKENDS
from tests.problem import SHAPES, Problem

STEPS, WARMUP, FALLS, GAMMA = 80, 4, 50, 0.02


def rate(lr, k):
    """η of step k, from 1: warmed up, and a third from step FALLS on."""
    return lr * min(1.0, k / WARMUP) * (1.0 if k < FALLS else 0.3)


class ScheduleFree:
    """Defazio et al. 2024, algorithm 1: y, z and x apart."""

    def __init__(self, theta, *, second=False, rectified=False, beta=0.9, beta2=0.999):
        self.x, self.z, self.v = theta.copy(), theta.copy(), np.zeros_like(theta)
        self.beta, self.beta2, self.second, self.rectified, self.k, self.W, self.top = (
            beta,
            beta2,
            second,
            rectified,
            0,
            0.0,
            0.0,
        )

    def step(self, theta, g, lr):
        self.k += 1
        k, b = self.k, self.beta2
        if self.rectified:
            most = 2 / (1 - b) - 1
            rho = most - 2 * k * b**k / (1 - b**k)
            lr = lr * np.sqrt((rho - 4) * (rho - 2) * most / ((most - 4) * (most - 2) * rho)) if rho > 4 else 0.0
        if self.second:
            self.v = b * self.v + (1 - b) * g * g
            g = g / (np.sqrt(self.v / (1 - b**k)) + 1e-8)
        self.top = max(self.top, lr)
        self.W += self.top**2
        c = self.top**2 / self.W if self.W else 0.0
        self.z = self.z - lr * (g + GAMMA * theta)
        self.x = (1 - c) * self.x + c * self.z
        return self.beta * self.x + (1 - self.beta) * self.z

    def evaluated(self, theta):
        return self.x


class Adam:
    """Adam's direction; AdamW's step."""

    def __init__(self, theta):
        self.m, self.v, self.k = np.zeros_like(theta), np.zeros_like(theta), 0

    def direction(self, g):
        self.k += 1
        self.m, self.v = 0.9 * self.m + 0.1 * g, 0.999 * self.v + 0.001 * g * g
        return self.m / (1 - 0.9**self.k) / (np.sqrt(self.v / (1 - 0.999**self.k)) + 1e-8)


class EMA(Adam):
    def step(self, theta, g, lr):
        theta = (1 - lr * GAMMA) * theta - lr * self.direction(g)
        self.x = theta if self.k == 1 else 0.999 * self.x + 0.001 * theta
        return theta

    def evaluated(self, theta):
        return self.x


class GPA(Adam):
    """gpa_adamw.py, which keeps y and z."""

    def __init__(self, theta):
        super().__init__(theta)
        self.z = theta.copy()

    def step(self, theta, g, lr):
        d, c = self.direction(g), 1 - 0.9967
        self.z = (1 - lr * GAMMA) * self.z
        theta = (1 - c) * theta + c * self.z - lr * (1 - 0.7 * (1 - c)) * d
        self.z = self.z - lr * d
        return theta

    def evaluated(self, theta):
        return (theta - 0.3 * self.z) / 0.7


class SPlus:
    """splus.py, of a matrix or a vector."""

    def __init__(self, theta):
        self.m, self.e, self.k, self.Q = np.zeros_like(theta), np.zeros_like(theta), 0, [np.eye(n) for n in theta.shape]
        self.factors = [np.zeros((n, n)) for n in theta.shape]

    def step(self, theta, g, lr):
        self.k += 1
        self.m = 0.9 * self.m + 0.1 * g
        if g.ndim == 2:
            QL, QR = self.Q
            u, lr = QL @ np.sign(QL.T @ self.m @ QR) @ QR.T, 2 * lr / sum(g.shape)
            self.factors = [0.999 * L + 0.001 * s for L, s in zip(self.factors, (g @ g.T, g.T @ g), strict=True)]
            if self.k == 1 or self.k % EVERY == 0:
                self.Q = [np.linalg.eigh(L)[1] for L in self.factors]
        else:
            u, lr = np.sign(self.m), lr / 1000
        theta = theta - lr * u
        self.e = 0.999 * self.e + 0.001 * theta
        return (1 - lr * GAMMA) * theta

    def evaluated(self, theta):
        return self.e / (1 - 0.999**self.k)


EVERY = 7
METHODS = {
    "schedule-free-sgd": (0.3, ScheduleFree),
    "schedule-free-adamw": (0.05, lambda x: ScheduleFree(x, second=True)),
    "schedule-free-radam": (0.05, lambda x: ScheduleFree(x, second=True, rectified=True)),
    "ema-adamw": (0.01, EMA),
    "gpa-adamw": (0.01, GPA),
    "splus": (0.05, SPlus),
}
# square ones for SPlus: where a factor is rank deficient rounding chooses signs
SQUARE = [(4, 4), (7,), (3, 3)]


def recipe_of(name):
    recipe = variants.get(name)
    if name == "splus":
        readouts = {f"{of}readout.weight_decay": GAMMA for of in ("", "vectors.")}
        return recipe.replace(basis=DelayedKronecker(beta=0.999, eps=0.0, every=EVERY), **readouts)
    where = "readout.weight_decay" if name.startswith("gpa") else "decay.weight_decay"
    return recipe.replace(**{where: GAMMA})


def close(params, expected, what):
    for p, x in zip(params, expected, strict=True):
        np.testing.assert_allclose(p.detach().numpy(), x, rtol=1e-9, atol=1e-10, err_msg=what)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", METHODS)
def test_both_points_are_the_recursions(name, backend):
    lr, method = METHODS[name]
    problem = Problem(shapes=SQUARE if name == "splus" else SHAPES)
    params, theta = problem.tensors(), [x.copy() for x in problem.start]
    literal = [method(x) for x in theta]
    optimizer = sandbox.Optimizer(params, recipe_of(name), lr=lr, backend=backend)
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = rate(lr, step + 1)
        problem.set_gradients(step, params)
        optimizer.step()
        grads = problem.gradient(step, theta)
        theta = [one.step(x, g, rate(lr, step + 1)) for one, x, g in zip(literal, theta, grads, strict=True)]
        close(params, theta, f"training, step {step}")
        if step % 20 == 0:
            optimizer.eval()
            close(params, [one.evaluated(x) for one, x in zip(literal, theta, strict=True)], f"evaluation, step {step}")
            optimizer.train()


def schedulefree():
    return pytest.importorskip("schedulefree", reason="schedulefree (extra bench) is the oracle")


@pytest.mark.parametrize(
    ("name", "peer"),
    [
        ("schedule-free-sgd", "SGDScheduleFree"),
        ("schedule-free-adamw", "AdamWScheduleFree"),
        ("schedule-free-radam", "RAdamScheduleFree"),
    ],
)
def test_schedule_free_is_its_package(name, peer):
    lr = METHODS[name][0]
    warmup = {} if name.endswith("radam") else {"warmup_steps": WARMUP}
    problem = Problem(shapes=SHAPES)
    mine, theirs = problem.tensors(), problem.tensors()
    package = getattr(schedulefree(), peer)(theirs, lr=lr, weight_decay=GAMMA, foreach=False, **warmup)
    optimizer = sandbox.Optimizer(mine, recipe_of(name), lr=lr)
    package.train()
    for step in range(STEPS):
        factor = 1.0 if step + 1 < FALLS else 0.3
        package.param_groups[0]["lr"] = lr * factor
        optimizer.param_groups[0]["lr"] = lr * factor * (min(1.0, (step + 1) / WARMUP) if warmup else 1.0)
        problem.set_gradients(step, mine)
        problem.set_gradients(step, theirs)
        optimizer.step()
        package.step()
        close(mine, [q.detach().numpy() for q in theirs], f"training, step {step}")
        if step % 20 == 0:
            for each in (optimizer, package):
                each.eval()
            close(mine, [q.detach().numpy() for q in theirs], f"evaluation, step {step}")
            for each in (optimizer, package):
                each.train()


def test_ema_adamw_is_torchs():
    problem = Problem(shapes=SHAPES)
    mine = problem.tensors()
    model = torch.nn.ParameterList([torch.nn.Parameter(q.detach().clone()) for q in mine])
    peer = torch.optim.AdamW(model, lr=0.01, weight_decay=GAMMA, foreach=False)
    averaged = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.999))
    optimizer = sandbox.Optimizer(mine, recipe_of("ema-adamw"), lr=0.01)
    for step in range(50):
        problem.set_gradients(step, mine)
        problem.set_gradients(step, list(model))
        optimizer.step()
        peer.step()
        averaged.update_parameters(model)
    close(mine, [q.detach().numpy() for q in model], "training")
    optimizer.eval()
    close(mine, [q.detach().numpy() for q in averaged.parameters()], "evaluation")


@pytest.mark.parametrize(("start", "every"), [(1, 1), (5, 1), (5, 4)])
@pytest.mark.parametrize("backend", ["eager", "reference"])
def test_tail_mean_is_the_mean(start, every, backend):
    problem = Problem(shapes=SHAPES)
    params, seen = problem.tensors(), []
    recipe = variants.get("sgd").replace(readout=sandbox.blocks.TailMean(start=start, every=every))
    optimizer = sandbox.Optimizer(params, recipe, lr=0.01, backend=backend)
    for step in range(17):
        problem.set_gradients(step, params)
        optimizer.step()
        seen.append([p.detach().numpy().copy() for p in params])
        kept = seen[start - 1 :: every] or seen[-1:]
        optimizer.eval()
        close(params, [np.mean(rows, axis=0) for rows in zip(*kept, strict=True)], f"step {step}")
        optimizer.train()


def test_ema_with_correction_is_the_weighted_mean():
    problem = Problem(shapes=SHAPES)
    params, seen = problem.tensors(), []
    optimizer = sandbox.Optimizer(params, variants.get("sgd").replace(readout=sandbox.blocks.WeightEMA(beta=0.9)), lr=0.01)
    for step in range(12):
        problem.set_gradients(step, params)
        optimizer.step()
        seen.append([p.detach().numpy().copy() for p in params])
    weights = 0.9 ** np.arange(len(seen))[::-1]
    optimizer.eval()
    close(params, [np.tensordot(weights, rows, 1) / weights.sum() for rows in zip(*seen, strict=True)], "evaluation")


def test_a_secant_sees_the_way_of_theta():
    """Apollo's d is what θ went by, over η: with a readout that moves θ too."""
    recipe = variants.get("apollo").replace(moment=sandbox.blocks.EMA(beta=0.0), readout=sandbox.blocks.ScheduleFree())
    problem = Problem(shapes=SHAPES)
    params = problem.tensors()
    optimizer = sandbox.Optimizer(params, recipe, lr=0.01)
    for step in range(10):
        before = copy.deepcopy(params)
        problem.set_gradients(step, params)
        optimizer.step()
        for p, old in zip(params, before, strict=True):
            torch.testing.assert_close(optimizer.state[p]["direction.d"], (old - p).detach() / 0.01, rtol=1e-10, atol=1e-12)

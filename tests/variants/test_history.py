"""Quasi-Newton methods with a history against torch.optim.LBFGS, or against dense matrices and literal recursions in NumPy.

Six tensors in float64 as one vector, 40 steps of noisy gradients, through the pure update.  Tolerance 1e-8 of the largest entry:
rounding of 1e-16 that steps of up to a hundred times the gradient amplify.
"""

import numpy as np
import pytest
import torch

import sandbox
import variants
from tests.blocks import dense
from tests.problem import Problem
from tests.variants.recursions import Literal, curvature, path


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
    "res": ("res", {"solve.memory": 39}, lambda: RES(), 0.05),
    "sqn": ("sqn", SHORT, lambda: SQN(10), 0.1),
    "adaqn": ("adaqn", {**SHORT, "pairs.memory": 11}, lambda: AdaQN(10, 11), 0.05),
    "adaqn-short": ("adaqn", {**SHORT, "pairs.memory": 100, "solve.memory": 2}, lambda: AdaQN(2, 100), 0.05),
    "barzilai-borwein": ("barzilai-borwein", {}, Quotient, 0.3),
    "barzilai-borwein-long": ("barzilai-borwein", {"curvature.long": True}, Long, 0.1),
    "barzilai-borwein-diagonal": ("barzilai-borwein-diagonal", {}, Diagonal, 0.3),
    "sgd-qn": ("sgd-qn", {"curvature.rate": 0.02, "curvature.start": 100.0}, SgdQn, 1.0),
}


def changed(recipe, fields):
    """The recipe with fields of blocks replaced that are structure, by dotted name."""
    from sandbox.recipe import parts

    for name, value in fields.items():
        recipe = parts.replaced(recipe, name, value)
    return recipe


@pytest.mark.parametrize("case", CASES)
def test_equal_to_a_literal_recursion(case):
    name, fields, literal, lr = CASES[case]
    recipe, other = changed(variants.get(name), fields), literal()
    moved = 0.0
    for t, theta in enumerate(path(recipe, lambda t: lr if t % 10 else 0.5 * lr, 40), 1):
        expected = other.step(t, lr if t % 10 else 0.5 * lr)
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

"""Decompositions in float32 runs, against the same recursions in NumPy in float64, at gradients of 1 to 1e6.

The gradients are numbers of float32, so that both see the same ones.  A step rounds θ, u and its direction once each, 6e-8 of
their size, which grows by what the solvers multiply with; in float32 Shampoo was off by 3 times its own step, ggt by 200.
"""

import numpy as np
import pytest
import torch

import sandbox
import variants
from sandbox.blocks import Orthogonalize, SOAPBasis
from tests.light import BACKENDS
from tests.variants.test_matrix import SOAP

SCALES = [1.0, 100.0, 1000.0, 1e6]
STEPS = 6


def gradients(shape, rank, scale):
    """Small whole numbers times the scale: exact in float32, and of exactly this rank, which may be below the sides'."""
    rng = np.random.default_rng(3)
    left = rng.integers(-4, 5, (shape[0], rank))
    return [(scale * left @ rng.integers(-4, 5, (rank, shape[1]))).astype(np.float32) for _ in range(STEPS)]


class GGT:
    """TensorFlow's ggt.py, of one tensor."""

    def __init__(self, x):
        self.m, self.kept, self.k = np.zeros_like(x), [], 0

    def step(self, x, g, lr):
        self.m, self.k = 0.9 * self.m + 0.1 * g, self.k + 1
        self.kept = [self.m, *self.kept][:10]
        M = np.stack([v.ravel() for v in self.kept] + [np.zeros(x.size)] * (10 - len(self.kept)), 1) / np.sqrt(self.k)
        sigma, U = np.linalg.eigh(M.T @ M + 1e-6 * np.eye(10))
        root, m = np.sqrt(np.maximum(sigma, 1e-6)), self.m.ravel()
        d = M @ U @ np.diag((root + 1e-2) ** -3) @ U.T @ M.T @ m
        if root.min() > 1e-4:
            d = d + (m - M @ U @ np.diag(1 / root**2) @ U.T @ M.T @ m) / root.min()
        return x - lr * d.reshape(x.shape)


class Shampoo:
    """Gupta et al. 2018, algorithm 1; no eigenvalue below the ridge, which float64 rounds off where the largest are 1e13."""

    def __init__(self, x):
        self.L, self.R = (1e-4 * np.eye(n) for n in x.shape)

    def step(self, x, g, lr):
        self.L, self.R = self.L + g @ g.T, self.R + g.T @ g
        (a, QL), (b, QR) = np.linalg.eigh(self.L), np.linalg.eigh(self.R)
        weights = (np.maximum(a, 1e-4)[:, None] * np.maximum(b, 1e-4)) ** -0.25
        return x - lr * QL @ (weights * (QL.T @ g @ QR)) @ QR.T


class Polar:
    """Muon with U Vᵀ itself."""

    def __init__(self, x):
        self.m = np.zeros_like(x)

    def step(self, x, g, lr):
        self.m = 0.95 * self.m + 0.05 * g
        U, _, Vt = np.linalg.svd(0.95 * self.m + 0.05 * g, full_matrices=False)
        return x - lr * np.sqrt(max(1.0, x.shape[0] / x.shape[1])) * U @ Vt


METHODS = {
    "ggt": (variants.get("ggt"), GGT, (6, 5), 5),
    "shampoo": (variants.get("shampoo"), Shampoo, (7, 4), 2),
    # of full rank: else the first decomposition leaves vectors of an eigenvalue 0 to the library
    "soap": (
        variants.get("soap").replace(basis=SOAPBasis(every=2), **{"decay.weight_decay": 0.0}),
        lambda x: SOAP(x, 2),
        (4, 4),
        4,
    ),
    "polar": (variants.get("muon").replace(solve=Orthogonalize(exact=True), **{"decay.weight_decay": 0.0}), Polar, (5, 4), 4),
}


def error(name, scale, backend):
    """The largest error of θ over the length of the way so far, of all steps."""
    recipe, method, shape, rank = METHODS[name]
    start = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    p, theta = torch.tensor(start, requires_grad=True), start.astype(np.float64)
    # a rate that makes rounding of θ small beside the step
    lr, literal, worst = 10.0, method(theta), 0.0
    optimizer = sandbox.Optimizer([p], recipe.replace(lr=lr), backend=backend)
    for g in gradients(shape, rank, scale):
        p.grad = torch.tensor(g)
        optimizer.step()
        theta = literal.step(theta, g.astype(np.float64), lr)
        way = np.linalg.norm(theta - start)
        worst = max(
            worst, np.linalg.norm(p.detach().numpy() - theta) / way if way else np.abs(p.detach().numpy() - start).max()
        )
    return worst


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", METHODS)
def test_float32_is_as_exact_as_its_numbers(name, backend):
    found = {scale: error(name, scale, backend) for scale in SCALES}
    assert max(found.values()) < 1e-5, found

"""Sums of functions for tests of SFO."""

import numpy as np
import torch
from torch.nn import functional as F

N = 5


def logistic(n, seed=0):
    """N losses of 20 examples each, strictly convex."""
    draw = np.random.default_rng(seed)
    Z = draw.standard_normal((N, 20, n))
    y = np.sign(Z @ draw.standard_normal(n) + 0.5 * draw.standard_normal((N, 20)))
    Z, y = torch.tensor(Z * y[..., None]), draw.standard_normal(n)
    return (lambda p, i: F.softplus(-(Z[i] @ p)).mean() + 0.01 * p @ p), torch.tensor(y).requires_grad_()


def quadratics(n=6, seed=3):
    draw = np.random.default_rng(seed)
    A = draw.standard_normal((N, n, n))
    A, b = torch.tensor(A @ A.transpose(0, 2, 1) / n + 0.3 * np.eye(n)), torch.tensor(draw.standard_normal((N, n)))
    return (lambda p, i: 0.5 * p @ A[i] @ p + b[i] @ p), torch.linalg.solve(A.sum(0), -b.sum(0))

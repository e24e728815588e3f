"""Dense quasi-Newton recursions in NumPy on one flat vector, for blocks whose scope is global."""

import numpy as np

from tests.problem import Problem


def flat(arrays):
    return np.concatenate([np.asarray(x).reshape(-1) for x in arrays])


def shaped(vector, like):
    """A flat vector as arrays of these shapes."""
    cuts = np.cumsum([np.size(x) for x in like])[:-1]
    return [part.reshape(np.shape(x)) for part, x in zip(np.split(vector, cuts), like, strict=True)]


def gradient(problem, step, theta):
    """∇f of `tests.problem.Problem` at a flat θ."""
    return flat(problem.gradient(step, shaped(theta, problem.start)))


def bfgs(H, s, y):
    """H after a pair: (I - ρsyᵀ) H (I - ρysᵀ) + ρssᵀ."""
    rho = 1 / (s @ y)
    left = np.eye(len(s)) - rho * np.outer(s, y)
    return left @ H @ left.T + rho * np.outer(s, s)


def inverse(pairs, H0):
    """H from H₀ and the pairs, oldest first."""
    for s, y in pairs:
        H0 = bfgs(H0, s, y)
    return H0


def wang(s, y, D):
    """SdLBFGS's ȳ."""
    sDs, sy = s @ (D * s), s @ y
    theta = 0.75 * sDs / (sDs - sy) if sy < 0.25 * sDs else 1.0
    return theta * y + (1 - theta) * D * s


def problem_and_start():
    problem = Problem()
    return problem, flat(problem.start)

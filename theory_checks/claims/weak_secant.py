"""The secant rule on a run: dᵀB'd = -dᵀ(m' - m) at ε = 0 (property 4), and the distance of B to ηh on a diagonal quadratic.

On a diagonal quadratic with β = 0 and constant η, ‖B_t - ηh‖₂ never increases, for any ε ≥ 0 (property 5: a Kaczmarz
projection).
"""

from __future__ import annotations

import numpy as np

from sandbox.blocks import NoDecay
from sandbox.forms import lookup
from sandbox.recipe import Recipe
from theory_checks import problems
from theory_checks.problems import Problem
from theory_checks.record import record
from theory_checks.report import Report, everywhere


def check(recipe: str | Recipe, problem: str | Problem, T: int, *, lr: float, h: np.ndarray | None = None) -> Report:
    """The weak secant equation at every step, and, where the diagonal Hessian h is given, the distance of B to ηh.

    Raises ValueError for a recipe whose d is not m/D alone.
    """
    base, problem = lookup.recipe(recipe), problems.get(problem)
    if not isinstance(base.decay, NoDecay) or base.solve != Recipe().solve or base.scope not in ("parameter", "global"):
        raise ValueError(
            "weak_secant takes recipes with d = m/D, without decay outside the gradient, with one scope per tensor"
        )
    run = record(base, problem, T, lr=lr)
    d, y = run.m[:-1] / run.D[:-1], np.diff(run.m, axis=0)
    left, right = (d * run.B[1:] * d).sum(axis=1), -(d * y).sum(axis=1)
    size = np.abs(d * run.B[1:] * d).sum(axis=1) + np.abs(d * y).sum(axis=1) + np.abs(d * run.B[:-1] * d).sum(axis=1)
    residual = np.abs(left - right) / np.maximum(size, 1e-300)
    assumptions = [everywhere("dᵀB'd = -dᵀy (ε = 0)", 1e-10 - residual, first_t=2)]
    facts = {"T": T, "share of steps with dᵀBd > 0": float((left > 0).mean())}
    if h is not None:
        distance = np.linalg.norm(run.B - lr * h, axis=1)
        assumptions.append(everywhere("‖B_t - ηh‖₂ never increases", -np.diff(distance) + 1e-9 * distance[:-1], first_t=2))
        facts["‖B_T - ηh‖ / ‖ηh‖"] = float(distance[-1] / np.linalg.norm(lr * h))
    return Report(
        title=f"weak secant equation of {base.name} on {problem.name}",
        facts=facts,
        quantity="largest relative residual",
        measured=float(residual.max(initial=0.0)),
        assumptions=assumptions,
        bounds=[],
    )

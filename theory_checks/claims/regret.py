"""Theorem 2 (regret) and its corollary, as stated and repaired, on a recorded run.

Stated (paper, Theorem 2): with 0 < β_t ≤ β < 1, ‖g_t‖₂ ≤ G, ‖D_{t-1}‖₁/η_{t-1} ≤ ‖D_t‖₁/η_t, ‖θ_t - θ_t'‖₂ ≤ D, η_t = η/√t,

    R_T ≤ √T D² ‖D_T‖₁ / (2η(1-β)) + ηG²/(1-β) (2√T - 1) + D²/(2(1-β)) Σ β_t²/η_t.

It is false: its proof needs D_t/η_t non-decreasing in each coordinate.  Repaired, with that, θ* in the set onto which the
recipe projects, ‖θ_t - θ*‖ ≤ D, D_t ≥ σ, S_T = 2√T - 1:

    1  R ≤ √T D²‖D_T‖₁/(2η) + (ηG²/2σ) S_T + 2GD Σ β_t                                    any β_t
    2  R ≤ √T D²‖D_T‖₁/(2η) + (ηG²/2)(1/σ + 4) S_T + (D²/2) Σ β_t²/η_t                     any β_t
    3  R ≤ √T D²‖D_T‖₁/(2η) + βGD/(1-β) + (1+β)/(2(1-β)) (ηG²/σ) S_T                       constant β
    4  R ≤ √T D²‖D_T‖₁/(2η(1-β)) + ηG²(1+1/σ)/(2(1-β)) S_T + D²/(2(1-β)) Σ β_t²/η_t         monotone β_t
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from scipy.spatial.distance import pdist
from torch import Tensor

from theory_checks.claims import premises, regret_bounds, regret_proof
from theory_checks.claims.premises import (
    AVERAGE,
    CONVEX,
    CONVEX_ELSEWHERE,
    COORDINATEWISE,
    DIRECTION,
    FEASIBLE,
    GRADIENTS,
    LOWEST,
)
from theory_checks.claims.regret_bounds import REPAIRED, STATED
from theory_checks.record import Run
from theory_checks.report import Report, fit_slope, judge


def check(run: Run, *, points: int = 24, slope_from: float = 1000.0) -> Report:
    """The report on a run: regret against the best fixed point, every bound, each proof step, the certificate.

    points: values of T on the curve.  slope_from: the first T of the fitted slope.
    """
    T, problem = run.T, run.problem
    Ts = sorted({round(float(t)) for t in np.geomspace(1, T, points)} | {T})
    best = problem.best(T, torch.tensor(run.theta[:T]))
    star = best.theta.numpy()
    regret = _regrets(run, Ts, best.theta)
    facts = facts_of_run(run, star)
    assumptions = premises.check(run, best)
    holds = {a.name: a.holds for a in assumptions}
    curve: dict[str, list[float]] = {"T": [float(t) for t in Ts], "regret": [regret[t] for t in Ts]}
    for name in (STATED, *REPAIRED):
        curve[name] = [sum(bound_terms(run, facts, t)[name].values()) for t in Ts]
    trivial = facts["G"] * max(facts["diameter"], facts["radius"]) * T
    used = regret_bounds.amounts_used(run, star)
    used[STATED] = used["repaired 4"]
    numbers = _numbers(run, facts, T)
    bounds = [
        judge(
            name,
            terms,
            regret[T],
            {n: holds[n] for n in NEEDS[name]},
            trivial,
            repaired=name != STATED,
            used=used[name],
            remedy=lambda name=name: regret_bounds.remedy(name, numbers, trivial),  # type: ignore[misc]
            excess=T * best.excess,
        )
        for name, terms in regret_bounds.terms(**numbers).items()
    ]
    return Report(
        title=f"regret of {run.recipe.name} on {problem.name}, T = {T}",
        facts={**facts, "comparator": f"{best.method}, to {T * best.excess:.2g} of regret"},
        quantity="regret",
        measured=regret[T],
        assumptions=assumptions,
        bounds=bounds,
        steps=regret_proof.steps(run, star, facts, regret[T], holds),
        curve=curve,
        slope=fit_slope(curve["T"], curve["regret"], min(slope_from, T / 4)),
    )


_COMMON = (CONVEX, CONVEX_ELSEWHERE, "η_t = η/√t", AVERAGE, DIRECTION, "0 ≤ β_t < 1", LOWEST, FEASIBLE, GRADIENTS)
NEEDS: dict[str, tuple[str, ...]] = {
    STATED: (*_COMMON, "‖D_t‖₁/η_t non-decreasing", "D_t ≥ 1"),
    "repaired 1": (*_COMMON, COORDINATEWISE),
    "repaired 2": (*_COMMON, COORDINATEWISE),
    "repaired 3": (*_COMMON, COORDINATEWISE, "β_t constant"),
    "repaired 4": (*_COMMON, COORDINATEWISE, "β_t monotone"),
}


def _regrets(run: Run, Ts: list[int], star: Tensor) -> dict[int, float]:
    """Regret at each T of Ts, against the better of θ* of the whole run and the comparator of T steps."""
    problem, paid = run.problem, np.cumsum(run.loss)
    against = np.cumsum([float(problem.loss(t, star)) for t in range(1, run.T + 1)])
    regrets = {}
    for T in Ts:
        least = against[T - 1]
        if T < run.T:
            theta = problem.comparator(T, torch.tensor(run.theta[:T])).theta
            least = min(least, sum(float(problem.loss(t, theta)) for t in range(1, T + 1)))
        regrets[T] = float(paid[T - 1] - least)
    return regrets


def facts_of_run(run: Run, star: np.ndarray) -> dict[str, Any]:
    """G, the diameter with θ*, the radius around θ*, σ, η, β, measured on the run."""
    iterates = np.vstack([run.theta[: run.T], star])
    return {
        "G": float(np.linalg.norm(run.g, axis=1).max()),
        "diameter": diameter(iterates),
        "radius": float(np.linalg.norm(iterates - star, axis=1).max()),
        "σ": float(run.D.min()),
        "η": float(run.lr[0]),
        "β": float(run.beta.max()),
    }


def diameter(points: np.ndarray) -> float:
    """Largest distance between two of the points; beyond 2,000 points up to 1e-9 of it more, and never less.

    Two points are at most as far apart as their distances from the centre add up to: with the farthest out first, pairs for
    which that is no more than what was largest already are left out.
    """
    if not np.isfinite(points).all():
        return math.inf
    if len(points) <= 2000:
        return float(pdist(points).max()) if len(points) > 1 else 0.0
    points = points - points.mean(axis=0)
    points = points[np.argsort(-np.linalg.norm(points, axis=1))]
    squares, radii = (points**2).sum(axis=1), np.linalg.norm(points, axis=1)
    largest, at = 0.0, 0
    for _ in range(8):  # a large distance to begin with: from a point to the farthest, and from there again
        apart = np.linalg.norm(points - points[at], axis=1)
        largest, at = max(largest, float(apart.max())), int(apart.argmax())
    blocks = [slice(i, i + 1024) for i in range(0, len(points), 1024)]
    for i, one in enumerate(blocks):
        for other in blocks[i:]:
            if radii[one.start] + radii[other.start] <= largest * (1 + 1e-9):
                break
            apart = squares[one, None] + squares[other] - 2 * points[one] @ points[other].T
            largest = max(largest, float(np.sqrt(max(apart.max(), 0.0))))
    return largest * (1 + 1e-9)


def bound_terms(run: Run, facts: dict[str, Any], T: int) -> dict[str, dict[str, float]]:
    """Each bound's terms at T ≤ run.T, with G, D, σ and β of the whole run."""
    return regret_bounds.terms(**_numbers(run, facts, T))


def _numbers(run: Run, facts: dict[str, Any], T: int) -> dict[str, Any]:
    betas, rates = run.beta[:T], run.lr[:T]
    return {
        "T": T,
        "trace": float(run.D[T - 1].sum()),
        "G": facts["G"],
        "diameter": facts["diameter"],
        "radius": facts["radius"],
        "sigma": facts["σ"],
        "eta": facts["η"],
        "beta": facts["β"],
        "betas": float(betas.sum()),
        "squares": float((betas**2 / rates).sum()),
    }

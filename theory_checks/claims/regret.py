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

from sandbox.blocks import NoProjection
from theory_checks.claims import premises, regret_bounds
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
from theory_checks.report import Inequality, Report, fit_slope, judge


def check(run: Run, *, points: int = 24, slope_from: float = 1000.0) -> Report:
    """The report on a run: regret against the best fixed point, every bound, each proof step, the certificate.

    points: values of T on the curve.  slope_from: the first T of the fitted slope.
    """
    T, problem = run.T, run.problem
    Ts = sorted({round(float(t)) for t in np.geomspace(1, T, points)} | {T})
    best = problem.best(T, torch.tensor(run.theta[:T]))
    star = best.theta.numpy()
    regret = _regrets(run, Ts, best.theta)
    facts = _facts(run, star)
    assumptions = premises.check(run, best)
    holds = {a.name: a.holds for a in assumptions}
    curve: dict[str, list[float]] = {"T": [float(t) for t in Ts], "regret": [regret[t] for t in Ts]}
    for name in (STATED, *REPAIRED):
        curve[name] = [sum(_terms(run, facts, t)[name].values()) for t in Ts]
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
        steps=_steps(run, star, facts, regret[T], holds),
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


def _facts(run: Run, star: np.ndarray) -> dict[str, Any]:
    """G, the diameter with θ*, the radius around θ*, σ, η, β, measured on the run."""
    iterates = np.vstack([run.theta[: run.T], star])
    return {
        "G": float(np.linalg.norm(run.g, axis=1).max()),
        "diameter": _diameter(iterates),
        "radius": float(np.linalg.norm(iterates - star, axis=1).max()),
        "σ": float(run.D.min()),
        "η": float(run.lr[0]),
        "β": float(run.beta.max()),
    }


def _diameter(points: np.ndarray) -> float:
    """Largest distance between two of the points; beyond 2,000 points up to 1e-9 of it more, and never less.

    Two points are at most as far apart as their distances from the centre add up to: with the farthest out first, pairs for
    which that is no more than what was found already are left out.
    """
    if not np.isfinite(points).all():
        return math.inf
    if len(points) <= 2000:
        return float(pdist(points).max()) if len(points) > 1 else 0.0
    points = points - points.mean(axis=0)
    points = points[np.argsort(-np.linalg.norm(points, axis=1))]
    squares, radii = (points**2).sum(axis=1), np.linalg.norm(points, axis=1)
    found, at = 0.0, 0
    for _ in range(8):  # a large distance to begin with: from a point to the farthest, and from there again
        apart = np.linalg.norm(points - points[at], axis=1)
        found, at = max(found, float(apart.max())), int(apart.argmax())
    blocks = [slice(i, i + 1024) for i in range(0, len(points), 1024)]
    for i, one in enumerate(blocks):
        for other in blocks[i:]:
            if radii[one.start] + radii[other.start] <= found * (1 + 1e-9):
                break
            apart = squares[one, None] + squares[other] - 2 * points[one] @ points[other].T
            found = max(found, float(np.sqrt(max(apart.max(), 0.0))))
    return found * (1 + 1e-9)


def _terms(run: Run, facts: dict[str, Any], T: int) -> dict[str, dict[str, float]]:
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


def certificate(run: Run, star: np.ndarray) -> tuple[float, float]:
    """Both sides of identity 0 (a_t = θ_t - θ*), which needs no assumption but what the step is: θ_{t+1} = θ_t - η_t m_t/D_t
    with m_t = β_t m_{t-1} + (1-β_t) g_t, unprojected:

    Σ g_t·a_t = ½[Σ_j u_{1,j}a_{1,j}² + Σ_{t≥2} Σ_j (u_{t,j}-u_{t-1,j})a_{t,j}² - Σ_j u_{T,j}a_{T+1,j}²]
                + ½ Σ η_t ‖m_t‖²_{D_t^{-1}} + Σ β_t (g_t - m_{t-1})·a_t
    """
    a, u = run.theta - star, run.D / run.lr[:, None]
    before = np.vstack([np.zeros_like(run.m[:1]), run.m[:-1]])
    left = (run.g * a[:-1]).sum()
    path = (u[0] * a[0] ** 2).sum() + (np.diff(u, axis=0) * a[1:-1] ** 2).sum() - (u[-1] * a[-1] ** 2).sum()
    steps = (run.lr[:, None] * run.m**2 / run.D).sum()
    past = (run.beta[:, None] * (run.g - before) * a[:-1]).sum()
    return float(left), float(path / 2 + steps / 2 + past)


def _steps(run: Run, star: np.ndarray, facts: dict[str, Any], regret: float, holds: dict[str, bool]) -> list[Inequality]:
    """The proof of Theorem 2, each step as an inequality of its own."""
    a, u = run.theta[:-1] - star, run.D / run.lr[:, None]
    S = 2 * np.sqrt(run.T) - 1
    growth = np.diff(u, axis=0)
    square = (a**2).sum(axis=1)
    left, right = certificate(run, star)
    found = [Inequality("convexity: regret ≤ Σ g_t·(θ_t - θ*)", regret, left)]
    if isinstance(run.recipe.projection, NoProjection):
        of_step = holds[DIRECTION] and holds[AVERAGE]
        why = "" if of_step else f"the direction is not m/D with {AVERAGE}"
        size = 1e-9 * (abs(left) + abs(right) + 1)
        found.append(Inequality("certificate (identity 0): |left - right|", abs(left - right), size, why))
    return [
        *found,
        Inequality(
            "Σ_t Σ_j (u_t - u_{t-1}) a_t² ≤ Σ_t ‖a_t‖² Σ_j (u_t - u_{t-1})",
            float((growth * a[1:] ** 2).sum()),
            float((square[1:] * growth.sum(axis=1)).sum()),
            where_it_fails="the step of the paper's proof that fails",
        ),
        Inequality(
            "Σ_t Σ_j (u_t - u_{t-1}) a_t² ≤ D² Σ_j (u_T - u_1), as coordinatewise growth gives",
            float((growth * a[1:] ** 2).sum()),
            float(facts["radius"] ** 2 * (u[-1] - u[0]).sum()),
        ),
        Inequality(
            "Σ η_t ‖m_t‖²/D_t ≤ ηG²/σ (2√T - 1)",
            float((run.lr[:, None] * run.m**2 / run.D).sum()),
            float(facts["η"] * facts["G"] ** 2 / facts["σ"] * S),
        ),
        Inequality("Σ 1/√t ≤ 2√T - 1", float((np.arange(1, run.T + 1) ** -0.5).sum()), float(S)),
    ]

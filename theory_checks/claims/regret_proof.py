"""The proof of Theorem 2 and of its repaired bounds, each step as an inequality on a run; docs/theory.md writes it out.

a_t = θ_t - θ*, u_t = D_t/η_t, m_0 = 0; G, D, σ, η and β are the facts of the run.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sandbox.blocks import NoProjection
from theory_checks.claims.premises import AVERAGE, COORDINATEWISE, DIRECTION, FEASIBLE
from theory_checks.record import Run
from theory_checks.report import Inequality

CONSTANT, MONOTONE, RATE = "β_t constant", "β_t monotone", "η_t = η/√t"


def certificate(run: Run, star: np.ndarray) -> tuple[float, float]:
    """Returns both sides of identity 0, which needs no assumption but what the step is: θ_{t+1} = θ_t - η_t m_t/D_t with
    m_t = β_t m_{t-1} + (1-β_t) g_t, unprojected:

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


def steps(run: Run, star: np.ndarray, facts: dict[str, Any], regret: float, holds: dict[str, bool]) -> list[Inequality]:
    """Returns the steps: the paper's, then those of the repaired bounds; holds: the premises by name."""
    a, u = run.theta[:-1] - star, run.D / run.lr[:, None]
    S = 2 * np.sqrt(run.T) - 1
    growth = np.diff(u, axis=0)
    square = (a**2).sum(axis=1)
    left, right = certificate(run, star)
    start = [Inequality("convexity: regret ≤ Σ g_t·(θ_t - θ*)", regret, left)]
    if isinstance(run.recipe.projection, NoProjection):
        of_step = holds[DIRECTION] and holds[AVERAGE]
        why = "" if of_step else f"the direction is not m/D with {AVERAGE}"
        size = 1e-9 * (abs(left) + abs(right) + 1)
        start.append(Inequality("certificate (identity 0): |left - right|", abs(left - right), size, why))
    return [
        *start,
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
        *_repaired_steps(run, star, facts, holds),
    ]


def _repaired_steps(run: Run, star: np.ndarray, facts: dict[str, Any], holds: dict[str, bool]) -> list[Inequality]:
    """The steps of bounds 1 to 4; one whose premises fail says nothing."""
    G, D, sigma, eta, beta = (facts[name] for name in ("G", "radius", "σ", "η", "β"))
    a, ahead, m, g = run.theta[:-1] - star, run.theta[1:] - star, run.m, run.g
    lr, betas, S = run.lr, run.beta, 2 * np.sqrt(run.T) - 1
    before = np.vstack([np.zeros_like(m[:1]), m[:-1]])
    rest, odds, weights = 1 / (1 - betas), beta / (1 - beta), betas**2 / lr
    p = ((run.D / lr[:, None]) * (a**2 - ahead**2)).sum(axis=1) / 2
    s = lr * (m**2 / run.D).sum(axis=1) / 2
    far = lr * ((g - before) ** 2).sum(axis=1) / 2
    old = lr * (before**2).sum(axis=1) / 2
    young = weights * (a**2).sum(axis=1) / 2
    past, along = (betas[:, None] * (g - before) * a).sum(), (m * a).sum()
    moved, last = (m * (a - ahead))[:-1].sum(), m[-1] @ a[-1]
    end = np.sqrt(run.T) * D**2 * run.D[-1].sum() / (2 * eta)
    by_parts = (g * a).sum() - along - odds * (moved + last)
    size = np.abs(g * a).sum() + np.abs(m * a).sum() + odds * np.abs(m * (a - ahead)).sum()
    step = (DIRECTION, FEASIBLE)
    rows: list[tuple[str, Any, Any, tuple[str, ...]]] = [
        ("one step: Σ m_t·a_t ≤ ½ Σ u_t (a_t² - a_{t+1}²) + ½ Σ η_t ‖m_t‖²/D_t", along, (p + s).sum(), step),
        ("telescoping: ½ Σ u_t (a_t² - a_{t+1}²) ≤ √T D²‖D_T‖₁/(2η)", p.sum(), end, (COORDINATEWISE, RATE)),
        ("average: ‖m_t‖ ≤ G", np.linalg.norm(m, axis=1).max(), G, (AVERAGE,)),
        ("bound 1: Σ β_t (g_t - m_{t-1})·a_t ≤ 2GD Σ β_t", past, 2 * G * D * betas.sum(), (AVERAGE,)),
        ("bound 2: Σ β_t (g_t - m_{t-1})·a_t ≤ ½ Σ η_t ‖g_t - m_{t-1}‖² + ½ Σ β_t²/η_t ‖a_t‖²", past, (far + young).sum(), ()),
        ("bound 2: ½ Σ η_t ‖g_t - m_{t-1}‖² ≤ 2ηG² (2√T - 1)", far.sum(), 2 * eta * G**2 * S, (AVERAGE, RATE)),
        ("bound 2: ½ Σ β_t²/η_t ‖a_t‖² ≤ ½ D² Σ β_t²/η_t", young.sum(), D**2 / 2 * weights.sum(), ()),
        ("bound 3: |Σ g_t·a_t - Σ m_t·a_t - β/(1-β) (Σ_{t<T} m_t·(θ_t - θ_{t+1}) + m_T·a_T)|", abs(by_parts), 1e-9 * size,
         (AVERAGE, CONSTANT)),
        ("bound 3: Σ_{t<T} m_t·(θ_t - θ_{t+1}) ≤ Σ η_t ‖m_t‖²/D_t", moved, 2 * s.sum(), step),
        ("bound 3: m_T·a_T ≤ GD", last, G * D, (AVERAGE,)),
        ("bound 4: ½ Σ u_t (a_t² - a_{t+1}²)/(1-β_t) ≤ √T D²‖D_T‖₁/(2η(1-β))", (rest * p).sum(), end / (1 - beta),
         (COORDINATEWISE, RATE, MONOTONE)),
        ("bound 4: -Σ β_t m_{t-1}·a_t/(1-β_t) ≤ ½ Σ (η_t ‖m_{t-1}‖² + β_t²/η_t ‖a_t‖²)/(1-β_t)",
         -(rest * betas * (before * a).sum(axis=1)).sum(), (rest * (old + young)).sum(), ()),
        ("bound 4: ½ Σ (η_t ‖m_t‖²/D_t + η_t ‖m_{t-1}‖²)/(1-β_t) ≤ ηG²(1+1/σ)/(2(1-β)) (2√T - 1)", (rest * (s + old)).sum(),
         eta * G**2 * (1 + 1 / sigma) / (2 * (1 - beta)) * S, (AVERAGE, RATE)),
    ]  # fmt: skip
    return [
        Inequality(name, float(left), float(right), ", ".join(need for need in needs if not holds[need]))
        for name, left, right, needs in rows
    ]

"""The bounds of Theorem 2: their terms, what the proof bounds by each term, and what a vacuous one would need.

The parts that a run has used up add to Σ g_t·a_t or more, a_t = θ_t - θ*, and that is at least the regret.  With
u_t = D_t/η_t and m_0 = 0, and without a projection (with one, ≤ in place of the first =):

    m_t·a_t = p_t + s_t,    p_t = ½ Σ_j u_t (a_t² - a_{t+1}²),    s_t = ½ η_t ‖m_t‖²_{D_t⁻¹}

    1        g_t = m_t + β_t (g_t - m_{t-1}):              Σ p_t + Σ s_t + Σ β_t (g_t - m_{t-1})·a_t
    2        Young on the last sum:                        Σ p_t + Σ (s_t + ½ η_t ‖g_t - m_{t-1}‖²) + ½ Σ β_t²/η_t ‖a_t‖²
    3        g_t = m_t + β/(1-β) (m_t - m_{t-1}), by parts: Σ p_t + Σ s_t + β/(1-β) [Σ_{t<T} m_t·(θ_t - θ_{t+1}) + m_T·a_T]
    4, stated  g_t = (m_t - β_t m_{t-1})/(1-β_t), Young:    Σ [p_t + s_t + ½ η_t ‖m_{t-1}‖² + ½ β_t²/η_t ‖a_t‖²]/(1-β_t)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from theory_checks.record import Run

STATED = "Theorem 2 as stated"
REPAIRED = ("repaired 1", "repaired 2", "repaired 3", "repaired 4")


def terms(
    *, T: Any, trace: Any, G: Any, diameter: Any, radius: Any, sigma: Any, eta: Any, beta: Any, betas: Any, squares: Any
) -> dict[str, dict[str, Any]]:
    """Terms of every bound, from numbers or arrays that broadcast.

    trace: ‖D_T‖₁.  diameter, radius: D as stated and as repaired.  beta: max β_t; betas: Σ β_t; squares: Σ β_t²/η_t.
    """
    S, start, rest = 2 * np.sqrt(T) - 1, np.sqrt(T) * trace / (2 * eta), 1 - beta
    return {
        STATED: {
            "diameter": start * diameter**2 / rest,
            "gradients": eta * G**2 / rest * S,
            "β": diameter**2 / (2 * rest) * squares,
        },
        "repaired 1": {
            "diameter": start * radius**2,
            "gradients": eta * G**2 / (2 * sigma) * S,
            "β": 2 * G * radius * betas,
        },
        "repaired 2": {
            "diameter": start * radius**2,
            "gradients": eta * G**2 / 2 * (1 / sigma + 4) * S,
            "β": radius**2 / 2 * squares,
        },
        "repaired 3": {
            "diameter": start * radius**2,
            "gradients": (1 + beta) / (2 * rest) * eta * G**2 / sigma * S,
            "β": beta * G * radius / rest,
        },
        "repaired 4": {
            "diameter": start * radius**2 / rest,
            "gradients": eta * G**2 * (1 + 1 / sigma) / (2 * rest) * S,
            "β": radius**2 / (2 * rest) * squares,
        },
    }


def amounts_used(run: Run, star: np.ndarray) -> dict[str, dict[str, float]]:
    """For "repaired 1" to "repaired 4", what stands under each term of `regret.terms`, by the term's name; star: (d,).

    Theorem 2 as stated has the terms of "repaired 4" with other constants, and the same parts.
    """
    a, eta, beta = run.theta - star, run.lr, run.beta
    before = np.vstack([np.zeros_like(run.m[:1]), run.m[:-1]])
    # p_t, s_t, and the two of Young's inequality
    p = ((run.D / eta[:, None]) * (a[:-1] ** 2 - a[1:] ** 2)).sum(axis=1) / 2
    s = eta * (run.m**2 / run.D).sum(axis=1) / 2
    square, past = (a[:-1] ** 2).sum(axis=1), run.g - before
    young = beta**2 / eta * square / 2
    odds = beta.max() / (1 - beta.max())
    moved = (run.m * (run.theta[:-1] - run.theta[1:])).sum(axis=1)
    parts = {
        "repaired 1": (p, s, beta * (past * a[:-1]).sum(axis=1)),
        "repaired 2": (p, s + eta * (past**2).sum(axis=1) / 2, young),
        "repaired 3": (p, s + odds * np.append(moved[:-1], 0.0), odds * run.m[-1] @ a[-2]),
        "repaired 4": (p / (1 - beta), (s + eta * (before**2).sum(axis=1) / 2) / (1 - beta), young / (1 - beta)),
    }
    return {
        name: {term: float(np.sum(x)) for term, x in zip(("diameter", "gradients", "β"), row, strict=True)}
        for name, row in parts.items()
    }


def remedy(name: str, numbers: dict[str, Any], trivial: float) -> str:
    """Says for the bound `name` of `terms(**numbers)`, which exceeds `trivial` at T = numbers["T"], by what factor it does so,
    and from which T, or for which η, it no longer would.

    The measured G, D, ‖D_T‖₁, σ and mean β_t stay as they are; another run would have others.
    """
    T, eta = numbers["T"], numbers["eta"]

    def excess(longer: Any = 1.0, larger: Any = 1.0) -> Any:
        """The bound over the trivial one at T·longer and η·larger."""
        changed = numbers | {"T": T * longer, "eta": eta * larger, "betas": numbers["betas"] * longer}
        changed["squares"] = numbers["squares"] * longer**1.5 / larger
        return sum(terms(**changed)[name].values()) / (trivial * longer)

    if not np.isfinite(trivial * excess()):
        return "not finite"
    longer, larger = np.geomspace(1, 1e12, 2401), np.geomspace(1e-8, 1e8, 3201)
    from_T, for_eta = longer[excess(longer=longer) <= 1], eta * larger[excess(larger=larger) <= 1]
    message = f"{excess():.3g} times the trivial bound GDT; "
    message += (
        f"not so from T ≈ {T * from_T[0]:.2g} at this η" if len(from_T) else f"so up to T = {T * longer[-1]:.0e} at this η"
    )
    message += f", or here for η in [{for_eta[0]:.2g}, {for_eta[-1]:.2g}]" if len(for_eta) else ", and here for every η"
    return message + " (with G, D, ‖D_T‖₁ as measured)"

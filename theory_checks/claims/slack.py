"""What the proof of Theorem 2 bounds by each term of each bound, measured on a run.

The parts add up to Σ g_t·a_t or more, a_t = θ_t - θ*, and that is at least the regret.  With u_t = D_t/η_t and m_0 = 0, and
without a projection (with one, ≤ in place of the first =):

    m_t·a_t = p_t + s_t,    p_t = ½ Σ_j u_t (a_t² - a_{t+1}²),    s_t = ½ η_t ‖m_t‖²_{D_t⁻¹}

    1        g_t = m_t + β_t (g_t - m_{t-1}):              Σ p_t + Σ s_t + Σ β_t (g_t - m_{t-1})·a_t
    2        Young on the last sum:                        Σ p_t + Σ (s_t + ½ η_t ‖g_t - m_{t-1}‖²) + ½ Σ β_t²/η_t ‖a_t‖²
    3        g_t = m_t + β/(1-β) (m_t - m_{t-1}), by parts: Σ p_t + Σ s_t + β/(1-β) [Σ_{t<T} m_t·(θ_t - θ_{t+1}) + m_T·a_T]
    4, stated  g_t = (m_t - β_t m_{t-1})/(1-β_t), Young:    Σ [p_t + s_t + ½ η_t ‖m_{t-1}‖² + ½ β_t²/η_t ‖a_t‖²]/(1-β_t)
"""

from __future__ import annotations

import numpy as np

from theory_checks.record import Run


def measured(run: Run, star: np.ndarray) -> dict[str, dict[str, float]]:
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

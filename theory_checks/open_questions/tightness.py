"""How tight the repaired bounds are: losses in one dimension on which regret comes as close to them as one likes.

Repaired bound 3, constant β.  The proof loses nothing (identity 0) where D_t = σ, ‖m_t‖ = G, ‖θ_t - θ*‖ = D for t ≤ T and
θ_{T+1} = θ*.  So let θ wait at θ_1 for O(√T) steps without a gradient, so that a run of n steps is short, then about θ_1 with
gradients ±G in long runs, and at the end walk to θ* under a constant gradient:

    Σ_t (1/η_t - 1/η_{t-1}) σ a_t²/2 → √T D²σ/(2η),    Σ η_t m_t² (1+β)/(2(1-β)σ) → (1+β)/(2(1-β)) ηG²/σ (2√T - 1),

since the walk takes O(√T) steps and the runs are n long, of which O(1/(1-β)) steps turn m around.  Between runs m has to
pass 0 without leaving the floor, |y| ≤ |m|: it falls to 0 exactly, then starts from 0, where d = 0 and α = 0.  So
regret/bound → 1 as T, then n → ∞, for every β in [0, 1) and every η: **repaired bound 3, and for β = 0 repaired bound 1,
have the best constants.**

The ceiling Λ of the monotone rectifier.  Gradients 1, …, 1, s for ever: after a small s the secant rule asks for (1-s)/s
times D, so D is Λ again every P steps, and θ needs (Λ/η)² steps from one end of the box to the other: R ≥ c Λ√T/η at
T = (Λ/η)², and bound 1 is 2Λ√T/η there.  **Its order in Λ is right.**
"""

from __future__ import annotations

import dataclasses

import numpy as np
from scipy import signal

from theory_checks.claims import regret_bounds
from theory_checks.proofs import compiled
from theory_checks.proofs.recursion import Rule


def waiting(T: int, beta: float, n: int) -> np.ndarray:
    """g_1 … g_T: 0 for n√T/2 steps, then runs of ±1 with m = 0 between them, exactly so where 1-β is a power of two."""
    g, m, sign = np.zeros(T), 0.0, 1.0
    t = min(round(n * T**0.5 / 2), T // 2)
    turning, left, ended = False, n, t
    while t < T:
        if not turning:
            g[t], left = sign, left - 1
            turning = left == 0
        else:
            # as far towards 0 as ‖g‖ ≤ 1 allows, and onto it exactly
            g[t] = -np.sign(m) * min(1.0, beta * abs(m) / (1 - beta))
        m = beta * m + (1 - beta) * g[t]
        if turning and m == 0:
            turning, left, sign, ended = False, n, -sign, t + 1
        t += 1
    g[ended:] = 0  # a run cut short would not end at m = 0
    return g


@dataclasses.dataclass(frozen=True)
class Attained:
    """Regret over repaired bound 3 after T steps, and the two sides."""

    T: int
    beta: float
    regret: float
    bound: float

    @property
    def ratio(self) -> float:
        """regret/bound, below 1."""
        return self.regret / self.bound


def attained(T: int, beta: float = 0.0, n: int | None = None, eta: float = 1.0, reach: float = 1.0) -> Attained:
    """The family above, with D = σ = 1 as its run has it, ‖θ_t - θ*‖ up to about `reach`; n: the length of a run."""
    n = n or round(T**0.2 / (1 - beta) ** 0.5)
    walk = int(reach * np.sqrt(T) / eta)
    if walk >= T // 2:
        raise ValueError(f"T must exceed {int(4 * reach**2 / eta**2)} for the walk to θ*, got {T}")
    g = np.concatenate([waiting(T - walk, beta, n), np.ones(walk)])
    theta, _ = trajectory(g, beta, eta)
    star, t = theta[-1], np.arange(1, T + 1)
    numbers = {"T": T, "trace": 1.0, "G": float(np.abs(g).max()), "sigma": 1.0, "eta": eta, "beta": beta}
    reached = float(np.abs(theta[:-1] - star).max())
    sums = {"betas": beta * T, "squares": float((beta**2 * np.sqrt(t) / eta).sum())}
    bound = sum(regret_bounds.terms(**numbers, **sums, diameter=float(np.ptp(theta)), radius=reached)["repaired 3"].values())
    return Attained(T, beta, float((g * (theta[:-1] - star)).sum()), float(bound))


def trajectory(g: np.ndarray, beta: float, eta: float) -> tuple[np.ndarray, np.ndarray]:
    """θ_1 … θ_{T+1} and m_1 … m_T on the floor D = 1."""
    # m_t = β m_{t-1} + (1-β) g_t
    row = signal.lfilter([1 - beta], [1.0, -beta], g)
    moves = eta / np.sqrt(np.arange(1, len(g) + 1)) * row
    return np.concatenate([[0.0], -np.cumsum(moves)]), row


def ceiling(size: float, eta: float = 1.0, period: int = 8) -> tuple[int, float, float]:
    """T = (Λ/η)², the regret of the monotone rectifier with ceiling Λ = `size` on [-1, 1] from θ_1 = 1, and R η/(Λ√T)."""
    T = max(1, round((size / eta) ** 2))
    small = 1 / (2 * size)
    rows = [[small], *[[1.0]] * (period - 1), [small]]
    rule = Rule(ceiling=size, box=(-1.0, 1.0))
    theta, g, _ = compiled.run(rule, compiled.linear, rows, [1.0], T, eta=eta)
    # every gradient is positive: θ* = -1
    paid = float((g * (theta + 1)).sum())
    return T, paid, paid * eta / (size * T**0.5)

"""How end losses fall with the length of runs, and how much sooner a variant gets as far as the first one.

    L(D) = α D^-B + β

for runs of D updates (or gradient evaluations, or seconds), fitted to the first variant's end losses at three lengths or more;
a variant's end loss then says which D the first one would need, and that divided by its own is its speed-up (Wen et al. 2025).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

LENGTHS = 3  # the fewest that a fit needs: it has three numbers


@dataclasses.dataclass(frozen=True)
class PowerLaw:
    """L(D) = α D^-B + β, α > 0."""

    alpha: float
    B: float
    beta: float

    def loss(self, D: float) -> float:
        """Returns L(D)."""
        return self.alpha * D**-self.B + self.beta

    def length(self, loss: float) -> float:
        """Returns D with L(D) = loss; infinite for a loss that it never reaches."""
        # D = (α/(L - β))^(1/B)
        return math.inf if loss <= self.beta else (self.alpha / (loss - self.beta)) ** (1 / self.B)


def fit(lengths: Sequence[float], losses: Sequence[float]) -> PowerLaw | None:
    """Returns the law with the least squared error, B in [.01, 10].

    None for fewer than three lengths, a loss that is not finite, or losses that do not fall.
    """
    from scipy import optimize

    D, L = np.asarray(lengths, dtype=float), np.asarray(losses, dtype=float)
    if len(set(lengths)) < LENGTHS or not np.isfinite(L).all():
        return None
    x = D / D.min()

    def solved(log_B: float) -> tuple[np.ndarray, float]:
        columns = np.stack([x ** -math.exp(log_B), np.ones_like(x)], axis=1)
        numbers = np.linalg.lstsq(columns, L, rcond=None)[0]
        return numbers, float(np.square(columns @ numbers - L).sum())

    grid = np.linspace(math.log(0.01), math.log(10), 200)
    place = int(np.argmin([solved(b)[1] for b in grid]))
    around = grid[max(place - 1, 0)], grid[min(place + 1, len(grid) - 1)]
    found = optimize.minimize_scalar(lambda b: solved(b)[1], bounds=around, method="bounded", options={"xatol": 1e-10})
    (alpha, beta), B = solved(found.x)[0], math.exp(found.x)
    return PowerLaw(float(alpha * D.min() ** B), B, float(beta)) if alpha > 0 else None

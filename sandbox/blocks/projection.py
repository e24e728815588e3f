"""Projections onto a feasible set, in the norm that D induces."""

from __future__ import annotations

from torch import Tensor

from sandbox.blocks.base import block
from sandbox.blocks.number import Number, concrete_values, number
from sandbox.blocks.slots import Projection


@block
class NoProjection(Projection):
    """θ = θ - η d"""

    latex = r"\theta_t = \theta_{t-1} - \eta_t d_t"


@block
class Box(Projection):
    """θ = clamp(θ - η d, low, high)   (under a diagonal metric this is the projection onto the box, whatever D is).

    low, high: bounds of every coordinate, low ≤ high.
    """

    low: Number = number(default=-1.0, range="[-inf, inf)")
    high: Number = number(default=1.0, range="(-inf, inf]")
    latex = r"\theta_t = \min(\max(\theta_{t-1} - \eta_t d_t, \ell), h)"

    def check(self) -> None:
        """low ≤ high."""
        low, high = concrete_values(self.low), concrete_values(self.high)
        if low and high and max(low) > min(high):
            raise ValueError(f"Box: low must not exceed high, got low={max(low):g} and high={min(high):g}")

    def read(self, theta: Tensor) -> Tensor:
        """θ clamped to the box."""
        # θ ← min(max(θ, low), high)
        return theta.clamp(min=self.low).clamp(max=self.high)

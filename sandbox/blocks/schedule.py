"""Numbers that change with t, as the theory needs them: β_t = β λ^{t-1}, η_t = η/√t.  t counts updates from 1."""

from __future__ import annotations

from typing import Any

from sandbox.blocks.base import block
from sandbox.blocks.number import Number, number
from sandbox.blocks.slots import Schedule


@block
class InverseSquareRoot(Schedule):
    """η_t = η / √t  (the rate of Theorems 2 and 3, paper section 4)."""

    first: Number = number(default=0.01, range="[0, inf)")

    def __call__(self, t: Any) -> Any:
        """η / √t."""
        return self.first / t**0.5


@block
class Geometric(Schedule):
    """β_t = β λ^{t-1}  (the Corollary of Theorem 2)."""

    first: Number = number(default=0.9, range="[0, inf)")
    ratio: Number = number(default=0.99, range="[0, 1]")

    def __call__(self, t: Any) -> Any:
        """β λ^{t-1}."""
        return self.first * self.ratio ** (t - 1)


@block
class InverseTime(Schedule):
    """η_t = η / (1 + λ (t - 1))  (`lr_decay` of torch.optim.Adagrad)."""

    first: Number = number(default=0.01, range="[0, inf)")
    decay: Number = number(default=0.0, range="[0, inf)")

    def __call__(self, t: Any) -> Any:
        """η / (1 + λ (t - 1))."""
        return self.first / (1 + self.decay * (t - 1))

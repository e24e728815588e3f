"""Solvers: from u and the diagonal D to the direction p."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from sandbox.blocks.base import Flow, block
from sandbox.blocks.number import Number, number
from sandbox.blocks.scope import sides
from sandbox.blocks.slots import Solve


@block
class Divide(Solve):
    """p = m/D   (in a printed recipe the decay's equation says it)"""

    symbol = ("m/D", "m_t/D_t")
    latex = symbol[1]

    def step(self, x: Flow, **state: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """m/D."""
        return x.value, state


@block
class Sign(Solve):
    """p = sign(m/D)   (Chen et al. 2023, Lion; sign(0) = 0)"""

    latex = r"p_t = \mathrm{sign}(m_t/D_t)"

    def read(self, p: Tensor) -> Tensor:
        """sign(m/D)."""
        # p = sign(m/D)
        return p.sign()


@block
class SignBySides(Solve):
    """p = 2/(m+n) sign(m/D)   (Frans et al. 2025, SPlus: of an (m, n) matrix)."""

    matrix = True
    recalls = False
    latex = r"p_t = \tfrac{2}{m+n} \mathrm{sign}(m_t/D_t)"

    def step(self, x: Flow, **state: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """2/(m+n) sign(m/D)."""
        # p = 2/(m+n) sign(m/D)
        m, n = sides(x.value)
        return 2 / (m + n) * x.value.sign(), state


@block
class ClipEach(Solve):
    """p = min(max(m/D, -c), c)   (Liu et al. 2023, Sophia: where D is small or wrong, a step of c in the gradient's direction).

    limit: c > 0, the largest step of a coordinate at η = 1.
    """

    limit: Number = number(default=1.0, range="(0, inf)")
    latex = r"p_t = \min(\max(m_t/D_t, -c), c)"

    def read(self, p: Tensor) -> Tensor:
        """m/D clipped to [-c, c]."""
        # p = min(max(m/D, -c), c)
        return p.clamp(min=-self.limit).clamp(max=self.limit)

"""A solver that takes the steepest direction in a norm: Scion."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from sandbox.blocks.base import Flow, block
from sandbox.blocks.number import Number, number
from sandbox.blocks.orthogonal import orthogonal
from sandbox.blocks.scope import sides
from sandbox.blocks.slots import Solve
from sandbox.utils import suggest

TEXTS = {
    "spectral": ("√(m/n) NS(v)", r"\sqrt{m/n}\,\mathrm{NS}(v)"),
    "sign": ("sign(v)/n", r"\mathrm{sign}(v)/n"),
    "rows": ("v/(RMS of its row)", r"v/\mathrm{RMS}_j(v)"),
    "rms": ("v/RMS(v)", r"v/\mathrm{RMS}(v)"),
}


@block
class NormBall(Solve):
    """p = ρ × the v = m/D of unit norm that goes down fastest   (Pethick et al. 2025, Scion)

    norm: "spectral", √(m/n) times five Newton-Schulz iterations of an (m, n) matrix; "sign", sign(v)/n; "rows", each row over
    its root mean square, for a table of embeddings; "rms", v over its root mean square.  1e-8 is added to a root mean square.
    radius: ρ > 0.
    """

    norm: str = "spectral"
    radius: Number = number(default=1.0, range="(0, inf)")
    recalls = False

    def check(self) -> None:
        """A known norm."""
        if self.norm not in TEXTS:
            raise ValueError(f"NormBall: {suggest.unknown('norm', str(self.norm), TEXTS)}")

    @property
    def matrix(self) -> bool:
        """All but "rms" need rows and columns."""
        return self.norm != "rms"

    @property
    def text(self) -> str:
        """The equation of the norm."""
        return f"p = ρ {TEXTS[self.norm][0]},  v = m/D"

    @property
    def latex(self) -> str:
        """The equation of the norm."""
        return rf"p_t = \rho\, {TEXTS[self.norm][1]},\quad v = m_t/D_t"

    def step(self, x: Flow, **state: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """ρ times the direction."""
        v = x.value
        if self.norm == "rms":
            # p = ρ v/RMS(v)
            return self.radius * v / x.tensor.spread(x.tensor.mean(v.square()).sqrt() + 1e-8), state
        m, n = sides(v)
        if self.norm == "sign":
            # p = ρ sign(v)/n
            return self.radius * v.sign() / n, state
        if self.norm == "rows":
            # p = ρ v/RMS of its row
            return self.radius * v / (v.square().mean(1, keepdim=True).sqrt() + 1e-8), state
        # p = ρ √(m/n) NS(v)
        return self.radius * (m / n).sqrt() * orthogonal(v, 5), state

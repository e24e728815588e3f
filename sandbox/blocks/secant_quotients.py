"""Curvatures from the pair (s, y) of the last step: Barzilai & Borwein's, one number per scope, or one per coordinate."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sandbox.blocks.base import ELEMENT, SCOPE, Flow, block
from sandbox.blocks.number import Number, number, where, whole
from sandbox.blocks.slots import Curvature


@block
class BarzilaiBorwein(Curvature):
    """B = yᵀy/sᵀy of the last pair with sᵀy > tiny + least sᵀs, spread over the scope   (Barzilai & Borwein 1988)

    1/B is the first guess that L-BFGS starts from; B₀ = 1.
    long: B = sᵀy/sᵀs instead, a smaller one, so longer steps (their other formula).
    lower: δ ≥ 0, the least B.  floored: every pair counts, B = max(yᵀy/sᵀy, δ), δ where sᵀy ≤ 0 (Wang et al. 2017).
    first_step: B = max(1, ‖g‖₁) at the first step, so that it is no longer than 1 (torch.optim.LBFGS).
    tiny ≥ 0, in units of sᵀy; least ≥ 0, in units of curvature.
    """

    long: bool = False
    floored: bool = False
    first_step: bool = False
    lower: Number = number(default=0.0, range="[0, inf)")
    tiny: Number = number(default=1e-10, range="[0, inf)")
    least: Number = number(default=0.0, range="[0, inf)")
    needs = ("s", "y")
    state = {"B": SCOPE}
    estimates = "B"

    @property
    def recalls(self) -> bool:
        """Not where the first step has another B than it keeps."""
        return not self.first_step

    @property
    def text(self) -> str:
        """The equation as configured."""
        B = "sᵀy/sᵀs" if self.long else "yᵀy/sᵀy"
        return f"B = max({B}, δ), δ where sᵀy ≤ 0" if self.floored else f"B = max({B}, δ) of the last pair with sᵀy > tiny"

    @property
    def latex(self) -> str:
        """The equation as configured."""
        return rf"B_t = \max({'s^T y / s^T s' if self.long else 'y^T y / s^T y'}, \delta)"

    def initial(self, name: str) -> Any:
        """B₀ = 1."""
        return 1.0

    def step(self, x: Flow, *, B: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """B everywhere, and the number of each scope."""
        total, s, y = x.scope.sum, x.s, x.y
        sy, ss = total(s * y), total(s.square())
        accepted = sy > self.tiny + self.least * ss
        # B = yᵀy/sᵀy, or sᵀy/sᵀs
        above, below = (sy, ss) if self.long else (total(y.square()), sy)
        found = torch.where(accepted, above / torch.where(accepted, below, 1.0), 0.0).clamp(min=self.lower)
        moved = ss > 0 if self.floored else accepted
        B = torch.where(moved, found, B)
        out = B
        if self.first_step:
            # max(1, ‖g‖₁) at t = 1
            out = torch.where(x.t > 1, B, total(x.g.abs()).clamp(min=1.0))
        return x.scope.spread(out) + torch.zeros_like(s), {"B": B}

    def read(self, value: Any, *, B: Tensor) -> Tensor:
        """B, spread already."""
        return B

    def estimate(self, B: Tensor, x: Flow) -> Tensor:
        """B itself."""
        return B


@block
class DiagonalBarzilaiBorwein(Curvature):
    """B = (s y + μ B)/(s² + μ), between bounds   (Park et al. 2020: argmin ‖Bs - y‖² + μ‖B - B'‖², B diagonal)

    μ = mu · mean of s² over the scope: relative, so that the rule does not see the scale of θ.
    low, high: bounds on B as multiples of the scope's sᵀy/sᵀs and yᵀy/sᵀy (1 in the paper); B stays where sᵀy ≤ 0.  B₀ = 1.
    mu: ≥ 0.  low ≥ 0.  high > 0.
    """

    mu: Number = number(default=1.0, range="(0, inf)")
    low: Number = number(default=1.0, range="[0, inf)")
    high: Number = number(default=1.0, range="(0, inf)")
    needs = ("s", "y")
    state = {"B": ELEMENT}
    estimates = "B"
    latex = r"B_t = \frac{s_t y_t + \mu B_{t-1}}{s_t^2 + \mu}"

    def initial(self, name: str) -> Any:
        """B₀ = 1."""
        return 1.0

    def update(self, x: Flow, *, B: Tensor) -> dict[str, Tensor]:
        """B of the last pair, where it has positive curvature."""
        total, spread, s, y = x.scope.sum, x.scope.spread, x.s, x.y
        sy, ss, yy = total(s * y), total(s.square()), total(y.square())
        accepted = sy > 0
        low = self.low * torch.where(accepted, sy / torch.where(accepted, ss, 1.0), 0.0)
        high = self.high * torch.where(accepted, yy / torch.where(accepted, sy, 1.0), 1.0)
        # B = (s y + μ B) / (s² + μ)
        mu = self.mu * spread(x.scope.mean(s.square()))
        everywhere = spread(torch.where(accepted, 1.0, 0.0).to(s.dtype)) > 0
        found = (s * y + mu * B) / torch.where(everywhere, s.square() + mu, 1.0)
        found = torch.minimum(torch.maximum(found, spread(low) + 0 * found), spread(high) + 0 * found)
        return {"B": torch.where(everywhere, found, B)}

    def estimate(self, B: Tensor, x: Flow) -> Tensor:
        """B itself."""
        return B


@block
class AccumulatedSecant(Curvature):
    """B ← B + k · min(max(y/s, low λ), high λ) at t = k+1, 2k+1, …; B₀ = λ t₀   (Bordes et al. 2009, corrected 2010, SGD-QN)

    1/B is their diagonal of rates: it falls like 1/t, so η = 1 goes with it.  Where s = 0: high λ + λ, as in their code.
    rate: λ > 0, the loss's own weight decay, in units of curvature.  start: t₀ > 0, in steps.  low, high ≥ 0.
    every: k ≥ 1, steps between two looks.
    """

    rate: Number = number(default=1e-4, range="(0, inf)")
    start: Number = number(default=1e4, range="(0, inf)")
    low: Number = number(default=0.1, range="[0, inf)")
    high: Number = number(default=100.0, range="(0, inf)")
    every: int = 1
    needs = ("s", "y")
    state = {"B": ELEMENT}
    latex = r"B \leftarrow B + k\,\min(\max(y/s, \ell\lambda), h\lambda) \quad\text{every } k \text{ steps}"

    def check(self) -> None:
        """every ≥ 1."""
        whole(self, "every", 1)

    def initial(self, name: str) -> Any:
        """λ t₀."""
        return self.rate * self.start

    def coefficients(self, t: Any) -> dict[str, Any]:
        """k where it is time to look, else 0."""
        return {"k": where((t > 1) & ((t - 1) % self.every == 0), float(self.every), 0.0)}

    def update(self, x: Flow, *, B: Tensor) -> dict[str, Tensor]:
        """The sum of bounded quotients."""
        s, y = x.s, x.y
        moved = s != 0
        # b = y/s within [low λ, high λ]; high λ + λ where nothing moved
        b = (y / torch.where(moved, s, 1.0)).clamp(min=self.low * self.rate).clamp(max=self.high * self.rate)
        b = torch.where(moved, b, self.high * self.rate + self.rate)
        return {"B": B + x.c.k * b}

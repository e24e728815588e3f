"""Steps whose length follows the weights of each tensor: LARS, LAMB, Adafactor, Tiger."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sandbox.blocks.base import Flow, block
from sandbox.blocks.number import Number, number
from sandbox.blocks.slots import Adjust, Decay, Gradient


def norm(v: Tensor, x: Flow) -> Tensor:
    """‖v‖₂ per tensor."""
    return x.tensor.sum(v.square()).sqrt()


def rms(v: Tensor, x: Flow) -> Tensor:
    """RMS(v) per tensor."""
    return x.tensor.mean(v.square()).sqrt()


@block
class LayerwiseGradient(Gradient):
    """g ← (g + γθ) τ‖θ‖/(‖g‖ + γ‖θ‖)   (You et al. 2017, LARS; per tensor, no factor where a norm is 0)

    trust: τ > 0.  weight_decay: γ ≥ 0.
    """

    trust: Number = number(default=1e-3, range="(0, inf)")
    weight_decay: Number = number(default=0.0, range="[0, inf)")
    latex = r"g \leftarrow (g + \gamma\theta)\, \tau \lVert\theta\rVert / (\lVert g \rVert + \gamma \lVert\theta\rVert)"

    def step(self, x: Flow, **state: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """The decayed gradient, as long as τ‖θ‖."""
        # g ← (g + γθ) τ‖θ‖/(‖g‖ + γ‖θ‖)
        weights, size = norm(x.theta, x), norm(x.value, x)
        whole = size + self.weight_decay * weights
        moving = (weights > 0) & (whole > 0)
        factor = torch.where(moving, self.trust * weights / torch.where(moving, whole, 1.0), 1.0)
        return (x.value + self.weight_decay * x.theta) * x.tensor.spread(factor), state


@block
class TrustRatio(Decay):
    """d = φ (m/D + γθ),  φ = ‖θ‖/‖m/D + γθ‖   (You et al. 2020, LAMB; per tensor, φ = 1 where a norm is 0)

    weight_decay: γ ≥ 0.  limit: the largest φ.
    """

    weight_decay: Number = number(default=1e-2, range="[0, inf)")
    limit: Number = number(default=float("inf"), range="(0, inf]")
    in_direction = True
    recalls = False
    latex = (
        r"d_t = \varphi_t (m_t/D_t + \gamma\theta),\quad \varphi_t = \lVert\theta\rVert / \lVert m_t/D_t + \gamma\theta \rVert"
    )

    def step(self, x: Flow, **state: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """The decayed direction, as long as θ."""
        # d = φ (u + γθ),  φ = ‖θ‖/‖u + γθ‖
        d = x.value + self.weight_decay * x.theta
        weights, size = norm(x.theta, x), norm(d, x)
        moving = (weights > 0) & (size > 0)
        ratio = torch.where(moving, weights / torch.where(moving, size, 1.0), 1.0)
        return d * x.tensor.spread(torch.clamp(ratio, max=self.limit)), state


@block
class WeightScaled(Decay):
    """d = RMS(θ) (m/D + γθ)   (Su 2023, Tiger; per tensor, or per row)

    A tensor of zeros stands still.  weight_decay: γ ≥ 0.  rows: one RMS per row, for a table of embeddings.
    """

    weight_decay: Number = number(default=1e-2, range="[0, inf)")
    rows: bool = False
    in_direction = True
    recalls = False
    latex = r"d_t = \mathrm{RMS}(\theta)\, (m_t/D_t + \gamma\theta)"

    @property
    def matrix(self) -> bool:
        """Rows need a matrix."""
        return self.rows

    def step(self, x: Flow, **state: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """The decayed direction in units of the weights."""
        # d = RMS(θ) (u + γθ)
        size = x.theta.square().mean(1, keepdim=True).sqrt() if self.rows else x.tensor.spread(rms(x.theta, x))
        return (x.value + self.weight_decay * x.theta) * size, state


@block
class RelativeStep(Adjust):
    """p ← p max(RMS(θ), ε) min(1, 1/(η√t))   (Shazeer & Stern 2018, Adafactor: the rate is min(η, 1/√t) in units of θ)

    floor: ε > 0, the least RMS of the weights that counts.
    """

    floor: Number = number(default=1e-3, range="(0, inf)")
    latex = r"p_t \leftarrow p_t \max(\mathrm{RMS}(\theta), \epsilon) \min(1, 1/(\eta_t\sqrt t))"

    def coefficients(self, t: Any) -> dict[str, Any]:
        """1/√t."""
        return {"horizon": t**-0.5}

    def step(self, x: Flow, **state: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """p in units of the weights."""
        # p ← p max(RMS(θ), ε) min(1, 1/(η√t))
        size = x.tensor.spread(torch.clamp(rms(x.theta, x), min=self.floor))
        return x.value * size * torch.where(x.lr > x.c.horizon, x.c.horizon / torch.where(x.lr > 0, x.lr, 1.0), 1.0), state

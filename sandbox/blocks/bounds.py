"""Rectifiers that scale or bound: AdaBound's closing bounds, Sophia's scaled floor."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sandbox.blocks.base import Flow, block
from sandbox.blocks.number import Number, number
from sandbox.blocks.slots import Rectifier
from sandbox.blocks.wrapper import Wrapper


@block
class CorrectedRoot(Rectifier):
    """D = (√v + ε)/√(1-βᵗ)   (AdaBound: ε is corrected too).

    Takes the uncorrected second moment: SecondMoment(bias_correction=False) with the same beta.
    beta: β in [0, 1).  eps: ε ≥ 0, in units of the gradient.
    """

    beta: Number = number(default=0.999, range="[0, 1)")
    eps: Number = number(default=1e-8, range="[0, inf)")
    recalls = False
    latex = r"D_t = (\sqrt{\bar B_t} + \epsilon)/\sqrt{1-\beta^t}"

    def coefficients(self, t: Any) -> dict[str, Any]:
        """1/√(1-β^t)."""
        return {"scale": (1 - self.beta**t) ** -0.5}

    def step(self, x: Flow, **state: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """D."""
        # D = (√v + ε) / √(1-β^t)
        return (x.value.sqrt() + self.eps) * x.c.scale, state


@block
class Shift(Rectifier):
    """D = B̄ + δ   (damping, as K-FAC has it; for B̄ ≥ 0).

    damping: δ > 0, in units of B.
    """

    damping: Number = number(default=1e-3, range="(0, inf)")
    latex = r"D_t = \bar B_t + \delta"

    def read(self, B: Tensor) -> Tensor:
        """B̄ + δ."""
        # D = B̄ + δ
        return B + self.damping


@block
class Scaled(Rectifier):
    """D = max(γ B̄, ε)   (Liu et al. 2023, Sophia: where the curvature is negative the solver's limit decides).

    gamma: γ > 0.  eps: ε > 0, in units of γ B.
    """

    gamma: Number = number(default=0.01, range="(0, inf)")
    eps: Number = number(default=1e-12, range="(0, inf)")
    latex = r"D_t = \max(\gamma \bar B_t, \epsilon)"

    def read(self, B: Tensor) -> Tensor:
        """max(γ B̄, ε)."""
        # D = max(γ B̄, ε)
        return (self.gamma * B).clamp(min=self.eps)

    def on_floor(self, B: Tensor) -> Tensor:
        """γ B̄ ≤ ε."""
        return self.gamma * B <= self.eps


@block
class Bound(Wrapper, Rectifier):
    """D = min(max(D, 1/(b r (1 + 1/(γt)))), 1/(b r (1 - 1/(γt+1)))),  b = 1-βᵗ   (Luo et al. 2019, AdaBound's code).

    The D on the right is the inner rectifier's.  A coordinate's rate, η/(bD), lies in bounds that close on rη: at first the
    method is the inner one, in the end momentum SGD with that rate.  (In the authors' code m is not corrected, so their rate
    holds the correction b of the moment.)
    inner: any rectifier.
    ratio: r > 0, the final rate over η; theirs is final_lr = 0.1 over lr = 0.001.
    gamma: γ > 0, how fast the bounds close.
    beta: β in [0, 1), of a bias-corrected moment; 0 for an uncorrected one, b = 1.
    """

    inner: Rectifier = CorrectedRoot()
    ratio: Number = number(default=100.0, range="(0, inf)")
    gamma: Number = number(default=1e-3, range="(0, inf)")
    beta: Number = number(default=0.9, range="[0, 1)")
    recalls = False
    own_latex = (
        r"D_t \leftarrow \min(\max(D_t, \frac{1}{b_t r (1 + 1/(\gamma t))}), \frac{1}{b_t r (1 - 1/(\gamma t + 1))}),"
        r"\quad b_t = 1-\beta^t"
    )

    def coefficients(self, t: Any) -> dict[str, Any]:
        """Both bounds, and what the inner rectifier asks for."""
        b = (1 - self.beta**t) * self.ratio
        low, high = 1 / (b * (1 + 1 / (self.gamma * t))), 1 / (b * (1 - 1 / (self.gamma * t + 1)))
        return {**super().coefficients(t), "low": low, "high": high}

    def step(self, x: Flow, **inner: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """D, and the inner rectifier's state."""
        D, inner = self.inner_step(x, **inner)
        # D = min(max(D, low), high)
        return torch.minimum(torch.maximum(D, x.c.low), x.c.high), inner

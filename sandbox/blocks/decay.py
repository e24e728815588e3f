"""Weight decay outside the gradient (inside it: `L2Decay`).  u = m/D is the direction before decay."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sandbox.blocks.base import TENSOR, Decay, Flow, Number, block, number


@block
class NoDecay(Decay):
    """d = u."""

    text = "d = m/D"
    latex = r"d_t = m_t/D_t"


@block
class Decoupled(Decay):
    """d = u + γ θ: part of the direction, so the next secant step sees it while y does not   (the author's code; paper 3.4).

    The previous direction is recalled from θ as it stands: θ_{t-1} = θ_t + η d gives d = (u + γ θ_t)/(1 - γη).
    weight_decay: γ ≥ 0, with γη < 1 (checked by the optimizer).
    """

    weight_decay: Number = number(default=5e-4, range="[0, inf)")
    in_direction = True
    state = {"rate": TENSOR, "shrink": TENSOR}
    text = "d = m/D + γ θ"
    latex = r"d_t = m_t/D_t + \gamma\,\theta_{t-1}"

    def initial(self, name: str) -> Any:
        """No decay before the first step: d_0 = 0."""
        return 1.0 if name == "shrink" else 0.0

    def check_lr(self, lr: float) -> None:
        """γη < 1, or a step would turn θ around, and d could not be recalled."""
        if isinstance(self.weight_decay, float) and self.weight_decay * lr >= 1:
            raise ValueError(f"{type(self).__name__}: weight_decay * lr must be below 1, got {self.weight_decay:g} * {lr:g}")

    def effective(self, x: Flow) -> Any:
        """γ."""
        return self.weight_decay

    def update(self, x: Flow, *, rate: Tensor, shrink: Tensor) -> dict[str, Tensor]:
        """What recalls d: γ as it was, and 1 - γη."""
        rate = self.effective(x)
        return {"rate": rate, "shrink": 1 - rate * x.lr}

    def add(self, u: Tensor, theta: Tensor, *, rate: Tensor, shrink: Tensor) -> Tensor:
        """u + γ θ."""
        # d = u + γ θ
        return u + rate * theta

    def recall(self, u: Tensor, theta: Tensor, *, rate: Tensor, shrink: Tensor) -> Tensor:
        """The previous d; without its decay in the one case where γη = 1, and θ holds no trace of it."""
        # d = (u + γ θ_t) / (1 - γη)
        return torch.where(shrink == 0, u, (u + rate * theta) / torch.where(shrink == 0, 1.0, shrink))


@block
class Stable(Decoupled):
    """d = u + γ/mean(D) θ, the mean over each tensor   (the author's code, `weight_decay_type="stable"`).

    weight_decay: γ ≥ 0, in units of D.
    """

    weight_decay: Number = number(default=5e-4, range="[0, inf)")
    text = "d = m/D + γ/mean(D) θ"
    latex = r"d_t = m_t/D_t + \frac{\gamma}{\mathrm{mean}(D_t)}\,\theta_{t-1}"

    def check_lr(self, lr: float) -> None:
        """Any rate: what counts is γ / mean(D), known only in the step."""

    def effective(self, x: Flow) -> Any:
        """γ / mean(D), one number a tensor."""
        # γ / mean(D)
        return self.weight_decay / x.tensor.mean(x.D)


@block
class AdamWDecay(Decay):
    """θ ← (1 - ηγ) θ before the step; d does not contain it   (Loshchilov & Hutter 2019, `torch.optim.AdamW`).

    weight_decay: γ ≥ 0.
    """

    weight_decay: Number = number(default=1e-2, range="[0, inf)")
    text = "d = m/D;  θ = (1 - ηγ) θ"
    latex = r"d_t = m_t/D_t,\quad \theta \leftarrow (1-\eta\gamma)\,\theta"

    def shrink(self, x: Flow) -> Tensor:
        """(1 - ηγ) θ."""
        # θ ← (1 - ηγ) θ
        return (1 - x.lr * self.weight_decay) * x.theta

"""Weight decay outside the gradient (inside it: `L2Decay`).  u = m/D is the direction before decay."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sandbox.blocks.base import TENSOR, Flow, block
from sandbox.blocks.number import Number, number
from sandbox.blocks.slots import Decay


def before(u: Tensor, theta: Tensor, gamma: Any, lr: Any) -> Tensor:
    """The d that led to θ: u + γ θ_{t-1}, where θ_{t-1} = θ_t + η d; u where γη = 1, since θ then holds no trace of θ_{t-1}."""
    # d = (u + γ θ_t) / (1 - γη)
    rest = 1 - gamma * lr
    return torch.where(rest == 0, u, (u + gamma * theta) / torch.where(rest == 0, 1.0, rest))


@block
class NoDecay(Decay):
    """d = m/D"""

    latex = r"d_t = m_t/D_t"


@block
class Decoupled(Decay):
    """d = m/D + γ θ   (the author's code; paper, section 3.4)

    The decay is part of the direction, so that the next secant step sees it while y does not.
    weight_decay: γ ≥ 0, with γη < 1.
    """

    weight_decay: Number = number(default=5e-4, range="[0, inf)")
    in_direction = True
    latex = r"d_t = m_t/D_t + \gamma\,\theta_{t-1}"

    def check_lr(self, lr: float) -> None:
        """γη < 1, or a step would turn θ around, and d could not be recalled."""
        if isinstance(self.weight_decay, float) and self.weight_decay * lr >= 1:
            raise ValueError(f"{type(self).__name__}: weight_decay * lr must be below 1, got {self.weight_decay:g} * {lr:g}")

    def add(self, u: Tensor, theta: Tensor) -> Tensor:
        """u + γ θ."""
        # d = u + γ θ
        return u + self.weight_decay * theta

    def recall(self, u: Tensor, theta: Tensor, lr: Any) -> Tensor:
        """The previous d."""
        return before(u, theta, self.weight_decay, lr)


@block
class Stable(Decay):
    """d = m/D + γ/mean(D) θ   (the author's code, `weight_decay_type="stable"`)

    The mean is taken over each tensor.  weight_decay: γ ≥ 0, in units of D.
    """

    weight_decay: Number = number(default=5e-4, range="[0, inf)")
    in_direction = True
    state = {"gamma": TENSOR}
    reads = ()
    latex = r"d_t = m_t/D_t + \frac{\gamma}{\mathrm{mean}(D_t)}\,\theta_{t-1}"

    def update(self, x: Flow, *, gamma: Tensor) -> dict[str, Tensor]:
        """γ / mean(D), one number per tensor."""
        # γ / mean(D)
        return {"gamma": self.weight_decay / x.tensor.mean(x.D)}

    def add(self, u: Tensor, theta: Tensor, *, gamma: Tensor) -> Tensor:
        """u + γ/mean(D) θ."""
        # d = u + γ/mean(D) θ
        return u + gamma * theta

    def recall(self, u: Tensor, theta: Tensor, lr: Any, *, gamma: Tensor) -> Tensor:
        """The previous d."""
        return before(u, theta, gamma, lr)


@block
class AdamWDecay(Decay):
    """d = m/D;  θ = (1 - ηγ) θ   (Loshchilov & Hutter 2019, `torch.optim.AdamW`)

    θ is decayed before the step, and d does not contain it.  weight_decay: γ ≥ 0.
    """

    weight_decay: Number = number(default=1e-2, range="[0, inf)")
    latex = r"d_t = m_t/D_t,\quad \theta \leftarrow (1-\eta\gamma)\,\theta"

    def shrink(self, x: Flow) -> Tensor:
        """(1 - ηγ) θ."""
        # θ ← (1 - ηγ) θ
        return (1 - x.lr * self.weight_decay) * x.theta


@block
class ProximalDecay(Decay):
    """d = m/D/(1 + ηγ);  θ = θ/(1 + ηγ)   (Xie et al. 2022, Adan: the decay as a proximal step after the other one)

    weight_decay: γ ≥ 0.
    """

    weight_decay: Number = number(default=0.02, range="[0, inf)")
    latex = r"d_t = m_t/D_t/(1+\eta\gamma),\quad \theta \leftarrow \theta/(1+\eta\gamma)"

    def step(self, x: Flow, **state: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """u/(1 + ηγ)."""
        # d = u / (1 + ηγ)
        return x.value / (1 + x.lr * self.weight_decay), state

    def recall(self, u: Tensor, theta: Tensor, lr: Any) -> Tensor:
        """The previous d."""
        # d = u / (1 + ηγ)
        return u / (1 + lr * self.weight_decay)

    def shrink(self, x: Flow) -> Tensor:
        """θ/(1 + ηγ)."""
        # θ ← θ / (1 + ηγ)
        return x.theta / (1 + x.lr * self.weight_decay)

"""Gradient blocks, applied in the order given: L2 decay and clipping."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sandbox.blocks.base import ELEMENT, Flow, block
from sandbox.blocks.number import Number, number
from sandbox.blocks.slots import Gradient


@block
class L2Decay(Gradient):
    """g = g + γ θ   (paper, section 3.4: the decay enters everything after it, so also m, y and the floor).

    weight_decay: γ ≥ 0, in 1/(units of θ²) of the loss.
    """

    weight_decay: Number = number(default=5e-4, range="[0, inf)")
    affine = True
    latex = r"g \leftarrow g + \gamma\,\theta"

    def step(self, x: Flow, **state: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """g + γ θ."""
        # g ← g + γ θ
        return x.value + self.weight_decay * x.theta, state


@block
class ClipValue(Gradient):
    """g = min(max(g, -c), c)   (`torch.nn.utils.clip_grad_value_`).

    max_value: c > 0, in units of the gradient.
    """

    max_value: Number = number(default=1.0, range="(0, inf)")
    latex = r"g \leftarrow \min(\max(g, -c), c)"

    def read(self, g: Tensor, **state: Tensor) -> Tensor:
        """g clipped to [-c, c]."""
        # g ← min(max(g, -c), c)
        return g.clamp(min=-self.max_value).clamp(max=self.max_value)


@block
class ClipParameterNorm(Gradient):
    """g = g min(1, c/‖g‖₂), each tensor   (paper, appendix: c = 0.5 for the LSTM, 0.1 for the Transformer).

    max_norm: c > 0, in units of the gradient.
    """

    max_norm: Number = number(default=0.5, range="(0, inf)")
    latex = r"g \leftarrow g \min(1, c/\lVert g \rVert_2) \quad\text{each tensor}"

    def step(self, x: Flow, **state: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """g scaled down to norm c, tensor by tensor."""
        # g ← g min(1, c / ‖g‖₂)
        norm = x.tensor.sum(x.value.square()).sqrt()
        return x.value * x.tensor.spread((self.max_norm / norm).clamp(max=1.0)), state


@block
class ClipGlobalNorm(Gradient):
    """g = g min(1, c/‖g‖₂), all tensors   (`torch.nn.utils.clip_grad_norm_`).

    The norm is that of the raw gradients of all tensors of the optimizer, so this block must come first.
    max_norm: c > 0, in units of the gradient.
    """

    max_norm: Number = number(default=1.0, range="(0, inf)")
    needs = ("grad_norm",)
    latex = r"g \leftarrow g \min(1, c/\lVert g \rVert_2) \quad\text{all tensors}"

    def step(self, x: Flow, **state: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """g scaled down so that all gradients together have norm at most c."""
        # g ← g min(1, c / ‖g‖₂)
        return x.value * (self.max_norm / x.grad_norm).clamp(max=1.0), state


@block
class AmplifySlow(Gradient):
    """g ← g + λ h,  h = α h + (1-α) g, h = g at first   (Lee et al. 2024, GrokFast: the slow part of the gradient counts more)

    beta: α in [0, 1).  gain: λ ≥ 0.
    """

    beta: Number = number(default=0.98, range="[0, 1)")
    gain: Number = number(default=2.0, range="[0, inf)")
    state = {"h": ELEMENT}
    latex = r"g \leftarrow g + \lambda h_t,\quad h_t = \alpha h_{t-1} + (1-\alpha) g"

    def step(self, x: Flow, *, h: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """The amplified gradient, and h."""
        # h = α h + (1-α) g
        h = torch.where(x.t > 1, self.beta * h + (1 - self.beta) * x.value, x.value)
        # g ← g + λ h
        return x.value + self.gain * h, {"h": h}


@block
class VarianceReduction(Gradient):
    """g = g + γ β/(1-β) (g - g'), g' the previous one   (Yuan et al. 2024, MARS, in the form of the authors' code).

    The paper's exact form has the new batch's gradient at the previous point for g'.  Here, as in the code, g' = 0 at first.
    gamma: γ ≥ 0.  beta: β in [0, 1), of the moment.
    """

    gamma: Number = number(default=0.025, range="[0, inf)")
    beta: Number = number(default=0.95, range="[0, 1)")
    state = {"g": ELEMENT}
    latex = r"g \leftarrow g + \gamma \frac{\beta}{1-\beta} (g - g_{t-1})"

    def coefficients(self, t: Any) -> dict[str, Any]:
        """γ β/(1-β)."""
        return {"weight": self.gamma * self.beta / (1 - self.beta)}

    def step(self, x: Flow, *, g: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """The corrected gradient, and the one that was given."""
        # g + γ β/(1-β) (g - g')
        return x.value + x.c.weight * (x.value - g), {"g": x.value}

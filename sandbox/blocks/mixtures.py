"""Moments whose output mixes two averages, or two differences, of the gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sandbox.blocks.base import ELEMENT, Flow, block
from sandbox.blocks.moment import RawEMA
from sandbox.blocks.number import Number, number
from sandbox.blocks.slots import Moment


@block
class TwoRates(Moment):
    """u = β m + (1-β) g;  m = β₂ m + (1-β₂) g   (Chen et al. 2023, Lion: the output forgets faster than the memory).

    beta: β in [0, 1), the share of the past in the output.  memory_beta: β₂ in [0, 1), its share in what is remembered.
    """

    beta: Number = number(default=0.9, range="[0, 1)")
    memory_beta: Number = number(default=0.99, range="[0, 1)")
    state = {"m": ELEMENT}
    recalls = False
    latex = r"u_t = \beta m_{t-1} + (1-\beta) g_t,\quad m_t = \beta_2 m_{t-1} + (1-\beta_2) g_t"

    def weight(self, t: Any) -> Any:
        """1 - β₂."""
        return 1 - self.memory_beta

    def step(self, x: Flow, *, m: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """The output, and m."""
        # u_t = β m_{t-1} + (1-β) g
        u = self.beta * m + (1 - self.beta) * x.value
        # m_t = β₂ m_{t-1} + (1-β₂) g
        return u, {"m": self.memory_beta * m + (1 - self.memory_beta) * x.value}


@block
class FastAndSlow(RawEMA):
    """m = β m + (1-β) g;  l = β₃ l + (1-β₃) g;  u = m/(1-βᵗ) + α l   (Pagliardini et al. 2024, AdEMAMix).

    The slow average l is not corrected for its start at 0.  The paper's warm-ups are functions of t for α and β₃.
    beta: β in [0, 1).  slow_beta: β₃ in [0, 1).  alpha: α ≥ 0, the weight of the slow average.
    """

    beta: Number = number(default=0.9, range="[0, 1)")
    slow_beta: Number = number(default=0.9999, range="[0, 1)")
    alpha: Number = number(default=2.0, range="[0, inf)")
    state = {"m": ELEMENT, "slow": ELEMENT}
    latex = (
        r"m_t = \beta m_{t-1} + (1-\beta) g_t,\quad l_t = \beta_3 l_{t-1} + (1-\beta_3) g_t,\quad "
        r"u_t = m_t/(1-\beta^t) + \alpha l_t"
    )

    def step(self, x: Flow, *, m: Tensor, slow: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """The mixture, and both averages."""
        # m_t = β m_{t-1} + (1-β) g;  l_t = β₃ l_{t-1} + (1-β₃) g
        m = self.beta * m + (1 - self.beta) * x.value
        slow = self.slow_beta * slow + (1 - self.slow_beta) * x.value
        # u_t = m_t/(1-β^t) + α l_t
        return m * x.c.unbias + self.alpha * slow, {"m": m, "slow": slow}


def change(x: Flow) -> Tensor:
    """g_t - g_{t-1}, 0 at the first step."""
    return torch.where(x.t > 1, x.g - x.g_old, 0.0)


@block
class NesterovMoment(RawEMA):
    """m = β m + (1-β) g;  w = β₂ w + (1-β₂)(g - g');  u = m/(1-βᵗ) + β₂ w/(1-β₂ᵗ)   (Xie et al. 2022, Adan).

    g' is the previous g.  Both β are shares of the past, as in the authors' code; their paper's are the other shares.
    beta: β in [0, 1).  change_beta: β₂ in [0, 1).
    """

    beta: Number = number(default=0.98, range="[0, 1)")
    change_beta: Number = number(default=0.92, range="[0, 1)")
    needs = ("g_old",)
    state = {"m": ELEMENT, "w": ELEMENT}
    latex = (
        r"m_t = \beta m_{t-1} + (1-\beta) g_t,\quad w_t = \beta_2 w_{t-1} + (1-\beta_2)(g_t - g_{t-1}),\quad "
        r"u_t = m_t/(1-\beta^t) + \beta_2 w_t/(1-\beta_2^t)"
    )

    def coefficients(self, t: Any) -> dict[str, Any]:
        """1/(1-β^t) and β₂/(1-β₂^t)."""
        return {**super().coefficients(t), "change": self.change_beta / (1 - self.change_beta**t)}

    def step(self, x: Flow, *, m: Tensor, w: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """The look ahead, and both averages."""
        # m_t = β m_{t-1} + (1-β) g;  w_t = β₂ w_{t-1} + (1-β₂)(g_t - g_{t-1})
        m = self.beta * m + (1 - self.beta) * x.value
        w = self.change_beta * w + (1 - self.change_beta) * change(x)
        # u_t = m_t/(1-β^t) + β₂ w_t/(1-β₂^t)
        return m * x.c.unbias + x.c.change * w, {"m": m, "w": w}


@block
class NesterovEMA(RawEMA):
    """m = β m + (1-β) g;  u = β m + (1-β) g   (Jordan et al. 2024, Muon: one step ahead on the average).

    beta: β in [0, 1).  bias_correction: True divides u by 1-βᵗ (NAdamW, AlgoPerf's baseline).
    """

    beta: Number = number(default=0.95, range="[0, 1)")
    bias_correction: bool = False

    @property
    def text(self) -> str:
        """The equation, with or without correction."""
        u = "(β m + (1-β) g)/(1-βᵗ)" if self.bias_correction else "β m + (1-β) g"
        return f"m = β m + (1-β) g;  u = {u}"

    @property
    def latex(self) -> str:
        """The equation, with or without correction."""
        u = r"\beta m_t + (1-\beta) g_t"
        return r"m_t = \beta m_{t-1} + (1-\beta) g_t,\quad u_t = " + (rf"({u})/(1-\beta^t)" if self.bias_correction else u)

    def step(self, x: Flow, *, m: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """One step ahead, and m."""
        # m_t = β m_{t-1} + (1-β) g
        m = self.beta * m + (1 - self.beta) * x.value
        # u_t = β m_t + (1-β) g, over 1-β^t where it is corrected
        u = self.beta * m + (1 - self.beta) * x.value
        return (u * x.c.unbias if self.bias_correction else u), {"m": m}

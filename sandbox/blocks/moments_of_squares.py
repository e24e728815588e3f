"""Curvatures that average squares or Hessian diagonals otherwise than Adam: EAdam's, Adan's, Sophia's."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from sandbox.blocks.base import ELEMENT, Flow, block
from sandbox.blocks.mixtures import change
from sandbox.blocks.number import Number, number, where, whole
from sandbox.blocks.slots import Curvature


@block
class ShiftedSecondMoment(Curvature):
    """v = β v + (1-β) g² + ε;  B = v/(1-βᵗ)   (Yuan & Gao 2020, EAdam: ε accumulates).

    beta: β in [0, 1).  eps: ε ≥ 0, in units of g².
    """

    beta: Number = number(default=0.999, range="[0, 1)")
    eps: Number = number(default=1e-8, range="[0, inf)")
    recalls = False
    state = {"v": ELEMENT}
    latex = r"v_t = \beta v_{t-1} + (1-\beta) g_t^2 + \epsilon,\quad B_t = v_t/(1-\beta^t)"

    def coefficients(self, t: Any) -> dict[str, Any]:
        """1/(1-β^t)."""
        return {"unbias": 1 / (1 - self.beta**t)}

    def step(self, x: Flow, *, v: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """B and v."""
        # v_t = β v_{t-1} + (1-β) g² + ε
        v = self.beta * v + (1 - self.beta) * x.g.square() + self.eps
        # B = v / (1-β^t)
        return v * x.c.unbias, {"v": v}


@block
class NesterovSecondMoment(Curvature):
    """n = β n + (1-β)(g + β₂(g - g'))²;  B = n/(1-βᵗ)   (Xie et al. 2022, Adan; g' is the previous g).

    beta: β in [0, 1), the share of the past.  change_beta: β₂ in [0, 1), as in `NesterovMoment`.
    """

    beta: Number = number(default=0.99, range="[0, 1)")
    change_beta: Number = number(default=0.92, range="[0, 1)")
    needs = ("g_old",)
    recalls = False
    state = {"n": ELEMENT}
    latex = r"n_t = \beta n_{t-1} + (1-\beta)(g_t + \beta_2(g_t - g_{t-1}))^2,\quad B_t = n_t/(1-\beta^t)"

    def coefficients(self, t: Any) -> dict[str, Any]:
        """1/(1-β^t)."""
        return {"unbias": 1 / (1 - self.beta**t)}

    def step(self, x: Flow, *, n: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """B and n."""
        # n_t = β n_{t-1} + (1-β)(g + β₂(g - g'))²
        n = self.beta * n + (1 - self.beta) * (x.g + self.change_beta * change(x)).square()
        # B = n / (1-β^t)
        return n * x.c.unbias, {"n": n}


@block
class HessianEMA(Curvature):
    """B = β B + (1-β) z ⊙ Hz at t = 1, 1+k, 1+2k, …   (Liu et al. 2023, Sophia-H; z = ±1 here, Gaussian there).

    The product z ⊙ Hz is asked for at every step and left out at the others.
    beta: β in [0, 1).  every: k ≥ 1, steps between two looks at the Hessian.
    """

    beta: Number = number(default=0.99, range="[0, 1)")
    every: int = 10
    needs = ("hessian",)
    state = {"B": ELEMENT}
    estimates = "B"
    latex = r"B_t = \beta B_{t-1} + (1-\beta)\, z \odot H z \quad\text{every } k \text{ steps}"

    def check(self) -> None:
        """every ≥ 1."""
        whole(self, "every", 1)

    def coefficients(self, t: Any) -> dict[str, Any]:
        """Shares of the newest product and of the past."""
        due = (t - 1) % self.every == 0
        return {"a": where(due, 1 - self.beta, 0.0), "keep": where(due, self.beta, 1.0)}

    def update(self, x: Flow, *, B: Tensor) -> dict[str, Tensor]:
        """The average of z ⊙ Hz."""
        # B ← β B + (1-β) z ⊙ Hz
        return {"B": x.c.keep * B + x.c.a * x.hessian}

    def estimate(self, B: Tensor, x: Flow) -> Tensor:
        """B: it starts at 0 and is not corrected for that."""
        return B


@block
class GaussNewtonEMA(HessianEMA):
    """B = β B + (1-β) n·ĝ² at t = 1, 1+k, 1+2k, …   (Liu et al. 2023, Sophia-G)

    n: the batch's number of labels.  ĝ: the gradient of the mean loss over n labels that are drawn from the model instead of
    the given ones.  Their gradients are independent with mean 0, so n·E[ĝ²] is the Gauss-Newton diagonal of the mean loss.
    The step's input "sampled" is √n·ĝ.  It is taken at every step and used at one of k.
    beta: β in [0, 1).  every: k ≥ 1, steps between two looks.
    """

    needs = ("sampled",)
    latex = r"B_t = \beta B_{t-1} + (1-\beta)\, n \hat g^2 \quad\text{every } k \text{ steps}"

    def update(self, x: Flow, *, B: Tensor) -> dict[str, Tensor]:
        """The average of n·ĝ² = (√n·ĝ)²."""
        # B ← β B + (1-β) (√n·ĝ)²
        return {"B": x.c.keep * B + x.c.a * x.sampled.square()}

"""Curvature: the diagonal B that a method estimates from what a step has seen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sandbox.blocks.base import ELEMENT, Flow, block
from sandbox.blocks.number import Number, number
from sandbox.blocks.slots import Curvature


@block
class WeakSecant(Curvature):
    """Apollo's rule: the diagonal closest to B in Frobenius norm that satisfies the weak secant equation sᵀB's = sᵀy.

        α = (dᵀy + dᵀB d) / (‖d‖₄ + ε)⁴,  α = 0 where d = 0;    B ← B - (1-δ) α d²     (paper, eq. 13 and Algorithm 1)

    Where ‖d‖₄⁴ overflows (|d| > 1e9 in float32), α = 0 too: B stays, and θ stays finite.

    Sums run over the recipe's scope.  With the stepsize correction (s = -ηd, y replaced by ηy) the rule is free of η and
    **B estimates ηH**.  Without it, y counts as it is, dᵀy becomes dᵀy/η with the rate η of the last step, and B
    estimates H itself.

    eps: ε ≥ 0, added to the norm of d (units of d); the author's code has ε/σ here.
    damping: δ in [0, 1), the share of the old estimate kept inside the recursion ("hessian-damped": δ = β₂).
    """

    eps: Number = number(default=1e-4, range="[0, inf)")
    damping: Number = number(default=0.0, range="[0, 1)")
    stepsize_correction: bool = True
    needs = ("d_old", "y")
    state = {"B": ELEMENT}

    @property
    def text(self) -> str:
        """The equation as configured."""
        y = "dᵀy" if self.stepsize_correction else "dᵀy/η"
        return f"α = ({y} + dᵀB d)/(‖d‖₄ + ε)⁴;  B = B - (1-δ) α d²"

    @property
    def latex(self) -> str:
        """The equation as configured."""
        y = "d^T y" if self.stepsize_correction else r"d^T y/\eta"
        return (
            rf"\alpha = \frac{{{y} + d^T B d}}{{(\lVert d\rVert_4 + \epsilon)^4}},\quad "
            r"B \leftarrow B - (1-\delta)\,\alpha\, d^2"
        )

    def update(self, x: Flow, *, B: Tensor) -> dict[str, Tensor]:
        """B after the rank-one correction along d."""
        d, y, total = x.d_old, x.y, x.scope.sum
        # dᵀy, over the rate of the last step where the rule does not correct y for it;  dᵀB d
        dy = total(d * y) if self.stepsize_correction else total(d * y) / torch.where(x.lr_old > 0, x.lr_old, 1.0)
        dBd = total(B * d * d)
        # ‖d‖₄;  two square roots, exact for powers of two;  any number will do where d = 0
        d4 = total(d.square().square())
        moved = (d4 > 0) & (d4 < float("inf"))
        if not self.stepsize_correction:
            moved = moved & (x.lr_old > 0)
        norm = torch.where(moved, d4, 1.0).sqrt().sqrt()
        # α = (dᵀy + dᵀB d) / (‖d‖₄ + ε)⁴,  0 where nothing moved
        alpha = torch.where(moved, (dy + dBd) / (norm + self.eps).square().square(), 0.0)
        # B ← B - (1-δ) α d²
        return {"B": B - x.scope.spread((1 - self.damping) * alpha) * d * d}

    @property
    def estimates(self) -> str:
        """How B estimates H."""
        return "B/η" if self.stepsize_correction else "B"

    def estimate(self, B: Tensor, x: Flow) -> Tensor:
        """B/η with the rate that made the last displacement; B itself without the stepsize correction."""
        return B / x.lr_old if self.stepsize_correction else B

    def residual(self, x: Flow) -> Tensor:
        """|dᵀB d + dᵀy| / (|dᵀB d| + |dᵀy|) of the new B, summed over all of d; 0 where both are 0."""
        dBd, dy = (x.B * x.d_old * x.d_old).sum(), (x.d_old * x.y).sum()
        dy = dy if self.stepsize_correction else dy / x.lr_old
        size = dBd.abs() + dy.abs()
        return torch.where(size > 0, (dBd + dy).abs() / torch.where(size > 0, size, 1.0), 0.0)


@block
class SecondMoment(Curvature):
    """v_t = β v_{t-1} + (1-β) g²;  B = v/(1-β^t)   (Adam, RMSprop; AMSGrad with `maximum`).

    beta: β in [0, 1).  bias_correction: False gives B = v.
    maximum: divide the largest v so far instead, max first and correction after, as torch.optim's AMSGrad does.
    """

    beta: Number = number(default=0.999, range="[0, 1)")
    bias_correction: bool = True
    maximum: bool = False

    @property
    def state(self) -> Mapping[str, str]:
        """v, and its maximum where that is kept."""
        return {"v": ELEMENT} | ({"v_max": ELEMENT} if self.maximum else {})

    @property
    def recalls(self) -> bool:
        """Only without bias correction: it needs t."""
        return not self.bias_correction

    @property
    def text(self) -> str:
        """The equation as configured."""
        v = "v̂ = max(v̂, v)" if self.maximum else ""
        return "v = β v + (1-β) g²;  " + (f"{v};  " if v else "") + f"B = {'v̂' if v else 'v'}" + self._unbias("/(1-βᵗ)")

    @property
    def latex(self) -> str:
        """The equation as configured."""
        v = r"\hat v_t = \max(\hat v_{t-1}, v_t),\quad " if self.maximum else ""
        B = r"\hat v_t" if self.maximum else "v_t"
        return rf"v_t = \beta v_{{t-1}} + (1-\beta) g_t^2,\quad {v}B_t = {B}" + self._unbias(r"/(1-\beta^t)")

    def _unbias(self, text: str) -> str:
        return text if self.bias_correction else ""

    def coefficients(self, t: Any) -> dict[str, Any]:
        """1/(1-β^t)."""
        return {"unbias": 1 / (1 - self.beta**t)} if self.bias_correction else {}

    def read(self, value: Any, *, v: Tensor, v_max: Tensor | None = None) -> Tensor:
        """The state that B comes from."""
        return v if v_max is None else v_max

    def step(self, x: Flow, *, v: Tensor, **state: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """B and v."""
        # v_t = β v_{t-1} + (1-β) g²
        state["v"] = self.beta * v + (1 - self.beta) * x.g.square()
        if self.maximum:
            # v̂_t = max(v̂_{t-1}, v_t)
            state["v_max"] = torch.maximum(state["v_max"], state["v"])
        # B = v / (1-β^t)
        B = self.read(None, **state)
        return (B * x.c.unbias if self.bias_correction else B), state


@block
class CenteredSecondMoment(Curvature):
    """v = β v + (1-β) g²;  a = β a + (1-β) g;  B = v - a²   (RMSprop, centered).

    beta: β in [0, 1).
    """

    beta: Number = number(default=0.99, range="[0, 1)")
    latex = r"v_t = \beta v_{t-1} + (1-\beta) g_t^2,\quad a_t = \beta a_{t-1} + (1-\beta) g_t,\quad B_t = v_t - a_t^2"
    state = {"v": ELEMENT, "mean": ELEMENT}

    def update(self, x: Flow, *, v: Tensor, mean: Tensor) -> dict[str, Tensor]:
        """Both averages."""
        # v_t = β v_{t-1} + (1-β) g²
        v = self.beta * v + (1 - self.beta) * x.g.square()
        # a_t = β a_{t-1} + (1-β) g
        return {"v": v, "mean": self.beta * mean + (1 - self.beta) * x.g}

    def read(self, value: Any, *, v: Tensor, mean: Tensor) -> Tensor:
        """v - a²."""
        # B = v - a²
        return v - mean.square()


@block
class Belief(Curvature):
    """s = β s + (1-β)(g - m)² + ε;  B = s/(1-βᵗ)   (Zhuang et al. 2020, AdaBelief, Algorithm 2).

    m_t is the moment's own average; AdaBelief takes the uncorrected one, so pair it with RawEMA.
    beta: β in [0, 1).  eps: ε ≥ 0, which accumulates inside the recursion as in the authors' code; 0 leaves it out.
    """

    beta: Number = number(default=0.999, range="[0, 1)")
    eps: Number = number(default=1e-8, range="[0, inf)")
    needs = ("m",)
    recalls = False
    state = {"s": ELEMENT}
    latex = r"s_t = \beta s_{t-1} + (1-\beta)(g_t - m_t)^2 + \epsilon,\quad B_t = s_t/(1-\beta^t)"

    def coefficients(self, t: Any) -> dict[str, Any]:
        """1/(1-β^t)."""
        return {"unbias": 1 / (1 - self.beta**t)}

    def step(self, x: Flow, *, s: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """B and s."""
        # s_t = β s_{t-1} + (1-β)(g - m_t)² + ε
        s = self.beta * s + (1 - self.beta) * (x.g - x.m).square() + self.eps
        # B = s / (1-β^t)
        return s * x.c.unbias, {"s": s}


@block
class SumOfSquares(Curvature):
    """B = B + g²   (Adagrad).

    start: B_0 ≥ 0, torch.optim's `initial_accumulator_value`.
    """

    start: Number = number(default=0.0, range="[0, inf)")
    state = {"B": ELEMENT}
    latex = r"B_t = B_{t-1} + g_t^2"

    def initial(self, name: str) -> Any:
        """B_0."""
        return self.start

    def update(self, x: Flow, *, B: Tensor) -> dict[str, Tensor]:
        """The sum so far."""
        # B_t = B_{t-1} + g²
        return {"B": B + x.g.square()}


@block
class Hutchinson(Curvature):
    """h = z ⊙ Hz;  v = β v + (1-β) h²;  B = v/(1-βᵗ)   (Yao et al. 2021, AdaHessian; z = ±1 with equal odds).

    beta: β in [0, 1).
    spatial_average: replace h by the mean of |h| over a convolution kernel's spatial axes (4-d tensors, as the authors do).
    """

    beta: Number = number(default=0.999, range="[0, 1)")
    spatial_average: bool = False
    needs = ("hessian",)
    recalls = False
    state = {"v": ELEMENT}
    estimates = "√B"
    latex = r"h_t = z \odot H z,\quad v_t = \beta v_{t-1} + (1-\beta) h_t^2,\quad B_t = v_t/(1-\beta^t)"

    def equation(self, slot: str, *, latex: bool = False) -> str:
        """The equation, with the average over a kernel where there is one."""
        text, h = super().equation(slot, latex=latex), r"h_t = z \odot H z" if latex else "h = z ⊙ Hz"
        mean = (
            r"\ (\text{4-d: } \operatorname{mean}_{\text{kernel}} |z \odot H z|)"
            if latex
            else " (4-d: mean of |z ⊙ Hz| over a kernel)"
        )
        return text.replace(h, h + mean) if self.spatial_average else text

    def hessian(self, z: Tensor, Hz: Tensor) -> Tensor:
        """z ⊙ Hz, averaged in magnitude over the kernel's positions where asked."""
        # h = z ⊙ Hz
        h = z * Hz
        if self.spatial_average and h.ndim == 4:
            # h ← mean of |h| over the kernel
            h = h.abs().mean(dim=(2, 3), keepdim=True).expand_as(h)
        return h

    def coefficients(self, t: Any) -> dict[str, Any]:
        """1/(1-β^t)."""
        return {"unbias": 1 / (1 - self.beta**t)}

    def step(self, x: Flow, *, v: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """B and v."""
        # v_t = β v_{t-1} + (1-β) h²
        v = self.beta * v + (1 - self.beta) * x.hessian.square()
        # B = v / (1-β^t)
        return v * x.c.unbias, {"v": v}

    def estimate(self, B: Tensor, x: Flow) -> Tensor:
        """√B: the root of the mean of h², whose mean is H_jj² + Σ_{k≠j} H_jk²; it has no sign."""
        return B.sqrt()


@block
class Unit(Curvature):
    """B = 1   (first-order methods)."""

    recalls = False
    latex = r"B_t = 1"

    def step(self, x: Flow, **state: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """1 everywhere."""
        # B = 1
        return torch.ones_like(x.g), state


@block
class Zero(Curvature):
    """B = 0   (no curvature: every coordinate stays on the floor of its rectifier)."""

    recalls = False
    latex = r"B_t = 0"

    def step(self, x: Flow, **state: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """Returns zeros of the gradient's shape, and the state as it was."""
        # B = 0
        return torch.zeros_like(x.g), state

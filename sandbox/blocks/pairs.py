"""Pairs (s, y): a step and the change of the gradient along it, for the blocks that make a secant equation H s = y of it.

Noise is what they differ in.  `Successive` compares two batches, and their difference is part of y.  `SameBatch` compares two
points on one batch: y = H s, H the mean Hessian of that batch between them.  `Product` has no difference at all: y = H s with H
at the present point.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from sandbox.blocks.base import ELEMENT, Flow, block
from sandbox.blocks.number import Number, number, where, whole
from sandbox.blocks.slots import Pairs


@block
class Successive(Pairs):
    """s = -η d, the last step;  y = m_t - m_{t-1}   (Apollo; with EMA(beta=0) gradients of successive batches are compared)"""

    successive = True
    latex = r"s_t = -\eta_{t-1} d_{t-1},\quad y_t = m_t - m_{t-1}"

    def step(self, x: Flow, **state: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """The change of the moment's average, where it keeps one."""
        # y = m_t - m_{t-1}
        return (None, x.m - x.m_old if hasattr(x, "m") else None), state


@block
class SameBatch(Pairs):
    """s = -η d, the last step;  y = ∇f(θ; ξ') - ∇f(θ'; ξ') + λ s, primes the step before   (Schraudolph et al. 2007)

    So y = (H + λ) s without noise between two batches, for a second gradient per step and two state elements per parameter.
    ridge: λ, in units of curvature; RES has -δ here.
    """

    ridge: Number = number(default=0.0)
    needs = ("again", "g_old", "d_old")
    latex = (
        r"s_t = -\eta_{t-1} d_{t-1},\quad "
        r"y_t = \nabla f(\theta_{t-1};\xi_{t-1}) - \nabla f(\theta_{t-2};\xi_{t-1}) + \lambda s_t"
    )

    def step(self, x: Flow, **state: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """The change of one batch's gradient over the last step; 0 at the first."""
        s = -x.lr_old * x.d_old
        # y = ∇f(θ_t; ξ_{t-1}) - ∇f(θ_{t-1}; ξ_{t-1}) + λ s
        return (s, x.again - x.g_old + self.ridge * s), state


@block
class Product(Pairs):
    """s = -η d, the last step;  y = H s, H the present batch's Hessian   (by one Hessian-vector product per step)"""

    needs = ("product", "d_old")
    latex = r"s_t = -\eta_{t-1} d_{t-1},\quad y_t = H_t s_t"

    def vector(self, t: Any, theta: Tensor, d: Tensor | None, **state: Tensor) -> Tensor:
        """The last direction."""
        assert d is not None  # stored, since a block needs the product
        return d

    def step(self, x: Flow, **state: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """H s from H d."""
        # y = H s = -η H d
        return (None, -x.lr_old * x.product), state


@block
class AveragedIterates(Pairs):
    """s = w̄ - w̄', w̄ the mean of the last k iterates;  y = H s   each k steps, else s = 0   (Byrd et al. 2016, SQN)

    The first pair comes at step 2k+1.  H is the present batch's Hessian at the present point.
    every: k ≥ 1.
    """

    every: int = 20
    own_step = True
    needs: ClassVar[tuple[str, ...]] = ("product",)
    latex = r"s_t = \bar w_t - \bar w_{t-k},\quad y_t = H_t s_t \quad\text{every } k \text{ steps}"
    state = {"total": ELEMENT, "mean": ELEMENT}

    def check(self) -> None:
        """every ≥ 1."""
        whole(self, "every", 1)

    def coefficients(self, t: Any) -> dict[str, Any]:
        """Whether a mean is complete, and whether there is one to compare it with; 1 or 0."""
        due = (t > 1) & ((t - 1) % self.every == 0)
        return {"due": where(due, 1.0, 0.0), "second": where(due & (t > 2 * self.every), 1.0, 0.0)}

    def vector(self, t: Any, theta: Tensor, d: Tensor | None, *, total: Tensor, mean: Tensor) -> Tensor:
        """s."""
        return (self.coefficients(t)["second"] * (total / self.every - mean)).to(theta.dtype)

    def step(self, x: Flow, *, total: Tensor, mean: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """The pair of two means, or none."""
        # s = w̄ - w̄'
        s = x.c.second * (total / self.every - mean)
        return (s, x.c.second * x.product), self.averages(x, total, mean, x.c.due)

    def averages(self, x: Flow, total: Tensor, mean: Tensor, moved: Any) -> dict[str, Tensor]:
        """The sum of iterates, begun again where it is complete, and the mean that the next is compared with."""
        mean = moved * (total / self.every) + (1 - moved) * mean
        return {"total": (1 - x.c.due) * total + x.theta, "mean": mean}


@block
class EmpiricalFisher(AveragedIterates):
    """s = w̄ - w̄' each k steps;  y = Fᵀ(F s)/|F|, F the last gradients   (Keskar & Berahas 2016, adaQN)

    w̄' becomes w̄ only where sᵀy > least sᵀs, and at the first mean.  No Hessian is needed; F has |F| states per parameter.
    every: k ≥ 1.  memory: |F| ≥ 1 gradients (those there are, at first).  least ≥ 0, in units of curvature.
    """

    memory: int = 100
    least: Number = number(default=1e-4, range="[0, inf)")
    needs: ClassVar[tuple[str, ...]] = ()
    latex = r"s_t = \bar w_t - \bar w_{t-k},\quad y_t = F^T F s_t/|F| \quad\text{every } k \text{ steps}"

    def check(self) -> None:
        """every ≥ 1, memory ≥ 1."""
        whole(self, "every", 1)
        whole(self, "memory", 1)

    @property
    def state(self) -> Mapping[str, str]:
        """The sum of iterates, the last mean, and the gradients, newest first."""
        return {"total": ELEMENT, "mean": ELEMENT} | {f"g{k}": ELEMENT for k in range(self.memory)}

    def coefficients(self, t: Any) -> dict[str, Any]:
        """Those of the means, and 1/|F|."""
        few = t - 1 < self.memory
        return {**super().coefficients(t), "weight": where(t > 1, 1 / where(few, where(t > 1, t - 1, 1), self.memory), 0.0)}

    def step(self, x: Flow, *, total: Tensor, mean: Tensor, **F: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """The pair of two means, or none, and the gradients with this one in front."""
        sum_, spread = x.scope.sum, x.scope.spread
        # s = w̄ - w̄'
        s = x.c.second * (total / self.every - mean)
        y = torch.zeros_like(s)
        for g in F.values():
            # y = Fᵀ(F s) / |F|
            y = y + spread(x.c.weight * sum_(g * s)) * g
        accepted = torch.where(sum_(s * y) > self.least * sum_(s.square()), 1.0, 0.0).to(s.dtype)
        moved = x.c.due * torch.where(x.t > 2 * self.every, spread(accepted), 1.0)
        shifted = dict(zip(F, [x.g, *list(F.values())[:-1]], strict=True))
        return (s, y), {**self.averages(x, total, mean, moved), **shifted}

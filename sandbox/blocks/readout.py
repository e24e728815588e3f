"""Readouts: the weights to evaluate where they are other ones than those at which gradients are taken."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sandbox.blocks.base import ELEMENT, TENSOR, Flow, block
from sandbox.blocks.number import Number, number, where, whole
from sandbox.blocks.scope import sides
from sandbox.blocks.slots import Readout


@block
class Last(Readout):
    """x = θ (the weights are evaluated as they are trained)"""

    latex = r"x_t = \theta_t"


class Average(Readout):
    """x ← (1-a) x + a θ with a weight a_t that is 1 at the first step; gradients are taken at θ."""

    state = {"mean": ELEMENT}

    def weight(self, t: Any) -> Any:
        """a_t."""
        raise TypeError(f"{type(self).__name__} must define weight(t)")

    def coefficients(self, t: Any) -> dict[str, Any]:
        """a_t, 1 - a_t."""
        return {"a": self.weight(t), "keep": 1 - self.weight(t)}

    def update(self, x: Flow, *, mean: Tensor) -> dict[str, Tensor]:
        """The average with the new θ in it."""
        # x ← (1-a) x + a θ
        return {"mean": x.c.keep * mean + x.c.a * x.value}

    def evaluated(self, theta: Tensor, **state: Tensor) -> Tensor:
        """x."""
        return state["mean"]


@block
class WeightEMA(Average):
    """x = (1-a) x + a θ, a = (1-β)/(1-βᵗ)   (an exponential average of weights; Polyak's with more weight on what came last).

    bias_correction: False: a = 1-β after the first step, which copies θ, as `torch.optim.swa_utils` does.
    beta: β in [0, 1); 0 evaluates the last θ.
    """

    beta: Number = number(default=0.999, range="[0, 1)")
    bias_correction: bool = True
    latex = r"x_t = (1-a_t)\, x_{t-1} + a_t \theta_t,\quad a_t = (1-\beta)/(1-\beta^t)"

    @property
    def text(self) -> str:
        """The equation as configured."""
        return "x = (1-a) x + a θ, a = " + ("(1-β)/(1-βᵗ)" if self.bias_correction else "1-β")

    def weight(self, t: Any) -> Any:
        """(1-β)/(1-β^t)."""
        # a_t = (1-β)/(1-β^t), or 1-β after the first
        return (1 - self.beta) / (1 - self.beta**t) if self.bias_correction else where(t > 1, 1 - self.beta, 1.0)


@block
class AverageThenDecay(WeightEMA):
    """x = (1-a) x + a θ, then θ = (1-ηγ) θ   (Frans et al. 2025, SPlus: the average does not see the decay of its step).

    beta, bias_correction: as of `WeightEMA`.  weight_decay: γ ≥ 0.  by_sides: with 2η/(m+n) in place of η, m and n a matrix's
    sides.
    """

    weight_decay: Number = number(default=1e-2, range="[0, inf)")
    by_sides: bool = False
    moves = True
    latex = WeightEMA.latex + r",\quad \theta_t \leftarrow (1-\eta_t\gamma)\,\theta_t"

    @property
    def text(self) -> str:
        """The equation as configured."""
        return f"{super().text}, then θ = (1-{'2η/(m+n)' if self.by_sides else 'η'} γ) θ"

    @property
    def matrix(self) -> bool:
        """Where sides count."""
        return self.by_sides

    def step(self, x: Flow, **state: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """θ decayed, and the average."""
        _, new = super().step(x, **state)
        # θ ← (1 - ηγ) θ
        rate = 2 * x.lr / sum(sides(x.value)) if self.by_sides else x.lr
        return (1 - rate * self.weight_decay) * x.value, new


@block
class TailMean(Average):
    """x = mean of θ at the steps k, k + p, k + 2p, …; θ itself before   (Polyak & Juditsky 1992; Izmailov et al. 2018, SWA).

    start: k ≥ 1.  every: p ≥ 1, steps between two weights of the mean.
    """

    start: int = 1
    every: int = 1
    latex = r"x_t = \operatorname{mean}(\theta_k, \theta_{k+p}, \theta_{k+2p}, \ldots \theta_t)"

    def check(self) -> None:
        """Whole numbers, at least 1."""
        for name in ("start", "every"):
            whole(self, name, 1)

    def weight(self, t: Any) -> Any:
        """1/n where θ is the n-th of the mean, else 0; 1 before."""
        # a_t = 1/n, n = 1 + (t-k)/p
        after = t - self.start
        n = where(after > 0, 1 + after / self.every, 1.0)
        return where(after % self.every == 0, 1 / n, where(after > 0, 0.0, 1.0))


class Interpolated(Readout):
    """Gradients are taken at y between z, which makes the steps, and their average x: y = β x + (1-β) z.

    θ is y, and x = (y - (1-β) z)/β; both start at θ₀.
    """

    moves = True

    def share(self) -> Any:
        """β in (0, 1], of x in y."""
        raise TypeError(f"{type(self).__name__} must define share()")

    def evaluated(self, theta: Tensor, **state: Tensor) -> Tensor:
        """x."""
        # x = (y - (1-β) z)/β
        return (theta - (1 - self.share()) * state["z"]) / self.share()

    def stepped(self, x: Flow, z: Tensor, c: Any, lr: Any) -> tuple[Tensor, Tensor]:
        """y and z after the step -η d of z, which enters the average with weight c."""
        # y ← (1-c) y + c z + η(β(1-c) - 1) d;  z ← z - η d:  x ← (1-c) x + c z, y = β x + (1-β) z
        y = (1 - c) * x.theta + c * z + lr * (self.share() * (1 - c) - 1) * x.d
        return y, z - lr * x.d


@block
class ScheduleFree(Interpolated):
    """z = z - η d;  x = (1-c) x + c z;  θ = β x + (1-β) z, c = w/Σw, w = tʳ max(η)ᵖ   (Defazio et al. 2024, schedule-free).

    The gradient is that at θ; x is evaluated.  A schedule that lets η fall gives later steps no less weight: max(η) is the
    largest so far.
    beta: β in (0, 1].  power: p ≥ 0.  r ≥ 0.
    """

    beta: Number = number(default=0.9, range="(0, 1]")
    power: Number = number(default=2.0, range="[0, inf)")
    r: Number = number(default=0.0, range="[0, inf)")
    state = {"z": ELEMENT, "W": TENSOR, "top": TENSOR}
    latex = (
        r"z_t = z_{t-1} - \eta_t d_t,\quad x_t = (1-c_t) x_{t-1} + c_t z_t,\quad \theta_t = \beta x_t + (1-\beta) z_t,\quad "
        r"c_t = w_t/\textstyle\sum_s w_s,\; w_t = t^r \max_{s \le t} \eta_s^p"
    )

    def share(self) -> Any:
        """β."""
        return self.beta

    def coefficients(self, t: Any) -> dict[str, Any]:
        """t^r, and what η is multiplied with."""
        return {"tr": t**self.r, "rate": self.rate(t)}

    def rate(self, t: Any) -> Any:
        """Factor of η at step t."""
        return 1.0

    def step(self, x: Flow, *, z: Tensor, W: Tensor, top: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """θ, and z with the numbers of the weights."""
        z, lr = torch.where(x.t > 1, z, x.theta), x.c.rate * x.lr
        # w = t^r max(η)^p;  c = w/Σw, 0 where the sum is
        top = torch.maximum(top, lr * torch.ones_like(top))
        w = x.c.tr * top**self.power
        W = W + w
        c = torch.where(W > 0, w / torch.where(W > 0, W, 1.0), 0.0)
        y, z = self.stepped(x, z, x.tensor.spread(c), lr)
        return y, {"z": z, "W": W, "top": top}


@block
class RectifiedScheduleFree(ScheduleFree):
    """`ScheduleFree` at rates r_t η, r_t RAdam's rectification where ρ_t > 4, else 0   (schedulefree's RAdamScheduleFree).

    r_t = √((ρ_t-4)(ρ_t-2)ρ_∞ / ((ρ_∞-4)(ρ_∞-2)ρ_t)), ρ_∞ = 2/(1-β₂) - 1, ρ_t = ρ_∞ - 2tβ₂ᵗ/(1-β₂ᵗ).  So the first steps,
    whose second moments are of few gradients, move nothing.
    beta2: β₂ in (0.6, 1), the second moment's β.
    """

    beta2: Number = number(default=0.999, range="(0.6, 1)")

    def rate(self, t: Any) -> Any:
        """r_t."""
        # ρ_∞ = 2/(1-β₂) - 1,  ρ_t = ρ_∞ - 2 t β₂^t/(1-β₂^t)
        most = 2 / (1 - self.beta2) - 1
        rho = most - 2 * t * self.beta2**t / (1 - self.beta2**t)
        few = rho <= 4
        rho = where(few, 5.0, rho)
        # r_t = √((ρ_t-4)(ρ_t-2)ρ_∞ / ((ρ_∞-4)(ρ_∞-2)ρ_t))
        return where(few, 0.0, ((rho - 4) * (rho - 2) * most / ((most - 4) * (most - 2) * rho)) ** 0.5)


@block
class PrimalAveraging(Interpolated):
    """z = (1-ηγ) z - η d;  x = μ x + (1-μ) z;  θ = β x + (1-β) z   (Defazio et al. 2025, GPA).

    The gradient is that at θ; x is evaluated.  Without decay this is as written; with it, x moves a little more, since the
    published code takes θ on from the decayed z.
    beta: β in (0, 1], μ_y there.  average_beta: μ in [0, 1), μ_x there.  weight_decay: γ ≥ 0, of z.
    """

    beta: Number = number(default=0.7, range="(0, 1]")
    average_beta: Number = number(default=0.9967, range="[0, 1)")
    weight_decay: Number = number(default=0.0, range="[0, inf)")
    state = {"z": ELEMENT}
    latex = (
        r"z_t = (1-\eta_t\gamma) z_{t-1} - \eta_t d_t,\quad x_t = \mu x_{t-1} + (1-\mu) z_t,\quad "
        r"\theta_t = \beta x_t + (1-\beta) z_t"
    )

    def share(self) -> Any:
        """β."""
        return self.beta

    def step(self, x: Flow, *, z: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """θ and z."""
        # z ← (1-ηγ) z
        z = (1 - x.lr * self.weight_decay) * torch.where(x.t > 1, z, x.theta)
        y, z = self.stepped(x, z, 1 - self.average_beta, x.lr)
        return y, {"z": z}

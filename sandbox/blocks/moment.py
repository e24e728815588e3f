"""Moments: how gradients are averaged.  The exponential moving average also serves the averaging slot."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from sandbox.blocks.base import ELEMENT, TENSOR, Flow, block
from sandbox.blocks.number import Number, concrete_values, number, where
from sandbox.blocks.slots import Moment


@block
class EMA(Moment):
    """m_t = β(1-β^{t-1})/(1-β^t) m_{t-1} + (1-β)/(1-β^t) g   (paper, Algorithm 1; equal to Adam's m̂).

    beta: β in [0, 1), the share of the past; 0 gives the newest gradient, and still remembers it.
    bias_correction: False gives m_t = β m_{t-1} + (1-β) g.
    """

    beta: Number = number(default=0.9, range="[0, 1)")
    bias_correction: bool = True
    slots = ("moment", "averaging")

    state = {"m": ELEMENT}

    def equation(self, slot: str, *, latex: bool = False) -> str:
        """The equation, with or without correction; in the averaging slot B̄ is the average of B."""
        if latex:
            m, g = (r"\bar B", "B") if slot == "averaging" else ("m", "g")
            a = r"\frac{1-\beta}{1-\beta^t}" if self.bias_correction else r"(1-\beta)"
            return rf"{m}_t = (1-a)\,{m}_{{t-1}} + a\,{g}_t,\quad a = {a}"
        m, g = ("B̄", "B") if slot == "averaging" else ("m", "g")
        return f"{m} = (1-a) {m} + a {g},  a = {'(1-β)/(1-βᵗ)' if self.bias_correction else '1-β'}"

    def weight(self, t: Any) -> Any:
        """a."""
        # a = (1-β)/(1-β^t)
        return (1 - self.beta) / (1 - self.beta**t) if self.bias_correction else 1 - self.beta

    def coefficients(self, t: Any) -> dict[str, Any]:
        """a, and the share of the past, 1 - a, without cancellation."""
        # 1 - a = β(1-β^{t-1})/(1-β^t)
        keep = self.beta * (1 - self.beta ** (t - 1)) / (1 - self.beta**t) if self.bias_correction else self.beta
        return {"a": self.weight(t), "keep": keep}

    def update(self, x: Flow, *, m: Tensor) -> dict[str, Tensor]:
        """The new average of the slot's input."""
        # m_t = (1-a) m_{t-1} + a g
        return {"m": x.c.keep * m + x.c.a * x.value}


@block
class RawEMA(Moment):
    """m = β m + (1-β) g;  u = m/(1-βᵗ)   (Adam as torch.optim has it; AdaBelief compares g with this m).

    beta: β in [0, 1).
    """

    beta: Number = number(default=0.9, range="[0, 1)")
    latex = r"m_t = \beta m_{t-1} + (1-\beta) g_t,\quad u_t = m_t/(1-\beta^t)"

    state = {"m": ELEMENT}

    recalls = False

    def weight(self, t: Any) -> Any:
        """1 - β."""
        return 1 - self.beta

    def coefficients(self, t: Any) -> dict[str, Any]:
        """1/(1-β^t)."""
        return {"unbias": 1 / (1 - self.beta**t)}

    def step(self, x: Flow, *, m: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """m/(1-β^t) and m."""
        # m_t = β m_{t-1} + (1-β) g
        m = m + (1 - self.beta) * (x.value - m)
        # u_t = m_t / (1-β^t)
        return m * x.c.unbias, {"m": m}


@block
class ScheduledNesterov(Moment):
    """m = β m + (1-β) g;  u = (1-μₜ)/(1-Πμ) g + μₜ₊₁/(1-μₜ₊₁Πμ) m,  μₜ = β (1 - 0.96^(tψ)/2)   (Dozat 2016, NAdam)

    Πμ is the product of all μ so far.  beta: β in [0, 1).  momentum_decay: ψ ≥ 0.
    """

    beta: Number = number(default=0.9, range="[0, 1)")
    momentum_decay: Number = number(default=4e-3, range="[0, inf)")
    latex = (
        r"u_t = \frac{1-\mu_t}{1-\Pi_t} g_t + \frac{\mu_{t+1}}{1-\mu_{t+1}\Pi_t} m_t,"
        r"\quad \mu_t = \beta(1 - 0.96^{t\psi}/2),\; \Pi_t = \mu_1 \cdots \mu_t"
    )
    state = {"m": ELEMENT, "product": TENSOR}
    recalls = False

    def initial(self, name: str) -> Any:
        """Π = 1."""
        return 1.0 if name == "product" else 0.0

    def weight(self, t: Any) -> Any:
        """1 - β."""
        return 1 - self.beta

    def coefficients(self, t: Any) -> dict[str, Any]:
        """μ_t and μ_{t+1}."""
        # μ_t = β (1 - 0.96^(tψ)/2)
        mu, following = (self.beta * (1 - 0.5 * 0.96 ** (k * self.momentum_decay)) for k in (t, t + 1))
        return {"mu": mu, "following": following}

    def step(self, x: Flow, *, m: Tensor, product: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """Nesterov's combination, m and Π."""
        # m_t = β m_{t-1} + (1-β) g;  Π_t = Π_{t-1} μ_t
        m, product = m + (1 - self.beta) * (x.value - m), product * x.c.mu
        # u_t = (1-μ_t)/(1-Π_t) g + μ_{t+1}/(1-μ_{t+1}Π_t) m_t
        newest, past = (1 - x.c.mu) / (1 - product), x.c.following / (1 - x.c.following * product)
        return x.tensor.spread(newest) * x.value + x.tensor.spread(past) * m, {"m": m, "product": product}


@block
class HeavyBall(Moment):
    """m_t = μ m_{t-1} + (1-τ) g, m_1 = g; with Nesterov the output is g + μ m_t   (`torch.optim.SGD`).

    momentum: μ in [0, 1).  dampening: τ in [0, 1], not at the first step.  nesterov needs τ = 0.
    """

    momentum: Number = number(default=0.9, range="[0, 1)")
    dampening: Number = number(default=0.0, range="[0, 1]")
    nesterov: bool = False

    @property
    def text(self) -> str:
        """The equation, with or without Nesterov's look ahead."""
        return "m = μ m + (1-τ) g" + (";  u = g + μ m" if self.nesterov else "")

    @property
    def latex(self) -> str:
        """The equation, with or without Nesterov's look ahead."""
        return r"m_t = \mu m_{t-1} + (1-\tau) g_t" + (r",\quad u_t = g_t + \mu m_t" if self.nesterov else "")

    state = {"m": ELEMENT}

    @property
    def recalls(self) -> bool:
        """Not with Nesterov: the output needs g."""
        return not self.nesterov

    def check(self) -> None:
        """Nesterov needs dampening 0, as in torch.optim."""
        if self.nesterov and any(concrete_values(self.dampening)):
            raise ValueError("HeavyBall: nesterov=True needs dampening=0")

    def weight(self, t: Any) -> Any:
        """1 - τ, and 1 at the first step."""
        return where(t == 1, 1.0, 1 - self.dampening)

    def coefficients(self, t: Any) -> dict[str, Any]:
        """1 - τ, and 1 at the first step."""
        return {"a": self.weight(t)}

    def step(self, x: Flow, *, m: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """The buffer, or Nesterov's combination, and the buffer."""
        # m_t = μ m_{t-1} + (1-τ) g
        m = self.momentum * m + x.c.a * x.value
        # u_t = g + μ m_t
        return (x.value + self.momentum * m if self.nesterov else m), {"m": m}


@block
class NoMoment(Moment):
    """u = g   (nothing is remembered; where y = m_t - m_{t-1} is needed take EMA(beta=0), which remembers g)."""

    latex = r"u_t = g_t"

    recalls = False

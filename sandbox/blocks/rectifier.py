"""Rectifiers: from the curvature estimate B̄ to the diagonal D > 0 that divides the direction."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sandbox.blocks.base import ELEMENT, SCOPE, TENSOR, Flow, block
from sandbox.blocks.number import Number, concrete_values, number, show, where
from sandbox.blocks.slots import Rectifier
from sandbox.blocks.wrapper import Wrapper


@block
class AbsoluteFloor(Rectifier):
    """D = max(|B̄|, σ)   (paper, eq. 15).  Where |B̄| ≤ σ the method is momentum SGD with rate η/σ.

    sigma: σ > 0, in units of B.
    """

    sigma: Number = number(default=0.01, range="(0, inf)")
    latex = r"D_t = \max(|\bar B_t|, \sigma)"

    def read(self, B: Tensor) -> Tensor:
        """max(|B̄|, σ)."""
        # D = max(|B̄|, σ)
        return B.abs().clamp(min=self.sigma)

    def on_floor(self, B: Tensor) -> Tensor:
        """|B̄| ≤ σ."""
        return B.abs() <= self.sigma


@block
class ScaleInvariantFloor(Rectifier):
    """D = max(|B̄|, σ ‖g - g'‖_∞), g' the previous g   (paper, section 3.3).

    The maximum is taken over the scope, and g_0 = 0: θ is then unchanged when the loss is scaled.  Keeps g_{t-1}: one word of
    state per parameter more than `AbsoluteFloor`.
    sigma: σ > 0, without unit.
    tiny: smallest floor, so that d stays finite where two gradients coincide (a linear loss).  Default 1e-30.
    """

    sigma: Number = number(default=1.0, range="(0, inf)")
    tiny: Number = number(default=1e-30, range="(0, inf)")
    state = {"floor": SCOPE, "g": ELEMENT}
    reads = ()
    latex = r"D_t = \max(|\bar B_t|, \sigma \lVert g_t - g_{t-1} \rVert_\infty)"

    def initial(self, name: str) -> Any:
        """A floor of 1 divides d_0 = 0."""
        return 1.0 if name == "floor" else 0.0

    def update(self, x: Flow, *, floor: Tensor, g: Tensor) -> dict[str, Tensor]:
        """The floor, and the gradient for the next one."""
        # floor = σ ‖g_t - g_{t-1}‖_∞
        return {"floor": (self.sigma * x.scope.amax((x.g - g).abs())).clamp(min=self.tiny), "g": x.g}

    def read(self, B: Tensor, *, floor: Tensor, g: Tensor) -> Tensor:
        """max(|B̄|, floor)."""
        # D = max(|B̄|, floor)
        return torch.maximum(B.abs(), floor)

    def on_floor(self, B: Tensor, *, floor: Tensor, g: Tensor) -> Tensor:
        """|B̄| ≤ floor."""
        return B.abs() <= floor


@block
class BeliefFloor(Rectifier):
    """D = max(|B̄|, ‖g - m'‖_∞) + ε/a, m' the previous m   (the author's code, `rebound="belief"`; a = (1-β)/(1-βᵗ)).

    eps: ε ≥ 0, added after the maximum, in units of B.
    tiny: smallest floor, so that d stays finite where g_t = m_{t-1} and ε = 0.  Default 1e-30.
    """

    eps: Number = number(default=1e-4, range="[0, inf)")
    tiny: Number = number(default=1e-30, range="(0, inf)")
    needs = ("m",)
    state = {"floor": SCOPE, "shift": TENSOR}
    reads = ()
    latex = r"D_t = \max(|\bar B_t|, \lVert g_t - m_{t-1} \rVert_\infty) + \epsilon/a"

    def initial(self, name: str) -> Any:
        """A floor of 1 divides d_0 = 0."""
        return 1.0 if name == "floor" else 0.0

    def update(self, x: Flow, *, floor: Tensor, shift: Tensor) -> dict[str, Tensor]:
        """The floor and the shift."""
        # floor = ‖g_t - m_{t-1}‖_∞,  shift = ε/a
        floor = x.scope.amax((x.g - x.m_old).abs()).clamp(min=self.tiny)
        return {"floor": floor, "shift": self.eps / x.a}

    def read(self, B: Tensor, *, floor: Tensor, shift: Tensor) -> Tensor:
        """max(|B̄|, floor) + shift."""
        # D = max(|B̄|, floor) + ε/a
        return torch.maximum(B.abs(), floor) + shift

    def on_floor(self, B: Tensor, *, floor: Tensor, shift: Tensor) -> Tensor:
        """|B̄| ≤ floor."""
        return B.abs() <= floor


@block
class SoftAbsolute(Rectifier):
    """D = √(B̄² + σ²)   (smooth where AbsoluteFloor has a kink).

    sigma: σ > 0, in units of B.
    """

    sigma: Number = number(default=0.01, range="(0, inf)")
    latex = r"D_t = \sqrt{\bar B_t^2 + \sigma^2}"

    def read(self, B: Tensor) -> Tensor:
        """√(B̄² + σ²)."""
        # D = √(B̄² + σ²)
        return (B.square() + self.sigma**2).sqrt()

    def on_floor(self, B: Tensor) -> Tensor:
        """|B̄| ≤ σ: σ weighs more than B."""
        return B.abs() <= self.sigma


@block
class SquareRoot(Rectifier):
    """D = √B̄ + ε   (Adam, Adagrad, RMSprop: ε outside the root).

    eps: ε ≥ 0, in units of the gradient.
    """

    eps: Number = number(default=1e-8, range="[0, inf)")
    latex = r"D_t = \sqrt{\bar B_t} + \epsilon"

    def read(self, B: Tensor) -> Tensor:
        """√B̄ + ε."""
        # D = √B̄ + ε
        return B.sqrt() + self.eps


@block
class FlooredRoot(Rectifier):
    """D = max(√B̄, ε)   (torch's Adafactor).

    eps: ε ≥ 0, in units of the gradient.
    """

    eps: Number = number(default=1e-8, range="[0, inf)")
    latex = r"D_t = \max(\sqrt{\bar B_t}, \epsilon)"

    def read(self, B: Tensor) -> Tensor:
        """max(√B̄, ε)."""
        # D = max(√B̄, ε)
        return B.sqrt().clamp(min=self.eps)


@block
class Power(Rectifier):
    """D = (√B̄)ᵏ + ε   (AdaHessian's Hessian power).

    exponent: k in (0, 1].  eps: ε ≥ 0, in units of the curvature to the power k.
    """

    exponent: Number = number(default=1.0, range="(0, 1]")
    eps: Number = number(default=1e-4, range="[0, inf)")
    latex = r"D_t = (\sqrt{\bar B_t})^k + \epsilon"

    def read(self, B: Tensor) -> Tensor:
        """(√B̄)^k + ε."""
        # D = (√B̄)^k + ε
        return B.sqrt() ** self.exponent + self.eps


@block
class RectifiedSquareRoot(Rectifier):
    """D = (√v + ε)/(r √(1-βᵗ)) where ρ > 5, else 1   (Liu et al. 2020, RAdam; `torch.optim.RAdam`).

        ρ_∞ = 2/(1-β) - 1,  ρ_t = ρ_∞ - 2tβ^t/(1-β^t),  r_t² = (ρ_t-4)(ρ_t-2)ρ_∞ / ((ρ_∞-4)(ρ_∞-2)ρ_t)

    Takes the uncorrected second moment: SecondMoment(bias_correction=False) with the same beta.
    beta: β in [0, 1) with ρ_∞ > 4, so β > 0.6.  eps: ε ≥ 0, in units of the gradient.
    """

    beta: Number = number(default=0.999, range="(0.6, 1)")
    eps: Number = number(default=1e-8, range="[0, inf)")
    recalls = False
    latex = r"D_t = \frac{\sqrt{v_t} + \epsilon}{r_t\sqrt{1-\beta^t}} \text{ where } \rho_t > 5, \text{ else } 1"

    def coefficients(self, t: Any) -> dict[str, Any]:
        """D = scale (√v + ε) + shift."""
        beta = self.beta
        # ρ_∞ = 2/(1-β) - 1
        end = 2 / (1 - beta) - 1
        # ρ_t = ρ_∞ - 2tβ^t/(1-β^t)
        rho = end - 2 * t * beta**t / (1 - beta**t)
        rectified = rho > 5
        safe = where(rectified, rho, 5.0)
        # r_t² = (ρ_t-4)(ρ_t-2)ρ_∞ / ((ρ_∞-4)(ρ_∞-2)ρ_t)
        r2 = (safe - 4) * (safe - 2) * end / ((end - 4) * (end - 2) * safe)
        scale = (r2 * (1 - beta**t)) ** -0.5
        return {"scale": where(rectified, scale, 0.0), "shift": where(rectified, 0.0, 1.0)}

    def step(self, x: Flow, **state: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """D."""
        # D = (√v + ε) / (r_t √(1-β^t)), or 1
        return x.c.scale * (x.value.sqrt() + self.eps) + x.c.shift, state


@block
class StepRatio(Rectifier):
    """D = √(B̄ + ε)/√(Δ + ε);  Δ = ρ Δ + (1-ρ)(u/D)²   (Zeiler 2012, Adadelta: past directions over g).

    rho: ρ in [0, 1).  eps: ε > 0, in units of both squares.  d here is m/D, before decay.
    """

    rho: Number = number(default=0.9, range="[0, 1)")
    eps: Number = number(default=1e-6, range="(0, inf)")
    recalls = False
    state = {"delta": ELEMENT}
    latex = (
        r"D_t = \frac{\sqrt{\bar B_t + \epsilon}}{\sqrt{\Delta + \epsilon}},\quad "
        r"\Delta \leftarrow \rho\Delta + (1-\rho)(u_t/D_t)^2"
    )

    def step(self, x: Flow, *, delta: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """D, and the running size of directions with this one in it."""
        # D = √(B̄ + ε) / √(Δ + ε)
        D = (x.value + self.eps).sqrt() / (delta + self.eps).sqrt()
        # Δ ← ρ Δ + (1-ρ)(u/D)²
        return D, {"delta": self.rho * delta + (1 - self.rho) * (x.u / D).square()}


@block
class Monotone(Wrapper, Rectifier):
    """D = max(min(D, Λ), D' η/η'), D' and η' those of the step before   (the repair of Theorem 2).

    The D on the right is the inner rectifier's.  So D/η never decreases, in any coordinate.  (mathematics: the condition that
    the proof of Theorem 2 uses.)
    inner: any rectifier that keeps no state named D.
    ceiling: Λ > 0, in units of D.  Without one (inf) large D makes d small, the secant step divides by it, and D explodes.
    """

    inner: Rectifier = AbsoluteFloor(sigma=0.01)
    ceiling: Number = number(default=4.0, range="(0, inf]")
    reads = ()
    own_state = {"D": ELEMENT}
    own_latex = r"D_t \leftarrow \max(\min(D_t, \Lambda), D_{t-1}\,\eta_t/\eta_{t-1})"

    def check(self) -> None:
        """The inner block is a rectifier, and its floor does not lie above the ceiling."""
        super().check()
        floor = concrete_values(getattr(self.inner, "sigma", None)) if type(self.inner) in (AbsoluteFloor, SoftAbsolute) else []
        if floor and concrete_values(self.ceiling) and max(floor) > min(concrete_values(self.ceiling)):
            raise ValueError(f"Monotone: ceiling must not lie below the inner floor, {max(floor):g}, got {show(self.ceiling)}")

    def initial(self, name: str) -> Any:
        """D_0 = 1 divides d_0 = 0; it does not bound D_1."""
        return 1.0 if name == "D" else super().initial(name)

    def step(self, x: Flow, *, D: Tensor, **inner: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """D and the state."""
        R, inner = self.inner_step(x, **inner)
        # η_t/η_{t-1}, or 0 where there was no step to compare with
        ratio = torch.where((x.t > 1) & (x.lr_old > 0), x.lr / x.lr_old, 0.0)
        # D = max(min(R, Λ), D_{t-1} η_t/η_{t-1}), R the inner rectifier's
        D = torch.maximum(R.clamp(max=self.ceiling), D * ratio)
        return D, {"D": D, **inner}

    def read(self, B: Tensor, *, D: Tensor, **inner: Tensor) -> Tensor:
        """D as stored."""
        return D

    def on_floor(self, B: Tensor, *, D: Tensor, **inner: Tensor) -> Tensor | None:
        """On the inner rectifier's floor, and not held above it by the D before."""
        mask = self.inner.on_floor(B, **inner)
        return None if mask is None else mask & (self.inner.read(B, **inner).clamp(max=self.ceiling) >= D)


@block
class NoRectifier(Rectifier):
    """D = B̄   (for curvature that is positive as it is)."""

    latex = r"D_t = \bar B_t"

"""Limited-memory quasi-Newton: u times an inverse Hessian that is made of the last pairs (s, y)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sandbox.blocks.base import ELEMENT, SCOPE, Flow, block
from sandbox.blocks.number import Number, number, whole
from sandbox.blocks.slots import Solve
from sandbox.blocks.wrapper import Wrapper

# Pairs whose sums are taken in one pass over memory.  One by one, each of 2h sums waits for the one before: a compiled step of
# ten pairs then takes nearly three times as long.
TOGETHER = 10


@block
class TwoLoop(Solve):
    """p = H m, H = BFGS of the last pairs (s, y) from H₀ = 1/D   (Nocedal 1980, L-BFGS's two loops)

        q = u;  α_k = ρ_k s_kᵀq,  q ← q - α_k y_k  (newest first);  p = q/D;  p ← p + (α_k - ρ_k y_kᵀp) s_k  (oldest first)

    with ρ_k = 1/s_kᵀy_k and sums over the recipe's scope.  A pair is kept where sᵀy > tiny + least sᵀs.
    damped: ȳ = θ y + (1-θ) D s in place of y, θ = .75 sᵀDs/(sᵀDs - sᵀy) where sᵀy < .25 sᵀDs, else 1: then sᵀȳ ≥ .25 sᵀDs,
    and the pair of every step that moved is kept (Wang, Ma, Goldfarb & Liu 2017, SdLBFGS).
    stepsize_correction: ηy in place of y, with the rate of the last step: what `WeakSecant` does, so that D and H are on one
    scale where D comes from it.

    memory: h ≥ 0, number of pairs; 0 is `Divide`.  tiny ≥ 0, in units of sᵀy; least ≥ 0, in units of curvature.
    Keeps 2h state elements per parameter, and d; for each scope also ρ_k, and s_kᵀy_j of pairs in the same ten, j the newer.
    """

    memory: int = 10
    damped: bool = False
    stepsize_correction: bool = False
    tiny: Number = number(default=1e-10, range="[0, inf)")
    least: Number = number(default=0.0, range="[0, inf)")
    needs = ("s", "y")
    recalls = False

    def check(self) -> None:
        """memory ≥ 0."""
        whole(self, "memory", 0)

    @property
    def text(self) -> str:
        """The equation as configured."""
        y = ["y"] + ["ηy"] * self.stepsize_correction + ["θy + (1-θ)Ds ≥ ¼sᵀDs along s"] * self.damped
        return f"p = H m, H from 1/D by BFGS with the last {self.memory} pairs (s, {y[-1]})"

    @property
    def latex(self) -> str:
        """The equation as configured."""
        y = ["y"] + [r"\eta y"] * self.stepsize_correction + [r"\theta y + (1-\theta) D s"] * self.damped
        pairs = rf"\text{{ by BFGS with the last {self.memory} pairs }} (s, {y[-1]})"
        return rf"p_t = H_t m_t,\quad H_t \text{{ from }} D_t^{{-1}} {pairs}"

    @property
    def state(self) -> Mapping[str, str]:
        """The pairs, newest first, their ρ and products; an empty place has ρ = 0 and weighs nothing."""
        kinds = {"s": ELEMENT, "y": ELEMENT, "rho": SCOPE}
        return {f"{name}{k}": kind for name, kind in kinds.items() for k in range(self.memory)} | {
            f"s{k}y{j}": SCOPE for few in self._some() for k in few for j in few if j < k
        }

    def _some(self) -> list[range]:
        """The pairs whose sums are taken together."""
        return [range(k, min(k + TOGETHER, self.memory)) for k in range(0, self.memory, TOGETHER)]

    def step(self, x: Flow, **state: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """p, and the pairs."""
        total, spread = x.scope.sum, x.scope.spread
        state = self._shift(x, state)
        s, y, rho = ([state[f"{name}{k}"] for k in range(self.memory)] for name in ("s", "y", "rho"))
        # a few pairs at a time, by the sums of products within them: s_kᵀ(q - α_j y_j) = s_kᵀq - α_j s_kᵀy_j
        some = self._some()
        q, alpha = x.u, list(rho)
        sy = {(k, j): state[f"s{k}y{j}"] for few in some for k in few for j in few if j < k}
        for few in some:
            for k in few:
                # α_k = ρ_k s_kᵀq;  q ← q - α_k y_k
                alpha[k] = rho[k] * (total(s[k] * q) - sum(alpha[j] * sy[k, j] for j in few if j < k))
            for k in few:
                q = q - spread(alpha[k]) * y[k]
        # p = H₀ q
        p = q / x.D
        for few in reversed(some):
            for k in reversed(few):
                # p ← p + (α_k - ρ_k y_kᵀp) s_k
                alpha[k] = alpha[k] - rho[k] * (total(y[k] * p) + sum(alpha[j] * sy[j, k] for j in few if j > k))
            for k in reversed(few):
                p = p + spread(alpha[k]) * s[k]
        return p, state

    def _shift(self, x: Flow, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The state with the newest pair in front, where it is accepted."""
        if not self.memory:
            return {}
        total, spread = x.scope.sum, x.scope.spread
        s, y = x.s, x.lr_old * x.y if self.stepsize_correction else x.y
        sy = total(s * y)
        if self.damped:
            y = damped(x, s, y, sy)
            sy = total(s * y)
        # sᵀy > tiny + least sᵀs
        accepted = sy > self.tiny + self.least * total(s.square())
        rho = torch.where(accepted, 1 / torch.where(accepted, sy, 1.0), 0.0)
        everywhere = spread(torch.where(accepted, 1.0, 0.0).to(s.dtype)) > 0
        newest = {"s": s, "y": y, "rho": rho}
        pairs: dict[str, Tensor] = {}
        for name, value in newest.items():
            where = accepted if name == "rho" else everywhere
            shifted = [value, *(state[f"{name}{k}"] for k in range(self.memory - 1))]
            chosen = [torch.where(where, new, state[f"{name}{k}"]) for k, new in enumerate(shifted)]
            pairs |= {f"{name}{k}": value for k, value in enumerate(chosen)}
        for first, *others in self._some():
            # s_kᵀy_j moves with its pairs; new is where y_j, the newest of the few, meets the others
            for k in others:
                pairs[f"s{k}y{first}"] = total(pairs[f"s{k}"] * pairs[f"y{first}"])
                for j in range(first + 1, k):
                    pairs[f"s{k}y{j}"] = torch.where(accepted, state[f"s{k - 1}y{j - 1}"], state[f"s{k}y{j}"])
        return pairs


def damped(x: Flow, s: Tensor, y: Tensor, sy: Tensor) -> Tensor:
    """ȳ = θ y + (1-θ) D s with sᵀȳ ≥ .25 sᵀDs; y itself where it has that."""
    sDs = x.scope.sum(s * x.D * s)
    low = sy < 0.25 * sDs
    # θ = .75 sᵀDs / (sᵀDs - sᵀy) where sᵀy < .25 sᵀDs, else 1
    theta = torch.where(low, 0.75 * sDs / torch.where(low, sDs - sy, 1.0), 1.0)
    # ȳ = θ y + (1-θ) D s
    return x.scope.spread(theta) * y + x.scope.spread(1 - theta) * x.D * s


@block
class UnitLength(Wrapper, Solve):
    """p = t⁻ᵏ p/‖p‖₂   (the published code of SdLBFGS has k = ½).

    The p on the right is the inner solver's; the norm is over the scope; p = 0 where the inner p is.
    inner: any solver.  exponent: k ≥ 0.
    """

    inner: Solve = TwoLoop()
    exponent: Number = number(default=0.5, range="[0, inf)")
    recalls = False
    own_latex = r"p_t \leftarrow t^{-k} p_t/\lVert p_t\rVert_2"

    def coefficients(self, t: Any) -> dict[str, Any]:
        """The inner solver's, and t⁻ᵏ."""
        return {**super().coefficients(t), "length": t**-self.exponent}

    def step(self, x: Flow, **inner: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """The inner direction at length t⁻ᵏ."""
        p, inner = self.inner_step(x, **inner)
        square = x.scope.sum(p.square())
        # p ← t⁻ᵏ p / ‖p‖₂
        size = torch.where(square > 0, x.c.length / torch.where(square > 0, square, 1.0).sqrt(), 0.0)
        return x.scope.spread(size) * p, inner

"""Same-batch pairs on smooth losses in the plane, β = 0, ε = 0: linear regret.

With y = ∇f_t(θ_t) - ∇f_t(θ_{t-1}) and a loss of curvature h, the secant rule says dᵀB d = η_{t-1} h ‖d‖², which falls to 0:
B becomes orthogonal to d² (d = d_{t-1}), by the projection onto that hyperplane.  In one dimension that is B → 0.  In the plane
it leaves B = b (sin ψ, -cos ψ) where d² ∝ (cos ψ, sin ψ), and where d² turns by a small angle Δ a step, B turns with it: b
loses b Δ²/2 a step, and gains η_t h Δ where ψ grows and the loss is curved.  With Δ of the order 1/√t both are of the order
1/t, so b can be held while t → ∞, and D = max(|B|, σ) depends on the direction of the step:

    along the diagonal     D = b/√2 in both coordinates
    along an axis          D = σ in the coordinate that moves

A step by η_t d takes a gradient g = D d.  So θ is led from the corner (r, r) to 0 along the diagonal, which costs much, and
back along the axes, which gives little; B is turned in between by steps that go to and fro.  A round takes O(√t) steps and
leaves

    Σ g_t·θ_t ≈ r² (b/√2 - σ) √t/η, so regret against 0 grows like T where b > √2 σ.

All losses are linear but those at 0, where B is turned from ψ = π/4 to π/2: f_t(θ) = g_t·(θ - p_t) + ½ h ‖θ - p_t‖².  Gradients
are bounded on the box [-1, 1]², which the iterates do not leave.

**What the losses are.**  f_t is chosen from θ_t, by an adversary that sees the run, and its numbers are float64.  The run
amplifies rounding, so each arithmetic meets losses of its own from step 6 on, and the losses of one are harmless in another:
those of the float64 run leave a regret of 936.82 after 1,000 steps there, and -343.86 when exact arithmetic runs on them.
In balls the losses follow the exact run: they are the same at every precision that encloses it (1,000 steps: 3,000 and
6,000 bits), and the certificate is about exact Apollo on those.  Its regret against 0 agrees with that of the float64 run on
its own losses to 9 digits, so that the float64 runs, which are longer, are shown beside it.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Generator
from typing import Any, TypeVar

import numpy as np

from theory_checks.proofs import linear_proofs, recursion
from theory_checks.proofs.ball_arithmetic import Balls, Proof
from theory_checks.proofs.recursion import Floats, Recursion, Rule, Vector

RULE = Rule(same_batch=True)
R = TypeVar("R")
Ahead = Generator[tuple[Vector, bool], tuple[int, Vector], R]
_AXIS, _DIAGONAL, _OTHER = 0.0, math.pi / 4, math.pi / 2  # ψ where θ moves along (1, 0), (1, 1), (0, 1)


@dataclasses.dataclass(frozen=True)
class Rounds:
    """Losses that lead θ round and round.  b: b_0 = η h.  kappa: a quarter turn of ψ takes 2⌈κ√t⌉ steps."""

    eta: float = 0.3
    b: float = 10.0
    kappa: float = 1.0
    r: float = 0.85

    def run(self, T: int, kind: Any = Floats) -> tuple[np.ndarray, list[recursion.Step]]:
        """Returns the losses, (T, 5) float64: g_t, h, p_t; and Apollo's steps on them in the arithmetic `kind`, from which they
        follow.

        Raises Unseparated in ball arithmetic of too little precision.
        """
        recursion, losses, steps_taken = Recursion(RULE, self.eta, kind), np.zeros((T, 5)), []
        state, h = recursion.begin([0.0, 0.0]), self.b / self.eta
        # two steps put B at (b_0, 0)
        steps = self._steps()
        next(steps)
        for t in range(1, T + 1):
            p = [float(x) for x in state.theta]
            d, curved = ([-1.0, 0.0], False) if t == 1 else ([0.0, 0.0], True) if t == 2 else steps.send((t, p))
            losses[t - 1, 2:] = h * curved, *p
            # y, and so D, does not depend on g_t
            D = recursion.step(t, state, _oracle(losses[t - 1], kind), t == 1)[0].D
            losses[t - 1, :2] = [float(x) * z for x, z in zip(D, d, strict=True)]
            step, state = recursion.step(t, state, _oracle(losses[t - 1], kind), t == 1)
            linear_proofs.check_enclosed(step, kind)
            steps_taken.append(step)
        return losses, steps_taken

    def _steps(self) -> Ahead[None]:
        """d_t and whether f_t is curved; takes t and θ_t."""
        t, theta = yield [], False
        while True:
            for side, angles in ((1, (_OTHER, _AXIS)), (0, (_AXIS, _DIAGONAL))):
                # out along an axis, until r
                size = 1.0
                while size == 1.0:
                    size = min(1.0, (self.r - theta[side]) * math.sqrt(t) / self.eta)
                    t, theta = yield [-size * (side == 0), -size * (side == 1)], False
                t, theta = yield from self._turn(t, *angles, False)
            # back to 0 along the diagonal
            size = 1.0
            while size == 1.0:
                size = min(1.0, max(theta) * math.sqrt(t) / self.eta)
                t, theta = yield [size, size], False
            t, theta = yield from self._turn(t, _DIAGONAL, _OTHER, True)

    def _turn(self, t: int, start: float, end: float, curved: bool) -> Ahead[tuple[int, Vector]]:
        """Steps to and fro, while ψ goes from start to end."""
        count, sign = 2 * math.ceil(self.kappa * math.sqrt(t) * abs(end - start) / (math.pi / 2)), 1.0
        theta: Vector = []
        for k in range(1, count + 1):
            psi, sign = start + (end - start) * k / count, -sign
            # d² = (cos ψ, sin ψ)
            d = [sign * math.sqrt(max(math.cos(psi), 0.0)), sign * math.sqrt(max(math.sin(psi), 0.0))]
            t, theta = yield d, curved
        return t, theta

    def regrets(self, T: int) -> np.ndarray:
        """Σ_{s≤t} f_s(θ_s) - f_s(0) for t = 1 … T: lower bounds of the regret."""
        return self.regrets_of(*self.run(T))

    @staticmethod
    def regrets_of(losses: np.ndarray, steps: list[recursion.Step]) -> np.ndarray:
        """The same of a run that was made."""
        return np.cumsum([excess(loss.tolist(), s.theta) for loss, s in zip(losses, steps, strict=True)])

    def proof(self, kind: Balls, T: int, rate: float) -> Proof:
        """R_T > rate · T in ball arithmetic, on losses whose numbers are floats."""
        losses, steps = self.run(T, kind)
        total = sum(excess([kind.number(x) for x in loss], s.theta) for loss, s in zip(losses.tolist(), steps, strict=True))
        inside = 1 - functools.reduce(kind.largest, (abs(x) for s in steps for x in s.theta))
        return Proof(f"R_T ≤ {rate:g} T at T = {T}", total, kind.number(rate * T), {"iterates in the box": inside})


def _oracle(loss: np.ndarray, kind: Any) -> recursion.Oracle:
    """∇f_t(θ) = g_t + h (θ - p_t)."""
    g, h, p = np.split(loss, [2, 3])
    numbers = [(kind.number(float(x)), kind.number(float(h[0])), kind.number(float(c))) for x, c in zip(g, p, strict=True)]
    return lambda t, theta: [x + h * (z - c) for z, (x, h, c) in zip(theta, numbers, strict=True)]


def excess(loss: list[Any], theta: Vector) -> Any:
    """f_t(θ) - f_t(0) = g_t·θ + ½ h (‖θ - p_t‖² - ‖p_t‖²)."""
    h = loss[2]
    return sum(x * z + h * (z * z - 2 * c * z) / 2 for x, z, c in zip(loss[:2], theta, loss[3:], strict=True))

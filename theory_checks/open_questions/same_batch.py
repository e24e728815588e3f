"""Apollo with same-batch pairs: y = ∇f_t(θ_t) - ∇f_t(θ_{t-1}), two gradients of one loss, in place of m_t - m_{t-1}.

Linear losses: y = 0, so B = 0, D = σ and the method is online gradient descent with momentum: repaired bounds 1 to 3 hold
without a condition, and CE1 refutes nothing.  **Proved: it differs there.**

Smooth losses in one dimension, β = 0: B_{t+1} = η_t h with h ≤ L between the two points, so D = σ from t ≥ (ηL/σ)² on, and
regret is O(√T).  **Proved.**  In two dimensions B remembers other directions.  **Refuted: linear regret**, `rotation`.

Losses with a kink, β = 0, ε = 0: a large slope C to the right of a point between θ_{t-1} and θ_t, a smaller c to its left, and
then -1 twice.
At the kink y = C - c, so D = (C - c)σ and the step is short; the two others are on the floor.  θ goes right where
C/(C - c) < 2, and -1 is the better end where c > 2.  **Refuted: linear regret**, `Kinked`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from theory_checks.proofs import linear_proofs, recursion
from theory_checks.proofs.ball_arithmetic import Balls, Proof, Unseparated
from theory_checks.proofs.recursion import Floats, Rule

RULE = Rule(same_batch=True, box=(-1.0, 1.0))


@dataclasses.dataclass
class Kinked:
    """f_t(θ) = max(C(θ - κ_t), c(θ - κ_t)) for t = 1, 4, 7, …, else -θ, on [-1, 1].

    kinks: κ_t by t, each a float between θ_{t-1} and θ_t of the float64 run, or 0.9 where θ did not move to the right.
    """

    C: float = 6.0
    c: float = 2.5
    eta: float = 0.5
    kinks: dict[int, float] = dataclasses.field(default_factory=dict)

    @property
    def rate(self) -> float:
        """(2c - 4)/3, what R_T/T goes to against -1 as the iterates gather at 1."""
        return (2 * self.c - 4) / 3

    def steps(self, T: int, kind: Any = Floats) -> list[recursion.Step]:
        """The run of T steps from θ_1 = 0; with balls, on the kinks of a float64 run that was made before."""
        at: dict[int, Any] = {0: 1.0}

        def oracle(t: int, theta: list[Any]) -> list[Any]:
            x = at.setdefault(t, theta[0])  # θ_t: f_t is asked there first, and at θ_{t-1} then
            if t % 3 != 1:
                return [kind.number(-1.0)]
            if t not in self.kinks:
                self.kinks[t] = (at[t - 1] + x) / 2 if at[t - 1] < x else 0.9
            kink = self.kinks[t]
            if theta[0] > kink:
                return [kind.number(self.C)]
            if theta[0] <= kink:
                return [kind.number(self.c)]
            raise Unseparated(f"whether θ lies beyond the kink of f_{t} is not decided")

        if kind is Floats:
            return list(recursion.walk(RULE, oracle, [0.0], T, eta=self.eta))[:T]
        return linear_proofs.run(kind, RULE, oracle, [0.0], eta=self.eta, T=T)

    def losses(self, steps: list[recursion.Step], kind: Any = Floats) -> list[Any]:
        """f_t(θ_t) - f_t(-1): summed, a lower bound of the regret."""
        excesses = []
        for s in steps:
            x = s.theta[0]
            if s.t % 3 != 1:
                excesses.append(-x - 1)
            else:
                kink = kind.number(self.kinks[s.t])
                excesses.append(s.g[0] * (x - kink) + kind.number(self.c) * (1 + kink))
        return excesses

    def regrets(self, T: int) -> np.ndarray:
        """Σ_{s≤t} f_s(θ_s) - f_s(-1) for t = 1 … T."""
        return np.cumsum(self.losses(self.steps(T)))

    def proof(self, kind: Balls, T: int, share: float = 0.5) -> Proof:
        """R_T > share · rate · T in ball arithmetic, on losses fixed by a float64 run."""
        self.steps(T)
        total = sum(self.losses(self.steps(T, kind), kind))
        return Proof(f"R_T ≤ {share * self.rate:.6g} T at T = {T}", total, kind.number(share * self.rate * T))

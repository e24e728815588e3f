"""Linear regret on the box [-1, 1]: cycles of linear losses that drive a method to the wrong end and keep it there (for the
numbers of its rule: see the table below).

The losses f_t(θ) = g_t θ repeat g_1 … g_P.  While the rate falls, θ moves by -η_t Σ_k m_k/D_k in a cycle.  Where that sum and
Σ_k g_k have opposite signs, θ goes to the end at which the losses are largest on average, and stays within O(η_t) of it, so

    R_T = 2 |Σ_k g_k| T/P - O(√T).

For β = 0 and one coordinate the secant rule is B_{t+1} = -(g_{t+1} - g_t) D_t/g_t: a large D follows a small gradient by a
large one, and two equal gradients give B = 0.  So the losses that pull the right way come alternating (D large, short steps),
the others in equal runs (D on the floor, long steps).  A cycle that ends in two equal gradients starts every time from B = 0:
D is periodic from the first cycle on, and what holds for one holds for all.  The scale-invariant floor is 0 where two
gradients are equal, so its long steps reach the end whatever η_t is; with momentum the run of equal gradients has to last
until m has turned, O(1/(1-β)) steps, for any β < 1.

**Momentum does not help.**  Let m_1 … m_P be a cycle on which the method without momentum drifts the wrong way.  The gradients

    g_k = (m_k - β m_{k-1})/(1-β),   m_0 = m_P,

repeat with the same period and the same sum, are at most (1+β)/(1-β) times as large, and their average
m_t = β m_{t-1} + (1-β) g_t tends to that cycle like β^t (with bias correction too, whose weights tend to these).  Where the
floor is σ, B, D and d depend on gradients through m alone.  So θ drifts as before: for every β < 1.  (The scale-invariant
floor sees g_t - g_{t-1} itself.)

**For which numbers this is shown.**  R_T/T at T = 2,000, 20,000 and 100,000:

    cycle                     β = 0, ε = 0       β = 0, ε = 1e-4       β = .9, ε = 1e-4, bias correction
    apollo                    .91, 1.0, 1.1      .84, 1.0, 1.0         7e-4, 1e-4, 5e-5
    apollo, β = .9                                                     .90, 1.0, 1.1
    hessian-ema               .18, .28, .30      .18, .28, .30         .084, .029, .013
    hessian-ema, β = .9                                                .31, .32, .33
    scale-invariant           1.7, 1.7, 1.7      9e-3, 9e-4, 2e-4      8e-3, 8e-4, 2e-4
    scale-invariant, β = .9                                            1.4, 1.5, 1.5

σ = 1 there, and gradients up to 19 with momentum.  The direction is the same for σ and gradients times any number, so with the
default σ = .01 gradients up to .19 do.

`CYCLES` has a cycle for each recipe; `search` looks for the worst of a given period.
"""

from __future__ import annotations

import dataclasses
import math
from itertools import accumulate

import numpy as np

from sandbox.recipe import Recipe
from theory_checks.proofs import compiled, linear_proofs, recursion
from theory_checks.proofs.ball_arithmetic import Balls, Proof
from theory_checks.proofs.recursion import Rule
from theory_checks.search import batched_runs
from theory_checks.search.differential_evolution import differential

BOX = (-1.0, 1.0)


@dataclasses.dataclass(frozen=True)
class Cycle:
    """A recipe's numbers (without projection), the gradients that repeat, and η."""

    rule: Rule
    g: tuple[float, ...]
    eta: float = 1.0

    @property
    def rate(self) -> float:
        """2 |Σ g|/P, what R_T/T goes to; at most 2G."""
        return 2 * abs(math.fsum(self.g)) / len(self.g)

    @property
    def share(self) -> float:
        """The rate over the largest there is, 2G."""
        return self.rate / (2 * max(map(abs, self.g)))

    @property
    def in_box(self) -> Rule:
        """The rule with its projection."""
        return dataclasses.replace(self.rule, box=BOX)

    @property
    def rows(self) -> list[list[float]]:
        """The gradient of step 1, and those that follow in turn."""
        return [[x] for x in (*self.g, self.g[0])]

    def run(self, T: int) -> compiled.Steps:
        """T steps from θ_1 = 0."""
        return compiled.run(self.in_box, compiled.linear, self.rows, [0.0], T, eta=self.eta)

    def regrets(self, T: int) -> np.ndarray:
        """R_1 … R_T against the best end of the box, which is the best point: (T,)."""
        theta, g, _ = (x[:, 0] for x in self.run(T))
        return np.cumsum(g * theta) + np.abs(np.cumsum(g))

    def proof(self, kind: Balls, T: int, share: float = 0.99) -> Proof:
        """R_T > share · rate · T in ball arithmetic."""
        steps = linear_proofs.run(kind, self.in_box, recursion.linear(self.rows, kind), [0.0], eta=self.eta, T=T)
        paid = list(accumulate(s.g[0] * s.theta[0] for s in steps))[-1]
        regret = paid + abs(sum(s.g[0] for s in steps))
        return Proof(f"R_T ≤ {share * self.rate:.6g} T at T = {T}", regret, kind.number(share * self.rate * T))


def as_average(m: tuple[float, ...], beta: float) -> tuple[float, ...]:
    """Returns the gradients that repeat and whose average with β tends to the cycle m: (m_k - β m_{k-1})/(1-β)."""
    return tuple((now - beta * before) / (1 - beta) for before, now in zip((m[-1], *m[:-1]), m, strict=True))


def _pull(n: int, small: float, count: int, back: float) -> tuple[float, ...]:
    """n times (1, small), then `count` times -back."""
    return (1.0, small) * n + (-back,) * count


# good steps: D grows from pair to pair; bad ones: all but the first on the floor
_APOLLO = _pull(40, 0.3, 6, 1.0)
# B̄ takes thirty steps to forget
_HESSIAN_EMA = _pull(40, 0.2, 30, 1.0)

CYCLES: dict[str, Cycle] = {
    "apollo": Cycle(Rule(), _APOLLO, eta=3.0),
    "apollo, β = 0.9": Cycle(Rule(beta=0.9, eps=1e-4, correct=True), as_average(_APOLLO, 0.9), eta=3.0),
    # two equal gradients put the floor σ‖g_t - g_{t-1}‖ at 0: a jump to the end, whatever η_t is
    "scale-invariant": Cycle(Rule(relative=True, tiny=1e-30), _pull(10, 0.9, 2, 0.01), eta=0.01),
    "scale-invariant, β = 0.9": Cycle(Rule(beta=0.9, relative=True, tiny=1e-30), _pull(60, 0.9, 25, 0.1), eta=0.01),
    "hessian-ema": Cycle(Rule(beta_averaging=0.9), _HESSIAN_EMA),
    "hessian-ema, β = 0.9": Cycle(Rule(beta=0.9, eps=1e-4, correct=True, beta_averaging=0.9), as_average(_HESSIAN_EMA, 0.9)),
}


def shares(recipe: Recipe, cycles: np.ndarray, margin: float = 0.05, periods: int = 8) -> np.ndarray:
    """(N,): `Cycle.share` of each row of cycles (N, P) that drives θ the wrong way by at least `margin` of Σ g, else at most 0.

    The sum of m/D is taken over the last half of `periods` cycles of the recipe's own update, all rows at once.
    """
    N, P = cycles.shape
    g = np.tile(cycles, (1, periods))
    # a second coordinate without gradient: `replay` is for the plane
    h = batched_runs.replay(recipe, np.stack([g, 0 * g], axis=2), np.zeros(N))
    moved = -np.diff(h.theta[:, :, 0], axis=1) * np.sqrt(np.arange(1, g.shape[1] + 1))
    pull, push = cycles.mean(axis=1), moved[:, periods // 2 * P :].mean(axis=1)
    wrong = -push * np.sign(pull) - margin * np.abs(pull)
    return np.where(wrong > 0, np.abs(pull) / np.abs(cycles).max(axis=1), np.minimum(wrong, 0))


def search(recipe: Recipe, period: int = 6, generations: int = 100, seed: int = 0) -> tuple[np.ndarray, float]:
    """The worst cycle of that period that differential evolution finds, and its share; the same seed goes the same way."""
    rng = np.random.default_rng(seed)
    low, high = -np.ones(period), np.ones(period)
    start = rng.uniform(-1, 1, (64, period))
    result = differential(lambda x: -shares(recipe, x.T), low, high, start, generations, rng)
    return result.x, float(-result.fun)

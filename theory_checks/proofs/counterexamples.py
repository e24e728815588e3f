"""Counterexamples to statements of the paper, each a named case with its numbers; `all_cases()` evaluates every one.

CE1   Theorem 2: linear regret on a cycle of six linear losses, above the stated bound from T = 572 on (β = 1e-9, ε = 0: with
      β = .9 the same cycle does no harm, and others do: `open_questions.drift`)
CE2   Theorem 3: a factor 1/η is lost
CE3   Theorem 1: false for a fixed ε > 0, and for decoupled decay that is not scaled
…     and the steps of the proof of Theorem 2 on two-line examples
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import torch

from sandbox.blocks import EMA, AbsoluteFloor, Decoupled, NoDecay, WeakSecant
from sandbox.recipe import Recipe
from sandbox.schedules import InverseSquareRoot
from theory_checks import problems
from theory_checks.claims import nonconvex, regret
from theory_checks.proofs.recursion import Arithmetic, Floats
from theory_checks.record import Run, record


@dataclasses.dataclass(frozen=True)
class Case:
    """A claim, the two sides that refute it (left > right), and where the paper makes it."""

    name: str
    claim: str
    left: float
    right: float

    @property
    def refuted(self) -> bool:
        """Whether the claim left ≤ right fails."""
        return self.left > self.right


def theory_apollo(beta: float = 1e-9, sigma: float = 1.0, eps: float = 0.0) -> Recipe:
    """Apollo as the proofs take it: no bias correction."""
    return Recipe(
        name="apollo",
        moment=EMA(beta=beta, bias_correction=False),
        curvature=WeakSecant(eps=eps),
        rectifier=AbsoluteFloor(sigma=sigma),
    )


def cycle_run(T: int, recipe: Recipe | None = None, problem: str = "cycle") -> Run:
    """CE1's run: η_t = .38/√t, σ = 1, ε = 0, β_t = 1e-9."""
    return record(recipe or theory_apollo(), problem, T, lr=InverseSquareRoot(first=0.38))


def theorem_2(T: int = 1201) -> Case:
    """CE1: regret above the stated bound, all of whose assumptions hold."""
    report = regret.check(cycle_run(T), points=4)
    return Case("CE1", f"Theorem 2, T = {T}: regret ≤ bound", report.measured, report.bound(regret.STATED).value)


def coordinatewise_step(kind: Arithmetic = Floats) -> Case:
    """D_1 = (1,3), D_2 = (3,1), η_t = 1/√t, a = (1,0): Σ_j (u_2-u_1) a_j² against ‖a‖² Σ_j (u_2-u_1)."""
    root = kind.sqrt(kind.number(2.0))
    growth = [3 * root - 1, 1 * root - 3]
    return Case("coordinatewise", "Σ_j (u_2 - u_1) a² ≤ ‖a‖² Σ_j (u_2 - u_1)", growth[0], growth[0] + growth[1])


def beta_step(kind: Arithmetic = Floats) -> Case:
    """β: .1 → .9, D = 1, a = 1, η_t = 1/√t: u_2/(1-β_2) - u_1/(1-β_1) against (u_2 - u_1)/(1-β), u_t = D_t/η_t."""
    u, beta = (kind.number(1.0), kind.sqrt(kind.number(2.0))), (kind.number(0.1), kind.number(0.9))
    left = u[1] / (1 - beta[1]) - u[0] / (1 - beta[0])
    return Case("β monotone", "1/(1-β_t) may be replaced by 1/(1-β), β = max β_t", left, (u[1] - u[0]) / (1 - beta[1]))


def diameter_step(kind: Arithmetic = Floats) -> Case:
    """f = θ on [-100, 100], θ_1 = 0, T = 2, η = 1: the iterates' diameter says nothing about θ*."""
    # θ_1 + θ_2 - 2 θ*
    left = kind.number(0.0) - 1 + 200
    D = G = eta = kind.number(1.0)
    root = kind.sqrt(kind.number(2.0))
    right = root * D**2 / (2 * eta) + eta * G**2 * (2 * root - 1)
    return Case("diameter", "Theorem 2 with the diameter of the iterates alone", left, right)


def floor_step(kind: Arithmetic = Floats) -> Case:
    """d = 1, T = 1, f = θ, θ* = -1, σ = .01, η = .0707: the proof uses D_t ≥ 1."""
    eta, sigma = kind.number(0.0707), kind.number(0.01)
    return Case("σ < 1", "Theorem 2 for σ < 1", kind.number(1.0), sigma / (2 * eta) + eta)


def theorem_3(T: int = 400, eta: float = 0.05) -> Case:
    """CE2: f = √(1+x²) from x_1 = 10, no noise, σ = 1, β = 1e-9."""
    report = theorem_3_report(T, eta)
    return Case(
        "CE2", f"Theorem 3, T = {T}, η = {eta:g}: min ‖∇f‖² ≤ bound", report.measured, report.bound(nonconvex.STATED).value
    )


def theorem_3_report(T: int, eta: float, L_D: float = 1.5) -> nonconvex.Report:
    """Both bounds of Theorem 3 on CE2; L = 1, H = 1, D = 1 < L_D."""
    start = torch.tensor([10.0], dtype=torch.float64)

    def f(x: torch.Tensor) -> torch.Tensor:
        return (1 + x.square()).sqrt().sum()

    gap = math.sqrt(101) - 1
    return nonconvex.check(theory_apollo(), f, start, T=T, eta=eta, L=1.0, H=1.0, gap=gap, L_D=L_D)


def third_iterate(eta: float, sigma: float, eps: float = 0.0, gamma: float = 0.0) -> torch.Tensor:
    """CE3: f = ½(θ₁² + 4θ₂²) from (1, 1), β = .5: θ_3."""
    decay = Decoupled(weight_decay=gamma) if gamma else NoDecay()
    recipe = Recipe(moment=EMA(beta=0.5), curvature=WeakSecant(eps=eps), rectifier=AbsoluteFloor(sigma=sigma), decay=decay)
    theta = torch.ones(2, dtype=torch.float64)
    state = recipe.init(theta)
    for _ in range(3):
        state, theta = recipe.update(state, theta, theta * torch.tensor([1.0, 4.0], dtype=torch.float64), lr=eta)
    return theta


def theorem_1(eps: float = 0.5, gamma: float = 0.0) -> Case:
    """CE3: (η, σ) = (1, 1) and (4, 4) with the same ε (or the same decoupled γ) part."""
    apart = float((third_iterate(1, 1, eps, gamma) - third_iterate(4, 4, eps, gamma)).abs().max())
    what = f"ε = {eps:g}" if eps else f"decoupled γ = {gamma:g}"
    return Case("CE3", f"Theorem 1 with a fixed {what}: |θ_3 - θ_3'| ≤ 0", apart, 0.0)


CASES: dict[str, Callable[[], Case]] = {
    "CE1": theorem_2,
    "coordinatewise": coordinatewise_step,
    "β monotone": beta_step,
    "diameter": diameter_step,
    "σ < 1": floor_step,
    "CE2": theorem_3,
    "CE3 ε": theorem_1,
    "CE3 decay": lambda: theorem_1(0.0, 0.1),
}


def all_cases() -> list[Case]:
    """Every case, evaluated."""
    return [make() for make in CASES.values()]


__all__ = ["CASES", "Case", "all_cases", "cycle_run", "problems", "theory_apollo", "third_iterate"]

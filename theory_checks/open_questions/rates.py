"""Rates: slopes of log regret and of log min ‖∇f‖² on log T, with intervals, against the exponents of the theorems.

Regret is measured on the cycles that are worst for each method (`drift`, `same_batch`, `rotation`), and on CE1; min ‖∇f‖² on
CE2's function and on the family of functions, one for each T, on which Theorem 3's exponent is attained:

    f_T(x) = s √(1 + x²), s² = D_f/(2η√T), from f_T(x_1) - f_T(0) = D_f: after T steps the valley is just not passed.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from theory_checks import problems
from theory_checks.claims import nonconvex, regret_bounds
from theory_checks.open_questions import drift, rotation, same_batch
from theory_checks.proofs import compiled, counterexamples
from theory_checks.proofs.recursion import Rule, Vector
from theory_checks.report import Slope, fit_slope


@dataclasses.dataclass(frozen=True)
class Rate:
    """A curve over T with its fitted slope.  bound: the theorem's values where it has any; exponent: what it promises."""

    name: str
    quantity: str
    T: list[int]
    values: list[float]
    exponent: float
    slope: Slope | None
    bound: list[float] | None = None

    def __str__(self) -> str:
        s = self.slope
        slope = "none" if s is None else f"{s.value:.3f} [{s.low:.3f}, {s.high:.3f}]"
        end = f"{self.quantity} {self.values[-1]:.6g} at T = {self.T[-1]:,}"
        return f"{self.name}: slope {slope}, the theorem's {self.exponent:g}; {end}"


def ladder(T: int, points: int = 25, first: int = 10) -> list[int]:
    """Whole numbers from `first` to T, evenly spaced in their logarithm."""
    return sorted({round(float(t)) for t in np.geomspace(min(first, T), T, points)} | {T})


def _rate(name: str, quantity: str, Ts: list[int], values: list[float], exponent: float, bound: Any = None) -> Rate:
    slope = fit_slope([float(t) for t in Ts], values, Ts[-1] / 30)
    return Rate(name, quantity, Ts, values, exponent, slope, bound)


def of_regret(T: int) -> list[Rate]:
    """Regret over T on the worst cycles, and CE1's with Theorem 2's bound."""
    Ts = ladder(T)
    curves = [_ce1(T, Ts)]
    for name, cycle in drift.CYCLES.items():
        values = cycle.regrets(T)
        curves.append(_rate(name, "regret", Ts, [float(values[t - 1]) for t in Ts], 0.5))
    # an adversary that looks at each step is run in Python: a tenth of the length
    Ts = ladder(max(T // 10, 10))
    for name, regrets in {"with kinks": same_batch.Kinked().regrets, "smooth": rotation.Rounds().regrets}.items():
        values = regrets(Ts[-1])
        curves.append(_rate(f"same-batch pairs, {name}", "regret", Ts, [float(values[t - 1]) for t in Ts], 0.5))
    return [*curves, _monotone(T, ladder(T))]


def _ce1(T: int, Ts: list[int]) -> Rate:
    """CE1, unprojected; for the diameter the bound has the diagonal of the box around iterates and θ*, which is no smaller."""
    rule, rows = Rule.from_recipe(counterexamples.theory_apollo()), [problems.CYCLE_FIRST, *problems.CYCLE]
    star, G = problems.CYCLE_COMPARATOR, max(math.hypot(*row) for row in rows[1:])
    theta, g, D = compiled.run(rule, compiled.linear, rows, [0.0, 0.0], T, eta=0.38)
    total = np.cumsum((g * (theta - star)).sum(axis=1))
    points = np.vstack([star, theta])
    reach = np.linalg.norm(np.maximum.accumulate(points) - np.minimum.accumulate(points), axis=1)[1:]
    squares = rule.beta**2 * np.cumsum(np.sqrt(np.arange(1, T + 1))) / 0.38
    bounds = []
    for t in Ts:
        numbers = {"T": t, "trace": sum(D[t - 1]), "G": G, "diameter": reach[t - 1], "radius": reach[t - 1], "sigma": 1.0}
        sums = {"betas": rule.beta * t, "squares": squares[t - 1]}
        bounds.append(
            float(sum(regret_bounds.terms(**numbers, **sums, eta=0.38, beta=rule.beta)[regret_bounds.STATED].values()))
        )
    return _rate("apollo on CE1", "regret", Ts, [float(total[t - 1]) for t in Ts], 0.5, bounds)


def _monotone(T: int, Ts: list[int]) -> Rate:
    """The monotone rectifier, Λ = 4, on the cycle that is worst for Apollo, with repaired bound 1."""
    cycle = drift.CYCLES["apollo"]
    repaired = dataclasses.replace(cycle, rule=dataclasses.replace(cycle.rule, ceiling=4.0))
    values = repaired.regrets(T)
    # θ* = -1 is at most 2 away
    bounds = [(math.sqrt(t) * 4 * 4 / (2 * cycle.eta) + cycle.eta * (2 * math.sqrt(t) - 1) / 2) for t in Ts]
    return _rate("monotone, Λ = 4", "regret", Ts, [max(float(values[t - 1]), 0.0) for t in Ts], 0.5, bounds)


def of_gradients(T: int, eta: float = 0.05) -> list[Rate]:
    """min ‖∇f‖² over T, without noise, with repaired bound 5: CE2's function, and the family in T."""
    Ts = ladder(T)
    least = _least(1.0, 10.0, T, eta)
    gap = math.sqrt(101) - 1
    ce2 = _rate(
        "CE2, one function", "min ‖∇f‖²", Ts, [float(least[t - 1]) for t in Ts], -0.5, [_bound(t, 1.0, gap, eta) for t in Ts]
    )
    values, bounds = [], []
    for t in Ts:
        # s² = D_f/(2η√T);  D_f = s (√(1 + x_1²) - 1)
        s = math.sqrt(gap / (2 * eta * math.sqrt(t)))
        start = math.sqrt((1 + gap / s) ** 2 - 1)
        values.append(float(_least(s, start, t, eta)[-1]))
        bounds.append(_bound(t, s, gap, eta))
    return [ce2, _rate("a function for each T", "min ‖∇f‖²", Ts, values, -0.5, bounds)]


def _least(size: float, start: float, T: int, eta: float) -> np.ndarray:
    """min_{s≤t} f'(x_s)² for t = 1 … T, f = size √(1 + x²)."""

    def slope(theta: Vector, loss: Vector, kind: Any) -> Vector:
        x, size = theta[0], loss[0]
        # f' = size x/√(1 + x²)
        return [size * x / kind.sqrt(1 + x * x)]

    rule = Rule.from_recipe(counterexamples.theory_apollo())
    return np.minimum.accumulate(compiled.run(rule, slope, [[size]] * 2, [start], T, eta=eta).g[:, 0] ** 2)


def _bound(T: int, size: float, gap: float, eta: float) -> float:
    parts = nonconvex.terms(T=T, d=1, L=size, L_D=1.0, H=size, eta=eta, sigma=1.0, beta=1e-9, gap=gap)
    return float(sum(parts[nonconvex.REPAIRED].values()))


def plot(rates: list[Rate], axes: Any) -> None:
    """Curves with their slopes, and the bounds dashed in the same colour."""
    for rate in rates:
        s = rate.slope
        label = rate.name if s is None else f"{rate.name}: {s.value:.3f} [{s.low:.3f}, {s.high:.3f}]"
        line = axes.plot(rate.T, rate.values, label=label)[0]
        if rate.bound is not None:
            axes.plot(rate.T, rate.bound, "--", color=line.get_color(), linewidth=1)
    axes.set(xscale="log", yscale="log", xlabel="T (steps)", ylabel=rates[0].quantity)
    bounds = [value for rate in rates for value in rate.bound or []]
    if bounds:  # a curve far below its bound would squeeze the others
        axes.set_ylim(bottom=max(axes.get_ylim()[0], min(bounds) / 1000))
    axes.legend(fontsize=7, title="slope [95 %]; dashed: the theorem's bound", title_fontsize=7)

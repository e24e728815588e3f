"""Regret on linear losses in ball arithmetic: Theorem 2's bounds, their premises, and the first T at which one fails."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

from theory_checks.claims import regret_bounds
from theory_checks.proofs import ball_arithmetic, recursion
from theory_checks.proofs.ball_arithmetic import Balls, Proof, Unseparated
from theory_checks.proofs.recursion import Rule


def theorem_2(
    kind: Balls,
    rows: Sequence[Any],
    star: Any,
    *,
    eta: float,
    T: int,
    rule: Rule,
    bound: str = regret_bounds.STATED,
) -> Proof:
    """Regret at most a bound of Theorem 2, refuted on the losses of `recursion.linear`; the feasible set is the hull of
    θ_1 … θ_T and θ*.

    Premises: D_t/η_t non-decreasing (its sum, for the bound as stated), 0 < β < 1, no iterate with a lower total loss than θ*.
    D_t ≥ σ, ‖g_t‖ ≤ G, the diameter, η_t = η/√t and the form of the step hold by construction.
    Raises ValueError for a rule that is not the proof's; Unseparated where the precision does not enclose the run.
    """
    if rule.sigma < 1 or rule.relative or rule.box or rule.gamma or rule.correct or rule.same_batch:
        raise ValueError("Theorem 2 needs a floor σ ≥ 1, and here no projection, decay, bias correction or same-batch pairs")
    best = [kind.number(x) for x in star]
    steps = run(kind, rule, recursion.linear(rows, kind), [0.0] * len(star), eta=eta, T=T)
    a = [difference(s.theta, best) for s in steps]
    regrets = list(accumulate(dot(s.g, x) for s, x in zip(steps, a, strict=True)))
    stated = bound == regret_bounds.STATED
    u = [[x / s.lr for x in ([sum(s.D)] if stated else s.D)] for s in steps]
    grown = smallest(x - z for old, new in pairwise(u) for x, z in zip(new, old, strict=True))
    total = [sum(column) for column in zip(*(s.g for s in steps), strict=True)]
    beta = kind.number(rule.beta)
    premises = {
        ("‖D_t‖₁/η_t non-decreasing" if stated else "D_t/η_t non-decreasing in each coordinate"): grown,
        "no iterate is better than θ*": smallest(dot(total, x) for x in a),
        "0 < β < 1": beta.min(1 - beta),
    }
    bounds = _bounds(kind, steps, a, best, eta, beta, bound)
    return Proof(f"{bound}, T = {T}: regret ≤ bound", regrets[-1], bounds[-1], premises, first_above(regrets, bounds))


def run(
    kind: Balls, rule: Rule, oracle: recursion.Oracle, start: Sequence[float], *, eta: float, T: int
) -> list[recursion.Step]:
    """T steps.  Raises Unseparated at the first that this precision does not enclose."""
    steps = []
    for step in recursion.walk(rule, oracle, start, T, eta=eta, kind=kind):
        check_enclosed(step, kind)
        steps.append(step)
    return steps[:T]


def check_enclosed(step: recursion.Step, kind: Any) -> None:
    """Raises Unseparated for a step whose balls are not finite; nothing in floats."""
    if isinstance(kind, Balls) and not all(x.is_finite() for x in (*step.theta, *step.D)):
        raise Unseparated(f"θ_{step.t} is not enclosed, after {kind.undecided} undecided maxima")


def _bounds(kind: Balls, steps: list[recursion.Step], a: list[Any], best: Any, eta: float, beta: Any, name: str) -> list[Any]:
    """The bound at T = 1, 2, …, each with the G, σ and diameter so far."""
    with ball_arithmetic.precision(128):  # enough for a diameter, and a hundred times faster
        points = [[+x for x in s.theta] for s in steps]
        star = [+x for x in best]
        wide, reach = kind.number(0.0), []
        for t, point in enumerate(points):
            for other in (star, *points[:t]):
                move = difference(point, other)
                square = dot(move, move)
                wide = square if square > wide else wide if square <= wide else wide.max(square)
            reach.append(wide.sqrt())
    G = accumulate((dot(s.g, s.g).sqrt() for s in steps), lambda x, y: x.max(y))
    sigma = accumulate((smallest(s.D) for s in steps), lambda x, y: x.min(y))
    radius = accumulate((dot(x, x).sqrt() for x in a), lambda x, y: x.max(y))
    squares = accumulate(beta * beta / s.lr for s in steps)
    return [
        sum(
            regret_bounds.terms(
                T=kind.number(s.t),
                trace=sum(s.D),
                G=g,
                diameter=d,
                radius=r,
                sigma=low,
                eta=kind.number(eta),
                beta=beta,
                betas=beta * s.t,
                squares=q,
            )[name].values()
        )
        for s, g, low, d, r, q in zip(steps, G, sigma, reach, radius, squares, strict=True)
    ]


def first_above(left: Sequence[Any], right: Sequence[Any]) -> int | None:
    """The first place, from 1, at which left > right; None where none is, or where one before it is undecided."""
    for t, (x, y) in enumerate(zip(left, right, strict=True), start=1):
        if x > y:
            return t
        if not x <= y:
            return None
    return None


def dot(x: Sequence[Any], y: Sequence[Any]) -> Any:
    """Σ x_j y_j."""
    return sum(a * b for a, b in zip(x, y, strict=True))


def difference(x: Sequence[Any], y: Sequence[Any]) -> list[Any]:
    """x - y."""
    return [a - b for a, b in zip(x, y, strict=True)]


def smallest(values: Any) -> Any:
    """The least of some balls, as a ball."""
    values = iter(values)
    least = next(values)
    for x in values:
        least = least.min(x)
    return least

"""Apollo on one tensor, number by number: floats for runs of a million steps, balls (`theory_checks.balls`) for proofs.

Written from the equations and not from the blocks, so that a certificate does not rest on the code it is about; the tests
hold it to the recipe's pure update.  A number is anything with + - * / and abs; what else is needed comes from an
`Arithmetic`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, cast

from sandbox.blocks import (
    EMA,
    AbsoluteFloor,
    Box,
    Decoupled,
    Monotone,
    NoAveraging,
    NoDecay,
    NoProjection,
    ScaleInvariantFloor,
    Stable,
    WeakSecant,
)
from sandbox.recipe import Recipe

Vector = list[Any]
Oracle = Callable[[int, Vector], Vector]  # (t, θ) -> ∇f_t(θ)


class Arithmetic(Protocol):
    """A kind of number: how to make one of a float, and the three operations that are not operators."""

    def number(self, x: float) -> Any:
        """The exact value of x."""

    def sqrt(self, x: Any) -> Any:
        """√x."""

    def largest(self, x: Any, y: Any) -> Any:
        """max(x, y)."""

    def quotient(self, x: Any, y: Any) -> Any:
        """x/y, and 0 where y is 0 exactly."""


class Floats:
    """float64."""

    number = float
    sqrt = math.sqrt
    largest = max

    @staticmethod
    def quotient(x: float, y: float) -> float:
        """x/y, and 0 where y is 0."""
        return x / y if y else 0.0


@dataclasses.dataclass(frozen=True)
class Rule:
    """The numbers of a recipe of Apollo's family.

    beta, beta_averaging: β of m and of B̄ (0: B̄ = B), each with or without bias correction.  eps, sigma: ε and σ.
    relative: the floor is σ‖g_t - g_{t-1}‖_∞ and at least `tiny`.  ceiling: Λ of the monotone rectifier; None: none.
    gamma: γ of decoupled decay.  box: (low, high) of the projection.
    same_batch: y = ∇f_t(θ_t) - ∇f_t(θ_{t-1}) in place of m_t - m_{t-1}, both gradients of one loss.
    """

    beta: float = 0.0
    eps: float = 0.0
    sigma: float = 1.0
    correct: bool = False
    beta_averaging: float = 0.0
    correct_averaging: bool = True
    relative: bool = False
    tiny: float = 0.0
    ceiling: float | None = None
    gamma: float = 0.0
    box: tuple[float, float] | None = None
    same_batch: bool = False

    @classmethod
    def of(cls, recipe: Recipe) -> Rule:
        """A recipe's numbers.  Raises ValueError for one with a block that is not written here, naming the block."""
        moment, curvature, averaging, decay, projection = (
            cast(Any, getattr(recipe, slot)) for slot in ("moment", "curvature", "averaging", "decay", "projection")
        )
        monotone, inner = isinstance(recipe.rectifier, Monotone), cast(Any, recipe.rectifier)
        inner = inner.inner if monotone else inner
        kinds: list[tuple[Any, Any]] = [
            (moment, EMA),
            (curvature, WeakSecant),
            (averaging, EMA | NoAveraging),
            (inner, AbsoluteFloor | ScaleInvariantFloor),
            (decay, Decoupled | NoDecay),
            (projection, Box | NoProjection),
        ]
        wrong = [type(b).__name__ for b, kind in kinds if not isinstance(b, kind) or isinstance(b, Stable)]
        wrong += [type(b).__name__ for b in recipe.gradient]
        wrong += [f"scope {recipe.scope}"] * (recipe.scope not in ("parameter", "global"))
        if isinstance(curvature, WeakSecant) and (curvature.damping or not curvature.stepsize_correction):
            wrong.append("WeakSecant with damping or without stepsize correction")
        if wrong:
            raise ValueError(f"recipe {recipe.name!r} cannot be run number by number: {', '.join(wrong)}")
        averaged, relative = isinstance(averaging, EMA), isinstance(inner, ScaleInvariantFloor)
        return cls(
            beta=moment.beta,
            eps=curvature.eps,
            sigma=inner.sigma,
            correct=moment.bias_correction,
            beta_averaging=averaging.beta if averaged else 0.0,
            correct_averaging=averaging.bias_correction if averaged else True,
            relative=relative,
            tiny=inner.tiny if relative else 0.0,
            ceiling=cast(Any, recipe.rectifier).ceiling if monotone else None,
            gamma=decay.weight_decay if isinstance(decay, Decoupled) else 0.0,
            box=(projection.low, projection.high) if isinstance(projection, Box) else None,
        )


class Step(NamedTuple):
    """Step t: θ_t, where g_t is taken, and what was made of it; θ_{t+1} is the next step's theta.  lr: η_t."""

    t: int
    theta: Vector
    g: Vector
    m: Vector
    B: Vector
    D: Vector
    lr: Any


def walk(
    rule: Rule,
    oracle: Oracle,
    start: Sequence[float],
    T: int,
    *,
    eta: float,
    kind: Arithmetic = Floats,
    decreasing: bool = True,
) -> Iterator[Step]:
    """T steps with η_t = eta/√t (or eta, where not `decreasing`) on the losses whose gradients `oracle` gives."""
    number, largest = kind.number, kind.largest
    zeros = [number(0.0)] * len(start)
    theta = theta_old = [number(x) for x in start]
    m = B = average = d = g_old = D_old = zeros
    size, eps, sigma, gamma, tiny = map(number, (eta, rule.eps, rule.sigma, rule.gamma, rule.tiny))
    ceiling = None if rule.ceiling is None or math.isinf(rule.ceiling) else number(rule.ceiling)
    low, high = map(number, rule.box or (0.0, 0.0))
    lr_old = size
    for t in range(1, T + 1):
        g = oracle(t, theta)
        lr = size / kind.sqrt(number(t)) if decreasing else size
        # m_t = (1-a) m_{t-1} + a g_t;  y = m_t - m_{t-1}, or the difference of two gradients of f_t
        keep, a = _weights(number(rule.beta), t, rule.correct)
        m_new = [keep * x + a * z for x, z in zip(m, g, strict=True)]
        before = oracle(t, theta_old) if rule.same_batch and t > 1 else g
        y = [z - x for x, z in (zip(before, g, strict=True) if rule.same_batch else zip(m, m_new, strict=True))]
        # α = (dᵀy + dᵀB d) / (‖d‖₄ + ε)⁴, 0 where d = 0;  B ← B - α d²
        square = [x * x for x in d]
        fourth = sum(x * x for x in square)
        norm = fourth if rule.eps == 0 else (kind.sqrt(kind.sqrt(fourth)) + eps) ** 4
        dy, dBd = _dot(d, y), _dot(B, square)
        alpha = kind.quotient(dy + dBd, norm)
        B = [x - alpha * z for x, z in zip(B, square, strict=True)]
        if rule.beta_averaging:
            # B̄_t = (1-a) B̄_{t-1} + a B_t
            keep, a = _weights(number(rule.beta_averaging), t, rule.correct_averaging)
            average = [keep * x + a * z for x, z in zip(average, B, strict=True)]
        else:
            average = B
        # D = max(|B̄|, floor)
        floor = sigma
        if rule.relative:
            floor = abs(g[0] - g_old[0])
            for x, z in zip(g[1:], g_old[1:], strict=True):
                floor = largest(floor, abs(x - z))
            floor = largest(sigma * floor, tiny)
        D = [largest(abs(x), floor) for x in average]
        if rule.ceiling is not None:
            # D_t = max(min(R_t, Λ), D_{t-1} η_t/η_{t-1})
            D = D if ceiling is None else [-largest(-x, -ceiling) for x in D]
            D = D if t == 1 else [largest(x, z * (lr / lr_old)) for x, z in zip(D, D_old, strict=True)]
        yield Step(t, theta, g, m_new, B, D, lr)
        # d = m/D + γ θ;  θ ← θ - η d, clamped
        d = [x / z for x, z in zip(m_new, D, strict=True)]
        if rule.gamma:
            d = [x + gamma * z for x, z in zip(d, theta, strict=True)]
        moved = [x - lr * z for x, z in zip(theta, d, strict=True)]
        if rule.box:
            moved = [-largest(-largest(x, low), -high) for x in moved]
        theta_old, theta, m, g_old, D_old, lr_old = theta, moved, m_new, g, D, lr
    yield Step(T + 1, theta, zeros, m, B, D_old, lr_old)


def _weights(beta: Any, t: int, correct: bool) -> tuple[Any, Any]:
    """1-a and a of the moving average."""
    # a = (1-β)/(1-β^t)
    return (beta * (1 - beta ** (t - 1)) / (1 - beta**t), (1 - beta) / (1 - beta**t)) if correct else (beta, 1 - beta)


def _dot(x: Vector, y: Vector) -> Any:
    return sum(a * b for a, b in zip(x, y, strict=True))


def linear(rows: Sequence[Any], kind: Arithmetic = Floats) -> Oracle:
    """The gradients of f_t(θ) = g_t·θ: g_1 = rows[0], then the other rows in turn for ever."""
    made = [[kind.number(float(x)) for x in row] for row in rows]
    return lambda t, theta: made[0 if t == 1 else 1 + (t - 2) % (len(made) - 1)]

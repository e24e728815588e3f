"""Apollo on one tensor, number by number: floats for a million steps, balls (`ball_arithmetic`) for proofs.

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
    def from_recipe(cls, recipe: Recipe) -> Rule:
        """Returns a recipe's numbers.  Raises ValueError for one with a block that is not written here, naming the block."""
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
        others = {"pairs": recipe.pairs, "basis": recipe.basis, "solve": recipe.solve}
        wrong += [type(b).__name__ for slot, b in others.items() if b != getattr(Recipe(), slot)]
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


class State(NamedTuple):
    """What step t + 1 takes from step t; average: B̄.  D_old and lr_old belong to step t, as d and g_old do."""

    theta: Vector
    theta_old: Vector
    m: Vector
    B: Vector
    average: Vector
    d: Vector
    g_old: Vector
    D_old: Vector
    lr_old: Any


class Recursion:
    """Steps with η_t = eta/√t (or eta, where not `decreasing`) in one kind of number."""

    def __init__(self, rule: Rule, eta: Any, kind: Arithmetic = Floats, decreasing: bool = True) -> None:
        number = kind.number
        self.rule, self.kind, self.decreasing = rule, kind, decreasing
        self.eta, self.eps, self.sigma, self.gamma, self.tiny = map(number, (eta, rule.eps, rule.sigma, rule.gamma, rule.tiny))
        self.beta, self.beta_averaging = number(rule.beta), number(rule.beta_averaging)
        self.ceiling = None if rule.ceiling is None or math.isinf(rule.ceiling) else number(rule.ceiling)
        self.low, self.high = map(number, rule.box or (0.0, 0.0))

    def begin(self, start: Sequence[Any]) -> State:
        """The state before step 1, at θ_1 = start."""
        theta, zeros = [self.kind.number(x) for x in start], [self.kind.number(0.0)] * len(start)
        return State(theta, theta, zeros, zeros, zeros, zeros, zeros, zeros, self.eta)

    def step(self, t: Any, old: State, oracle: Oracle, first: bool) -> tuple[Step, State]:
        """Step t of the run, `first` where t is 1."""
        rule, kind, largest = self.rule, self.kind, self.kind.largest
        theta, B = old.theta, old.B
        g = oracle(t, theta)
        lr = self.eta / kind.sqrt(kind.number(t)) if self.decreasing else self.eta
        # m_t = (1-a) m_{t-1} + a g_t;  y = m_t - m_{t-1}, or the difference of two gradients of f_t
        keep, a = _weights(self.beta, t, rule.correct)
        m = [keep * x + a * z for x, z in zip(old.m, g, strict=True)]
        before = oracle(t, old.theta_old) if rule.same_batch and not first else g
        y = [z - x for x, z in (zip(before, g, strict=True) if rule.same_batch else zip(old.m, m, strict=True))]
        # α = (dᵀy + dᵀB d) / (‖d‖₄ + ε)⁴, 0 where d = 0;  B ← B - α d²
        square = [x * x for x in old.d]
        fourth = sum(x * x for x in square)
        norm = fourth if rule.eps == 0 else (kind.sqrt(kind.sqrt(fourth)) + self.eps) ** 4
        alpha = kind.quotient(_dot(old.d, y) + _dot(B, square), norm)
        B = [x - alpha * z for x, z in zip(B, square, strict=True)]
        average = B
        if rule.beta_averaging:
            # B̄_t = (1-a) B̄_{t-1} + a B_t
            keep, a = _weights(self.beta_averaging, t, rule.correct_averaging)
            average = [keep * x + a * z for x, z in zip(old.average, B, strict=True)]
        # D = max(|B̄|, floor)
        floor = self.sigma
        if rule.relative:
            floor = abs(g[0] - old.g_old[0])
            for x, z in zip(g[1:], old.g_old[1:], strict=True):
                floor = largest(floor, abs(x - z))
            floor = largest(self.sigma * floor, self.tiny)
        D = [largest(abs(x), floor) for x in average]
        if rule.ceiling is not None:
            # D_t = max(min(R_t, Λ), D_{t-1} η_t/η_{t-1})
            D = D if self.ceiling is None else [-largest(-x, -self.ceiling) for x in D]
            D = D if first else [largest(x, z * (lr / old.lr_old)) for x, z in zip(D, old.D_old, strict=True)]
        # d = m/D + γ θ;  θ ← θ - η d, clamped
        d = [x / z for x, z in zip(m, D, strict=True)]
        if rule.gamma:
            d = [x + self.gamma * z for x, z in zip(d, theta, strict=True)]
        moved = [x - lr * z for x, z in zip(theta, d, strict=True)]
        if rule.box:
            moved = [-largest(-largest(x, self.low), -self.high) for x in moved]
        return Step(t, theta, g, m, B, D, lr), State(moved, theta, m, B, average, d, g, D, lr)


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
    """T steps on the losses whose gradients `oracle` gives, and θ_{T+1}."""
    recursion = Recursion(rule, eta, kind, decreasing)
    state = recursion.begin(start)
    for t in range(1, T + 1):
        step, state = recursion.step(t, state, oracle, first=t == 1)
        yield step
    zeros = [kind.number(0.0)] * len(start)
    yield Step(T + 1, state.theta, zeros, state.m, state.B, state.D_old, state.lr_old)


def _weights(beta: Any, t: int, correct: bool) -> tuple[Any, Any]:
    """1-a and a of the moving average."""
    # a = (1-β)/(1-β^t)
    return (beta * (1 - beta ** (t - 1)) / (1 - beta**t), (1 - beta) / (1 - beta**t)) if correct else (beta, 1 - beta)


def _dot(x: Vector, y: Vector) -> Any:
    return sum(a * b for a, b in zip(x, y, strict=True))


def linear(rows: Sequence[Any], kind: Arithmetic = Floats) -> Oracle:
    """The gradients of f_t(θ) = g_t·θ: g_1 = rows[0], then the other rows in turn for ever."""
    gradients = [[kind.number(float(x)) for x in row] for row in rows]
    return lambda t, theta: gradients[0 if t == 1 else 1 + (t - 2) % (len(gradients) - 1)]

"""Methods that take a tensor as a matrix, equal step for step to published code or a literal recursion."""

from __future__ import annotations

from sandbox.blocks import (
    AdamWDecay,
    CoverOfSquares,
    NesterovEMA,
    NoMoment,
    NoRectifier,
    Orthogonalize,
    RawEMA,
    SecondMoment,
    SquareRoot,
    Unit,
)
from sandbox.recipe import Recipe


def sm3() -> Recipe:
    """SM3-II (Anil et al. 2019): ν = min(r, c) + g², θ = θ - η g/√ν, a number a row and column; (m, n) views here."""
    return Recipe(lr=0.1, moment=NoMoment(), curvature=CoverOfSquares(), rectifier=SquareRoot(eps=1e-30))


def muon() -> Recipe:
    """Momentum made orthogonal by five Newton-Schulz steps (Jordan et al. 2024; bfloat16 there); Adam for vectors."""
    return Recipe(
        lr=0.02,
        moment=NesterovEMA(beta=0.95),
        curvature=Unit(),
        rectifier=NoRectifier(),
        solve=Orthogonalize(steps=5, scale="original"),
        decay=AdamWDecay(weight_decay=0.0),
        vectors=_adam(lr=3e-4, beta=0.9, beta2=0.95, eps=1e-10),
    )


def _adam(lr: float, beta: float, beta2: float, eps: float) -> Recipe:
    return Recipe(
        name="adam",
        lr=lr,
        moment=RawEMA(beta=beta),
        curvature=SecondMoment(beta=beta2),
        rectifier=SquareRoot(eps=eps),
        decay=AdamWDecay(weight_decay=0.0),
    )

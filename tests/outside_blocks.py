"""Blocks as a user writes them, outside the package."""

from __future__ import annotations

from typing import Any

from sandbox.blocks import (
    COLUMNS,
    ELEMENT,
    LEFT,
    RIGHT,
    ROWS,
    SQUARE,
    Curvature,
    Number,
    Rectifier,
    ScaleInvariantFloor,
    Solve,
    block,
    number,
)


@block
class Halfway(Rectifier):
    """D = |B| + σ: between the floor and the soft absolute value."""

    sigma: Number = number(default=0.01, range="(0, inf)")

    def read(self, B):
        # D = |B| + σ
        return B.abs() + self.sigma


@block
class MeanAbsolute(Curvature):
    """B ← β B + (1-β)|g|."""

    beta: float = 0.99
    state = {"B": ELEMENT}

    def update(self, x, *, B):
        # B ← β B + (1-β)|g|
        return {"B": self.beta * B + (1 - self.beta) * x.g.abs()}


@block
class Remembering(Curvature):
    """B = ½|g_t - g_{t-2}| + |θ_{t-1} - θ_{t-2}|: states handed on to the next as they are."""

    state = dict.fromkeys(("g1", "g2", "g3", "before", "earlier"), ELEMENT)

    def update(self, x, *, g1, g2, g3, before, earlier):
        return {"g1": x.g, "g2": g1, "g3": g2, "before": x.theta, "earlier": before}

    def read(self, value, *, g1, g2, g3, before, earlier):
        # B = ½|g_t - g_{t-2}| + |θ_{t-1} - θ_{t-2}|, in place, through a view and directly
        B = (g1 - g3).abs()
        B.unsqueeze(0).mul_(0.5)
        B.add_((before - earlier).abs())
        return B


@block
class Shaped(Rectifier):
    """D = |B| + 1, with fields that are no numbers."""

    axes: tuple = ()
    power: Any = 2

    def read(self, B):
        # D = |B| + 1
        return B.abs() + 1


@block
class RawProbe(Curvature):
    """B = z ⊙ Hz, kept as it is."""

    needs = ("hessian",)
    state = {"h": ELEMENT}

    def update(self, x, *, h):
        # h = z ⊙ Hz
        return {"h": x.hessian}


def decaying(t):
    """A number as a plain function of t."""
    return 0.9 / t


def recipe():
    """A recipe for the command line: tests.outside_blocks:recipe."""
    from sandbox.recipe import Recipe

    return Recipe(name="outside", rectifier=Halfway(sigma=0.02))


@block
class Unscaled(ScaleInvariantFloor):
    """D = |B| + 0.1: a scale-invariant floor by its name alone."""

    def read(self, B, *, floor, g):
        # D = |B| + 0.1
        return B.abs() + 0.1


def broken_promise():
    """A recipe that should be scale invariant and is not."""
    from sandbox.recipe import Recipe

    return Recipe(name="broken-promise", rectifier=Unscaled())


@block
class Both(Solve):
    """p = (I + L) u (I + R) + a + b, with the sums of u uᵀ and uᵀ u in L and R, and of rows and columns in a and b."""

    state = {"L": LEFT, "R": RIGHT, "a": ROWS, "b": COLUMNS}
    recalls = False

    def initial(self, name):
        return {"L": 0.5, "R": 0.25, "a": 0.125}.get(name, 0.0)

    def step(self, x, *, L, R, a, b):
        u = x.value
        L, R = L + 0.1 * u @ u.mT, R + 0.1 * u.mT @ u
        a, b = a + 0.1 * u.mean(1, keepdim=True), b + 0.1 * u.sum(0, keepdim=True)
        return u + L @ u + u @ R + a + b, {"L": L, "R": R, "a": a, "b": b}


@block
class Dense(Solve):
    """p = H u, with the sum of u uᵀ in H, all entries of a tensor together."""

    state = {"H": SQUARE}
    recalls = False

    def initial(self, name):
        return 0.5

    def step(self, x, *, H):
        u = x.value.reshape(-1)
        H = H + 0.1 * u[:, None] * u
        return (H @ u).reshape(x.value.shape), {"H": H}

"""Apollo in the forms that the paper (arXiv 2009.13586) and its author's code describe."""

from __future__ import annotations

from sandbox.blocks import BeliefFloor, Decoupled, L2Decay, ScaleInvariantFloor, Stable, WeakSecant
from sandbox.recipe import Recipe


def apollo() -> Recipe:
    """Diagonal quasi-Newton with a rectified weak-secant estimate: B ← B - α d², D = max(|B|, σ), d = m/D.

    Paper, Algorithm 1: β = 0.9, σ = 0.01, ε = 1e-4 added to ‖d‖₄, η = 0.01 after a linear warm-up over 500 updates
    (`sandbox.schedules.warmup`).
    """
    return Recipe()


def apollo_reference() -> Recipe:
    """Apollo with ε = 1e-4/σ = 1e-2, as the author's code computes it (`rebound="constant"`); otherwise `apollo`."""
    return Recipe(curvature=WeakSecant(eps=1e-4 / 0.01))


def apollo_l2() -> Recipe:
    """Apollo with L2 decay, g ← g + γ θ, so that decay enters m, y and the floor (paper, section 3.4)."""
    return Recipe(gradient=(L2Decay(weight_decay=5e-4),))


def apollow() -> Recipe:
    """ApolloW: decoupled decay inside the direction, d = m/D + γ θ, seen by the next secant step (paper, section 3.4)."""
    return Recipe(decay=Decoupled(weight_decay=5e-4))


def apollo_stable() -> Recipe:
    """Apollo with stable decay, d = m/D + γ/mean(D) θ (the author's code, `weight_decay_type="stable"`)."""
    return Recipe(decay=Stable(weight_decay=5e-4))


def scale_invariant() -> Recipe:
    """Apollo whose floor is σ ‖g_t - g_{t-1}‖_∞ per tensor, σ = 1: scaling the loss leaves θ unchanged (paper, section 3.3)."""
    return Recipe(rectifier=ScaleInvariantFloor(sigma=1.0))


def belief() -> Recipe:
    """Apollo with D = max(|B|, ‖g_t - m_{t-1}‖_∞) + ε/a, a = (1-β)/(1-β^t) (the author's code, `rebound="belief"`)."""
    return Recipe(rectifier=BeliefFloor(eps=1e-4))

"""Quasi-Newton methods with a history of pairs (s, y).  Words of state count d, which they store."""

from __future__ import annotations

from sandbox.blocks import EMA, NoRectifier, TwoLoop, Unit, UnitLength
from sandbox.recipe import Recipe


def sdlbfgs() -> Recipe:
    """Damped L-BFGS at length η/√t, y between successive batches (Wang et al. 2017 as in the public SdLBFGS code).

    202 words, one gradient a step.  Differs from that code: no step is left out where ‖g‖₁ ≤ 1e-5; a pair of sᵀy ≤ 1e-30 is
    dropped; no weight decay by default, as there, but any block gives some (there it has the wrong sign: weights grow).
    """
    return Recipe(
        lr=1.0,
        moment=EMA(beta=0.0),
        curvature=Unit(),
        rectifier=NoRectifier(),
        solve=UnitLength(inner=TwoLoop(memory=100, damped=True, tiny=1e-30), exponent=0.5),
        scope="global",
    )

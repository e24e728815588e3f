"""Methods whose steps follow the size of each layer's weights."""

from __future__ import annotations

from sandbox.blocks import (
    EMA,
    AdamWDecay,
    ClipGlobalNorm,
    ClipRMS,
    FactoredSecondMoment,
    FlooredRoot,
    HeavyBall,
    LayerwiseGradient,
    NoMoment,
    NoRectifier,
    RelativeStep,
    SecondMoment,
    SquareRoot,
    TrustRatio,
    Unit,
)
from sandbox.recipe import Recipe


def lars() -> Recipe:
    """SGD with momentum on (g + γθ) τ‖θ‖/(‖g‖ + γ‖θ‖), τ = .001; vectors by SGD (You et al. 2017, LARS; as in torch-xla).

    The momentum accumulates scaled gradients; in the paper it accumulates steps, η included.
    """
    sgd = Recipe(name="sgd", lr=1.0, moment=HeavyBall(momentum=0.9), curvature=Unit(), rectifier=NoRectifier())
    return sgd.replace(gradient=LayerwiseGradient(trust=1e-3), vectors=sgd)


def lamb() -> Recipe:
    """θ = θ - η φ (m̂/(√v̂ + ε) + γθ), φ = ‖θ‖/‖…‖, gradients clipped to norm 1 (You et al. 2020, LAMB; timm's numbers).

    Differs from timm where γ = 0: φ = 1 there.
    """
    return Recipe(
        lr=1e-3,
        gradient=(ClipGlobalNorm(max_norm=1.0),),
        moment=EMA(beta=0.9),
        curvature=SecondMoment(beta=0.999),
        rectifier=SquareRoot(eps=1e-6),
        decay=TrustRatio(weight_decay=0.01),
    )


def adafactor() -> Recipe:
    """v by row and column means; steps of RMS 1 times max(RMS(θ), .001) (Shazeer & Stern 2018): `torch.optim.Adafactor`.

    The rate is min(η, 1/√t), the decay ηγ.  Differs from torch for tensors of more than two axes: there the last two are
    factored.
    """
    return Recipe(
        lr=1e-2,
        moment=NoMoment(),
        curvature=FactoredSecondMoment(decay=0.8, floor=1.1920929e-07),
        rectifier=FlooredRoot(eps=1.1920929e-07),
        adjust=(ClipRMS(limit=1.0), RelativeStep(floor=1e-3)),
        decay=AdamWDecay(weight_decay=0.0),
    )

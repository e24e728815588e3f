"""Methods that evaluate other weights than they train, averages as a rule; equal step for step to the implementation named.

Validate and save between `optimizer.eval()` and `optimizer.train()`; `sandbox.compare` and ensembles do.
"""

from __future__ import annotations

from sandbox.blocks import (
    EMA,
    AverageThenDecay,
    Decoupled,
    DelayedKronecker,
    NoMoment,
    NoRectifier,
    PrimalAveraging,
    RectifiedScheduleFree,
    ScheduleFree,
    SecondMoment,
    Sign,
    SignBySides,
    SquareRoot,
    Unit,
    WeightEMA,
)
from sandbox.recipe import Recipe
from variants.peers import adam, adamw


def schedule_free_sgd() -> Recipe:
    """z = z - η (g + γ θ), x the mean of z, θ = .9 x + .1 z, x evaluated (Defazio et al. 2024): `schedulefree.SGDScheduleFree`.

    Warm-up is a schedule of the rate here; a tensor that joins late begins an average of its own.
    """
    return Recipe(
        lr=1.0,
        moment=NoMoment(),
        curvature=Unit(),
        rectifier=NoRectifier(),
        decay=Decoupled(weight_decay=0.0),
        readout=ScheduleFree(beta=0.9),
    )


def schedule_free_adamw() -> Recipe:
    """z = z - η (g/(√v̂ + ε) + γ θ), x the mean of z, θ = .9 x + .1 z, x evaluated (Defazio et al. 2024):
    `schedulefree.AdamWScheduleFree`.

    Warm-up is a schedule of the rate here; a tensor that joins late begins an average of its own.
    """
    second = SecondMoment(beta=0.999)
    return schedule_free_sgd().replace(lr=2.5e-3, curvature=second, rectifier=SquareRoot(eps=1e-8))


def schedule_free_radam() -> Recipe:
    """`schedule-free-adamw` at RAdam's rectified rates, 0 in the first steps (2024): `schedulefree.RAdamScheduleFree`."""
    return schedule_free_adamw().replace(readout=RectifiedScheduleFree(beta=0.9, beta2=0.999))


def ema_adamw() -> Recipe:
    """AdamW, evaluated at x = .999 x + .001 θ (Polyak 1992): torch's AdamW with `swa_utils.get_ema_multi_avg_fn(0.999)`."""
    return adamw().replace(readout=WeightEMA(beta=0.999, bias_correction=False))


def gpa_adamw() -> Recipe:
    """AdamW's steps of z, x = .9967 x + .0033 z, θ = .7 x + .3 z, x evaluated (Defazio et al. 2025; facebookresearch/optimizers
    f606606, gpa_adamw.py).

    Its m and v are float32 always; here they have the precision of the step.
    """
    return adam().replace(readout=PrimalAveraging(beta=0.7, average_beta=0.9967, weight_decay=0.0))


def splus() -> Recipe:
    """m's signs in the eigenvectors of Shampoo's factors, θ = θ - 2η/(m+n) Q_L sign(m') Q_Rᵀ, averages evaluated (Frans et al.
    2025; kvfrans/splus d96bd16, splus.py).

    Vectors and matrices with a side above 10,000 at η/1000 and in standard coordinates; a tensor of more axes is a matrix here.
    The sign of m' is rounding's choice where a factor is rank deficient, here as there.
    """
    vectors = Recipe(
        name="sign",
        lr=1e-4,
        moment=EMA(beta=0.9, bias_correction=False),
        curvature=Unit(),
        rectifier=NoRectifier(),
        solve=Sign(),
        readout=AverageThenDecay(beta=0.999, weight_decay=1e-2),
    )
    return vectors.replace(
        lr=0.1,
        basis=DelayedKronecker(beta=0.999, eps=0.0, every=100),
        solve=SignBySides(),
        readout=AverageThenDecay(beta=0.999, weight_decay=1e-2, by_sides=True),
        vectors=vectors,
    )

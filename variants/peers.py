"""The methods that Apollo is compared with, from the same blocks, equal step for step to the implementation named."""

from __future__ import annotations

from sandbox.blocks import (
    AdamWDecay,
    Belief,
    CenteredSecondMoment,
    HeavyBall,
    Hutchinson,
    NoMoment,
    NoRectifier,
    Power,
    RawEMA,
    RectifiedSquareRoot,
    SecondMoment,
    SquareRoot,
    StepRatio,
    SumOfSquares,
    Unit,
)
from sandbox.recipe import Recipe


def sgd() -> Recipe:
    """m = μ m + g, θ = θ - η m, μ = 0.9 (Polyak 1964): `torch.optim.SGD`."""
    return Recipe(lr=0.1, moment=HeavyBall(momentum=0.9), curvature=Unit(), rectifier=NoRectifier())


def nesterov() -> Recipe:
    """m = μ m + g, θ = θ - η (g + μ m), μ = 0.9 (Nesterov 1983): `torch.optim.SGD(nesterov=True)`."""
    return Recipe(lr=0.1, moment=HeavyBall(momentum=0.9, nesterov=True), curvature=Unit(), rectifier=NoRectifier())


def adam() -> Recipe:
    """θ = θ - η m̂/(√v̂ + ε), β₁ = 0.9, β₂ = 0.999 (Kingma & Ba 2015): `torch.optim.Adam`."""
    return Recipe(lr=1e-3, moment=RawEMA(), curvature=SecondMoment(beta=0.999), rectifier=SquareRoot(eps=1e-8))


def adamw() -> Recipe:
    """Adam with θ ← (1 - ηγ) θ first, γ = 0.01 (Loshchilov & Hutter 2019): `torch.optim.AdamW`."""
    return adam().replace(decay=AdamWDecay(weight_decay=1e-2))


def amsgrad() -> Recipe:
    """Adam that divides by the largest v so far (Reddi, Kale & Kumar 2018): `torch.optim.Adam(amsgrad=True)`."""
    return adam().replace(curvature=SecondMoment(beta=0.999, maximum=True))


def radam() -> Recipe:
    """Adam whose second moment is rectified for its variance, decoupled decay (Liu et al. 2020): `torch.optim.RAdam`."""
    return Recipe(
        lr=1e-3,
        moment=RawEMA(),
        curvature=SecondMoment(beta=0.999, bias_correction=False),
        rectifier=RectifiedSquareRoot(beta=0.999, eps=1e-8),
        decay=AdamWDecay(weight_decay=0.0),
    )


def adagrad() -> Recipe:
    """θ = θ - η g/(√Σg² + ε) (Duchi, Hazan & Singer 2011): `torch.optim.Adagrad`."""
    return Recipe(lr=1e-2, moment=NoMoment(), curvature=SumOfSquares(), rectifier=SquareRoot(eps=1e-10))


def rmsprop() -> Recipe:
    """θ = θ - η g/(√v + ε), v = α v + (1-α) g², α = 0.99 (Tieleman & Hinton 2012): `torch.optim.RMSprop`."""
    return Recipe(lr=1e-2, moment=NoMoment(), curvature=SecondMoment(beta=0.99, bias_correction=False), rectifier=SquareRoot())


def rmsprop_centered() -> Recipe:
    """RMSprop with the variance v - (mean of g)² under the root (Graves 2013): `torch.optim.RMSprop(centered=True)`."""
    return Recipe(lr=1e-2, moment=NoMoment(), curvature=CenteredSecondMoment(beta=0.99), rectifier=SquareRoot())


def adadelta() -> Recipe:
    """θ = θ - η g √(Δ + ε)/√(v + ε), Δ the running square of past directions (Zeiler 2012): `torch.optim.Adadelta`."""
    return Recipe(
        lr=1.0,
        moment=NoMoment(),
        curvature=SecondMoment(beta=0.9, bias_correction=False),
        rectifier=StepRatio(rho=0.9, eps=1e-6),
    )


def adabelief() -> Recipe:
    """θ = θ - η m̂/(√ŝ + ε), s = β s + (1-β)(g - m)² + ε (Zhuang et al. 2020, the authors' code: ε accumulates)."""
    return Recipe(lr=1e-3, moment=RawEMA(), curvature=Belief(beta=0.999, eps=1e-8), rectifier=SquareRoot(eps=1e-8))


def adabelief_plain() -> Recipe:
    """AdaBelief without ε inside the recursion (Zhuang et al. 2020): s = β s + (1-β)(g - m)²."""
    return Recipe(lr=1e-3, moment=RawEMA(), curvature=Belief(beta=0.999, eps=0.0), rectifier=SquareRoot(eps=1e-8))


def adahessian() -> Recipe:
    """θ = θ - η m̂/((√v̂)^k + ε), v an EMA of (z ⊙ Hz)², z = ±1 (Yao et al. 2021); step(closure) needs the loss."""
    return Recipe(lr=0.15, moment=RawEMA(), curvature=Hutchinson(beta=0.999), rectifier=Power(exponent=1.0, eps=1e-4))


def adahessian_spatial() -> Recipe:
    """AdaHessian with |z ⊙ Hz| averaged over a convolution kernel's positions (Yao et al. 2021, for images)."""
    return adahessian().replace(curvature=Hutchinson(beta=0.999, spatial_average=True))

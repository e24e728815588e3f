"""Quasi-Newton methods with a history of pairs (s, y), and those that make one number of a pair.

State elements per parameter include d where it is stored (a solver with a history cannot recall it).  "Gradients" are
gradients per step, a Hessian-vector product counted as one.
"""

from __future__ import annotations

from sandbox.blocks import (
    EMA,
    AccumulatedSecant,
    AveragedIterates,
    BarzilaiBorwein,
    Broyden,
    DiagonalBarzilaiBorwein,
    EmpiricalFisher,
    NoMoment,
    NoRectifier,
    RegularizedBFGS,
    SameBatch,
    SquareRoot,
    SumOfSquares,
    TwoLoop,
    Unit,
    UnitLength,
)
from sandbox.recipe import Recipe


def lbfgs() -> Recipe:
    """L-BFGS, ten pairs, H₀ = sᵀy/yᵀy (Liu & Nocedal 1989), as torch.optim.LBFGS(max_iter=1) takes a step.

    22 state elements, 1 gradient.  Differs from that code: no line search, no tolerances at which it silently stops.
    """
    return Recipe(
        lr=1.0,
        moment=EMA(beta=0.0),
        curvature=BarzilaiBorwein(first_step=True),
        rectifier=NoRectifier(),
        solve=TwoLoop(memory=10),
        scope="global",
    )


def sdlbfgs() -> Recipe:
    """Damped L-BFGS at length η/√t, y between successive batches (Wang et al. 2017 as in the public SdLBFGS code).

    202 state elements, 1 gradient.
    Differs from that code: no step is left out where ‖g‖₁ ≤ 1e-5; a pair of sᵀy ≤ 1e-30 is dropped; no
    weight decay by default, as there, but any block gives some (there it has the wrong sign: weights grow).
    """
    return Recipe(
        lr=1.0,
        moment=EMA(beta=0.0),
        curvature=Unit(),
        rectifier=NoRectifier(),
        solve=UnitLength(inner=TwoLoop(memory=100, damped=True, tiny=1e-30), exponent=0.5),
        scope="global",
    )


def sdlbfgs_paper() -> Recipe:
    """Damped L-BFGS, y on one batch, H₀ = 1/max(yᵀy/sᵀy, δ), δ = 0.01 (Wang, Ma, Goldfarb & Liu 2017, Procedure 3.1).

    43 state elements (d, the gradient and the second one among them), 2 gradients.
    The paper's rate falls like 1/t: a schedule's part.
    """
    return Recipe(
        lr=1.0,
        moment=NoMoment(),
        pairs=SameBatch(),
        curvature=BarzilaiBorwein(floored=True, lower=0.01, tiny=0.0),
        rectifier=NoRectifier(),
        solve=TwoLoop(memory=20, damped=True, tiny=1e-30),
        scope="global",
    )


def olbfgs() -> Recipe:
    """Online L-BFGS: y on one batch, H₀ = sᵀy/yᵀy (Schraudolph, Yu & Günter 2007; Mokhtari & Ribeiro 2015).

    23 state elements, 2 gradients.
    The form of 2015, with a pair left out where sᵀy ≤ 1e-4 sᵀs, as in stochqn; 2007 has H₀ from the
    mean over the pairs, and steps c times as long.
    """
    return Recipe(
        lr=0.1,
        moment=NoMoment(),
        pairs=SameBatch(),
        curvature=BarzilaiBorwein(tiny=0.0, least=1e-4),
        rectifier=NoRectifier(),
        solve=TwoLoop(memory=10, tiny=0.0, least=1e-4),
        scope="global",
    )


def barzilai_borwein() -> Recipe:
    """One rate for all, η sᵀy/yᵀy, y on one batch (Barzilai & Borwein 1988; stochastic: Tan et al. 2016 average over an epoch).

    3 state elements, 2 gradients; the rate stays where sᵀy ≤ 0.
    """
    return Recipe(
        lr=1.0,
        moment=EMA(beta=0.0),
        pairs=SameBatch(),
        curvature=BarzilaiBorwein(tiny=0.0),
        rectifier=NoRectifier(),
        scope="global",
    )


def barzilai_borwein_diagonal() -> Recipe:
    """A rate for each coordinate: B = argmin ‖Bs - y‖² + μ‖B - B'‖² between both scalar quotients (Park et al. 2020).

    4 state elements, 2 gradients: y on one batch, where the paper has the full gradient.
    """
    return barzilai_borwein().replace(lr=0.1, curvature=DiagonalBarzilaiBorwein())


def sgd_qn() -> Recipe:
    """Rates 1/B by coordinate, B growing by y/s within [0.1 λ, 100 λ] each step (Bordes, Bottou & Gallinari 2009; 2010).

    4 state elements, 2 gradients.
    The corrected form; y is a difference of gradients on one batch, where the code has that of ℓ' times
    x plus λ s of its own decay.
    """
    return Recipe(
        lr=1.0,
        moment=EMA(beta=0.0),
        pairs=SameBatch(),
        curvature=AccumulatedSecant(rate=1e-2, start=1e3),
        rectifier=NoRectifier(),
    )


def sqn() -> Recipe:
    """L-BFGS, a pair each 20 steps: between means of iterates, y a Hessian-vector product (Byrd et al. 2016).

    22 state elements, 2 gradients (a product each step, though one in twenty is used).
    Differs from the paper: the product is taken
    with the present batch at the present point, not with a larger one at the mean.
    """
    return Recipe(
        lr=0.1,
        moment=NoMoment(),
        pairs=AveragedIterates(every=20),
        curvature=BarzilaiBorwein(tiny=0.0, least=1e-4),
        rectifier=NoRectifier(),
        solve=TwoLoop(memory=10, tiny=0.0, least=1e-4),
        scope="global",
    )


def adaqn() -> Recipe:
    """L-BFGS from Adagrad's H₀, a pair each 20 steps: y = Fᵀ(F s)/|F|, F the last 100 gradients (Keskar & Berahas 2016).

    123 state elements, 1 gradient.
    Differs from its published code (and stochqn): no test of the loss at the mean of iterates, which
    clears the memory where the loss has grown.
    """
    return Recipe(
        lr=0.1,
        moment=NoMoment(),
        pairs=EmpiricalFisher(every=20, memory=100, least=1e-4),
        curvature=SumOfSquares(start=1e-4),
        rectifier=SquareRoot(eps=0.0),
        solve=TwoLoop(memory=10, tiny=0.0, least=1e-4),
        scope="global",
    )


def res() -> Recipe:
    """Regularised stochastic BFGS: d = (B⁻¹ + Γ) g, B ← BFGS(B) + δ I, y on one batch less δ s (Mokhtari & Ribeiro 2014).

    23 state elements, 2 gradients.
    Differs: of the last ten pairs, where the paper keeps the matrix (10 ≥ steps is the paper), from
    B₀ = 1, where minSQN has δ; a pair of vᵀr ≤ 0, for which neither has a guard, is left out.
    """
    return Recipe(
        lr=0.1,
        moment=NoMoment(),
        pairs=SameBatch(ridge=-1e-3),
        curvature=Unit(),
        rectifier=NoRectifier(),
        solve=RegularizedBFGS(memory=10, delta=1e-3, gamma=1e-4),
        scope="global",
    )


def bfgs() -> Recipe:
    """H ← (I - ρsyᵀ) H (I - ρysᵀ) + ρssᵀ from H₀ = 1 (1970), on all coordinates, as a sum of at most 20 changes.

    42 state elements, 1 gradient; begins again from H₀ when 20 pairs are full, where the classical method keeps the matrix.
    """
    return Recipe(
        lr=0.01,
        moment=EMA(beta=0.0),
        curvature=Unit(),
        rectifier=NoRectifier(),
        solve=Broyden(rule="bfgs", memory=20),
        scope="global",
    )


def dfp() -> Recipe:
    """H ← H + ssᵀ/sᵀy - Hy yᵀH/yᵀHy from H₀ = 1 (Davidon 1959; Fletcher & Powell 1963); else as bfgs."""
    return bfgs().replace(lr=0.1, solve=Broyden(rule="dfp", memory=20))


def sr1() -> Recipe:
    """H ← H + wwᵀ/wᵀy, w = s - Hy, from H₀ = 1 (Davidon 1959; H need not be positive); else as bfgs."""
    return bfgs().replace(lr=0.1, solve=Broyden(rule="sr1", memory=20))

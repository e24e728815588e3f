"""Adaptive methods of the last years, elementwise, equal step for step to the code named."""

from __future__ import annotations

from sandbox.blocks import (
    EMA,
    AbsoluteFloor,
    AdamWDecay,
    AmplifySlow,
    Bound,
    ClipEach,
    ClipParameterNorm,
    CorrectedRoot,
    FastAndSlow,
    GaussNewtonEMA,
    HessianEMA,
    NesterovEMA,
    NesterovMoment,
    NesterovSecondMoment,
    NoDecay,
    NoRectifier,
    PastNormalized,
    ProximalDecay,
    RawEMA,
    RowSecondMoment,
    Scaled,
    ScheduledNesterov,
    SecondMoment,
    ShiftedSecondMoment,
    Sign,
    SquareRoot,
    TensorSecondMoment,
    TwoRates,
    Unit,
    VarianceReduction,
    WeakSecant,
    WeightScaled,
)
from sandbox.recipe import Recipe
from variants.peers import adam, adamw


def adabound() -> Recipe:
    """Adam whose rates are clipped to bounds that close on 0.1 (Luo et al. 2019, the authors' code): from Adam to SGD.

    Differs from the paper as that code does: bias correction and ε, and no division by √t.  The bounds close on 100 η, which is
    0.1 at the published rate; in that code on 0.1, whatever the first rate is.
    """
    return Recipe(
        lr=1e-3,
        moment=RawEMA(beta=0.9),
        curvature=SecondMoment(beta=0.999, bias_correction=False),
        rectifier=Bound(inner=CorrectedRoot(beta=0.999, eps=1e-8), ratio=100.0, gamma=1e-3, beta=0.9),
    )


def amsbound() -> Recipe:
    """AdaBound that divides by the largest v so far (Luo et al. 2019, the authors' code with `amsbound=True`).

    Differs from the paper as `adabound` does.
    """
    return adabound().replace(curvature=SecondMoment(beta=0.999, bias_correction=False, maximum=True))


def lion() -> Recipe:
    """θ = θ - η sign(β₁ m + (1-β₁) g), m = β₂ m + (1-β₂) g, β₁ = 0.9, β₂ = 0.99 (Chen et al. 2023).

    As in the paper and in the package lion_pytorch, where the decay is 0 by default too.
    """
    return Recipe(
        lr=1e-4,
        moment=TwoRates(beta=0.9, memory_beta=0.99),
        curvature=Unit(),
        rectifier=NoRectifier(),
        solve=Sign(),
        decay=AdamWDecay(weight_decay=0.0),
    )


def sophia_h() -> Recipe:
    """θ = θ - η clip(m/max(γh, ε), ±1), h an EMA of z ⊙ Hz each ten steps, γ = 0.01 (Liu et al. 2023); z = ±1 here.

    2 state elements, 2 gradients (Hz is taken each step, though one in ten is used).
    Differs from the paper: z is normal there.
    """
    return Recipe(
        lr=1e-4,
        moment=EMA(beta=0.96, bias_correction=False),
        curvature=HessianEMA(beta=0.99, every=10),
        rectifier=Scaled(gamma=0.01, eps=1e-12),
        solve=ClipEach(limit=1.0),
        decay=AdamWDecay(weight_decay=0.2),
    )


def sophia_g() -> Recipe:
    """θ = θ - η clip(m/max(γh, ε), ±1), h an EMA of n·ĝ² each ten steps (Liu et al. 2023, Sophia-G).

    ĝ is the gradient of the batch's mean loss at labels that are drawn from the model, n the number of labels.

    2 state elements, 2 gradients (ĝ is taken each step, though one in ten is used).  γ = 0.05 as in the paper; the code has
    |m|/(0.04 n h + 1e-15), n tokens of a batch.
    """
    return sophia_h().replace(
        moment=EMA(beta=0.965, bias_correction=False),
        curvature=GaussNewtonEMA(beta=0.99, every=10),
        rectifier=Scaled(gamma=0.05, eps=1e-12),
        decay=AdamWDecay(weight_decay=0.1),
    )


def eadam() -> Recipe:
    """Adam with ε added to v at each step, v = β₂ v + (1-β₂) g² + ε, so that it accumulates (Yuan & Gao 2020).

    As in the paper.  To add ε to √v̂ as well, set `rectifier.eps`.
    """
    return Recipe(lr=1e-3, moment=RawEMA(), curvature=ShiftedSecondMoment(beta=0.999, eps=1e-8), rectifier=SquareRoot(eps=0.0))


def ademamix() -> Recipe:
    """Adam with a second, slow average in the numerator, m̂ + α l, β₃ = 0.9999, α = 2 (Pagliardini et al. 2024).

    As the authors' code without its warm-ups of α and β₃, which it leaves out by default too.
    """
    return Recipe(
        lr=1e-3,
        moment=FastAndSlow(beta=0.9, slow_beta=0.9999, alpha=2.0),
        curvature=SecondMoment(beta=0.999),
        rectifier=SquareRoot(eps=1e-8),
    )


def adan() -> Recipe:
    """Nesterov momentum from averages of g and of its change (Xie et al. 2022, the authors' code), proximal decay.

    As that code.  Two of its options are blocks here: `no_prox` is `decay=AdamWDecay(…)`, `max_grad_norm` is
    `gradient=ClipGlobalNorm(…)`.  The paper writes β for what is 1-β in the code and here.
    """
    return Recipe(
        lr=1e-3,
        moment=NesterovMoment(beta=0.98, change_beta=0.92),
        curvature=NesterovSecondMoment(beta=0.99, change_beta=0.92),
        rectifier=SquareRoot(eps=1e-8),
        decay=ProximalDecay(weight_decay=0.0),
    )


def mars_adamw() -> Recipe:
    """AdamW on g + γ β/(1-β) (g - g'), each tensor clipped to norm 1 (Yuan et al. 2024, the authors' code, all tensors).

    Differs from that code: it trains tensors of one axis by AdamW, with numbers of its own.  The paper has the gradient of the
    present batch at the last point for g'.
    """
    return Recipe(
        lr=3e-3,
        gradient=(VarianceReduction(gamma=0.025, beta=0.95), ClipParameterNorm(max_norm=1.0)),
        moment=RawEMA(beta=0.95),
        curvature=SecondMoment(beta=0.99),
        rectifier=SquareRoot(eps=1e-8),
        decay=AdamWDecay(weight_decay=0.0),
    )


def signum() -> Recipe:
    """θ = θ - η (sign m + γ θ), m = β m + (1-β) g, β = 0.9 (Bernstein et al. 2018, signSGD with momentum)."""
    return Recipe(
        lr=1e-4,
        moment=EMA(beta=0.9, bias_correction=False),
        curvature=Unit(),
        rectifier=NoRectifier(),
        solve=Sign(),
        decay=AdamWDecay(weight_decay=0.0),
    )


def mars_lion() -> Recipe:
    """Signum on g + γ β/(1-β) (g - g'), each tensor clipped to norm 1 (Yuan et al. 2024); one β = 0.95, unlike Lion.

    Differs from the authors' code: it trains tensors of one axis by AdamW.
    """
    return Recipe(
        lr=3e-3,
        gradient=(VarianceReduction(gamma=0.025, beta=0.95), ClipParameterNorm(max_norm=1.0)),
        moment=EMA(beta=0.95, bias_correction=False),
        curvature=Unit(),
        rectifier=NoRectifier(),
        solve=Sign(),
        decay=AdamWDecay(weight_decay=0.0),
    )


def nadamw() -> Recipe:
    """AdamW on (β m + (1-β) g)/(1-βᵗ), one step ahead (Dozat 2016; AlgoPerf's baseline, Dahl et al. 2023).

    Differs from torch.optim.NAdam, whose momentum follows a schedule.
    """
    return Recipe(
        lr=1e-3,
        moment=NesterovEMA(beta=0.9, bias_correction=True),
        curvature=SecondMoment(beta=0.999),
        rectifier=SquareRoot(eps=1e-8),
        decay=AdamWDecay(weight_decay=0.01),
    )


def zhu() -> Recipe:
    """Diagonal quasi-Cauchy: B + (sᵀy - sᵀBs)/Σs⁴ s² over all tensors (Zhu, Nazareth & Wolkowicz 1999), D = max(|B|, 0.01)."""
    return Recipe(
        moment=EMA(beta=0.0),
        curvature=WeakSecant(eps=0.0, stepsize_correction=False),
        rectifier=AbsoluteFloor(sigma=0.01),
        scope="global",
    )


def nadam() -> Recipe:
    """Adam with Nesterov's momentum, μₜ = β₁ (1 - 0.96^(tψ)/2), ψ = 4e-3 (Dozat 2016): `torch.optim.NAdam`, decay decoupled."""
    return adam().replace(lr=2e-3, moment=ScheduledNesterov(beta=0.9, momentum_decay=4e-3), decay=AdamWDecay(weight_decay=0.0))


def adopt() -> Recipe:
    """θ = θ - η m, m an average of clip(g/max(√v, ε), ±(t-1)^¼), v without the newest g, β₂ = .9999 (Taniguchi et al. 2024).

    Nothing moves at t = 1.  Differs from the authors' code where there is weight decay: theirs leaves the first step out.
    """
    return Recipe(
        lr=1e-3,
        gradient=(PastNormalized(beta=0.9999, eps=1e-6),),
        moment=EMA(beta=0.9, bias_correction=False),
        curvature=Unit(),
        rectifier=NoRectifier(),
        decay=AdamWDecay(weight_decay=0.0),
    )


def grokfast_adamw() -> Recipe:
    """AdamW on g + λ h, h a slow average of g, λ = 2, α = 0.98 (Lee et al. 2024, GrokFast-EMA before `torch.optim.AdamW`)."""
    return adamw().replace(gradient=AmplifySlow(beta=0.98, gain=2.0))


def tiger() -> Recipe:
    """θ = θ - η RMS(θ) (sign(m) + γθ), β = .965, γ = .01; embeddings by row; vectors sign(m) at η/2 (Su 2023, Tiger).

    Differs from the author's code, which tells roles by names and shrinks θ where a gradient is NaN.
    """
    base = Recipe(
        lr=1e-3,
        moment=EMA(beta=0.965, bias_correction=False),
        curvature=Unit(),
        rectifier=NoRectifier(),
        solve=Sign(),
        decay=WeightScaled(weight_decay=0.01),
    )
    vectors = base.replace(name="signum", lr=5e-4, decay=NoDecay())
    by_row = base.replace(name="tiger by row", decay=WeightScaled(weight_decay=0.01, rows=True))
    return base.replace(vectors=vectors, roles={"embedding": by_row})


def adam_mini() -> Recipe:
    """AdamW with one v per row of a matrix, per tensor of a norm, and per entry of other vectors (Zhang et al. 2024).

    Differs from the package adam_mini, which tells roles by names and has one second moment per head for queries and keys.
    """
    base, plain = adamw(), adamw().replace(name="adamw")
    norms = base.replace(curvature=TensorSecondMoment(beta=0.999), name="adam-mini, norms")
    return base.replace(curvature=RowSecondMoment(beta=0.999), vectors=plain, roles={"norm": norms})

"""Directions that agree with the gradient: cautious updates, and Grams."""

from __future__ import annotations

from sandbox.blocks import AdamWDecay, Cautious, CautiousCount, GradientSigns, SquareRoot
from sandbox.recipe import Recipe
from variants.adaptive import lion
from variants.peers import adam, adamw


def cautious_adamw() -> Recipe:
    """AdamW's direction p where p g > 0, over the share of such coordinates, at least 1e-3 (Liang et al. 2024; C-Optim).

    Differs from the authors' c_adamw.py: they add ε to √v before the correction of v, and decay after the step; timm's
    AdamW(caution=True) and this recipe do as `torch.optim.AdamW`.
    """
    return adamw().replace(adjust=Cautious())


def cautious_lion() -> Recipe:
    """Lion's direction p where p g > 0, times n/(k + 1), k of n entries being such (Liang et al. 2024; c_lion.py)."""
    return lion().replace(adjust=CautiousCount())


def cautious_apollo() -> Recipe:
    """Apollo's direction where it agrees with the gradient, over the share of such coordinates (Liang et al. 2024, for Adam).

    Not published.  The secant rule sees the direction that was taken, which is therefore stored.
    """
    return Recipe().replace(adjust=Cautious())


def grams() -> Recipe:
    """θ = θ - η |m̂/(√v̂ + ε)| ⊙ sign(g), Adam's length with the gradient's signs, ε = 1e-6 (Cao et al. 2024).

    Differs from the authors' code where there is weight decay: theirs comes after the step.
    """
    return adam().replace(rectifier=SquareRoot(eps=1e-6), adjust=GradientSigns(), decay=AdamWDecay(weight_decay=0.0))

"""Apollo with one thing changed."""

from __future__ import annotations

from sandbox.blocks import EMA, AbsoluteFloor, ClipParameterNorm, Monotone, SoftAbsolute, WeakSecant, Zero
from sandbox.recipe import Recipe


def frozen() -> Recipe:
    """B = 0, so D = σ: momentum SGD exactly as Apollo is on its floor, d = m/σ, m the bias-corrected average of gradients.

    The control for every statement about Apollo's curvature: whatever differs between the two comes from B.
    """
    return Recipe(curvature=Zero())


def hessian_ema() -> Recipe:
    """D = max(|B̄|, σ), B̄ an exponential moving average of B (β = 0.9, bias-corrected); the secant recursion stays on raw B."""
    return Recipe(averaging=EMA(beta=0.9))


def hessian_ema_uncorrected() -> Recipe:
    """As `hessian-ema` without bias correction: B̄ = β B̄ + (1-β) B."""
    return Recipe(averaging=EMA(beta=0.9, bias_correction=False))


def hessian_damped() -> Recipe:
    """Averaging inside the recursion: B ← B - (1-δ) α d², δ = 0.9."""
    return Recipe(curvature=WeakSecant(damping=0.9))


def soft_absolute() -> Recipe:
    """D = √(B² + σ²) instead of max(|B|, σ)."""
    return Recipe(rectifier=SoftAbsolute(sigma=0.01))


def no_bias_correction() -> Recipe:
    """m = β m + (1-β) g, without the correction of Algorithm 1 (what the paper's proofs assume)."""
    return Recipe(moment=EMA(bias_correction=False))


def no_momentum() -> Recipe:
    """β = 0: m = g, y = g_t - g_{t-1}."""
    return Recipe(moment=EMA(beta=0.0))


def no_stepsize_correction() -> Recipe:
    """The secant rule on s = -ηd and y as it is, so that B estimates H and not ηH (paper 3.2, before its correction)."""
    return Recipe(curvature=WeakSecant(stepsize_correction=False))


def global_secant() -> Recipe:
    """One weak secant equation over all tensors together (the classical one: Dennis & Wolkowicz 1993)."""
    return Recipe(scope="global")


def channel_secant() -> Recipe:
    """One weak secant equation for each leading index of a tensor (each output channel)."""
    return Recipe(scope="channel")


def coordinate_secant() -> Recipe:
    """One secant equation per coordinate: at ε = 0 the diagonal secant B = -y/d."""
    return Recipe(scope="coordinate")


def parameter_clip() -> Recipe:
    """Apollo on gradients clipped tensor by tensor to norm 0.5 (paper, appendix: 0.5 for the LSTM, 0.1 for the Transformer)."""
    return Recipe(gradient=(ClipParameterNorm(max_norm=0.5),))


def monotone() -> Recipe:
    """D_t = max(min(max(|B_t|, σ), Λ), D_{t-1} η_t/η_{t-1}), Λ = 4: D_t/η_t never decreases (the repair of Theorem 2)."""
    return Recipe(rectifier=Monotone(inner=AbsoluteFloor(sigma=0.01), ceiling=4.0))

"""Theorem 3 (nonconvex convergence), as stated and repaired.

Stated (paper): f lower bounded and L-smooth, ‖D_t‖_∞ < L, gradients bounded by H, unbiased noise, β_t non-increasing,
D_{t-1,j}/η_{t-1} ≤ D_{t,j}/η_t, D ≥ 1, η_t = η/√t:  min_t E‖∇f(θ_t)‖² ≤ (L/√T)(C1 η²H²(1+ln T) + C2 dη + C3 dη² + C4).
A factor 1/η is lost in its last line.  Repaired, with L_D bounding D apart from the smoothness L:

    min_t E‖∇f‖² ≤ L_D/(η√T) [C1 η²H²(1+ln T)/σ² + C2 dη/σ + C3 dη²/σ² + C4],

    κ = β/(1-β), G_step = ηH/σ, D_f = f(x_1) - f*:
    C1 = 3L/2 + 1/2 + L²κ²    C2 = (2+κ)H²    C3 = H²κ²(3L/2 + L²κ²)    C4 = κ H G_step + (3/2) L κ G_step² + D_f.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.spatial.distance import pdist, squareform
from torch import Tensor

from sandbox.blocks import scope
from sandbox.forms import lookup
from sandbox.recipe import Recipe, kernel
from theory_checks.report import Assumption, Report, everywhere, judge

STATED, REPAIRED = "Theorem 3 as stated", "repaired 5"


def terms(*, T: Any, d: Any, L: Any, L_D: Any, H: Any, eta: Any, sigma: Any, beta: Any, gap: Any) -> dict[str, dict[str, Any]]:
    """Terms of both bounds, from floats or balls.  gap: f(x_1) - f*.

    The stated one takes the larger of L and L_D for its L, and σ = 1.
    """
    kappa = beta / (1 - beta)

    def parts(factor: Any, L: Any, s: Any) -> dict[str, Any]:
        step = eta * H / s
        C1, C2 = 1.5 * L + 0.5 + L**2 * kappa**2, (2 + kappa) * H**2
        C3 = H**2 * kappa**2 * (1.5 * L + L**2 * kappa**2)
        C4 = kappa * H * step + 1.5 * L * kappa * step**2 + gap
        return {
            "C1": factor * C1 * eta**2 * H**2 * (1 + np.log(T)) / s**2,
            "C2": factor * C2 * d * eta / s,
            "C3": factor * C3 * d * eta**2 / s**2,
            "C4": factor * C4,
        }

    return {
        STATED: parts(max(L, L_D) / np.sqrt(T), L, 1.0),
        REPAIRED: parts(L_D / (eta * np.sqrt(T)), L, sigma),
    }


def check(
    recipe: str | Recipe,
    f: Callable[[Tensor], Tensor],
    start: Tensor,
    *,
    T: int,
    eta: float,
    L: float,
    H: float,
    gap: float,
    L_D: float,
    noise: float = 0.0,
    samples: int = 200,
    seed: int = 0,
    exact_to: int = 12,
) -> Report:
    """min_t E‖∇f(θ_t)‖² of a recipe with η_t = η/√t against both bounds.

    noise: each gradient gets ± noise in every coordinate with one sign a step; the expectation is exact over all 2^T signs for
    T ≤ exact_to, else a mean of `samples` runs.  L: smoothness of f; H: bound of ‖gradient‖; gap: f(x_1) - inf f; L_D: bound
    of D.
    """
    recipe = lookup.recipe(recipe)
    exact = noise > 0 and exact_to >= T
    if noise == 0:
        signs = [tuple([0] * T)]
    elif exact:
        signs = list(itertools.product((-1, 1), repeat=T))
    else:
        draw = np.random.default_rng(seed)
        signs = [tuple(draw.choice((-1, 1), T)) for _ in range(samples)]
    runs = [_run(recipe, f, start, T, eta, noise, row) for row in signs]
    squares = np.array([r.squares for r in runs])
    lr, sizes, betas = runs[0].lr, max(r.largest for r in runs), runs[0].betas
    worst = min((np.diff(r.D / r.lr[:, None], axis=0).min(initial=0.0) for r in runs), default=0.0)
    measured = float(squares.mean(axis=0).min())
    sigma, beta = float(min(r.D.min() for r in runs)), float(betas.max())
    largest = float(max(r.D.max() for r in runs))
    known = [
        _smoothness(runs[0], L),
        everywhere("f(x_1) - f(θ_t) ≤ D_f", gap - (runs[0].values[0] - runs[0].values) + 1e-12 * abs(gap)),
        *_noise(np.array(signs, dtype=float), noise == 0 or exact),
        everywhere("D_t/η_t non-decreasing in each coordinate", np.array([worst + 1e-9 * largest / lr.min()])),
        everywhere("β_t non-increasing", -np.diff(betas) + 1e-12, first_t=2),
        everywhere("D_t ≥ 1", np.array([sigma - 1 + 1e-12])),
        everywhere("‖D_t‖_∞ ≤ L_D", np.array([L_D - largest])),
        everywhere("‖g_t‖ ≤ H", np.array([H - sizes + 1e-12])),
    ]
    holds = {a.name: a.holds for a in known}
    both = terms(T=T, d=len(start), L=L, L_D=L_D, H=H, eta=eta, sigma=sigma, beta=beta, gap=gap)
    needs = {
        STATED: [a.name for a in known],
        REPAIRED: [a.name for a in known if a.name != "D_t ≥ 1"],
    }
    bounds = [
        judge(name, t, measured, {n: holds[n] for n in needs[name]}, math.inf, repaired=name == REPAIRED)
        for name, t in both.items()
    ]
    how = "no noise" if noise == 0 else f"exact over {len(signs)} sign sequences" if exact else f"mean of {samples} runs"
    half = (
        0.0 if noise == 0 or exact else 1.96 * float(squares[:, squares.mean(axis=0).argmin()].std(ddof=1)) / math.sqrt(samples)
    )
    return Report(
        title=f"nonconvex convergence of {recipe.name}, T = {T}, η = {eta:g}",
        facts={"expectation": how, "95 % half width": half, "σ": sigma, "β": beta, "largest D": largest},
        quantity="min E‖∇f‖²",
        measured=measured,
        assumptions=known,
        bounds=bounds,
    )


class _Path(NamedTuple):
    """‖∇f(θ_t)‖², D_t, η_t, the largest noisy gradient, β_t; θ_t, ∇f(θ_t) and f(θ_t)."""

    squares: np.ndarray
    D: np.ndarray
    lr: np.ndarray
    largest: float
    betas: np.ndarray
    theta: np.ndarray
    slopes: np.ndarray
    values: np.ndarray


def _smoothness(path: _Path, L: float, points: int = 128) -> Assumption:
    """‖∇f(x) - ∇f(y)‖ ≤ L‖x - y‖ for `points` points of the first run, and the worst pair."""
    at = np.unique(np.linspace(0, len(path.theta) - 1, points).astype(int))
    apart = squareform(pdist(path.theta[at]))
    steeper = squareform(pdist(path.slopes[at]))
    # rounding of the gradients counts for nothing against 1e-9 of their size
    margins = L * apart - steeper + 1e-9 * (np.abs(path.slopes).max() + L * apart)
    s, t = (int(at[k]) + 1 for k in np.unravel_index(margins.argmin(), margins.shape))
    holds = bool(margins.min() >= 0)
    return Assumption(
        "‖∇f(x) - ∇f(y)‖ ≤ L‖x - y‖ between points of the run",
        holds,
        float(margins.min()),
        share=float((margins >= 0).mean()),
        detail="" if holds else f"worst: θ_{min(s, t)} and θ_{max(s, t)}",
    )


def _noise(signs: np.ndarray, exact: bool) -> list[Assumption]:
    """Means of the signs and of products of successive ones, 0 where all sequences are counted, else up to 4 deviations."""
    allowed = 1e-12 if exact else 4 / math.sqrt(len(signs))
    means, products = signs.mean(axis=0), (signs[:, 1:] * signs[:, :-1]).mean(axis=0)
    return [
        everywhere("the noise is unbiased", allowed - np.abs(means)),
        everywhere("the noise of successive steps is uncorrelated", allowed - np.abs(products), first_t=2),
    ]


def _run(
    recipe: Recipe, f: Callable[[Tensor], Tensor], start: Tensor, T: int, eta: float, noise: float, signs: tuple[int, ...]
) -> _Path:
    theta, state = start.clone(), recipe.init(start)
    squares, D, lr, sizes, betas, points, slopes, values = [], [], [], [], [], [], [], []
    slope = torch.func.grad_and_value(f)
    within = scope.of_tensor(recipe.scope)
    for t in range(1, T + 1):
        true, value = slope(theta)
        points.append(theta.numpy())
        slopes.append(true.numpy())
        values.append(float(value))
        g = true + noise * signs[t - 1]
        rate = eta / math.sqrt(t)
        p = kernel.evaluate(recipe, t, rate, state).to(torch.float64, theta.device)
        new, theta = kernel.advance(p, state, theta, g, scope.OneTensor(), within, observe=lambda x: D.append(np.array(x.D)))
        state = {**new, **p.applied}
        squares.append(float(true.square().sum()))
        sizes.append(float(torch.linalg.vector_norm(g)))
        lr.append(rate)
        betas.append(1 - float(p.a))
    return _Path(
        squares=np.array(squares),
        D=np.array(D),
        lr=np.array(lr),
        largest=max(sizes),
        betas=np.array(betas),
        theta=np.array(points),
        slopes=np.array(slopes),
        values=np.array(values),
    )

"""Theorem 3 (nonconvex convergence), as stated and repaired.

Stated (paper): f lower bounded and L-smooth, ‖D_t‖_∞ < L, gradients bounded by H, unbiased noise, β_t non-increasing,
D_{t-1,j}/η_{t-1} ≤ D_{t,j}/η_t, D ≥ 1, η_t = η/√t:  min_t E‖∇f(θ_t)‖² ≤ (L/√T)(C1 η²H²(1+ln T) + C2 dη + C3 dη² + C4).
A factor 1/η is lost in its last line.  Repaired, with L_D bounding D apart from the smoothness L:

    min_t E‖∇f‖² ≤ L_D/(η√T) [C1 η²H²(1+ln T)/σ² + C2 dη/σ + C3 dη²/σ² + C4],

    κ = β/(1-β), G_step = ηH/σ, D_f = f(x_1) - f*:
    C1 = 3L/2 + 1/2 + L²κ²    C2 = (2+κ)H²    C3 = H²κ²(3L/2 + L²κ²)    C4 = κ H G_step + (3/2) L κ G_step² + D_f.

It holds for any β_t ≤ β with Σ |κ_{t+1} - κ_t| ≤ κ, κ_t = β_t/(1-β_t), so for a monotone β_t of either direction: the moving
average with bias correction is one.  Proof: docs/theory.md.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import stats
from scipy.spatial.distance import pdist, squareform
from torch import Tensor

from sandbox.forms import lookup
from sandbox.recipe import Recipe
from theory_checks.claims import premises
from theory_checks.online import repeats
from theory_checks.record import observe
from theory_checks.report import Assumption, Inequality, Report, everywhere, judge

STATED, REPAIRED = "Theorem 3 as stated", "repaired 5"
VARIATION = "Σ |κ_{t+1} - κ_t| ≤ κ, κ_t = β_t/(1-β_t)"


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
    Raises ValueError for an f that gives another number when it is called again.
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
    squares = np.array([(r.slopes**2).sum(axis=1) for r in runs])
    lr, betas, largest = runs[0].lr, runs[0].betas, float(max(r.D.max() for r in runs))
    worst = min(np.diff(r.D / r.lr[:, None], axis=0).min(initial=0.0) for r in runs)
    measured = float(squares.mean(axis=0).min())
    sigma, beta = float(min(r.D.min() for r in runs)), float(betas.max())
    kappas = betas / (1 - betas)
    fallen = np.max([r.values[0] - r.values for r in runs], axis=0)
    assumptions = [
        _smoothness(runs, L),
        everywhere("f(x_1) - f(θ_t) ≤ D_f", gap - fallen + 1e-12 * abs(gap)),
        *check_noise(np.array(signs, dtype=float), noise == 0 or exact),
        _least(premises.average(r.g, r.m, r.betas) for r in runs),
        _least(premises.direction(recipe, r.theta, r.m, r.D, r.lr) for r in runs),
        everywhere("D_1 is the same for every noise", -np.ptp([r.D[0] for r in runs], axis=0)[None]),
        everywhere(premises.COORDINATEWISE, np.array([worst + 1e-9 * largest / lr.min()])),
        everywhere("β_t non-increasing", -np.diff(betas) + 1e-12, first_t=2),
        everywhere(VARIATION, np.array([kappas.max() * (1 + 1e-9) + 1e-12 - np.abs(np.diff(kappas)).sum()])),
        everywhere("D_t ≥ 1", np.array([sigma - 1 + 1e-12])),
        everywhere("‖D_t‖_∞ ≤ L_D", np.array([L_D - largest])),
        everywhere("‖g_t‖ ≤ H", np.array([H - max(np.linalg.norm(r.g, axis=1).max() for r in runs) + 1e-12])),
    ]
    holds = {a.name: a.holds for a in assumptions}
    both = terms(T=T, d=len(start), L=L, L_D=L_D, H=H, eta=eta, sigma=sigma, beta=beta, gap=gap)
    needs = {
        STATED: [name for name in holds if name != VARIATION],
        REPAIRED: [name for name in holds if name not in ("D_t ≥ 1", "β_t non-increasing")],
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
        assumptions=assumptions,
        bounds=bounds,
        steps=_steps(
            runs,
            f,
            {"L": L, "H": H, "eta": eta, "sigma": sigma, "gap": gap, "L_D": L_D, "kappa": float(kappas.max())},
            measured,
            ", ".join(name for name in needs[REPAIRED] if not holds[name]),
            "" if noise == 0 or exact else "the expectation is a mean of samples",
        ),
    )


class _Path(NamedTuple):
    """A run, row t - 1 of step t.  theta: (T+1, d).  slopes, g, m, D: (T, d), ∇f(θ_t), the same with noise, and what the step
    made of it.  lr, betas, values: (T,), η_t, β_t, f(θ_t).
    """

    theta: np.ndarray
    slopes: np.ndarray
    g: np.ndarray
    m: np.ndarray
    D: np.ndarray
    lr: np.ndarray
    betas: np.ndarray
    values: np.ndarray


def _steps(
    runs: list[_Path], f: Callable[[Tensor], Tensor], numbers: dict[str, float], measured: float, fails: str, sampled: str
) -> list[Inequality]:
    """The proof of bound 5 (docs/theory.md), each step as an inequality of its own.

    p_t = η_t/D_t, κ_t = β_t/(1-β_t), z_t = θ_t + κ_t (θ_t - θ_{t-1}); E is the mean over the runs.
    fails: premises that do not hold; sampled: why E is not exact.
    """
    L, H, eta, sigma, gap, L_D, kappa = (numbers[name] for name in ("L", "H", "eta", "sigma", "gap", "L_D", "kappa"))
    theta, slopes, g, m, D = (np.array([getattr(r, name) for r in runs]) for name in ("theta", "slopes", "g", "m", "D"))
    lr, betas = runs[0].lr[:, None], runs[0].betas
    T, d = D.shape[1:]
    p, kappas = lr / D, (betas / (1 - betas))[:, None]
    turn = np.abs(np.diff(kappas, axis=0, append=kappas[-1:]))
    moved = np.diff(theta, axis=1)
    before, p_before = (np.concatenate([0 * x[:, :1], x[:, :-1]], axis=1) for x in (moved, p))
    p_before[:, 0], m_before = p[:, 0], np.concatenate([0 * m[:, :1], m[:, :-1]], axis=1)
    # z_{t+1} = θ_{t+1} + κ_{t+1} (θ_{t+1} - θ_t)
    z = theta[:, :-1] + kappas * before
    z = np.concatenate([z, theta[:, -1:] + kappas[-1] * moved[:, -1:]], axis=1)
    signed = np.diff(kappas, axis=0, append=kappas[-1:])
    along = -p * g - kappas * (p - p_before) * m_before - signed * p * m
    error = np.abs(np.diff(z, axis=1) - along).max()

    def mean(x: np.ndarray) -> float:
        """E Σ_t Σ_j."""
        return float(x.sum(axis=(1, 2)).mean())

    end = float(np.mean([float(f(torch.tensor(x))) for x in z[:, -1]]))
    growth, path, noisy = mean(np.abs(p - p_before)), mean((p - p_before) ** 2), mean((p * g) ** 2)
    behind, weighted = mean((p_before * m_before) ** 2), mean(p * slopes**2)
    turned = float((turn[:, 0] * np.linalg.norm(p * m, axis=2)).sum(axis=1).mean())
    rest = L * (noisy + H**2 * mean((kappas * (p - p_before)) ** 2)) + noisy / 2 + L**2 / 2 * mean((kappas * before) ** 2)
    rest += H**2 * mean(kappas * np.abs(p - p_before)) + H * turned
    product, sums = mean(slopes * p * g), eta**2 * H**2 * (1 + math.log(T)) / sigma**2
    rows = [
        ("z_{t+1} - z_t = -p_t g_t - κ_t (p_t - p_{t-1}) m_{t-1} - (κ_{t+1} - κ_t) p_t m_t: |left - right|", error,
         1e-9 * (np.abs(z).max() + np.abs(along).max())),
        ("descent: E f(z_{T+1}) - f(θ_1) + E Σ ∇f(θ_t)·p_t g_t ≤ E Σ r_t", end - runs[0].values[0] + product, rest),
        ("noise: E Σ p_t·∇f(θ_t)² ≤ E Σ ∇f(θ_t)·p_t g_t + H² E Σ ‖p_t - p_{t-1}‖₁", weighted, product + H**2 * growth),
        ("E Σ ‖p_t - p_{t-1}‖₁ ≤ dη/σ", growth, d * eta / sigma),
        ("E Σ ‖p_t - p_{t-1}‖² ≤ dη²/σ²", path, d * eta**2 / sigma**2),
        ("E Σ ‖p_t g_t‖² ≤ η²H²(1 + ln T)/σ²", noisy, sums),
        ("E Σ ‖p_{t-1} m_{t-1}‖² ≤ η²H²(1 + ln T)/σ²", behind, sums),
        ("E Σ |κ_{t+1} - κ_t| ‖p_t m_t‖ ≤ κ ηH/σ", turned, kappa * eta * H / sigma),
        ("f(θ_1) - E f(z_{T+1}) ≤ D_f", runs[0].values[0] - end, gap),
        ("η√T/L_D min E‖∇f‖² ≤ E Σ p_t·∇f(θ_t)²", eta * math.sqrt(T) / L_D * measured, weighted),
    ]  # fmt: skip
    return [
        Inequality(name, float(left), float(right), fails or (sampled if name.startswith("noise") else ""))
        for name, left, right in rows
    ]


def _least(assumptions: Iterable[Assumption]) -> Assumption:
    """The one of several runs that holds by the least."""
    return min(assumptions, key=lambda a: a.margin)


def _smoothness(runs: list[_Path], L: float, points: int = 128) -> Assumption:
    """‖∇f(x) - ∇f(y)‖ ≤ L‖x - y‖ for `points` points of the runs, and the worst pair."""
    theta, slopes = (np.concatenate(rows) for rows in ([r.theta[:-1] for r in runs], [r.slopes for r in runs]))
    at = np.unique(np.linspace(0, len(theta) - 1, points).astype(int))
    apart = squareform(pdist(theta[at]))
    steeper = squareform(pdist(slopes[at]))
    # rounding of the gradients counts for nothing against 1e-9 of their size
    margins = L * apart - steeper + 1e-9 * (np.abs(slopes).max() + L * apart)
    s, t = (int(at[k]) % len(runs[0].lr) + 1 for k in np.unravel_index(margins.argmin(), margins.shape))
    holds = bool(margins.min() >= 0)
    return Assumption(
        "‖∇f(x) - ∇f(y)‖ ≤ L‖x - y‖ between points of the run",
        holds,
        float(margins.min()),
        share=float((margins >= 0).mean()),
        detail="" if holds else f"worst: θ_{min(s, t)} and θ_{max(s, t)}",
    )


def check_noise(signs: np.ndarray, exact: bool) -> list[Assumption]:
    """Means of the signs and of products of successive ones: 0 where all sequences are counted, else as small as all those of
    unbiased signs together are but once in a million times."""
    likely = float(stats.norm.isf(2.5e-7 / signs.shape[1]))
    allowed = 1e-12 if exact else likely / math.sqrt(len(signs))
    means, products = signs.mean(axis=0), (signs[:, 1:] * signs[:, :-1]).mean(axis=0)
    return [
        everywhere("the noise is unbiased", allowed - np.abs(means)),
        everywhere("the noise of successive steps is uncorrelated", allowed - np.abs(products), first_t=2),
    ]


def _run(
    recipe: Recipe, f: Callable[[Tensor], Tensor], start: Tensor, T: int, eta: float, noise: float, signs: tuple[int, ...]
) -> _Path:
    theta, state, slope = start.clone(), recipe.init(start), torch.func.grad_and_value(f)
    rows: dict[str, list[Any]] = {name: [] for name in _Path._fields}
    for t in range(1, T + 1):
        true, value = slope(theta)
        repeats(f"f(θ_{t})", float(value), float(f(theta)))
        g = true + noise * signs[t - 1]
        rate = eta / math.sqrt(t)
        for name, entry in (("theta", theta), ("slopes", true), ("g", g)):
            rows[name].append(entry.numpy())
        state, theta, seen = observe(recipe, state, theta, g, t, rate)
        for name in ("m", "D"):
            rows[name].append(np.broadcast_to(np.asarray(seen[name]), start.shape))
        rows["values"].append(float(value))
        rows["lr"].append(rate)
        rows["betas"].append(float(seen["beta"]))
    rows["theta"].append(theta.numpy())
    return _Path(**{name: np.array(values) for name, values in rows.items()})

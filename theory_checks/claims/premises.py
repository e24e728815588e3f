"""The premises of Theorem 2, each tested on a recorded run, with a margin."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from sandbox.blocks import Block, NoProjection
from sandbox.recipe import Recipe, parts
from theory_checks.comparators import Comparator, region
from theory_checks.online import repeats
from theory_checks.record import Run
from theory_checks.report import Assumption, everywhere

CONVEX = "f_t is convex between points of the run"
CONVEX_ELSEWHERE = "f_t is convex between random points of the set"
LOWEST = "θ* is a global minimum"
FEASIBLE, INSIDE = "θ* lies in the set onto which the recipe projects", "θ_t lies in the problem's box"
AVERAGE, DIRECTION = "m_t = β_t m_{t-1} + (1-β_t) g_t", "d_t = m_t/D_t"
GRADIENTS = "‖g_t‖₂ is bounded by a finite G"
COORDINATEWISE = "D_t/η_t non-decreasing in each coordinate"
LOSSES, POINTS, RANDOM = 64, 32, 8  # f_t, and points of the run and of the set at which convexity is tested


def check(run: Run, best: Comparator) -> list[Assumption]:
    """Returns every premise of Theorem 2 and of its repaired forms; best: θ* of the whole run."""
    star = best.theta.numpy()
    root = np.sqrt(np.arange(1, run.T + 1))
    grown = growth(run.D, run.lr)
    steps = -np.abs(np.diff(run.beta))
    rising = max(np.diff(run.beta).min(initial=0.0), (-np.diff(run.beta)).min(initial=0.0))
    return [
        *convexity(run, star),
        check_gradients(run),
        everywhere("η_t = η/√t", 1e-9 - np.abs(run.lr * root / run.lr[0] - 1)),
        average(run.g, run.m, run.beta),
        direction(run.recipe, run.theta, run.m, run.D, run.lr),
        everywhere("0 ≤ β_t < 1", np.minimum(run.beta + 1e-12, 1 - run.beta)),
        Assumption(LOWEST, bool(best.margin >= 0), best.margin, detail=best.detail),
        everywhere(FEASIBLE, 1e-9 * (1 + np.abs(star).max()) - _outside(run, star)),
        everywhere(INSIDE, _room(run)),
        everywhere("‖D_t‖₁/η_t non-decreasing", grown.sum(axis=1), first_t=2),
        everywhere(COORDINATEWISE, grown, first_t=2),
        everywhere("D_t ≥ 1", run.D - 1 + 1e-12),
        everywhere("β_t constant", steps + 1e-12, first_t=2),
        everywhere("β_t monotone", np.array([rising + 1e-12])),
    ]


def growth(D: np.ndarray, lr: np.ndarray) -> np.ndarray:
    """u_t - u_{t-1}, u_t = D_t/η_t, plus the rounding of the product D_{t-1} η_t/η_{t-1}: (…, T, d), (…, T) -> (…, T-1, d)."""
    u = D / lr[..., None]
    return np.diff(u, axis=-2) + 1e-12 * u[..., 1:, :]


def average(g: np.ndarray, m: np.ndarray, beta: np.ndarray) -> Assumption:
    """Returns whether m is the moving average of g, both (T, d), with weights β_t (T,), to rounding of the largest gradient."""
    before = np.vstack([np.zeros_like(m[:1]), m[:-1]])
    error = np.abs(m - beta[:, None] * before - (1 - beta[:, None]) * g).max(axis=1)
    return everywhere(AVERAGE, 1e-9 - error / max(float(np.abs(g).max()), 1e-300))


def direction(recipe: Recipe, theta: np.ndarray, m: np.ndarray, D: np.ndarray, lr: np.ndarray) -> Assumption:
    """Returns whether θ_{t+1} = Π(θ_t - η_t m_t/D_t) to rounding, theta: (T+1, d), m and D: (T, d), lr: (T,)."""
    step = lr[:, None] * m / D
    ahead = theta[:-1] - step
    if not isinstance(recipe.projection, NoProjection) and not _depends_on_run(recipe):
        ahead = np.array([_project(recipe, t, x) for t, x in enumerate(ahead, start=1)])
    allowed = 1e-9 * np.abs(step).max(axis=1) + 1e-14 * np.abs(theta[:-1]).max(axis=1)
    return everywhere(DIRECTION, (allowed - np.abs(theta[1:] - ahead).max(axis=1)) / np.maximum(allowed, 1e-300) * 1e-9)


def convexity(run: Run, star: np.ndarray) -> list[Assumption]:
    """f_t(p) ≥ f_t(q) + ∇f_t(q)·(p - q) for `LOSSES` of the t: for q = θ_t, p among `POINTS` iterates and θ*; and for q among
    `RANDOM` random points of the set, p among them, θ_t and θ*.

    The set is the box, or a region around the run.  The margins are relative to the size of the terms, and the worst pair is
    named.  This refutes convexity where it fails, and does not prove it where it holds.
    Raises ValueError where f_t(θ_t) is not what it was in the run.
    """
    chosen = np.unique(np.linspace(0, run.T - 1, LOSSES).astype(int))
    at = np.unique(np.linspace(0, run.T, POINTS).astype(int))
    names = [*(f"θ_{i + 1}" for i in at), "θ*"]
    points = np.vstack([run.theta[at], star])
    low, high = region(run.problem.box, np.vstack([run.theta, star]))
    drawn = np.random.default_rng(0).uniform(low, high, (RANDOM, len(star)))
    margins, elsewhere = np.zeros((len(chosen), len(points))), np.zeros((len(chosen), RANDOM, RANDOM + 2))
    for k, i in enumerate(chosen):
        t = int(i) + 1
        again = float(run.problem.loss(t, torch.tensor(run.theta[i])))
        repeats(f"problem {run.problem.name!r}: loss({t}, θ)", float(run.loss[i]), again)
        values = np.array([float(run.problem.loss(t, torch.tensor(p))) for p in (*points, *drawn)])
        margins[k] = _above_tangent(points, values[: len(points)], run.theta[i], run.loss[i], run.g[i])
        others = np.vstack([drawn, run.theta[i], star])
        heights = np.array([*values[len(points) :], run.loss[i], values[len(points) - 1]])
        for j, q in enumerate(drawn):
            slope = run.problem.gradient(t, torch.tensor(q)).numpy()
            elsewhere[k, j] = _above_tangent(others, heights, q, heights[j], slope)
    return [
        _worst(CONVEX, margins, lambda k, p: (chosen[k], names[p], f"θ_{chosen[k] + 1}")),
        _worst(
            CONVEX_ELSEWHERE,
            elsewhere,
            lambda k, q, p: (chosen[k], _place(others[p]) if p < RANDOM else ("θ_t", "θ*")[p - RANDOM], _place(drawn[q])),
        ),
    ]


def _above_tangent(points: np.ndarray, values: np.ndarray, at: np.ndarray, value: float, slope: np.ndarray) -> np.ndarray:
    """(n,): f(p) - f(q) - ∇f(q)·(p - q), over the size of its terms, for n points p and the point q = `at`."""
    move = points - at
    size = np.abs(values) + abs(value) + np.abs(move) @ np.abs(slope)
    return (values - value - move @ slope) / np.maximum(size, 1e-300)


def _worst(name: str, margins: np.ndarray, places: Any) -> Assumption:
    """An assumption that holds where the margins do to 1e-9; places: their indices -> t - 1, p and q in words."""
    result = everywhere(name, margins, tolerance=1e-9)
    i, p, q = places(*np.unravel_index(np.argmin(margins), margins.shape))
    return Assumption(
        name, result.holds, result.margin, None, result.share, f"worst: f_{i + 1} at {p} against its tangent at {q}"
    )


def _place(x: np.ndarray) -> str:
    return "(" + ", ".join(f"{v:.3g}" for v in x[:3]) + ", …" * (len(x) > 3) + ")"


def check_gradients(run: Run) -> Assumption:
    """Every gradient is finite, and where the largest one is."""
    sizes = np.linalg.norm(run.g, axis=1)
    t = int(np.nan_to_num(sizes, nan=np.inf).argmax())
    finite = bool(np.isfinite(sizes).all())
    return Assumption(GRADIENTS, finite, 0.0 if finite else -np.inf, None, 1.0, f"G = ‖g_{t + 1}‖ = {sizes[t]:.6g}, measured")


def _room(run: Run) -> np.ndarray:
    """(T, d): how far inside the problem's box θ_t lies, less rounding; all of space where there is none."""
    if run.problem.box is None:
        return np.zeros(0)
    low, high = run.problem.box
    return np.minimum(run.theta[: run.T] - low, high - run.theta[: run.T]) + 1e-12


def _outside(run: Run, star: np.ndarray) -> np.ndarray:
    """Largest coordinate of |θ* - Π_t(θ*)| for each t, (T,): 0 where θ* is its own projection; inf where Π cannot be told.

    A point of the set stays where it is in every norm, so D does not enter.
    """
    if _depends_on_run(run.recipe):
        return np.full(run.T, np.inf)
    return np.array([np.abs(_project(run.recipe, t, star) - star).max() for t in range(1, run.T + 1)])


def _depends_on_run(recipe: Recipe) -> bool:
    """Whether the projection looks at more than the point that it is given."""
    return bool(recipe.projection.state) or type(recipe.projection).step is not Block.step


def _project(recipe: Recipe, t: int, x: np.ndarray) -> np.ndarray:
    """Π_t(x), x: (d,)."""
    block: Any = parts.at_step(recipe.projection, t)
    return np.asarray(block.read(torch.tensor(x)))

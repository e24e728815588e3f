"""The premises of Theorem 2, each tested on a recorded run, with a margin."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from sandbox.blocks import Block, NoDecay
from sandbox.recipe import parts
from theory_checks.problems import Comparator
from theory_checks.record import Run
from theory_checks.report import Assumption, everywhere

CONVEX = "f_t is convex between points of the run"
OPTIMAL, LOWEST = "θ* is stationary", "θ* is a global minimum"
FEASIBLE, INSIDE = "θ* lies in the set onto which the recipe projects", "θ_t lies in the problem's box"
AVERAGE, DIRECTION = "m_t = β_t m_{t-1} + (1-β_t) g_t", "d_t = m_t/D_t"
GRADIENTS = "‖g_t‖₂ is bounded by a finite G"
LOSSES, POINTS = 64, 32  # f_t and points at which convexity is tested


def of(run: Run, best: Comparator) -> list[Assumption]:
    """Every premise of Theorem 2 and of its repaired forms; best: θ* of the whole run."""
    star = best.theta.numpy()
    root = np.sqrt(np.arange(1, run.T + 1))
    grown = growth(run.D, run.lr)
    before = np.vstack([np.zeros_like(run.m[:1]), run.m[:-1]])
    recursion = run.beta[:, None] * before + (1 - run.beta[:, None]) * run.g
    steps = -np.abs(np.diff(run.beta))
    rising = max(np.diff(run.beta).min(initial=0.0), (-np.diff(run.beta)).min(initial=0.0))
    direct = isinstance(run.recipe.decay, NoDecay)
    convex = convexity(run, star)
    return [
        convex,
        _bounded(run),
        everywhere("η_t = η/√t", 1e-9 - np.abs(run.lr * root / run.lr[0] - 1)),
        everywhere(AVERAGE, 1e-9 - np.abs(run.m - recursion).max(axis=1)),
        everywhere(DIRECTION, np.array([0.0 if direct else -1.0])),
        everywhere("0 ≤ β_t < 1", np.minimum(run.beta + 1e-12, 1 - run.beta)),
        everywhere(OPTIMAL, np.array([1e-6 - best.residual])),
        _lowest(run, best, convex.holds),
        everywhere(FEASIBLE, 1e-9 - _outside(run, star)),
        everywhere(INSIDE, _room(run)),
        everywhere("‖D_t‖₁/η_t non-decreasing", grown.sum(axis=1), first_t=2),
        everywhere("D_t/η_t non-decreasing in each coordinate", grown, first_t=2),
        everywhere("D_t ≥ 1", run.D - 1 + 1e-12),
        everywhere("β_t constant", steps + 1e-12, first_t=2),
        everywhere("β_t monotone", np.array([rising + 1e-12])),
    ]


def growth(D: np.ndarray, lr: np.ndarray) -> np.ndarray:
    """u_t - u_{t-1}, u_t = D_t/η_t, plus the rounding of the product D_{t-1} η_t/η_{t-1}: (…, T, d), (…, T) -> (…, T-1, d)."""
    u = D / lr[..., None]
    return np.diff(u, axis=-2) + 1e-12 * u[..., 1:, :]


def convexity(run: Run, star: np.ndarray) -> Assumption:
    """f_t(p) ≥ f_t(θ_t) + g_t·(p - θ_t) for `LOSSES` of the t and `POINTS` of the iterates p, and p = θ*, spread over the run.

    The margin is relative to the size of the terms; the worst pair is named.  It refutes convexity where it fails, and does
    not prove it where it holds.
    """
    chosen = np.unique(np.linspace(0, run.T - 1, LOSSES).astype(int))
    at = np.unique(np.linspace(0, run.T, POINTS).astype(int))
    names = [*(f"θ_{i + 1}" for i in at), "θ*"]
    points = np.vstack([run.theta[at], star])
    margins = np.zeros((len(chosen), len(points)))
    for k, i in enumerate(chosen):
        move = points - run.theta[i]
        tangent = run.loss[i] + move @ run.g[i]
        value = np.array([float(run.problem.loss(int(i) + 1, torch.tensor(p))) for p in points])
        size = np.abs(value) + abs(run.loss[i]) + np.abs(run.g[i]) @ np.abs(move).T
        margins[k] = (value - tangent) / np.maximum(size, 1e-300)
    found = everywhere(CONVEX, margins, tolerance=1e-9)
    row, column = np.unravel_index(np.argmin(margins), margins.shape)
    t = int(chosen[row]) + 1
    worst = f"worst: f_{t} at {names[column]} against its tangent at θ_{t}"
    return Assumption(CONVEX, found.holds, found.margin, None, found.share, worst)


def _lowest(run: Run, best: Comparator, convex: bool) -> Assumption:
    """Where f_t is convex a stationary θ* is a global minimum.  Elsewhere: against where its method ends from other starts,
    θ_{T+1} and points on both sides of θ_1 and θ*, to 1e-6 of the mean loss."""
    problem = run.problem
    if convex or problem.minimise is None:
        return Assumption(
            LOWEST, True, 0.0, detail="since it is stationary and no loss was found not to be convex" if convex else ""
        )
    value = float(np.mean([float(problem.loss(t, best.theta)) for t in range(1, run.T + 1)]))
    low, high = problem.box or (-np.inf, np.inf)
    starts = {f"θ_{run.T + 1}": torch.tensor(run.theta[-1]), "2θ* - θ_1": 2 * best.theta - problem.start}
    starts["3θ_1 - 2θ*"] = 3 * problem.start - 2 * best.theta
    ends = {name: problem.minimise(run.T, start.clamp(low, high))[1] for name, start in starts.items()}
    name = max(ends, key=lambda n: abs(ends[n] - value))
    margin = 1e-6 - abs(ends[name] - value) / max(abs(value), 1e-300)
    detail = "" if margin >= 0 else f"mean loss {value:.6g} at θ*, {ends[name]:.6g} from {name}"
    return Assumption(LOWEST, margin >= 0, margin, detail=detail)


def _bounded(run: Run) -> Assumption:
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
    if run.recipe.projection.state or type(run.recipe.projection).step is not Block.step:
        return np.full(run.T, np.inf)  # what it does depends on the run
    point = torch.tensor(star)
    each: Any = (parts.at(run.recipe.projection, t) for t in range(1, run.T + 1))
    return np.array([float((block.read(point) - point).abs().max()) for block in each])

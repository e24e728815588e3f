"""The best fixed point θ* of an online problem, and by how much a better one can lie below it.

The mean loss f̄ is searched by L-BFGS-B, from several starts and the lowest of some random points.  A local search can end at
a minimum that is not global, or before a kink.  So every point x_i at which f̄ was evaluated gives a tangent, and where the
losses are convex, f̄ lies above all of them:

    min f̄ ≥ min_θ max_i f̄(x_i) + ∇f̄(x_i)·(θ - x_i),

a linear program; its solution is the next point to look at (Kelley's cutting planes).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import torch
from scipy import optimize
from torch import Tensor

Array = np.ndarray
POINTS, STARTS = 32, 3  # random points, and how many of the lowest become starts
FEW = 50  # evaluations of each further search: many for a smooth loss, and one with kinks is left to the cutting planes
CUTS, WIDEST = 300, 50  # cutting planes at most, and the largest dimension for them
LEVEL = 1e-6  # of the spread of f̄: what counts as equally low


@dataclasses.dataclass(frozen=True)
class Comparator:
    """θ* = argmin Σ_{t≤T} f_t over the feasible set.

    excess: by how much its mean loss can exceed the minimum, provided that the losses are convex.  margin, detail: what speaks
    for a global minimum (margin ≥ 0) or against it.
    """

    theta: Tensor
    method: str
    excess: float
    margin: float = 0.0
    detail: str = ""


@dataclasses.dataclass(frozen=True)
class Point:
    """f̄ and its gradient at x: (d,)."""

    x: Array
    value: float
    slope: Array


def region(box: tuple[float, float] | None, points: Array) -> tuple[Array, Array]:
    """Returns the lowest and the highest corner, (d,) each, of the box; without one, of a box around points (n, d), of which
    those of a run that diverged do not count, with as much room as they extend or lie away from 0."""
    if box is not None:
        return np.full(points.shape[1], box[0]), np.full(points.shape[1], box[1])
    points = points[(np.abs(points) < 1e100).all(axis=1)]
    low, high = points.min(axis=0), points.max(axis=0)
    room = float(max((high - low).max(), np.abs(points).max())) or 1.0
    return low - room, high + room


class Search:
    """Minimises f̄ over a box, or without one, and remembers every point at which it was evaluated.

    mean: θ -> f̄(θ), differentiable.
    """

    def __init__(self, mean: Callable[[Tensor], Tensor], box: tuple[float, float] | None) -> None:
        self.mean, self.box, self.points = mean, box, list[Point]()

    def evaluate(self, x: Array) -> Point:
        """Returns f̄ and its gradient at x."""
        v = torch.tensor(x, requires_grad=True)
        with torch.enable_grad():
            value = self.mean(v)
            self.points.append(Point(np.array(x), float(value.detach()), torch.autograd.grad(value, v)[0].numpy()))
        return self.points[-1]

    def local(self, start: Array, evaluations: int = 15000) -> Point:
        """Returns where L-BFGS-B ends, after about so many evaluations at most."""

        def value_and_slope(x: Array) -> tuple[float, Array]:
            point = self.evaluate(x)
            return point.value / scale, point.slope / scale

        # its stopping rules are absolute; losses this small would end it at once
        steepest = np.abs(self.evaluate(start).slope).max()
        scale = float(steepest) if 0 < steepest < 1e-4 else 1.0
        options = {"maxiter": 5000, "maxfun": evaluations, "gtol": 1e-10, "ftol": 1e-16}
        bounds = None if self.box is None else [self.box] * len(start)
        result = optimize.minimize(value_and_slope, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
        return Point(result.x, float(result.fun) * scale, result.jac * scale)

    def comparator(self, start: Array) -> Comparator:
        """Returns where one local search ends; its excess is not known."""
        end = self.local(start)
        return Comparator(torch.tensor(end.x), f"L-BFGS-B{' in the box' * (self.box is not None)}", np.inf)

    def global_comparator(self, start: Array, iterates: Array) -> Comparator:
        """Returns the lowest end of several searches and the lowest of random points, after cutting planes where it is no
        stationary point; iterates: (n, d), of a run."""
        ends = {"θ_1": self.local(start)}
        first = ends["θ_1"].x
        low, high = region(self.box, np.vstack([iterates, start, first]))
        seen = np.random.default_rng(0).uniform(low, high, (POINTS, len(start)))
        probes = sorted((p for p in map(self.evaluate, seen) if np.isfinite(p.value)), key=lambda p: p.value)
        starts = {f"θ_{len(iterates)}": iterates[-1], "2θ* - θ_1": 2 * first - start, "3θ_1 - 2θ*": 3 * start - 2 * first}
        starts |= {f"random point {i + 1}": probe.x for i, probe in enumerate(probes[:STARTS])}
        low_end, high_end = self.box or (-np.inf, np.inf)
        others = {name: self.local(x.clip(low_end, high_end), FEW) for name, x in starts.items() if np.isfinite(x).all()}
        ends |= {name: end for name, end in others.items() if np.isfinite(end.value)}
        values = [point.value for point in (*probes, *ends.values())]
        spread = max(values) - min(values)
        # as good as the lowest: the first
        lowest = min(end.value for end in ends.values()) + 1e-9 * spread
        name, best = next((name, end) for name, end in ends.items() if end.value <= lowest)
        method = f"L-BFGS-B{' in the box' * (self.box is not None)}"
        best, excess, cuts = self._cut(best, low, high, LEVEL * spread)
        if cuts:
            method += f", then {cuts} cutting planes"
        # where f̄ is convex, no tangent lies above θ*; that of another local minimum does
        margins = {key: best.value - p.value - p.slope @ (best.x - p.x) + LEVEL * spread for key, p in ends.items()}
        worst = min(margins, key=lambda key: margins[key])
        detail = f"lowest of {len(ends)} searches and {POINTS} random points"
        if margins[worst] < 0:
            detail = f"mean loss {best.value:.6g} at θ*, from {name}; {ends[worst].value:.6g} from {worst}"
        return Comparator(torch.tensor(best.x), method, excess, margins[worst] / (spread or 1.0), detail)

    def _cut(self, best: Point, low: Array, high: Array, enough: float) -> tuple[Point, float, int]:
        """Returns the lowest point, its excess over the region between two corners, and how many cutting planes that took."""
        low, high = np.minimum(low, best.x), np.maximum(high, best.x)
        # one tangent, over the box: f̄(θ*) - Σ_j max over θ_j of g_j (θ*_j - θ_j)
        bound = best.value - float(np.maximum(best.slope * (best.x - low), best.slope * (best.x - high)).sum())
        cuts = 0
        while best.value - bound > enough and cuts < CUTS and len(best.x) <= WIDEST:
            # minimise s, s ≥ f̄(x_i) + ∇f̄(x_i)·(θ - x_i); all of it less f̄(θ*) and over the largest slope, about θ*
            points = [p for p in self.points if np.isfinite(p.value) and np.isfinite(p.slope).all()]
            slopes = np.array([p.slope for p in points])
            size = float(np.abs(slopes).max())
            heights = np.array([p.value + p.slope @ (best.x - p.x) - best.value for p in points])
            program = optimize.linprog(
                np.append(np.zeros(len(low)), 1.0),
                A_ub=np.hstack([slopes / size, -np.ones((len(points), 1))]),
                b_ub=-heights / size,
                bounds=[*zip(low - best.x, high - best.x, strict=True), (None, None)],
            )
            if program.status != 0:
                break
            bound, cuts = max(bound, best.value + size * program.x[-1]), cuts + 1
            point = self.evaluate(np.clip(best.x + program.x[:-1], low, high))
            best = point if point.value < best.value else best
        return best, max(best.value - bound, 0.0), cuts

"""A search under way: the statement under attack, the time left, and the best problems so far."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable

import numpy as np
import torch

from sandbox.recipe import Recipe
from sandbox.schedules import InverseSquareRoot
from theory_checks import problems
from theory_checks.claims import regret
from theory_checks.record import record
from theory_checks.report import Report
from theory_checks.search import batched_runs

KEPT = 8  # candidates kept for the check at the end


@dataclasses.dataclass(frozen=True)
class Target:
    """A statement under attack: regret ≤ the smallest of `bounds` for runs of `recipe` on which its assumptions hold.

    coordinatewise: D_t/η_t non-decreasing in each coordinate is assumed, not of the trace alone.  sound: it has a proof that
    holds, so that a violation would be news.  attack: a function of `attacks`.
    """

    about: str
    recipe: Recipe
    bounds: tuple[str, ...]
    coordinatewise: bool = True
    sound: bool = True
    attack: str = "evolve"


@dataclasses.dataclass(frozen=True)
class Candidate:
    """f_t(θ) = g_t·θ: g_1 = first (2,), then the rows of cycle (P, 2) for ever; θ_1 = 0, θ* = star (2,), η_t = eta/√t.

    T: where `ratio` = regret/bound was found by the search.
    """

    first: np.ndarray
    cycle: np.ndarray
    star: np.ndarray
    eta: float
    beta: float
    T: int
    ratio: float

    def problem(self) -> problems.Problem:
        """As an online problem."""
        rows = torch.as_tensor(np.vstack([self.first, self.cycle]))

        def gradient(t: int) -> torch.Tensor:
            return rows[0 if t == 1 else 1 + (t - 2) % (len(rows) - 1)]

        return problems.periodic("adversary", f"{len(rows) - 1} linear losses in R², repeated", gradient, list(self.star))

    def report(self, target: Target, T: int | None = None, points: int = 24) -> Report:
        """`regret.check` on the recorded run of T steps."""
        recipe = target.recipe.with_hyperparameters({"moment.beta": self.beta})
        return regret.check(record(recipe, self.problem(), T or self.T, lr=InverseSquareRoot(first=self.eta)), points=points)


class Over(Exception):
    """The search has reached its end."""


@dataclasses.dataclass
class Session:
    """What a search may use, and what it has: the best candidates, best first; the largest ratio over time and at each T."""

    target: Target
    seconds: float
    rng: np.random.Generator
    T: int
    period: int
    stop_at: float
    progress: Callable[[int, int, str], None] | None
    best: list[Candidate] = dataclasses.field(default_factory=list)
    trace: list[tuple[float, float]] = dataclasses.field(default_factory=list)
    at_T: dict[int, float] = dataclasses.field(default_factory=dict)
    evaluated: int = 0
    began: float = dataclasses.field(default_factory=lambda: time.monotonic())
    reported: float = -1.0

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.began

    @property
    def ratio(self) -> float:
        """The largest so far."""
        return self.best[0].ratio if self.best else -math.inf

    def tick(self) -> None:
        """To be called often.  Raises Over when the time is up or `stop_at` reached."""
        elapsed = self.elapsed
        if self.progress is not None and elapsed - self.reported >= 0.5:
            self.reported = elapsed
            message = f"regret/bound {self.ratio:.3f}" if self.best else "searching"
            self.progress(min(int(elapsed), int(self.seconds)), int(self.seconds), message)
        if elapsed > self.seconds or self.ratio > self.stop_at:
            raise Over

    def measure(self, h: batched_runs.History, eta: np.ndarray, star: np.ndarray, Ts: np.ndarray) -> np.ndarray:
        """`batched_runs.ratios` for the statement under attack, (N, len(Ts))."""
        ratios = batched_runs.ratios(h, eta, star, self.target.bounds, self.target.coordinatewise, Ts)
        self.evaluated += len(ratios)
        for T, ratio in zip(Ts, ratios.max(axis=0), strict=True):
            self.at_T[int(T)] = max(float(ratio), self.at_T.get(int(T), -math.inf))
        return ratios

    def offer(self, candidate: Candidate) -> None:
        """Keeps a candidate if it is among the best."""
        if candidate.ratio > (1.001 * self.trace[-1][1] if self.trace else -math.inf):
            self.trace.append((self.elapsed, candidate.ratio))
        self.best = sorted([*self.best, candidate], key=lambda c: -c.ratio)[:KEPT]

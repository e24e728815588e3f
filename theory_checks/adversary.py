"""An adversary: searches for linear losses in R² that make regret/bound as large as a statement's assumptions allow.

    print(search("regret", minutes=10))          # Theorem 2 as stated: refuted, from a random start
    print(search("repaired-1", minutes=10))      # the same budget finds nothing

The losses are g_1 and then a cycle of P gradients for ever.  Assumptions are handled explicitly: a T counts only while every
one has held (`population.ratios`); nothing is penalised.  Two attacks, both populations under vmap that scipy's differential
evolution drives, each followed by a Nelder-Mead polish:

    evolve        on regret/bound itself, over all gradients, η, θ* and β
    stand_still   on ρ, over the cycles of `standstill`, whose assumptions hold by construction; then over η and θ*

The first alone does not refute Theorem 2: nearly every cycle soon breaks an assumption.  What a search claims comes from
`record` and `regret.check` on the problem found, not from the search.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy import optimize

from sandbox import suggest
from sandbox.blocks import AbsoluteFloor, Monotone
from sandbox.recipe import Recipe
from sandbox.schedules import InverseSquareRoot
from theory_checks import counterexamples, population, problems, regret, standstill
from theory_checks.record import record
from theory_checks.report import VIOLATED, Report

SMALL_BETA = 1e-9  # the theorem asks for β_t > 0
KEPT = 8  # candidates kept for the check at the end
SHORT = 192  # the longest T of `evolve`


@dataclasses.dataclass(frozen=True)
class Target:
    """A statement under attack: regret ≤ the smallest of `bounds` for runs of `recipe` on which its assumptions hold.

    coordinatewise: D_t/η_t non-decreasing in each coordinate is assumed, not of the trace alone.  sound: it has a proof that
    holds, so that a violation would be news.
    """

    about: str
    recipe: Recipe
    bounds: tuple[str, ...]
    coordinatewise: bool = True
    sound: bool = True


def _monotone() -> Recipe:
    rectifier = Monotone(inner=AbsoluteFloor(sigma=1.0), ceiling=4.0)
    return counterexamples.theory_apollo().replace(rectifier=rectifier, name="monotone")


TARGETS: dict[str, Target] = {
    "regret": Target(
        "Theorem 2 as stated", counterexamples.theory_apollo(), (regret.STATED,), coordinatewise=False, sound=False
    ),
    **{
        name.replace(" ", "-"): Target(f"{name} of Theorem 2", counterexamples.theory_apollo(), (name,))
        for name in ("repaired 1", "repaired 2", "repaired 3")
    },
    "monotone": Target("every bound of Theorem 2 for recipe monotone", _monotone(), (regret.STATED, *regret.REPAIRED)),
}


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
        recipe = target.recipe.with_numbers({"moment.beta": self.beta})
        return regret.check(record(recipe, self.problem(), T or self.T, lr=InverseSquareRoot(first=self.eta)), points=points)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a search found.  ratio: regret over the smallest bound that applies, from `report`; -inf where nothing was found.

    trace: (seconds, largest ratio so far).  refuted: whether a recorded run exceeds the bound, with every assumption kept.
    first: the first T at which it does.
    """

    theorem: str
    seed: int
    seconds: float
    interrupted: bool
    evaluated: int
    trace: list[tuple[float, float]]
    candidate: Candidate | None
    report: Report | None
    ratio: float
    refuted: bool
    first: int | None

    @property
    def news(self) -> bool:
        """Whether a statement with a proof that holds is violated."""
        return self.refuted and TARGETS[self.theorem].sound

    def __str__(self) -> str:
        target, how = TARGETS[self.theorem], f"seed {self.seed}, {self.seconds:.0f} s, {self.evaluated} runs"
        lines = [
            f"{target.about}: {'REFUTED' if self.refuted else 'no violation found'} ({how}{', interrupted' * self.interrupted})"
        ]
        if self.candidate is None or self.report is None:
            return lines[0]
        c = self.candidate
        lines.append(
            f"  largest regret/bound {self.ratio:.4g}, at T = {c.T}" + (f"; above 1 from T = {self.first}" * bool(self.first))
        )
        lines.append(f"  g_1 = {_row(c.first)}, then for ever {' '.join(map(_row, c.cycle))}")
        lines.append(f"  θ_1 = (0, 0), θ* = {_row(c.star)}, η_t = {c.eta:.6g}/√t, β = {c.beta:.6g}")
        return "\n".join([*lines, str(self.report)])

    def to_json(self) -> str:
        """Everything, the report included, as JSON."""
        parts = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)} | {"news": self.news}
        if self.candidate is not None and self.report is not None:
            found = dataclasses.asdict(self.candidate)
            parts["candidate"] = {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in found.items()}
            parts["report"] = json.loads(self.report.to_json())
        parts["ratio"] = self.ratio if math.isfinite(self.ratio) else None
        return json.dumps(parts, indent=1, ensure_ascii=False)

    def plot(self, figure: Any) -> None:
        """Left: the largest ratio over time.  Right: regret and bounds over T on the problem found."""
        left, right = figure.subplots(1, 2)
        if self.trace:
            seconds, best = zip(*self.trace, (self.seconds, self.trace[-1][1]), strict=True)
            left.step(seconds, best, "k-", where="post")
        left.axhline(1.0, color="tab:red", linestyle="--", linewidth=1)
        left.set_xlabel("time (s)")
        left.set_ylabel("largest regret / bound so far")
        left.set_title(f"{self.theorem}, seed {self.seed}", fontsize=9)
        if self.report is not None:
            self.report.plot(right)


def search(
    theorem: str = "regret",
    *,
    minutes: float = 10.0,
    seed: int = 0,
    T: int = 3000,
    period: int = 6,
    stop_at: float = math.inf,
    progress: Callable[[int, int, str], None] | None = None,
) -> Outcome:
    """Attacks a statement for some minutes; the same seed goes the same way.

    theorem: a key of `TARGETS`.  T: the longest run, ≥ 2.  period: P, ≥ 2.  stop_at: end as soon as a ratio exceeds it.
    progress: called with (seconds gone, seconds in all, what).  Ctrl-C ends the search, not the program: the best so far is
    checked and returned.
    Raises ValueError for an unknown theorem (naming the nearest) and for numbers out of range.
    """
    if theorem not in TARGETS:
        raise ValueError(suggest.unknown("theorem", theorem, TARGETS))
    if not 0 < minutes < math.inf:
        raise ValueError(f"minutes must lie in (0, inf), got {minutes:g}")
    for name, value in (("T", T), ("period", period)):
        if value < 2:
            raise ValueError(f"{name} must be at least 2, got {value}")
    hunt = Hunt(TARGETS[theorem], 60 * minutes, np.random.default_rng(seed), T, period, stop_at, progress)
    interrupted = False
    try:
        (evolve if hunt.target.sound else stand_still)(hunt)
    except Over:
        pass
    except KeyboardInterrupt:
        interrupted = True
    return _checked(hunt, theorem, seed, interrupted)


class Over(Exception):
    """The search has reached its end."""


@dataclasses.dataclass
class Hunt:
    """A search under way: what it may use, and the best candidates so far, the best first."""

    target: Target
    seconds: float
    rng: np.random.Generator
    T: int
    period: int
    stop_at: float
    progress: Callable[[int, int, str], None] | None
    best: list[Candidate] = dataclasses.field(default_factory=list)
    trace: list[tuple[float, float]] = dataclasses.field(default_factory=list)
    evaluated: int = 0
    began: float = dataclasses.field(default_factory=time.monotonic)
    told: float = -1.0

    @property
    def gone(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.began

    @property
    def ratio(self) -> float:
        """The largest so far."""
        return self.best[0].ratio if self.best else -math.inf

    def tick(self) -> None:
        """To be called often.  Raises Over when the time is up or `stop_at` reached."""
        gone = self.gone
        if self.progress is not None and gone - self.told >= 0.5:
            self.told = gone
            found = f"regret/bound {self.ratio:.3f}" if self.best else "searching"
            self.progress(min(int(gone), int(self.seconds)), int(self.seconds), found)
        if gone > self.seconds or self.ratio > self.stop_at:
            raise Over

    def offer(self, candidate: Candidate) -> None:
        """Keeps a candidate if it is among the best."""
        if candidate.ratio > self.ratio:
            self.trace.append((self.gone, candidate.ratio))
        self.best = sorted([*self.best, candidate], key=lambda c: -c.ratio)[:KEPT]


# -- the attack on ρ -------------------------------------------------------------------------------------------------


def stand_still(hunt: Hunt, starts: int = 5, rounds: int = 4, elite: int = 8) -> None:
    """Random cycles closed, evolved, entered from B = 0, and given the best η and θ*; again and again."""
    champion = np.empty((0, 2 + 2 * hunt.period))
    while True:
        drawn = [standstill.draw(hunt.rng, 1024, hunt.period) for _ in range(starts)]
        found = standstill.ranked([standstill.cycles(genes, hunt.tick, steps=25) for genes in drawn])
        hunt.evaluated += 1024 * starts
        for _ in range(rounds):
            genes = np.vstack([found.genes[:elite].numpy(), champion])
            if not len(genes):
                break
            found = standstill.evolve(hunt.rng, genes, 30, hunt.tick)
            settle(hunt, found)
        champion = np.vstack([found.genes[:1].numpy(), champion])[:2]


def entries(found: standstill.Cycles, most: int) -> tuple[np.ndarray, np.ndarray]:
    """The ways into the best cycles: g_1 (n, 2) and cycles (n, P, 2), n ≤ most."""
    rows = [way for B, g in zip(found.B.numpy(), found.g.numpy(), strict=True) for way in standstill.enter(B, g)][:most]
    P = found.g.shape[1]
    return np.array([r[0] for r in rows]).reshape(-1, 2), np.array([r[1] for r in rows]).reshape(-1, P, 2)


def settle(hunt: Hunt, found: standstill.Cycles, most: int = 12) -> None:
    """The best η and direction of θ* for the ways into the best cycles: a grid, then Nelder-Mead on the most promising."""
    first, cycle = entries(found, most)
    if not len(first):
        return
    h = population.replay(
        hunt.target.recipe, population.table(first, cycle, hunt.T), np.full(len(first), SMALL_BETA), hunt.tick
    )
    hunt.evaluated += len(first)
    turn, log_eta = (x.ravel() for x in np.meshgrid(np.linspace(-0.6, 0.6, 9), np.log(np.geomspace(0.1, 4.0, 14))))

    def value(row: int, turn: np.ndarray, log_eta: np.ndarray) -> np.ndarray:
        star = comparator(np.repeat(cycle[row : row + 1], len(turn), axis=0), turn)
        return measure(hunt, h.repeat(row, len(turn)), np.exp(log_eta), star, np.array([hunt.T]))[:, 0]

    grid = []
    for row in range(len(first)):
        hunt.tick()
        grid.append(value(row, turn, log_eta))
    for row in np.argsort([-values.max() for values in grid])[:3]:
        at = int(grid[row].argmax())
        if not grid[row][at] > 0.8 * hunt.ratio:
            break
        x = optimize.minimize(
            lambda x, row=row: -float(value(row, x[:1], x[1:])[0].clip(min=-9)),
            [turn[at], log_eta[at]],
            method="Nelder-Mead",
            options={"maxfev": 120, "initial_simplex": [turn[at], log_eta[at]] + 0.05 * np.array([[0, 0], [1, 0], [0, 1]])},
        ).x
        ratio = float(value(row, x[:1], x[1:])[0])
        star = comparator(cycle[row : row + 1], x[:1])[0]
        hunt.offer(Candidate(first[row], cycle[row], star, float(np.exp(x[1])), SMALL_BETA, hunt.T, ratio))


def comparator(cycle: np.ndarray, turn: np.ndarray) -> np.ndarray:
    """θ* (n, 2) at distance 1 from θ_1, turned by `turn` from the direction in which the cycle's sum falls."""
    total = cycle.sum(axis=1)
    angle = np.arctan2(-total[:, 1], -total[:, 0]) + turn
    return np.stack([np.cos(angle), np.sin(angle)], axis=1)


def measure(hunt: Hunt, h: population.History, eta: np.ndarray, star: np.ndarray, Ts: np.ndarray) -> np.ndarray:
    """`population.ratios` for the statement under attack."""
    return population.ratios(h, eta, star, hunt.target.bounds, hunt.target.coordinatewise, Ts)


# -- the attack on the ratio -----------------------------------------------------------------------------------------


def evolve(hunt: Hunt, members: int = 96, generations: int = 200) -> None:
    """Differential evolution on regret/bound over (g_1, cycle, log η, turn of θ*, β), then Nelder-Mead; again and again.

    A sixth of the first population are the cycles of `standstill`, since they refute what Theorem 2 claims.
    """
    P, short = hunt.period, min(SHORT, hunt.T)
    low = np.array([-1.0] * (2 + 2 * P) + [math.log(0.02), -math.pi, SMALL_BETA])
    high = np.array([1.0] * (2 + 2 * P) + [math.log(20.0), math.pi, 0.9])
    Ts = np.unique(np.geomspace(1, short, 16).astype(int))

    def value(x: np.ndarray, Ts: np.ndarray) -> np.ndarray:
        """(members,) from (genes, members): minus the largest ratio, which is offered."""
        genes = x.T.clip(low, high)
        first, cycle = genes[:, :2], genes[:, 2 : 2 + 2 * P].reshape(-1, P, 2)
        eta, star, beta = np.exp(genes[:, -3]), comparator(cycle, genes[:, -2]), genes[:, -1]
        h = population.replay(hunt.target.recipe, population.table(first, cycle, int(Ts[-1])), beta, hunt.tick)
        found = np.nan_to_num(measure(hunt, h, eta, star, Ts), nan=-1.0, neginf=-1.0)
        hunt.evaluated += len(genes)
        i = int(found.max(axis=1).argmax())
        at = int(found[i].argmax())
        if found[i, at] > hunt.ratio:
            hunt.offer(Candidate(first[i], cycle[i], star[i], float(eta[i]), float(beta[i]), int(Ts[at]), float(found[i, at])))
        return -found.max(axis=1)

    still = standstill.ranked([standstill.cycles(standstill.draw(hunt.rng, 1024, P), hunt.tick, 25) for _ in range(2)])
    while True:
        start = hunt.rng.uniform(low, high, (members, len(low)))
        first, cycle = entries(still, members // 6)
        n = len(first)
        size = np.maximum(np.abs(first).max(axis=1), np.abs(cycle).max(axis=(1, 2)))[:, None]
        start[:n, : 2 + 2 * P] = np.hstack([first, cycle.reshape(n, -1)]) / np.maximum(size, 1.0)
        found = optimize.differential_evolution(
            lambda x: value(x, Ts),
            list(zip(low, high, strict=True)),
            init=start,
            vectorized=True,
            updating="deferred",
            maxiter=generations,
            mutation=(0.3, 0.9),
            tol=0,
            polish=False,
            rng=hunt.rng,
        )
        T = next((c.T for c in hunt.best if c.ratio == -found.fun), short)
        optimize.minimize(
            lambda x, T=T: float(value(x[:, None], np.array([T]))[0]), found.x, method="Nelder-Mead", options={"maxfev": 400}
        )


# -- the verdict -----------------------------------------------------------------------------------------------------


def _checked(hunt: Hunt, theorem: str, seed: int, interrupted: bool) -> Outcome:
    """The best candidate whose recorded run keeps every assumption, judged by `regret.check`."""
    chosen, report, ratio, refuted, first = None, None, -math.inf, False, None
    for candidate in hunt.best:
        found = candidate.report(hunt.target)
        applies = [b for b in map(found.bound, hunt.target.bounds) if not b.verdict.startswith("not applicable")]
        if applies:
            chosen, report, ratio = candidate, found, max(b.ratio for b in applies)
            refuted = any(b.verdict == VIOLATED for b in applies)
            first = _first(candidate, hunt.target) if refuted else None
            break
    return Outcome(theorem, seed, hunt.gone, interrupted, hunt.evaluated, hunt.trace, chosen, report, ratio, refuted, first)


def _first(c: Candidate, target: Target) -> int:
    """The first T at which a recorded run violates a bound."""
    h = population.replay(target.recipe, population.table(c.first[None], c.cycle[None], c.T), np.array([c.beta]))
    all_T = np.arange(1, c.T + 1)
    found = population.ratios(h, np.array([c.eta]), c.star[None], target.bounds, target.coordinatewise, all_T)[0]
    above = (int(T) for T in all_T[found > 1] if any(b.verdict == VIOLATED for b in _bounds(c, target, int(T))))
    return next(above, c.T)


def _bounds(c: Candidate, target: Target, T: int) -> list[Any]:
    return [b for b in c.report(target, T, points=2).bounds if b.name in target.bounds]


def _row(x: np.ndarray) -> str:
    return "(" + ", ".join(f"{v:.6g}" for v in x) + ")"

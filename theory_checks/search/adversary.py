"""An adversary: searches for linear losses in R² that make regret/bound as large as a statement's assumptions allow.

    print(search("regret", minutes=10))          # Theorem 2 as stated: refuted, from a random start
    print(search("repaired-1", minutes=10))      # the same budget finds nothing

The losses are g_1 and then a cycle of P gradients for ever.  Assumptions are handled explicitly: a T counts only while every
one has held (`batched_runs.ratios`); nothing is penalised.  Two attacks, both populations under vmap that scipy's differential
evolution drives, each followed by a Nelder-Mead polish:

    evolve        on regret/bound itself, over all gradients, η, θ* and β
    stand_still   on ρ, over the cycles of `stationary_cycles`, whose assumptions hold by construction; then over η and θ*

`evolve` serves the statements that have a proof.  Theorem 2 as stated it does not refute: nearly every cycle soon breaks an
assumption, and it ends at ½, the ratio of one step.  `stand_still` does, within seconds.  What is claimed in the end comes
from `record` and `regret.check` on the problem found, not from the search.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from sandbox.blocks import EMA, AbsoluteFloor, Monotone
from sandbox.recipe import Recipe
from sandbox.utils import suggest
from theory_checks.claims import regret
from theory_checks.proofs import certificates, counterexamples, linear_proofs
from theory_checks.proofs.recursion import Rule
from theory_checks.report import VIOLATED, Bound, Report
from theory_checks.search import attacks, batched_runs
from theory_checks.search.session import Candidate, Over, Session, Target


def _monotone() -> Recipe:
    rectifier = Monotone(inner=AbsoluteFloor(sigma=1.0), ceiling=4.0)
    return counterexamples.theory_apollo().replace(rectifier=rectifier, name="monotone")


def _averaged_recipe() -> Recipe:
    return counterexamples.theory_apollo().replace(averaging=EMA(beta=0.9), name="hessian-ema")


TARGETS: dict[str, Target] = {
    "regret": Target(
        "Theorem 2 as stated",
        counterexamples.theory_apollo(),
        (regret.STATED,),
        coordinatewise=False,
        sound=False,
        attack="stand_still",
    ),
    **{
        name.replace(" ", "-"): Target(f"{name} of Theorem 2", counterexamples.theory_apollo(), (name,))
        for name in ("repaired 1", "repaired 2", "repaired 3")
    },
    "hessian-ema": Target(
        "Theorem 2 as stated for recipe hessian-ema", _averaged_recipe(), (regret.STATED,), False, sound=False
    ),
    "monotone": Target("every bound of Theorem 2 for recipe monotone", _monotone(), (regret.STATED, *regret.REPAIRED)),
}


COLUMNS = ("statement", "largest regret/bound", "at T", "above 1 from T", "evaluations", "seconds", "verdict")


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a search found.  ratio: regret over the smallest bound that applies, from `report`; -inf where nothing was found.

    refuted: whether a recorded run exceeds the bound, with every assumption kept; first: the first T at which it does.
    evaluated: how many (run, η, θ*) were measured; trace: (seconds, largest ratio so far); at_T: the largest at each T tried.
    """

    theorem: str
    seed: int
    seconds: float
    interrupted: bool
    evaluated: int
    trace: list[tuple[float, float]]
    at_T: dict[int, float]
    candidate: Candidate | None
    report: Report | None
    ratio: float
    refuted: bool
    first: int | None

    @property
    def news(self) -> bool:
        """Whether a statement with a proof that holds is violated."""
        return self.refuted and TARGETS[self.theorem].sound

    @property
    def verdict(self) -> str:
        """In words."""
        return "REFUTED" if self.refuted else "no violation found"

    def row(self) -> list[str]:
        """A line of a table with `COLUMNS`."""
        ratio, T = ("-", "-") if self.candidate is None else (f"{self.ratio:.4g}", str(self.candidate.T))
        what = TARGETS[self.theorem].about
        return [what, ratio, T, str(self.first or "-"), str(self.evaluated), f"{self.seconds:.0f}", self.verdict]

    def __str__(self) -> str:
        target, how = TARGETS[self.theorem], f"seed {self.seed}, {self.seconds:.0f} s, {self.evaluated} evaluations"
        lines = [f"{target.about}: {self.verdict} ({how}{', interrupted' * self.interrupted})"]
        if self.candidate is None or self.report is None:
            return lines[0]
        c = self.candidate
        lines.append(
            f"  largest regret/bound {self.ratio:.4g}, at T = {c.T}" + (f"; above 1 from T = {self.first}" * bool(self.first))
        )
        lines.append("  by T: " + ", ".join(f"{ratio:.3g} ({T})" for T, ratio in self.at_T.items()))
        lines.append(f"  g_1 = {_row(c.first)}, then for ever {' '.join(map(_row, c.cycle))}")
        lines.append(f"  θ_1 = (0, 0), θ* = {_row(c.star)}, η_t = {c.eta:.6g}/√t, β = {c.beta:.6g}")
        return "\n".join([*lines, str(self.report)])

    def to_json(self) -> str:
        """Everything, the report included, as JSON."""
        parts = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)} | {"news": self.news}
        if self.candidate is not None and self.report is not None:
            fields = dataclasses.asdict(self.candidate)
            parts["candidate"] = {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in fields.items()}
            parts["report"] = json.loads(self.report.to_json())
        parts["ratio"] = self.ratio if math.isfinite(self.ratio) else None
        return json.dumps(parts, indent=1, ensure_ascii=False)

    def plot(self, figure: Any) -> None:
        """Left: the largest ratio over time.  Right: regret and bounds over T on the problem found."""
        left, right = figure.subplots(1, 2)
        if self.trace:
            seconds, best = zip((0.0, 0.0), *self.trace, (self.seconds, self.trace[-1][1]), strict=True)
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
    session = Session(TARGETS[theorem], 60 * minutes, np.random.default_rng(seed), T, period, stop_at, progress)
    interrupted = False
    try:
        getattr(attacks, session.target.attack)(session)
    except Over:
        pass
    except KeyboardInterrupt:
        interrupted = True
    return conclude(session, theorem, seed, interrupted)


def conclude(session: Session, theorem: str, seed: int, interrupted: bool) -> Outcome:
    """The best candidate whose recorded run keeps every assumption, judged by `regret.check`."""
    seconds = session.elapsed
    chosen, report, ratio, refuted, first = None, None, -math.inf, False, None
    for candidate in session.best:
        checked = candidate.report(session.target)
        applies = [b for b in map(checked.bound, session.target.bounds) if not b.verdict.startswith("not applicable")]
        if applies:
            chosen, report, ratio = candidate, checked, max(b.ratio for b in applies)
            refuted = any(b.verdict == VIOLATED for b in applies)
            first = _first(candidate, session.target) if refuted else None
            break
    at_T = {T: r for T, r in sorted(session.at_T.items()) if r > -math.inf}
    return Outcome(
        theorem, seed, seconds, interrupted, session.evaluated, session.trace, at_T, chosen, report, ratio, refuted, first
    )


def certify(outcome: Outcome) -> certificates.Certificate:
    """The violation found, in ball arithmetic (extra `theory`).  Raises ValueError where nothing was refuted."""
    c, target = outcome.candidate, TARGETS[outcome.theorem]
    if not outcome.refuted or c is None or outcome.report is None:
        raise ValueError(f"{target.about}: {outcome.verdict}, nothing to certify")
    rule = Rule.from_recipe(target.recipe.with_hyperparameters({"moment.beta": c.beta}))
    bound = next(b.name for b in map(outcome.report.bound, target.bounds) if b.verdict == VIOLATED)
    rows = [c.first, *c.cycle]
    return certificates.certify(
        lambda kind: linear_proofs.theorem_2(kind, rows, c.star, eta=c.eta, T=c.T, rule=rule, bound=bound), target.about
    )


def _first(c: Candidate, target: Target) -> int:
    """The first T at which a recorded run violates a bound."""
    h = batched_runs.replay(target.recipe, batched_runs.table(c.first[None], c.cycle[None], c.T), np.array([c.beta]))
    all_T = np.arange(1, c.T + 1)
    ratios = batched_runs.ratios(h, np.array([c.eta]), c.star[None], target.bounds, target.coordinatewise, all_T)[0]
    above = (int(T) for T in all_T[ratios > 1] if any(b.verdict == VIOLATED for b in _bounds(c, target, int(T))))
    return next(above, c.T)


def _bounds(c: Candidate, target: Target, T: int) -> list[Bound]:
    return [b for b in c.report(target, T, points=2).bounds if b.name in target.bounds]


def _row(x: np.ndarray) -> str:
    return "(" + ", ".join(f"{v:.6g}" for v in x) + ")"

"""What a check says: assumptions, a measured quantity, every bound that may apply, and a verdict on each."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import stats

VERIFIED, VIOLATED, VACUOUS = "verified on this run", "VIOLATED", "vacuous"
UNDECIDED = "not decided: θ* is not known well enough"


@dataclasses.dataclass(frozen=True)
class Assumption:
    """A condition of a theorem on this run.

    margin: by how much it holds (≥ 0) or fails (< 0) at worst.  first: the first place (t, j) or (t,) where it fails.
    share: the share of places where it holds.  detail: the worst place in words, where (t, j) does not say it.
    """

    name: str
    holds: bool
    margin: float
    first: tuple[int, ...] | None = None
    share: float = 1.0
    detail: str = ""


@dataclasses.dataclass(frozen=True)
class Bound:
    """A bound at the last T: its value, its terms, the assumptions that it needs, and what came out.

    used: where the proof bounds a measured quantity by a term, that quantity, by the term's name.  remedy: for a vacuous
    bound, by what factor it is so, and what would make it not so.
    """

    name: str
    value: float
    measured: float
    terms: dict[str, float]
    needs: tuple[str, ...]
    verdict: str
    repaired: bool
    used: dict[str, float] = dataclasses.field(default_factory=dict)
    remedy: str = ""

    @property
    def shares(self) -> dict[str, float]:
        """How much of the bound each term is."""
        return {name: term / self.value if self.value > 0 else math.nan for name, term in self.terms.items()}

    @property
    def slack(self) -> dict[str, float]:
        """Term less what it bounds, where that was measured; below 0 only where an assumption fails."""
        return {name: self.terms[name] - used for name, used in self.used.items()}

    @property
    def ratio(self) -> float:
        """measured / bound."""
        return self.measured / self.value if self.value > 0 else math.inf


@dataclasses.dataclass(frozen=True)
class Inequality:
    """One step of a proof, evaluated.

    inapplicable: why it says nothing of this run, "" where it does.  where_it_fails: what it is, said only where it fails.
    """

    name: str
    left: float
    right: float
    inapplicable: str = ""
    where_it_fails: str = ""

    @property
    def holds(self) -> bool:
        """left ≤ right, up to rounding of the sums (1e-9 of their size), or nothing is said."""
        return bool(self.inapplicable) or self.left <= self.right + 1e-9 * (abs(self.left) + abs(self.right))


@dataclasses.dataclass(frozen=True)
class Slope:
    """Slope of log(measured) on log T, with its 95 % confidence interval."""

    value: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class Report:
    """The outcome of one check on one run."""

    title: str
    facts: dict[str, Any]
    quantity: str
    measured: float
    assumptions: list[Assumption]
    bounds: list[Bound]
    steps: list[Inequality] = dataclasses.field(default_factory=list)
    curve: dict[str, list[float]] = dataclasses.field(default_factory=dict)  # "T", the quantity, and each bound
    slope: Slope | None = None

    def assumption(self, name: str) -> Assumption:
        """The assumption of that name."""
        return next(a for a in self.assumptions if a.name == name)

    def bound(self, name: str) -> Bound:
        """The bound of that name."""
        return next(b for b in self.bounds if b.name == name)

    @property
    def news(self) -> bool:
        """Whether a repaired statement is violated: that would be news."""
        return any(b.repaired and b.verdict == VIOLATED for b in self.bounds)

    def __str__(self) -> str:
        lines = [self.title, "  " + ", ".join(f"{k} = {_short(v)}" for k, v in self.facts.items())]
        lines.append(f"  {self.quantity}: {self.measured:.6g}" + self._slope())
        lines.append("  assumptions")
        for a in self.assumptions:
            place = "" if a.first is None else f", first fails at {'(t, j)' if len(a.first) == 2 else 't'} = {a.first}"
            detail = f"; {a.detail}" if a.detail else ""
            share = "" if a.share == 1 else f", true at {100 * a.share:.1f} %"
            lines.append(f"    {'yes' if a.holds else 'NO ':4}{a.name} (margin {a.margin:.3g}{share}{place}{detail})")
        if self.bounds:
            lines.append("  bounds")
        for b in self.bounds:
            terms = " + ".join(f"{v:.4g} ({k})" for k, v in b.terms.items())
            lines.append(f"    {b.name}: {b.value:.6g} = {terms}; measured/bound {b.ratio:.3g}: {b.verdict}")
            if b.remedy:
                lines.append(f"      {b.remedy}")
            if b.used:
                slack = (f"{k} {v:.4g} ({100 * b.shares[k]:.0f} % of the bound)" for k, v in b.slack.items())
                lines.append(f"      slack of each term: {', '.join(slack)}")
        if self.steps:
            lines.append("  steps of the proof")
        for s in self.steps:
            if s.inapplicable:
                lines.append(f"    {'—':4}{s.name}: not applicable: {s.inapplicable}")
            else:
                why = f"   ({s.where_it_fails})" if s.where_it_fails and not s.holds else ""
                lines.append(f"    {'yes' if s.holds else 'NO ':4}{s.name}: {s.left:.6g} ≤ {s.right:.6g}{why}")
        return "\n".join(lines)

    def _slope(self) -> str:
        s = self.slope
        return "" if s is None else f"; slope of its log on log T {s.value:.3f} [{s.low:.3f}, {s.high:.3f}]"

    def _repr_markdown_(self) -> str:
        lines = [f"**{self.title}**: {self.quantity} {self.measured:.6g}{self._slope()}", ""]
        lines += ["| assumption | holds | margin | first failure, or worst place |", "|---|---|---|---|"]
        lines += [
            f"| {a.name} | {'yes' if a.holds else '**no**'} | {a.margin:.3g} | {a.first or a.detail} |"
            for a in self.assumptions
        ]
        lines += ["", "| bound | value | measured / bound | verdict |", "|---|---|---|---|"]
        lines += [
            f"| {b.name} | {b.value:.6g} | {b.ratio:.3g} | {b.verdict}{f': {b.remedy}' * bool(b.remedy)} |" for b in self.bounds
        ]
        slack = [(b, term) for b in self.bounds for term in b.used]
        if slack:
            lines += ["", "| bound | term | value | share | measured | slack |", "|---|---|---|---|---|---|"]
        for b, k in slack:
            lines.append(f"| {b.name} | {k} | {b.terms[k]:.4g} | {b.shares[k]:.3f} | {b.used[k]:.4g} | {b.slack[k]:.4g} |")
        return "\n".join(lines)

    def to_json(self) -> str:
        """Everything, as JSON; what is not finite is written as text."""
        parts = dataclasses.asdict(self)
        for entry, b in zip(parts["bounds"], self.bounds, strict=True):
            entry |= {"ratio": b.ratio, "shares": b.shares, "slack": b.slack}
        return json.dumps(_plain(parts), indent=1, ensure_ascii=False)

    def plot(self, axes: Any) -> None:
        """The measured quantity against every bound over T, log-log."""
        T = self.curve["T"]
        axes.plot(T, self.curve[self.quantity], "k-o", markersize=3, label=self.quantity + self._slope())
        for style, b in zip(("--", "-.", ":", (0, (5, 1)), (0, (1, 1)), (0, (3, 1, 1, 1))), self.bounds, strict=False):
            axes.plot(T, self.curve[b.name], linestyle=style, label=f"{b.name}: {b.verdict}")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("T (steps)")
        axes.set_ylabel(self.quantity)
        axes.set_title(self.title, fontsize=9)
        axes.legend(fontsize=7)


def judge(
    name: str,
    terms: dict[str, float],
    measured: float,
    needs: dict[str, bool],
    trivial: float,
    *,
    repaired: bool,
    used: dict[str, float] | None = None,
    remedy: Callable[[], str] | None = None,
    excess: float = 0.0,
) -> Bound:
    """The verdict on a bound: not applicable where an assumption fails, vacuous above the trivial bound, else kept or not.

    excess: by how much the quantity can exceed `measured`; undecided where that makes the difference.
    remedy: called for what to say of a vacuous bound.
    """
    value = sum(terms.values())
    failing = [need for need, holds in needs.items() if not holds]
    if failing:
        verdict = f"not applicable: {', '.join(failing)}"
    elif not math.isfinite(value) or value > trivial:
        verdict = VACUOUS
    else:
        allowed = value * (1 + 1e-9)
        verdict = VERIFIED if measured + excess <= allowed else VIOLATED if measured > allowed else UNDECIDED
    message = remedy() if verdict == VACUOUS and remedy else ""
    return Bound(name, value, measured, terms, tuple(needs), verdict, repaired, used or {}, message)


def everywhere(name: str, margins: np.ndarray, first_t: int = 1, tolerance: float = 0.0) -> Assumption:
    """An assumption from its margins over (t,) or (t, j): ≥ -tolerance everywhere."""
    if not margins.size:
        return Assumption(name, True, math.inf)
    good = margins >= -tolerance
    where = np.argwhere(~good)
    first = None if good.all() else (int(where[0][0]) + first_t, *(int(i) + 1 for i in where[0][1:]))
    return Assumption(name, bool(good.all()), float(margins.min()), first, float(good.mean()))


def fit_slope(T: list[float], values: list[float], start: float) -> Slope | None:
    """Least squares of log(values) on log(T) from `start` on; None for fewer than four values above 0, or where all are equal
    (up to rounding), which is no power of T."""
    pairs = [(math.log(t), math.log(v)) for t, v in zip(T, values, strict=True) if t >= start and v > 0]
    if len(pairs) < 4 or np.ptp([v for _, v in pairs]) < 1e-12:
        return None
    fit = stats.linregress(*zip(*pairs, strict=True))
    half = float(stats.t.ppf(0.975, len(pairs) - 2) * fit.stderr)
    return Slope(float(fit.slope), float(fit.slope) - half, float(fit.slope) + half)


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value

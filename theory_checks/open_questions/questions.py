"""Questions that the theorems leave open, each settled by numbers, a certificate or an argument; one command gives a row again.

    for row in answers(): print(row)
    apollo-sandbox check questions hessian-ema --certify

"refuted": by a run, and with `certify` by that run in ball arithmetic (extra `theory`).  "proved": by an argument in the
docstring of the module named, with numbers that agree with it.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

import numpy as np

from sandbox.utils import suggest
from theory_checks.open_questions import drift, rotation, same_batch, tightness
from theory_checks.open_questions.rates import ladder
from theory_checks.proofs import certificates
from theory_checks.proofs.ball_arithmetic import Balls, Proof
from theory_checks.report import fit_slope

CERTIFIED = 2000  # steps of a run in ball arithmetic


@dataclasses.dataclass(frozen=True)
class Answer:
    """A row of the table.  evidence: what was measured; certificate: its verdict, "" where none was asked for or applies."""

    name: str
    question: str
    verdict: str
    evidence: str
    certificate: str
    seconds: float

    @property
    def command(self) -> str:
        """What gives this row again."""
        return f"apollo-sandbox check questions {self.name}" + " --certify" * bool(self.certificate)

    def row(self) -> list[str]:
        """A line of a table with `COLUMNS`."""
        return [self.question, self.verdict, self.evidence, self.certificate or "—", self.command]

    def __str__(self) -> str:
        proof = f"\n  {self.certificate}" if self.certificate else ""
        return f"{self.question}\n  {self.verdict}: {self.evidence}{proof}\n  {self.command}"


COLUMNS = ("question", "answer", "evidence", "certificate", "command")


def answer(name: str, *, T: int = 20_000, certify: bool = False) -> Answer:
    """The row called `name`.  T: the longest run.  Raises ValueError for an unknown name and for T < 1000."""
    if name not in QUESTIONS:
        raise ValueError(suggest.unknown("question", name, QUESTIONS))
    if T < 1000:
        raise ValueError(f"T must be at least 1000, got {T}")
    began = time.perf_counter()
    question, verdict, measure, proof = QUESTIONS[name]
    evidence = measure(T)
    certificate = str(certificates.certify(proof, name)) if certify and proof is not None else ""
    return Answer(name, question, verdict, evidence, certificate, time.perf_counter() - began)


def answers(*, T: int = 20_000, certify: bool = False) -> list[Answer]:
    """Every row."""
    return [answer(name, T=T, certify=certify) for name in QUESTIONS]


def _describe(regrets: np.ndarray) -> str:
    Ts, T = ladder(len(regrets)), len(regrets)
    s = fit_slope([float(t) for t in Ts], [float(regrets[t - 1]) for t in Ts], T / 30)
    slope = "no slope" if s is None else f"slope {s.value:.3f} [{s.low:.3f}, {s.high:.3f}]"
    return f"R = {regrets[-1]:.5g} at T = {T:,}, {slope}"


def _linear(regrets: np.ndarray, rate: float) -> str:
    return f"{_describe(regrets)}, R/T → {rate:.3g}"


def _drift(name: str) -> tuple[Callable[[int], str], Callable[[Balls], Proof]]:
    cycle = drift.CYCLES[name]

    def proof(kind: Balls) -> Proof:
        return cycle.proof(kind, CERTIFIED, 0.25)

    return lambda T: _linear(cycle.regrets(T), cycle.rate), proof


def _ceiling(T: int) -> str:
    sizes = [size for size in (1.0, 10.0, 100.0, 1e3, 1e4) if size <= 100 or T >= 10_000]
    ends = [tightness.ceiling(size, max(1.0, size / min(T, 20_000) ** 0.5)) for size in sizes]
    return "R η/(Λ√T) = " + ", ".join(f"{c:.3f} (Λ = {size:g})" for size, (_, _, c) in zip(sizes, ends, strict=True))


def _tight(T: int) -> str:
    ratios = [tightness.attained(t, beta, eta=0.05) for beta in (0.0, 0.5, 0.875) for t in (T, 50 * T)]
    return "largest R/bound " + ", ".join(f"{a.ratio:.3f} (β = {a.beta:g}, T = {a.T:,})" for a in ratios)


def _same_batch(T: int) -> str:
    problem = same_batch.Kinked()
    return _linear(problem.regrets(T), problem.rate)


Entry = tuple[str, str, Callable[[int], str], Callable[[Balls], Proof] | None]
QUESTIONS: dict[str, Entry] = {
    "apollo": (
        "Is Apollo's regret sublinear in one dimension, on a box?",
        "refuted for β = 0, ε = 0 (drift)",
        *_drift("apollo"),
    ),
    "apollo-momentum": (
        "And with Algorithm 1's β = 0.9, ε = 1e-4 and bias correction?",
        "refuted, and so for every β < 1 (drift)",
        *_drift("apollo, β = 0.9"),
    ),
    "scale-invariant": (
        "Is scale-invariant's regret sublinear on convex losses with bounded gradients, on a box?",
        "refuted for every β < 1 with ε = 0 (drift)",
        *_drift("scale-invariant"),
    ),
    "scale-invariant-momentum": (
        "Is scale-invariant's with momentum, β = 0.9?",
        "refuted, with ε = 1e-4 and bias correction as well (drift)",
        *_drift("scale-invariant, β = 0.9"),
    ),
    "hessian-ema": (
        "Is hessian-ema's regret sublinear there?",
        "refuted for β = 0, ε = 0 (drift)",
        *_drift("hessian-ema"),
    ),
    "hessian-ema-momentum": (
        "And with β = 0.9, ε = 1e-4 and bias correction?",
        "refuted, and so for every β < 1 (drift)",
        *_drift("hessian-ema, β = 0.9"),
    ),
    "ceiling": ("Is monotone's regret of the order Λ√T, as its bound?", "proved: yes (tightness)", _ceiling, None),
    "tight": ("Is repaired bound 3 tight?", "proved: R/bound → 1 for every β (tightness)", _tight, None),
    "same-batch": (
        "Does Apollo with same-batch pairs differ?",
        "proved: O(√T) on linear losses; refuted with kinks, for β = 0 (same_batch)",
        _same_batch,
        lambda kind: same_batch.Kinked().proof(kind, CERTIFIED, 0.25),
    ),
    "same-batch-smooth": (
        "And on smooth losses?",
        "proved: O(√T) in one dimension (same_batch); refuted in two, for β = 0 (rotation)",
        lambda T: f"{_describe(rotation.Rounds().regrets(T))}, on losses that follow the float64 run",
        lambda kind: rotation.Rounds().proof(kind, CERTIFIED, 0.25),
    ),
}

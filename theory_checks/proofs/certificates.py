"""Refutations as proofs: both sides of a claim, and every premise, in ball arithmetic (`ball_arithmetic`; extra `theory`).

    print(certify("CE1"))

A certificate says: exact arithmetic, on the exact values of the float64 numbers that are written down, gives a left side in
one ball and a right side in another, the first wholly above the second, with every premise true.  Precision is raised until
that is so; what no precision tried decides is reported as undecided.  Each case of `counterexamples` is proved here by the
same name.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from itertools import pairwise

from sandbox.utils import suggest
from theory_checks import problems
from theory_checks.claims import nonconvex
from theory_checks.proofs import ball_arithmetic, counterexamples, linear_proofs, recursion
from theory_checks.proofs.ball_arithmetic import Balls, Proof, Unseparated
from theory_checks.proofs.recursion import Rule

PRECISIONS = (128, 512, 2048, 4096, 8192, 16384, 65536)  # bits, tried in turn


@dataclasses.dataclass(frozen=True)
class Certificate:
    """What came out.  left, right: the two balls, rounded outward.  bits: the precision that decided, or the last one tried.

    undecided: how many maxima met overlapping balls (each was given the ball that holds both branches).
    """

    name: str
    claim: str
    left: str
    right: str
    verdict: str
    proved: bool
    bits: int
    undecided: int
    first: int | None
    seconds: float

    def __str__(self) -> str:
        first = f"; first at T = {self.first}" if self.first else ""
        sides = f"{self.left} > {self.right}" if self.proved else f"{self.left} against {self.right}"
        return f"{self.name}: {self.verdict}: {sides}{first} ({self.bits} bits, {self.seconds:.1f} s)"


def certify(what: str | Callable[[Balls], Proof], name: str = "", precisions: Sequence[int] = PRECISIONS) -> Certificate:
    """The certificate of a case of `counterexamples`, by its name, or of any proof that can be made in given balls.

    Raises ValueError for an unknown name, ImportError where python-flint is missing.
    """
    if isinstance(what, str):
        if what not in PROOFS:
            raise ValueError(suggest.unknown("case", what, PROOFS))
        name, what = what, PROOFS[what]
    began = time.perf_counter()
    for bits in precisions:
        with ball_arithmetic.precision(bits) as kind:
            try:
                proof = what(kind)
            except Unseparated as error:
                left = right = "—"
                claim, verdict, first = name, f"not separated at {bits} bits: {error}", None
            else:
                claim, verdict, first = proof.claim, _verdict(proof, bits, kind.undecided), proof.first
                left, right = ball_arithmetic.show(proof.left), ball_arithmetic.show(proof.right)
        if not verdict.startswith("not separated"):
            break
    seconds = time.perf_counter() - began
    return Certificate(name or claim, claim, left, right, verdict, verdict == "proved", bits, kind.undecided, first, seconds)


def _verdict(proof: Proof, bits: int, undecided: int) -> str:
    false = [name for name, margin in proof.premises.items() if margin < 0]
    unknown = [name for name, margin in proof.premises.items() if not margin >= 0]
    if false:
        return f"not a refutation: it is false that {', '.join(false)}"
    if proof.left <= proof.right:
        return "not refuted"
    if proof.left > proof.right and not unknown:
        return "proved"
    unknown += [] if proof.left > proof.right else ["the two sides"]
    return f"not separated at {bits} bits: {', '.join(unknown)}" + f"; {undecided} maxima undecided" * bool(undecided)


def theorem_2(kind: Balls) -> Proof:
    """CE1, T = 1,201."""
    rows = [problems.CYCLE_FIRST, *problems.CYCLE]
    rule = Rule.from_recipe(counterexamples.theory_apollo())
    return linear_proofs.theorem_2(kind, rows, problems.CYCLE_COMPARATOR, eta=0.38, T=1201, rule=rule)


def theorem_3(kind: Balls, T: int = 400, eta: float = 0.05) -> Proof:
    """CE2: f = √(1+x²), |f'| < 1 = H, 0 < f'' ≤ 1 = L, f ≥ 1."""
    rule = Rule.from_recipe(counterexamples.theory_apollo())

    def slope(t: int, x: list) -> list:
        return [x[0] / kind.sqrt(1 + x[0] * x[0])]

    steps = linear_proofs.run(kind, rule, slope, [10.0], eta=eta, T=T)
    least = linear_proofs.smallest(s.g[0] * s.g[0] for s in steps)
    one = kind.number(1.0)
    gap, beta = kind.sqrt(kind.number(101.0)) - 1, kind.number(rule.beta)
    numbers = {"T": kind.number(T), "d": one, "L": one, "L_D": kind.number(1.5), "H": one, "eta": kind.number(eta)}
    stated = nonconvex.terms(**numbers, sigma=one, beta=beta, gap=gap)[nonconvex.STATED]
    u = [s.D[0] / s.lr for s in steps]
    premises = {
        "‖D_t‖_∞ ≤ L_D": linear_proofs.smallest(1.5 - s.D[0] for s in steps),
        "D_t/η_t non-decreasing": linear_proofs.smallest(y - x for x, y in pairwise(u)),
        "‖g_t‖ ≤ H": linear_proofs.smallest(1 - abs(s.g[0]) for s in steps),
        "0 < β < 1": beta.min(1 - beta),
    }
    return Proof(f"Theorem 3, T = {T}, η = {eta:g}: min ‖∇f‖² ≤ bound", least, sum(stated.values()), premises)


def theorem_1(kind: Balls, eps: float = 0.5, gamma: float = 0.0) -> Proof:
    """CE3: the third iterates of (η, σ) = (1, 1) and (4, 4), the same ε or γ in both."""

    def third(size: float) -> list:
        rule = Rule(beta=0.5, eps=eps, sigma=size, correct=True, gamma=gamma)
        steps = recursion.walk(rule, lambda t, x: [x[0], 4 * x[1]], [1.0, 1.0], 3, eta=size, kind=kind, decreasing=False)
        return list(steps)[-1].theta

    apart = [abs(x - y) for x, y in zip(third(1.0), third(4.0), strict=True)]
    what = f"ε = {eps:g}" if eps else f"decoupled γ = {gamma:g}"
    return Proof(f"Theorem 1 with a fixed {what}: |θ_3 - θ_3'| ≤ 0", apart[0].max(apart[1]), kind.number(0.0))


def _step(make: Callable[..., counterexamples.Case]) -> Callable[[Balls], Proof]:
    def proof(kind: Balls) -> Proof:
        case = make(kind)
        return Proof(case.claim, case.left, case.right)

    return proof


PROOFS: dict[str, Callable[[Balls], Proof]] = {
    "CE1": theorem_2,
    "coordinatewise": _step(counterexamples.coordinatewise_step),
    "β monotone": _step(counterexamples.beta_step),
    "diameter": _step(counterexamples.diameter_step),
    "σ < 1": _step(counterexamples.floor_step),
    "CE2": theorem_3,
    "CE3 ε": theorem_1,
    "CE3 decay": lambda kind: theorem_1(kind, 0.0, 0.1),
}

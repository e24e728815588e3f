"""Checks of the paper's theorems on recorded runs: they verify, and they refute.

    run = record("monotone", "cycle-box", T=2000, lr=InverseSquareRoot(first=0.38))
    print(regret.check(run))

What is here:

    record            a run of any recipe with its whole history, in float64
    problems          online problems, from real data, from the literature, and of a user's own; θ* of them: comparators
    claims            what the paper states and what is true of it, each with a `check` that returns a report:
                      coupling (Theorem 1), regret (Theorem 2; its premises, bounds and proof beside it), nonconvex (Theorem 3),
                      scale_invariance (section 3.3), weak_secant; momentum_worst_case, by PEPit (extra `theory`)
    proofs            counterexamples, with numbers, and their certificates in ball arithmetic (extra `theory`); the recursion
                      behind both, number by number, and compiled for a million steps
    search            adversary: a search for problems that violate a bound
    open_questions    questions that the theorems leave open, answered, and rates: slopes over T
"""

from sandbox.utils import lazy
from theory_checks import problems
from theory_checks.claims import coupling, nonconvex, regret, scale_invariance, weak_secant
from theory_checks.open_questions import questions
from theory_checks.proofs import certificates, counterexamples
from theory_checks.record import Run, record
from theory_checks.report import Report
from theory_checks.search import adversary

__getattr__ = lazy.attach(__name__, modules=("claims", "open_questions", "proofs", "search"))

__all__ = [
    "Report",
    "Run",
    "adversary",
    "certificates",
    "counterexamples",
    "coupling",
    "nonconvex",
    "problems",
    "questions",
    "record",
    "regret",
    "scale_invariance",
    "weak_secant",
]

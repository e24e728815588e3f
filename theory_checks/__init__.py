"""Checks of the paper's theorems on recorded runs: they verify, and they refute.

    run = record("monotone", "cycle-box", T=2000, lr=InverseSquareRoot(first=0.38))
    print(regret.check(run))

What is here:

    record            a run of any recipe with its whole history, in float64
    coupling          Theorem 1, with its rules for ε and decay
    regret            Theorem 2 and its repaired forms, each step of the proof, the certificate identity
    nonconvex         Theorem 3 and its repaired form
    scale_invariance  the paper's claim of section 3.3
    weak_secant       the secant equation, and where B goes on a quadratic
    frozen            the exact worst case of the frozen method, by PEPit (extra `theory`)
    counterexamples   what refutes the statements of the paper, with numbers
    adversary         a search for problems that violate a bound; population and standstill are what it searches with
    slack             what the proof of Theorem 2 bounds by each term, measured
    problems          online problems, from real data and from the literature
"""

from theory_checks import adversary, counterexamples, coupling, nonconvex, problems, regret, scale_invariance, weak_secant
from theory_checks.record import Run, record
from theory_checks.report import Report

__all__ = [
    "Report",
    "Run",
    "adversary",
    "counterexamples",
    "coupling",
    "nonconvex",
    "problems",
    "record",
    "regret",
    "scale_invariance",
    "weak_secant",
]

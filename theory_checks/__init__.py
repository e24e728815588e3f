"""Checks of the paper's theorems on recorded runs: they verify, and they refute.

    run = record("monotone", "cycle-box", T=2000, lr=InverseSquareRoot(first=0.38))
    print(regret.check(run))

What is here:

    record            a run of any recipe with its whole history, in float64
    coupling          Theorem 1, with its rules for ε and decay
    regret            Theorem 2 and its repaired forms, each step of the proof, the certificate identity; its premises are in
                      premises, what a vacuous bound needs in vacuity, the slack of each term in slack
    nonconvex         Theorem 3 and its repaired form
    scale_invariance  the paper's claim of section 3.3
    weak_secant       the secant equation, and where B goes on a quadratic
    counterexamples   what refutes the statements of the paper, with numbers
    certificates      the same, proved in ball arithmetic (extra `theory`), by the recursion of scalar on the numbers of balls
    questions         what the theorems leave open, answered: drift, same_batch, tightness; rates: slopes over T
    adversary         a search for problems that violate a bound; population and standstill are what it searches with
    frozen            the exact worst case of the frozen method, by PEPit (extra `theory`), and what solvers can decide
    problems          online problems, from real data, from the literature, and of a user's own
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

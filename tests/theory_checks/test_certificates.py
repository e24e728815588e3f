"""Certificates: what is proved, what must not be, and what stays open."""

import pytest

from sandbox import cli
from theory_checks import problems
from theory_checks.proofs import certificates, counterexamples, linear_proofs
from theory_checks.proofs.ball_arithmetic import Balls, Proof, precision
from theory_checks.proofs.recursion import Rule
from theory_checks.search import adversary
from theory_checks.search.session import Candidate

pytest.importorskip("flint", reason="the extra `theory` is not installed")

ROWS = [problems.CYCLE_FIRST, *problems.CYCLE]
APOLLO = Rule.from_recipe(counterexamples.theory_apollo())


def ce1(kind, **changes):
    options = {"eta": 0.38, "T": 1201, "rule": APOLLO, **changes}
    return linear_proofs.theorem_2(kind, options.pop("rows", ROWS), options.pop("star", problems.CYCLE_COMPARATOR), **options)


def test_every_counterexample_is_proved(capsys):
    """Eight lines, each with the balls around what float64 computes."""
    assert cli.main(["check", "counterexamples", "--certify"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith(" ")]
    assert len(lines) == len(counterexamples.CASES) == 8
    assert all(": proved: " in line for line in lines)
    assert "567.41521 ± 2.60e-6 > 396.61544" in lines[0]
    assert "first at T = 572" in lines[0]
    for name, line in zip(counterexamples.CASES, lines, strict=True):
        case = counterexamples.CASES[name]()
        left, right = (
            float(side.split(" ±")[0]) for side in line.split("proved: ")[1].split(" (")[0].split(";")[0].split(" > ")
        )
        assert left == pytest.approx(case.left, rel=1e-7)
        assert right == pytest.approx(case.right, rel=1e-7)


def test_a_precision_that_does_not_enclose_the_run_says_where():
    found = certificates.certify(ce1, "CE1", precisions=(64,))
    assert not found.proved
    assert found.verdict.startswith("not separated at 64 bits: θ_")
    assert "undecided maxima" in found.verdict
    assert "—" in str(found)


def test_what_is_true_is_not_refuted():
    """At T = 571 the bound still holds; and the repaired bound's premise is false on CE1."""
    below = certificates.certify(lambda kind: ce1(kind, T=571))
    assert (below.verdict, below.proved, below.first) == ("not refuted", False, None)
    repaired = certificates.certify(lambda kind: ce1(kind, T=300, bound="repaired 1"))
    assert repaired.verdict == "not a refutation: it is false that D_t/η_t non-decreasing in each coordinate"


def test_a_comparator_that_is_not_best_is_no_refutation():
    """θ* farther out on the wrong side: iterates have a lower total loss."""
    found = certificates.certify(lambda kind: ce1(kind, T=60, star=(-0.97, 0.24)))
    assert found.verdict == "not a refutation: it is false that no iterate is better than θ*"


def test_a_premise_that_no_precision_decides_stays_open():
    def proof(kind):
        third = kind.number(1.0) / 3
        return Proof("", kind.number(2.0), kind.number(1.0), {"x ≥ 0": third - third})

    found = certificates.certify(proof, "open", precisions=(64, 128))
    assert found.verdict == "not separated at 128 bits: x ≥ 0"
    assert not found.proved


def test_a_maximum_of_overlapping_balls_holds_both():
    with precision(64):
        kind = Balls()
        third = kind.number(1.0) / 3
        met = kind.largest(third + third + third, kind.number(1.0))
        assert kind.undecided == 1
        assert met.contains(1)
        assert kind.largest(kind.number(2.0), third) == 2
        assert kind.undecided == 1


def test_an_exact_zero_direction_is_told_from_a_ball_around_zero():
    with precision(64) as kind:
        zero, one = kind.number(0.0), kind.number(1.0)
        third = one / 3
        assert kind.quotient(one, zero) == 0
        assert not kind.quotient(one, third - third).is_finite()


def test_what_the_adversary_finds_is_certified():
    """CE1's cycle as a candidate."""
    import numpy as np

    c = Candidate(np.array(ROWS[0]), np.array(ROWS[1:]), np.array(problems.CYCLE_COMPARATOR), 0.38, 1e-9, 700, 1.0)
    target = adversary.TARGETS["regret"]
    report = c.report(target)
    found = adversary.Outcome("regret", 0, 1.0, False, 1, [], {}, c, report, 1.1, True, 572)
    proved = adversary.certify(found)
    assert proved.proved
    assert proved.first == 572
    with pytest.raises(ValueError, match="nothing to certify"):
        adversary.certify(adversary.Outcome("regret", 0, 1.0, False, 1, [], {}, None, None, 0.5, False, None))


@pytest.mark.parametrize("changes", [{"sigma": 0.5}, {"box": (-1.0, 1.0)}, {"same_batch": True}])
def test_rules_that_are_not_the_proofs(changes):
    import dataclasses

    with precision(64) as kind, pytest.raises(ValueError, match="Theorem 2 needs a floor"):
        ce1(kind, rule=dataclasses.replace(APOLLO, **changes))


def test_an_unknown_case():
    with pytest.raises(ValueError, match="unknown case 'CE4'; did you mean"):
        certificates.certify("CE4")


def test_without_the_extra(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "flint", None)
    with pytest.raises(ImportError, match="apollo-sandbox\\[theory\\]"):
        certificates.certify("CE1")

"""Verdicts from rows written by hand, and from runs whose verdict is known."""

from __future__ import annotations

import polars as pl
import pytest
from scipy import stats

from sandbox import studies
from sandbox.experiments.selection import statistics
from sandbox.studies import report
from sandbox.studies.run import run
from sandbox.studies.verdicts import claims
from sandbox.studies.verdicts.claims import CLAIMS, Claim
from sandbox.studies.verdicts.deciders import Better, Cases, Close, Every, Given, Open, Same, Steadier, p_of
from sandbox.studies.verdicts.judge import DEPENDS, EDGE, FEW, HOLDS, NOT, NULL, UNDECIDED, UNTESTED, judge
from sandbox.studies.verdicts.quantities import AtTrainingLoss, Best, End, minus, spread
from tests.studies.verdicts.rows import rows_of


def end(arm, **more):
    return End("F6", "main", arm, "test_loss", **more)


def searched(table, **grids):
    """The same rows, after a search in which each of some arms was tried at the rates of its grid; all chose 0.1."""
    shared = {"study": "F6", "part": "main", "role": "tuning", "seed": 10_000, "step": 4, "steps": 4, "diverged": False}
    tried = pl.DataFrame([{**shared, "arm": arm, "lr": lr} for arm, grid in grids.items() for lr in grid])
    return {"F6": pl.concat([table["F6"], tried], how="diagonal")}


def rows(**losses):
    return rows_of(test_loss={arm: [[v] for v in values] for arm, values in losses.items()})


def verdict(by, table):
    return judge(Claim(1, "", by), table)


LOWER = Better(end("a"), (end("b"), end("c")))
A, B = [1.0, 1.1, 1.2, 1.05, 1.15, 1.1], [2.0, 2.12, 2.21, 2.06, 2.14, 2.11]
HIGH, LOW = [3.0, 3.1, 3.25, 3.0, 3.2, 3.1], [0.5, 0.61, 0.72, 0.55, 0.66, 0.6]
LOST = [None] * 6


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ({"a": A, "b": B, "c": HIGH}, HOLDS),
        ({"a": A, "b": B, "c": LOW}, NOT),
        ({"a": A, "b": B, "c": [0.5, 1.61, 1.2, 0.9, 1.4, 1.1]}, UNDECIDED),
        ({"a": A, "b": LOST, "c": HIGH}, HOLDS),
        ({"a": A, "b": B}, UNTESTED),
    ],
)
def test_better(losses, expected):
    found = verdict(LOWER, rows(**losses))
    assert found.verdict == expected
    assert ("detectable with 80 % power" in found.because) == (expected == UNDECIDED)


def test_more_may_be_better():
    higher = Better(end("a", higher=True), (end("b", higher=True),))
    assert verdict(higher, rows(a=A, b=B)).verdict == NOT
    assert verdict(higher, rows(a=A, b=LOST)).verdict == HOLDS


def test_seeds_are_paired_by_their_number():
    table = {
        "F6": rows(a=A, b=B)["F6"]
        .sample(fraction=1.0, shuffle=True, seed=1)
        .filter((pl.col("arm") == "a") | (pl.col("seed") > 0))
    }
    found = verdict(Better(end("a"), (end("b"),)), table)
    d = statistics.paired(A[1:], B[1:])
    assert f"{d.mean:+.3g} [{d.low:+.3g}, {d.high:+.3g}], n = 5" in found.because


def test_what_speaks_against_is_corrected_for_the_number_of_comparisons():
    # one p of 0.03 is beyond its own interval, but not after Holm over four
    d = [0.1, 0.18, 0.26, 0.05, -0.04, 0.2]
    p = float(stats.ttest_1samp(d, 0).pvalue)
    assert 0.05 / 4 < p < 0.05
    table = rows(
        a=d, b=[0.0] * 6, c=[1.0, 1.1, 0.9, 1.2, 1.0, 1.1], e=[1.0, 1.3, 0.9, 1.2, 1.1, 1.0], f=[-1.0, 1.3, 0.9, 1.2, 1.0, -0.5]
    )
    assert verdict(Better(end("a"), (end("b"),)), table).verdict == NOT
    assert verdict(Better(end("a"), tuple(map(end, "bcef"))), table).verdict == UNDECIDED


def test_p_is_students():
    d = statistics.paired([0.1, 0.18, 0.26], [0.0, 0.0, 0.0])
    assert p_of(d) == pytest.approx(float(stats.ttest_1samp([0.1, 0.18, 0.26], 0).pvalue), rel=1e-10)


@pytest.mark.parametrize(("margin", "expected"), [(1.5, HOLDS), (0.5, NOT), (1.0, UNDECIDED)])
def test_close(margin, expected):
    assert verdict(Close(end("a"), end("b"), margin), rows(a=A, b=B)).verdict == expected
    assert verdict(Close(end("a"), 2.1, margin), rows(a=A)).verdict == expected


# -- what may not be decided -------------------------------------------------------------------------------------------

BETTER = Better(end("a"), (end("b"),))


@pytest.mark.parametrize(
    "by",
    [
        BETTER,
        Better(end("b"), (end("a"),)),
        Close(end("a"), end("b"), 1.5),
        Close(end("a"), end("b"), 0.5),
        Every((Better(end("a"), (end("c"),)), BETTER)),
        Given(BETTER, Better(end("a"), (end("c"),)), "b is not worse"),
        Better(spread("s", end("c"), end("c")), (spread("s", end("a"), end("b")),)),
        Better(minus(end("a"), end("b")), (end("c"),)),
        Better(Best("best", "F6", "main", ("a", "b"), "test_loss", "test_loss"), (end("c"),)),
        Better(AtTrainingLoss("F6", "main", "c", ("c", "a")), (end("b"),)),
    ],
    ids=lambda by: type(by).__name__,
)
@pytest.mark.parametrize("grid", [(0.1, 0.3, 1.0), (0.01, 0.03, 0.1), (0.1,)], ids=["lowest", "highest", "only"])
def test_nothing_is_decided_from_a_rate_on_the_edge(by, grid):
    table = rows(a=A, b=B, c=HIGH)
    losses = table["F6"].with_columns(pl.col("test_loss").alias("train_loss"), pl.col("test_loss").alias("validation_loss"))
    inside = searched({"F6": losses}, a=(0.01, 0.1, 1.0), b=(0.01, 0.1, 1.0))
    assert verdict(by, inside).verdict in (HOLDS, NOT)
    found = verdict(by, searched({"F6": losses}, a=(0.01, 0.1, 1.0), b=grid))
    assert found.verdict == EDGE == "not decidable: rate on the edge"
    assert "rate on the edge: b" in found.because


def test_a_rate_from_another_arms_search_is_where_that_one_is():
    """b ran at twice the rate that a's search chose."""
    table = rows(a=A, b=B, c=HIGH)["F6"].with_columns(rate_of=pl.when(pl.col("arm") == "b").then(pl.lit("a")))
    by = Better(end("b"), (end("c"),))
    assert verdict(by, searched({"F6": table}, a=(0.01, 0.1, 1.0))).verdict == HOLDS
    assert verdict(by, searched({"F6": table}, a=(0.1, 1.0))).verdict == EDGE


def test_another_arms_edge_is_no_bar():
    assert verdict(BETTER, searched(rows(a=A, b=B, c=HIGH), a=(0.01, 0.1, 1.0), c=(0.1, 0.3))).verdict == HOLDS


@pytest.mark.parametrize("by", [BETTER, Close(end("a"), end("b"), 1.5), Close(end("a"), end("b"), 0.5)])
def test_nothing_is_decided_from_fewer_than_six_seeds(by):
    assert verdict(by, rows(a=A[:5], b=B[:5])).verdict == FEW == "not decidable: fewer than six seeds"
    assert verdict(by, rows(a=A, b=B)).verdict in (HOLDS, NOT)


def test_three_diverged_pairs_that_agree_are_no_decision():
    assert verdict(BETTER, rows(a=A[:3], b=LOST[:3])).verdict == FEW
    assert verdict(BETTER, rows(a=A, b=LOST)).verdict == HOLDS
    assert verdict(Better(end("b"), (end("a"),)), rows(a=A, b=LOST)).verdict == NOT
    assert verdict(BETTER, rows(a=A, b=[*LOST[:5], 0.5])).verdict == UNDECIDED


def test_what_speaks_against_counts_beside_an_edge():
    by = Better(end("a"), (end("b"), end("c")))
    assert verdict(by, searched(rows(a=A, b=B, c=LOW), b=(0.1, 0.3))).verdict == NOT


def test_a_tight_interval_around_zero_is_a_finding():
    near = [v * (1 + e) for v, e in zip(A, (1e-3, -1e-3, 2e-3, -2e-3, 1e-3, -1e-3), strict=True)]
    by = Better(end("a", log=True), (end("b", log=True),))
    assert verdict(by, rows(a=A, b=near)).verdict == NULL
    wide = [v * (1 + 20 * e) for v, e in zip(A, (1e-3, -1e-3, 2e-3, -2e-3, 1e-3, -1e-3), strict=True)]
    assert verdict(by, rows(a=A, b=wide)).verdict == UNDECIDED
    assert verdict(by, rows(a=A[:5], b=near[:5])).verdict == FEW
    assert verdict(Better(end("a"), (end("b"),)), rows(a=A, b=near)).verdict == UNDECIDED  # no unit, no margin
    sure = [v * 1.002 for v in A]  # beyond its interval, and too small to count
    assert verdict(by, rows(a=A, b=sure)).verdict == verdict(by, rows(a=sure, b=A)).verdict == NULL


def test_runs_that_diverged_are_close_to_nothing():
    inf = float("inf")
    assert verdict(Close(end("a"), 0.0, 0.1), rows(a=[inf] * 6)).verdict == NOT
    assert verdict(Close(end("a"), 0.0, 0.1), rows(a=[inf] * 5)).verdict == FEW
    assert verdict(Close(end("a"), end("b"), 0.1), rows(a=[inf] * 6, b=[inf] * 6)).verdict != NOT


def test_each_case_has_its_verdict():
    by = Cases((("if so", BETTER), ("if not", Better(end("a"), (end("c"),)))))
    found = verdict(by, rows(a=A, b=B, c=LOW))
    assert found.verdict == DEPENDS
    assert found.because.startswith("if so: holds here (F6: a − b ")
    assert "; if not: does not hold here (F6: a − c " in found.because
    assert verdict(by, rows(a=A, b=B, c=HIGH)).verdict == HOLDS


def test_equal_differences_are_no_certainty():
    table = rows(a=[1.0] * 6, b=[1.5] * 6)
    assert p_of(statistics.paired([1.0] * 6, [1.5] * 6)) == pytest.approx(2 / 64)
    assert verdict(Better(end("b"), (end("a"),)), table).verdict == NOT


def test_every_is_decided_by_one_that_speaks_against_whatever_is_missing():
    assert verdict(Every((LOWER, Better(end("a"), (end("x"),)))), rows(a=A, b=B, c=LOW)).verdict == NOT
    found = verdict(Every((Better(end("a"), (end("b"),)), Better(end("a"), (end("x"),)))), rows(a=A, b=B))
    assert found.verdict == UNTESTED
    assert found.because.startswith("F6 main has no runs of x; F6: a − b -1.01")


def test_nothing_is_tested_where_the_premise_is_not_met():
    premise, then = Better(end("a"), (end("b"),)), Better(end("b"), (end("c"),))
    table = rows(a=A, b=B, c=LOW)
    assert verdict(Given(premise, then, "b is not worse"), table).verdict == NOT
    found = verdict(Given(Better(end("b"), (end("a"),)), then, "b is not better"), table)
    assert (found.verdict, found.because) == (UNTESTED, "b is not better")


def test_rates_that_move_less():
    def table(**rates):
        shared = {"study": "F6", "role": "final"}
        return {
            "F6": pl.DataFrame(
                [
                    {**shared, "part": p, "arm": arm, "lr": lr}
                    for arm, two in rates.items()
                    for p, lr in zip("pq", two, strict=True)
                ]
            )
        }

    by = Steadier((("F6", "p"), ("F6", "q")), "a", "b", 0.5)
    assert verdict(by, table(a=[1.0, 1.0], b=[0.1, 1.0])).verdict == HOLDS
    assert verdict(by, table(a=[1.0, 0.1], b=[1.0, 1.0])).verdict == NOT
    assert verdict(by, table(a=[1.0, 3.0], b=[1.0, 1.0])).verdict == UNDECIDED


def test_claims_without_runs_are_not_tested():
    assert {v.verdict for v in report.verdicts({})} == {UNTESTED}
    assert verdict(Open("needs sizes"), {}).because == "needs sizes"


def test_scale_and_coupling_are_decided_by_their_own_runs(tmp_path):
    table = {key: pl.read_parquet(run(studies.get(key), "smoke", tmp_path)) for key in ("F10", "F13")}
    found = {v.claim.number: v for v in report.verdicts(table)}
    assert found[40].verdict == HOLDS
    assert found[14].verdict == found[15].verdict == found[39].verdict == DEPENDS
    said = (
        "ε with 1/σ: holds here",
        "ε fixed, as in Algorithm 1: does not hold here",
        "every coordinate on the floor: holds here",
    )
    assert all(each in found[14].because for each in said)
    for arm in ("apollo", "adam"):  # Adam is invariant but for its ε
        assert verdict(Same("F13", ("2^-10", "2^0", "2^10"), (arm,)), table).verdict == NOT
    assert verdict(Same("F10", ("ε fixed",), ("σ=1", "σ=0.01"), 1e-9), table).verdict == NOT


# -- the claims --------------------------------------------------------------------------------------------------------


def test_there_are_41_claims_and_each_is_decided_by_arms_of_the_cpu_tier():
    assert [claim.number for claim in CLAIMS] == list(range(1, 42))
    there = {(s.key, p.name, arm.name) for s in studies.all_studies() for p in s.parts("cpu") for arm in p.arms}
    for claim in CLAIMS:
        assert claim.by.places <= there, claim.number


def test_a_studys_claims_are_those_whose_decider_reads_it():
    assert claims.numbers("F13") == [40]
    assert claims.numbers("F10") == [14, 15, 39]
    assert {n for s in studies.all_studies() for n in claims.numbers(s.key)} == {
        c.number for c in CLAIMS if not isinstance(c.by, Open)
    }

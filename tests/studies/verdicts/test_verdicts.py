"""Verdicts from rows written by hand, and from runs whose verdict is known."""

from __future__ import annotations

import math

import polars as pl
import pytest
from scipy import stats

from sandbox import studies
from sandbox.experiments.selection import statistics
from sandbox.studies import report
from sandbox.studies.run import run
from sandbox.studies.verdicts import claims
from sandbox.studies.verdicts.claims import CLAIMS, Claim
from sandbox.studies.verdicts.deciders import Better, Close, Every, Given, Open, Same, Steadier, p_of
from sandbox.studies.verdicts.judge import HOLDS, NOT, UNDECIDED, UNTESTED, judge
from sandbox.studies.verdicts.quantities import Best, Combined, End
from tests.studies.verdicts.rows import rows_of


def end(arm, **more):
    return End("F6", "main", arm, "test_loss", **more)


def rows(**losses):
    return rows_of(test_loss={arm: [[v] for v in values] for arm, values in losses.items()})


def verdict(by, table):
    return judge(Claim(1, "", by), table)


LOWER = Better(end("a"), (end("b"), end("c")))
A, B = [1.0, 1.1, 1.2], [2.0, 2.12, 2.21]


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ({"a": A, "b": B, "c": [3.0, 3.1, 3.25]}, HOLDS),
        ({"a": A, "b": B, "c": [0.5, 0.61, 0.72]}, NOT),
        ({"a": A, "b": B, "c": [0.5, 1.61, 1.2]}, UNDECIDED),
        ({"a": A, "b": [None, None, None], "c": [3.0, 3.1, 3.25]}, HOLDS),
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
    assert verdict(higher, rows(a=A, b=[None, None, None])).verdict == HOLDS


def test_seeds_are_paired_by_their_number():
    table = {
        "F6": rows(a=A, b=B)["F6"]
        .sample(fraction=1.0, shuffle=True, seed=1)
        .filter((pl.col("arm") == "a") | (pl.col("seed") > 0))
    }
    found = verdict(Better(end("a"), (end("b"),)), table)
    d = statistics.paired(A[1:], B[1:])
    assert f"{d.mean:+.3g} [{d.low:+.3g}, {d.high:+.3g}], n = 2" in found.because


def test_what_speaks_against_is_corrected_for_the_number_of_comparisons():
    # one p of 0.03 is beyond its own interval, but not after Holm over four
    d = [0.1, 0.18, 0.26, 0.05]
    p = float(stats.ttest_1samp(d, 0).pvalue)
    assert 0.05 / 4 < p < 0.05
    table = rows(a=d, b=[0.0] * 4, c=[1.0, 1.1, 0.9, 1.2], e=[1.0, 1.3, 0.9, 1.2], f=[-1.0, 1.3, 0.9, 1.2])
    assert verdict(Better(end("a"), (end("b"),)), table).verdict == NOT
    assert verdict(Better(end("a"), tuple(map(end, "bcef"))), table).verdict == UNDECIDED


def test_p_is_students():
    d = statistics.paired([0.1, 0.18, 0.26], [0.0, 0.0, 0.0])
    assert p_of(d) == pytest.approx(float(stats.ttest_1samp([0.1, 0.18, 0.26], 0).pvalue), rel=1e-10)


@pytest.mark.parametrize(("margin", "expected"), [(1.5, HOLDS), (0.5, NOT), (1.0, UNDECIDED)])
def test_close(margin, expected):
    assert verdict(Close(end("a"), end("b"), margin), rows(a=A, b=B)).verdict == expected
    assert verdict(Close(end("a"), 2.1, margin), rows(a=A)).verdict == expected


def test_every_is_decided_by_one_that_speaks_against_whatever_is_missing():
    assert verdict(Every((LOWER, Better(end("a"), (end("x"),)))), rows(a=A, b=B, c=[0.5, 0.61, 0.72])).verdict == NOT
    found = verdict(Every((Better(end("a"), (end("b"),)), Better(end("a"), (end("x"),)))), rows(a=A, b=B))
    assert found.verdict == UNTESTED
    assert found.because.startswith("F6 main has no runs of x; F6: a − b -1.01")


def test_nothing_is_tested_where_the_premise_is_not_met():
    premise, then = Better(end("a"), (end("b"),)), Better(end("b"), (end("c"),))
    table = rows(a=A, b=B, c=[0.5, 0.61, 0.72])
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
    assert found[14].verdict == HOLDS
    for arm in ("apollo", "adam"):  # Adam is invariant but for its ε
        assert verdict(Same("F13", ("2^-10", "2^0", "2^10"), (arm,)), table).verdict == NOT
    assert verdict(Same("F10", ("ε fixed",), ("σ=1", "σ=0.01"), 1e-9), table).verdict == NOT


# -- the claims --------------------------------------------------------------------------------------------------------


def ends(q):
    """(study, part, arm) that a quantity reads."""
    if isinstance(q, Combined):
        return {each for part in q.of for each in ends(part)}
    arms = q.arms if isinstance(q, Best) else (q.arm, *getattr(q, "among", ()))
    return {(q.study, q.part, arm) for arm in arms}


def read(by):
    if isinstance(by, Given):
        return read(by.premise) | read(by.then)
    if isinstance(by, Every):
        return {each for part in by.of for each in read(part)}
    if isinstance(by, Better):
        return ends(by.left).union(*map(ends, by.than))
    if isinstance(by, Close):
        return ends(by.left) | (set() if isinstance(by.right, float) else ends(by.right))
    if isinstance(by, Steadier):
        return {(*place, arm) for place in by.places for arm in (by.arm, by.than)}
    return {(by.study, part, arm) for part in by.parts for arm in by.arms} if isinstance(by, Same) else set()


def test_there_are_41_claims_and_each_is_decided_by_arms_of_the_cpu_tier():
    assert [claim.number for claim in CLAIMS] == list(range(1, 42))
    there = {(s.key, p.name, arm.name) for s in studies.all_studies() for p in s.parts("cpu") for arm in p.arms}
    for claim in CLAIMS:
        assert read(claim.by) <= there, claim.number
        assert {study for study, *_ in read(claim.by)} == claim.by.reads


def test_a_studys_claims_are_those_whose_decider_reads_it():
    assert claims.numbers("F13") == [40]
    assert claims.numbers("F10") == [14, 15, 39]
    assert {n for s in studies.all_studies() for n in claims.numbers(s.key)} == {
        c.number for c in CLAIMS if not isinstance(c.by, Open)
    }


# -- beside SGD at the rate of the floor -------------------------------------------------------------------------------


def test_apollo_is_compared_with_sgd_w_at_equal_rates():
    names = ("apollo", "sgd-w", "apollo ×2", "sgd-w ×2", "sgd")
    table = rows_of(
        train_loss=dict(zip(names, ([[v] for v in losses] for losses in (A, B, [1.0] * 3, [1.0] * 3, B)), strict=True)),
        floor_occupancy={"apollo": [[0.5], [0.7], [0.6]], "apollo ×2": [[1.0]] * 3},
    )
    # (0.01/0.01)(1-0.9) is the rate of SGD that equals Apollo's; at twice the rate SGD's is another
    rates = {"apollo": 0.01, "sgd-w": 0.1, "apollo ×2": 0.02, "sgd-w ×2": 0.02, "sgd": 0.1}
    own = pl.col("arm").replace_strict(rates, return_dtype=pl.Float64).alias("lr")
    table["F6"] = table["F6"].with_columns(own, pl.lit(None, pl.Float64).alias("validation_loss"))
    _, _, body = report.against_sgd_w(table)
    d = statistics.paired([math.log(v) for v in A], [math.log(v) for v in B])
    assert [row[:3] for row in body] == [["F6 main", "apollo", "60.0 %"]]
    assert body[0][4].startswith(f"{100 * math.expm1(d.mean):+.3g} % [")
    assert body[0][-1] == "apollo"


def test_after_a_search_it_is_rate_by_rate():
    losses = {"apollo": [[1.0]] * 3, "sgd-w": [[2.0]] * 3}  # at the rates 0.1, of which Apollo's is 1.0 on the floor
    final = rows_of(train_loss=losses)["F6"].with_columns(pl.lit(None, pl.Float64).alias("floor_occupancy"))
    tried = pl.DataFrame(
        [
            {"study": "F6", "part": "main", "role": "tuning", "arm": arm, "lr": lr * factor, "seed": 7, "step": 4, "steps": 4,
             "validation_loss": loss, "diverged": False}
            for arm, factor, losses in (("apollo", 1.0, (1.1, 2.0, float("inf"))), ("sgd-w", 10.0, (1.0, 1.8, 1.5)))
            for lr, loss in zip((0.01, 0.03, 0.1), losses, strict=True)
        ]
    )  # fmt: skip
    _, _, body = report.against_sgd_w({"F6": pl.concat([final, tried], how="diagonal")})
    assert body[0][3] == "validation loss, a pair a rate"
    assert body[0][4].endswith("n = 2")  # the third diverged
    assert body[0][4].startswith(f"{100 * math.expm1((math.log(1.1) + math.log(2.0 / 1.8)) / 2):+.3g} %")

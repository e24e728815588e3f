"""Apollo against its controls, and off its floor: from rows written by hand."""

from __future__ import annotations

import math

import polars as pl
import pytest

from sandbox.experiments.selection import statistics
from sandbox.studies import floor
from tests.studies.verdicts.rows import rows_of

A = [1.0, 1.1, 1.2, 1.05, 1.15, 1.1]
B = [2.0, 2.12, 2.21, 2.06, 2.14, 2.11]


def table(losses, rates, occupancy=0.6):
    """Final runs of F6 by arm: their training losses and one rate."""
    shares = {arm: [[occupancy]] * len(values) for arm, values in losses.items()}
    rows = rows_of(train_loss={arm: [[v] for v in values] for arm, values in losses.items()}, floor_occupancy=shares)["F6"]
    return {"F6": rows.with_columns(pl.col("arm").replace_strict(rates, return_dtype=pl.Float64).alias("lr"))}


def against(losses, rates, **more):
    return floor.against_controls(table(losses, rates, **more))[2]


def test_each_control_is_compared_at_the_rate_of_the_floor():
    body = against({"apollo": A, "frozen": B, "sgd-w": B, "sgd": B}, {"apollo": 0.01, "frozen": 0.01, "sgd-w": 0.1, "sgd": 0.1})
    d = statistics.paired([math.log(v) for v in A], [math.log(v) for v in B])
    assert [row[:4] for row in body] == [["F6 main", "apollo", c, "60.0 %"] for c in ("frozen", "sgd-w")]
    for row in body:
        assert row[4].startswith(f"{100 * math.expm1(d.mean):+.3g} % [")
        assert row[-1] == "apollo"


def test_sgd_counts_where_it_has_apollos_warm_up():
    body = against({"apollo w=10": A, "sgd w=10": B}, {"apollo w=10": 0.01, "sgd w=10": 0.1})
    assert [row[:3] for row in body] == [["F6 main", "apollo w=10", "sgd w=10"]]
    assert body[0][-1] == "apollo w=10"


def test_different_rates_are_no_replicates():
    (row,) = against({"apollo": A, "frozen": B}, {"apollo": 0.01, "frozen": 0.02})
    assert row[4:] == ["η 0.01 and 0.02", "—", "not judged"]


def test_diverged_pairs_count_as_the_worst():
    (row,) = against({"apollo": A, "frozen": [*B[:3], None, None, None]}, {"apollo": 0.01, "frozen": 0.01})
    assert row[4] == "(runs diverged, n = 6)"
    assert row[-1] == "apollo"
    (row,) = against({"apollo": A, "frozen": [*A[:5], None]}, {"apollo": 0.01, "frozen": 0.01})
    assert row[-1] == "no difference seen"  # one run of six is no evidence


def test_fewer_than_six_pairs_are_not_judged_and_not_corrected_for():
    near = [1.0, 1.2, 1.25, 1.15, 1.15, 1.2]
    losses = {"apollo ×1": A[:5], "frozen ×1": B[:5], "apollo ×2": A, "frozen ×2": near}
    few, enough = against(losses, dict.fromkeys(losses, 0.01))
    assert few[-2:] == ["—", "not judged"]
    p = floor.p_of(statistics.paired([math.log(v) for v in A], [math.log(v) for v in near]))
    assert 0.01 < p < 0.05
    assert float(enough[-2]) == pytest.approx(p, abs=5e-4)


def test_off_the_floor():
    """frozen is tried at .01 and .1 and chooses .01; apollo at .01, .1 and 1, and chooses .1; frozen diverges at .1 once."""
    shared = {"study": "F14", "part": "p", "step": 4, "steps": 4, "floor_occupancy": 0.25}

    def runs(arm, role, lr, losses, seed=0):
        return [
            {**shared, "arm": arm, "role": role, "lr": lr, "seed": seed + i, "diverged": v is None,
             "train_loss": v or math.inf, "test_loss": 2 * v if v else math.inf}
            for i, v in enumerate(losses)
        ]  # fmt: skip

    rows = pl.DataFrame([
        *runs("frozen", "final", 0.01, B), *runs("apollo", "final", 0.1, A),
        *runs("frozen", "tuning", 0.01, B, 100), *runs("frozen", "tuning", 0.1, [*B[:5], None], 100),
        *runs("frozen", "tuning", 0.001, B, 100),
        *(row for lr in (0.01, 0.1, 1.0) for row in runs("apollo", "tuning", lr, A, 100)),
    ])  # fmt: skip
    title, head, ((part, arm, share, chosen, stable, test, train, equal),) = floor.off_the_floor(rows)
    assert len(head) == 8
    assert (part, arm, share, chosen, stable) == ("p", "apollo", "25.0 %", "0.1 / 0.01", "≥ 1 / 0.01")
    ratio = f"{100 * math.expm1(sum(math.log(a / b) for a, b in zip(A, B, strict=True)) / 6):+.3g} % ["
    assert test.startswith(ratio)
    assert train.startswith(ratio)
    assert equal == "(runs diverged, n = 6)"


def test_an_edge_is_marked_off_the_floor():
    shared = {"study": "F14", "part": "p", "step": 4, "steps": 4, "floor_occupancy": 0.25, "diverged": False, "train_loss": 1.0,
              "test_loss": 1.0, "lr": 0.1}  # fmt: skip
    rows = pl.DataFrame([
        {**shared, "arm": arm, "role": role, "seed": seed} for arm in ("frozen", "apollo") for role in ("final", "tuning") for seed in range(6)
    ])  # fmt: skip
    assert floor.off_the_floor(rows)[2][0][3] == "0.1 (edge) / 0.1 (edge)"

"""What is read off rows: against numbers written by hand."""

from __future__ import annotations

import math

import pytest

from sandbox.studies.verdicts.quantities import AtTrainingLoss, Best, End, Missing, minus, slope, spread
from tests.studies.verdicts.rows import rows_of


def end(arm, column="test_loss", **more):
    return End("F6", "main", arm, column, **more)


def test_an_end_is_the_last_evaluation_and_a_share_of_the_run_an_earlier_one():
    rows = rows_of(train_loss={"a": [[4.0, 2.0, 1.0], [8.0, 4.0, 3.0]]})  # at 0, half and the end
    assert end("a", "train_loss").values(rows) == {0: 1.0, 1: 3.0}
    assert end("a", "train_loss", share=0.5).values(rows) == {0: 2.0, 1: 4.0}
    assert end("a", "train_loss", log=True).values(rows) == {0: 0.0, 1: math.log(3.0)}


def test_a_diverged_run_is_the_worst_there_is():
    rows = rows_of(test_loss={"a": [[1.0], [None]]})
    assert end("a").values(rows) == {0: 1.0, 1: math.inf}
    assert end("a", higher=True).values(rows) == {0: 1.0, 1: -math.inf}


def test_what_was_not_run_is_said():
    rows = rows_of(test_loss={"a": [[1.0]]})
    with pytest.raises(Missing, match="F7 has not been run"):
        End("F7", "main", "a", "test_loss").values(rows)
    with pytest.raises(Missing, match="F6 other has not been run"):
        End("F6", "other", "a", "test_loss").values(rows)
    with pytest.raises(Missing, match="F6 main has no runs of b"):
        end("b").values(rows)


def test_combinations():
    rows = rows_of(test_loss={"a": [[1.0], [2.0]], "b": [[4.0], [2.5]], "c": [[9.0], [None]]})
    assert spread("s", end("a"), end("b")).values(rows) == {0: 3.0, 1: 0.5}
    assert spread("s", end("a"), end("c")).values(rows) == {0: 8.0, 1: math.inf}
    assert spread("s", end("c"), end("c")).values(rows) == {0: 0.0, 1: 0.0}  # two infinities are equal
    assert minus(end("b"), end("a")).values(rows) == {0: 3.0, 1: 0.5}
    assert (spread("s", end("a", higher=True)).unit, minus(end("a", log=True), end("b")).unit) == ("points", "relative")


def test_a_slope_is_the_exponent():
    rows = rows_of(test_loss={"a": [[3.0 * 10**1.5]], "b": [[3.0 * 100**1.5]], "c": [[3.0 * 1000**1.5]]})
    found = slope("s", (10, 100, 1000), tuple(end(arm, log=True) for arm in "abc")).values(rows)
    assert found[0] == pytest.approx(1.5, rel=1e-12)  # a least-squares fit in float64


def test_validation_loss_at_equal_training_loss_is_interpolated():
    # a comes down to 1, b to 2 only: both are read at 2, where a is half way between its evaluations at 3 and 1
    rows = rows_of(
        train_loss={"a": [[5.0, 3.0, 1.0]], "b": [[5.0, 4.0, 2.0]]},
        validation_loss={"a": [[5.0, 3.5, 2.5]], "b": [[5.0, 4.0, 2.2]]},
    )
    read = {arm: AtTrainingLoss("F6", "main", arm, ("a", "b")).values(rows)[0] for arm in "ab"}
    assert read == {"a": pytest.approx(3.0), "b": pytest.approx(2.2)}


def test_the_best_arm_is_chosen_by_one_column_and_read_in_another():
    rows = rows_of(
        validation_loss={"a": [[1.0], [3.0]], "b": [[1.5], [1.5]]}, test_loss={"a": [[0.1], [0.1]], "b": [[0.7], [0.9]]}
    )
    assert Best("best", "F6", "main", ("a", "b"), "test_loss", "validation_loss").values(rows) == {0: 0.7, 1: 0.9}

"""What a comparison refuses or flags."""

import polars as pl
import pytest

import variants
from sandbox.experiments.compare import compare
from tests.experiments.plans import SMALL


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"recipes": []}, "at least one recipe"),
        ({"recipes": ["apolo"]}, "did you mean 'apollo'"),
        ({"recipes": ["apollo", "apollo"]}, "two recipes are called 'apollo'"),
        ({"task": "digits"}, "unknown task 'digits'; did you mean 'digits-"),
        ({"seeds": 1}, "seeds must be at least 2, got 1"),
        ({"rates": 0}, "rates must be at least 1, got 0"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"warmup": 21}, "warmup must lie in [0, 20]"),
        ({"spacing": 1.0}, "spacing must lie in (1, 1000]"),
        ({"schedule": "cosin"}, "did you mean 'cosine'"),
        ({"backend": "eagr"}, "did you mean 'eager'"),
    ],
)
def test_bad_arguments(change, says, tmp_path):
    arguments = {"recipes": ["apollo"], "task": "quadratic", **SMALL, "out": tmp_path, **change}
    with pytest.raises(ValueError) as caught:
        compare(**arguments)
    assert says in str(caught.value)


def test_a_foreign_file_is_not_overwritten(tmp_path):
    (tmp_path / "results.parquet").write_text("something else")
    with pytest.raises(ValueError, match="cannot be read as results"):
        compare(["sgd"], "quadratic", out=tmp_path, **SMALL)
    assert (tmp_path / "results.parquet").read_text() == "something else"


def test_a_rate_that_the_decay_does_not_allow_is_lost_not_an_end(tmp_path):
    from sandbox.blocks import Decoupled

    heavy = variants.get("apollo").replace(decay=Decoupled(weight_decay=50.0), name="heavy")
    result = compare([heavy], "quadratic", out=tmp_path, **SMALL)  # 50 × 0.0316 > 1
    assert result.summaries[0].lr < 0.02
    lost = result.runs.filter(pl.col("lr") * 50 >= 1)
    assert len(lost)
    assert lost["diverged"].all()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"seeds": "3"}, "seeds must be a whole number, got '3'"),
        ({"steps": 10.5}, "steps must be a whole number, got 10.5"),
        ({"jobs": 0}, "jobs must be at least 1, got 0"),
        ({"spacing": 1e200}, "spacing must lie in (1, 1000]"),
        ({"spacing": 1 + 1e-9}, "no grid of 3 different rates"),
    ],
)
def test_more_bad_arguments(change, says, tmp_path):
    with pytest.raises((ValueError, TypeError)) as caught:
        compare(**{"recipes": ["apollo"], "task": "quadratic", **SMALL, "out": tmp_path, **change})
    assert says in str(caught.value)


def test_untuned_and_lost_tunings_are_said(tmp_path):
    assert "untuned" in str(compare(["sgd"], "quadratic", out=tmp_path, **{**SMALL, "rates": 1}))
    wild = variants.get("sgd").replace(lr=1e6, name="wild")
    assert "Every rate of wild diverged in tuning" in str(compare(["sgd", wild], "quadratic", out=tmp_path, **SMALL))

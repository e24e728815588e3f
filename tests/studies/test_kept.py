"""The rows, tables and verdicts that the repository keeps."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from sandbox import studies
from sandbox.studies import report
from sandbox.studies.run import provenance, run

FOLDER = Path(__file__).parents[2] / "notebooks" / "studies"
KEPT = report.load(FOLDER, "cpu")


def test_every_kept_arm_has_three_seeds():
    finals = {key: rows.filter(pl.col("role") == "final") for key, rows in KEPT.items()}
    fewest = {key: rows.group_by("part", "arm").agg(pl.col("seed").n_unique())["seed"].min() for key, rows in finals.items()}
    assert len(fewest) >= 7
    assert min(fewest.values()) >= 3


def test_claims_are_those_of_the_kept_rows():
    assert (FOLDER / "claims-cpu.md").read_text() == report.claims_text(KEPT)


@pytest.mark.parametrize("key", KEPT)
def test_tables_are_those_of_the_kept_rows(key):
    assert (FOLDER / f"{key}-cpu.md").read_text() == report.study_text(studies.get(key), KEPT[key])


def test_one_seed_decides_nothing_and_breaks_nothing():
    """Claims 8 and 17 hold by F15's five seeds; with one of them all p-values are 1."""
    rows = KEPT["F15"].filter((pl.col("role") != "final") | (pl.col("seed") == 0))
    assert report.counts({"F15": KEPT["F15"]})["holds here"] > 0
    assert report.counts({"F15": rows})["holds here"] == 0
    assert "±" not in report.study_text(studies.get("F15"), rows)


def test_arms_of_kept_rows_are_those_of_the_study():
    for key, rows in KEPT.items():
        parts = {part.name: {arm.name for arm in part.arms} for part in studies.get(key).parts("cpu")}
        for part, arm in rows.select("part", "arm").unique().rows():
            assert arm in parts[part]


def test_a_cell_that_is_run_again_gives_the_kept_rows(tmp_path):
    """Bitwise with the same torch on the same processor; kernels of other processors add in another order, whose roundings
    in float64 grow over 200 updates, to well below a millionth."""
    study = studies.get("F13")
    (part,) = (p for p in study.parts("cpu") if p.name == "2^0")
    one = dataclasses.replace(part, arms=tuple(arm for arm in part.arms if arm.name == "apollo"))
    again = pl.read_parquet(run(dataclasses.replace(study, tiers={"cpu": [one]}), "cpu", tmp_path, seeds=1)).sort("step")
    kept = KEPT["F13"].filter((pl.col("part") == "2^0") & (pl.col("arm") == "apollo") & (pl.col("seed") == 0)).sort("step")
    columns = ["step", "train_loss", "validation_loss", "validation_metric", "floor_occupancy", "test_loss", "test_metric"]
    found, expected = (table.select(columns).fill_null(0.0).to_numpy() for table in (again, kept))
    if kept.select("torch", "processor").row(0, named=True) == provenance():
        assert np.array_equal(found, expected)
    else:
        np.testing.assert_allclose(found, expected, rtol=1e-6)

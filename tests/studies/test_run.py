"""Runs of studies: kept, resumed, reproducible; verdicts from their rows."""

from __future__ import annotations

import polars as pl
import pytest

from sandbox import studies
from sandbox.datasets import DataError
from sandbox.studies import report
from sandbox.studies.rates import milestones
from sandbox.studies.run import provenance, run
from sandbox.studies.study import Arm, Part, Search, Study
from sandbox.studies.verdicts.claims import CLAIMS

ARMS = (Arm(name="apollo", method="apollo", lr=0.01, warmup=4), Arm(name="sgd", method="sgd", lr=0.05))


def small(**more):
    part = Part(**{"name": "main", "task": "digits-mlp", "arms": ARMS, "seeds": 2, "steps": 12, "evaluations": 2, **more})
    return Study(key="F0", name="small", question="?", note="A test.", tiers={"smoke": [part]})


QUICK = ("F6", "F13")  # a language model, scales: each its own kind of task
SMOKE = [
    pytest.param(study, id=study.key, marks=[] if study.key in QUICK else [pytest.mark.slow]) for study in studies.all_studies()
]


@pytest.mark.parametrize("study", SMOKE)
def test_smoke_tiers_run(study, tmp_path):
    rows = pl.read_parquet(run(study, "smoke", tmp_path))
    ends = rows.filter(pl.col("step") == pl.col("steps"))
    assert len(ends) == sum(len(part.arms) * part.seeds for part in study.parts("smoke"))
    assert (
        ends["test_loss"].is_finite() != ends["diverged"]
    ).all()  # an arm may be meant to diverge: F4's at ten times its rate
    assert ends.filter(pl.col("arm") == study.parts("smoke")[0].arms[0].name)["test_loss"].is_finite().all()
    assert set(ends["study"]) == {study.key}


def values(path):
    return pl.read_parquet(path).drop("seconds_a_step")


def test_the_same_call_again_makes_nothing_and_a_new_folder_the_same_rows(tmp_path):
    said = []
    first = run(small(), "smoke", tmp_path / "a", progress=lambda done, total, what: said.append((int(done), total)))
    assert list(dict.fromkeys(said)) == [(0, 4), (1, 4), (2, 4), (3, 4), (4, 4)]
    assert said == sorted(said)
    said.clear()
    run(small(), "smoke", tmp_path / "a", progress=lambda done, total, what: said.append((done, total)))
    assert said == [(4, 4)]
    second = run(small(), "smoke", tmp_path / "b", jobs=2)
    assert values(first).equals(values(second))


def test_where_time_is_asked_for_each_run_has_its_own(tmp_path):
    """Runs that are made together share one time, which says nothing about its spread; no part of the study of cost has such."""
    found = {}
    for timed in (True, False):
        rows = pl.read_parquet(run(small(seeds=5, timed=timed), "smoke", tmp_path / str(timed)))
        found[timed] = rows.filter((pl.col("arm") == "sgd") & (pl.col("step") == 12))["seconds_a_step"].n_unique()
    assert found[True] > 1
    assert found[False] == 1
    cost = studies.get("F8")
    assert all(part.timed for tier in cost.tiers for part in cost.parts(tier))


def test_seeds_are_paired_and_may_be_fewer(tmp_path):
    rows = pl.read_parquet(run(small(), "smoke", tmp_path)).filter(pl.col("step") == 0)
    losses = {(arm, seed): loss for arm, seed, loss in rows.select("arm", "seed", "train_loss").rows()}
    assert losses["apollo", 0] == losses["sgd", 0] != losses["sgd", 1]
    assert pl.read_parquet(run(small(), "smoke", tmp_path, seeds=1))["seed"].unique().to_list() == [0]


def test_a_search_keeps_the_factor_with_the_lowest_validation_loss(tmp_path):
    rows = pl.read_parquet(run(small(search=Search(factors=(1e-4, 1.0), steps=12)), "smoke", tmp_path))
    final = rows.filter(pl.col("role") == "final").select("arm", "lr").unique().sort("arm")
    assert final.rows() == [("apollo", 0.01), ("sgd", 0.05)]
    assert len(rows.filter((pl.col("role") == "tuning") & (pl.col("step") == 12))) == 4
    assert rows.filter(pl.col("role") == "tuning")["test_loss"].null_count() == 8


def test_an_arm_may_run_at_a_multiple_of_the_rate_that_another_ones_search_found(tmp_path):
    arms = (ARMS[1], ARMS[1].but(name="twice", lr=2 * ARMS[1].lr, rate_of=ARMS[1].name))
    search = Search(factors=(1e-4, 0.5), steps=12)
    rows = pl.read_parquet(run(small(arms=arms, search=search), "smoke", tmp_path))
    assert rows.filter(pl.col("role") == "tuning")["arm"].unique().to_list() == ["sgd"]
    final = rows.filter(pl.col("role") == "final").select("arm", "lr").unique().sort("lr").rows()
    assert final == [("sgd", 0.025), ("twice", 0.05)]
    assert report.tables(small(arms=arms), rows)[0][2][1][1] == "0.05 (edge)"


def test_a_rate_on_the_edge_of_its_search_is_said_to_be(tmp_path):
    study = small(search=Search(factors=(1e-4, 1e-3, 1.0), steps=12), seeds=1)
    (_, _, body), *_ = report.tables(study, pl.read_parquet(run(study, "smoke", tmp_path)))
    assert [row[1] for row in body] == ["0.01 (edge)", "0.05 (edge)"]


def test_rates_and_warm_up_are_each_arms_own(tmp_path):
    study = small(rate=milestones(0.5), arms=(*ARMS, ARMS[1].but(name="constant", rate=None, lr=0.06)))
    rows = pl.read_parquet(run(study, "smoke", tmp_path)).group_by("arm").agg(pl.col("warmup", "schedule").first())
    found = {arm: (warmup, schedule) for arm, warmup, schedule in rows.rows()}
    assert found["apollo"][0] == 4
    assert found["apollo"][1] != found["sgd"][1]  # milestones after another warm-up


def test_every_seed_is_a_round_of_all_arms(tmp_path):
    order = pl.read_parquet(run(small(), "smoke", tmp_path)).filter(pl.col("step") == 0).select("seed", "arm").rows()
    assert order == [(0, "apollo"), (0, "sgd"), (1, "apollo"), (1, "sgd")]


def test_rows_say_with_what_they_were_made(tmp_path):
    rows = pl.read_parquet(run(small(), "smoke", tmp_path, seeds=1))
    assert rows.select("torch", "processor").unique().row(0, named=True) == provenance()


def test_unknown_parts(tmp_path):
    with pytest.raises(ValueError, match="study F0 has no part 'other'"):
        run(small(), "smoke", tmp_path, parts=["other"])


def test_the_paper_tier_stops_without_its_data(tmp_path, monkeypatch):
    monkeypatch.setenv("SANDBOX_DATA", str(tmp_path))
    with pytest.raises(DataError, match="the folder must hold cifar-10-batches-py"):
        run(studies.get("F2"), "paper", tmp_path / "out")
    assert not list(tmp_path.rglob("*.json"))


def test_reports(tmp_path):
    path = run(small(seeds=3), "smoke", tmp_path)
    assert report.load(tmp_path, "smoke").keys() == {"F0"}
    tables = report.tables(small(), pl.read_parquet(path))
    assert [title for title, *_ in tables] == ["F0 main", "F0 main, minus apollo"]
    assert [row[0] for row in tables[0][2]] == ["apollo", "sgd"]
    text = report.markdown([*tables, report.claims_table({})])
    assert text.count("not tested") == len(CLAIMS)
    assert "±" in text


def test_the_command(tmp_path, capsys):
    from sandbox.cli import main

    assert main(["study", "list"]) == 0
    listed = capsys.readouterr().out
    assert all(study.name in listed for study in studies.all_studies())
    assert main(["study", "run", "F13", "--out", str(tmp_path)]) == 0
    assert main(["study", "report", "F13", "--out", str(tmp_path)]) == 0
    assert "scale-invariant" in capsys.readouterr().out
    assert main(["study", "report", "--out", str(tmp_path)]) == 0
    assert "holds here" in capsys.readouterr().out
    assert main(["study", "report", "F2", "--out", str(tmp_path)]) == 2
    assert "study run images --tier smoke" in capsys.readouterr().err

"""Reads a comparison from its folder again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from sandbox.experiments.reports import manifest
from sandbox.experiments.reports.comparison import Comparison
from sandbox.experiments.reports.comparison_data import summarise
from sandbox.experiments.reports.comparisons import Comparisons
from sandbox.experiments.runs.batch import Failure
from sandbox.experiments.runs.store import PROBES
from sandbox.experiments.selection.axes import Trial
from sandbox.experiments.selection.saved_plan import SavedPlan, from_facts
from sandbox.experiments.selection.search import Chosen


def load(folder: str | Path) -> Any:
    """Returns the comparison in a folder of `compare`, finished or interrupted, with its rows, summaries, tables and pictures.

    Of an interrupted one, variants have a summary once all their final runs are there.  A `Comparison`, or `Comparisons` of the
    folder of several, those of them that are finished.
    Raises FileNotFoundError for a folder without a comparison, ValueError for one of another command or of version 0.1.
    """
    folder = Path(folder)
    if manifest.holds(folder, "comparisons"):
        return _several(folder)
    return _one(folder)


def _several(folder: Path) -> Comparisons:
    facts = manifest.read(folder, "comparisons") or {}
    results = dict[str, Comparison]()
    for label, place in facts["comparisons"].items():
        if (folder / place / "manifest.json").exists() and (folder / place / "results.parquet").exists():
            result = _one(folder / place)
            if not result.interrupted:
                results[label] = result
    if not results:
        raise FileNotFoundError(f"{folder} holds no finished comparison yet")
    return Comparisons(results, folder, facts["target"], [], [label for label in facts["comparisons"] if label not in results])


def _one(folder: Path) -> Comparison:
    facts = manifest.read(folder, "compare")
    if facts is None or not (folder / "results.parquet").exists():
        raise FileNotFoundError(f"{folder} holds no comparison (manifest.json and results.parquet of `compare`)")
    try:
        plan = from_facts(facts)
    except KeyError as error:
        raise ValueError(f"{folder} was written by an older version: its manifest lacks {error}; compare again") from error
    rows = pl.read_parquet(folder / "results.parquet")
    measured = folder / "probes.parquet"
    probes = pl.read_parquet(measured) if measured.exists() else pl.DataFrame(schema=PROBES)
    ends = rows.filter((pl.col("role") == "final") & (pl.col("step") == pl.col("steps")) | pl.col("diverged"))
    seeds = dict(ends.filter(pl.col("role") == "final").group_by("variant").agg(pl.col("seed").n_unique()).iter_rows())
    failures = [Failure(**failure) for failure in facts.get("failures", [])]
    methods = [m for m in plan.methods if seeds.get(m.name, 0) >= plan.seeds]
    chosen = {m.name: _chosen(facts, plan, m.name, rows) for m in methods}
    missing = len(methods) + len({f.variant for f in failures}) < len(plan.methods)
    return Comparison(
        plan, summarise(plan, methods, rows, chosen) if methods else [], rows, folder, probes, chosen, failures, [],
        facts["environment"], missing,
    )  # fmt: skip


def _chosen(facts: Mapping[str, Any], plan: SavedPlan, name: str, rows: pl.DataFrame) -> Chosen:
    if name in facts.get("chosen", {}):
        kept = facts["chosen"][name]
        return Chosen(**{**kept, "trials": [Trial(t["numbers"], tuple(t["losses"])) for t in kept["trials"]]})
    final = rows.filter((pl.col("variant") == name) & (pl.col("role") == "final"))
    return Chosen({"lr": float(final["lr"][0])}, False, True, [])

"""The tables that a folder of results holds."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from sandbox.experiments.runs.store import atomically


def write_frames(folder: Path, rows: pl.DataFrame, probes: pl.DataFrame | None) -> None:
    """Writes results.parquet, and probes.parquet where something was measured."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, frame in (("results", rows), ("probes", probes)):
        if frame is not None:
            with atomically(folder / f"{name}.parquet") as path:
                frame.write_parquet(path)

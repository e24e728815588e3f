"""Finished runs on disk, one file per run.  It is written beside its place and then linked into it, so that a kill, a full disk
or a second writer never leaves half a run, and none counts twice.

    folder/runs/<key>.json    {"run": key, "facts": …, "rows": […], "probes": […]}

The tables that people read (results.parquet, probes.parquet) are written from these at the end of a command.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from torch import Tensor

SCHEMA: dict[str, Any] = {
    "run": pl.String,
    "variant": pl.String,
    "task": pl.String,
    "method": pl.String,
    "role": pl.String,
    "lr": pl.Float64,
    "numbers": pl.String,
    "seed": pl.Int64,
    "steps": pl.Int64,
    "warmup": pl.Int64,
    "schedule": pl.String,
    "way": pl.String,
    "options": pl.String,
    "code": pl.String,
    "step": pl.Int64,
    "train_loss": pl.Float64,
    "sample_loss": pl.Float64,
    "validation_loss": pl.Float64,
    "validation_metric": pl.Float64,
    "floor_occupancy": pl.Float64,
    "gradients": pl.Float64,
    "test_loss": pl.Float64,
    "test_metric": pl.Float64,
    "diverged": pl.Boolean,
    "stopped": pl.Boolean,
    "seconds_a_step": pl.Float64,
    "state_words": pl.Float64,
}

PROBES: dict[str, Any] = {
    **{name: SCHEMA[name] for name in ("run", "variant", "task", "role", "lr", "seed", "step")},
    "tensor": pl.String,
    "probe": pl.String,
    "value": pl.Float64,
}

# one row per coordinate of a run's tensors; what a probe does not keep is null
VECTORS: dict[str, Any] = {
    **{name: PROBES[name] for name in ("variant", "seed", "step", "tensor")},
    "index": pl.Int64,
    "estimate": pl.Float64,
    "truth": pl.Float64,
    "floor": pl.Boolean,
    "theta_new": pl.Float64,
}


def pack(vector: Tensor) -> str:
    """Returns a vector as text: NumPy's format in base 64."""
    file = io.BytesIO()
    np.save(file, vector.detach().cpu().numpy())
    return base64.b64encode(file.getvalue()).decode()


class Store:
    """The runs in a folder.

    unreadable: files of runs that cannot be read; they are moved aside once the run has been repeated.
    Raises ValueError for a results.parquet there of another origin.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.runs = folder, folder / "runs"
        self.unreadable: list[Path] = []
        self._loaded: dict[str, dict[str, Any]] = {}
        self.runs.mkdir(parents=True, exist_ok=True)
        table = folder / "results.parquet"
        if table.exists():
            try:
                pl.read_parquet_schema(table)["run"]
            except Exception as error:
                raise ValueError(
                    f"{table} cannot be read as results ({error}); move it away or choose another folder"
                ) from error

    def get(self, key: str) -> dict[str, Any] | None:
        """Returns the content of a run's file, or None where the run is missing or cannot be read."""
        if key in self._loaded:
            return self._loaded[key]
        path = self.runs / f"{key}.json"
        try:
            content = json.loads(path.read_text())
            if content["run"] != key or not isinstance(content["rows"], list):
                raise ValueError("another run's")
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError):
            if path not in self.unreadable:
                self.unreadable.append(path)
            return None
        self._loaded[key] = content
        return content

    def missing(self, keys: Iterable[str]) -> set[str]:
        """Returns the keys of runs that are not there."""
        return {key for key in keys if self.get(key) is None}

    def add(self, key: str, facts: Mapping[str, Any], rows: list[dict[str, Any]], probes: list[dict[str, Any]]) -> None:
        """Stores a run; of two writers the first one counts.  Raises OSError where it cannot be written."""
        path = self.runs / f"{key}.json"
        text = json.dumps({"run": key, "facts": dict(facts), "rows": rows, "probes": probes}, ensure_ascii=False)
        if path in self.unreadable and self.get(key) is None:
            with contextlib.suppress(FileNotFoundError):
                path.replace(path.with_suffix(".unreadable"))
        with beside(path) as temporary:
            temporary.write_text(text)
            with contextlib.suppress(FileExistsError):
                link(temporary, path)
        self._loaded.pop(key, None)

    def frame(self, names: Iterable[tuple[str, str]]) -> pl.DataFrame:
        """Returns the rows of runs named (key, variant): equal recipes of two names share a run.

        Every further metric of the task has a column of its own.
        """
        rows = []
        for key, name in names:
            content = self.get(key)
            if content is not None:
                facts = {k: v if isinstance(v, str | int | float) else json.dumps(v) for k, v in content["facts"].items()}
                rows += [{**facts, **row, "run": key, "variant": name} for row in content["rows"]]
        more = {c: pl.Float64 for row in rows for c in row if c.startswith(("validation_", "test_")) and c not in SCHEMA}
        return pl.DataFrame(rows, schema={**SCHEMA, **more})

    def probes(self, names: Iterable[tuple[str, str]]) -> pl.DataFrame:
        """Returns the measurements of probes in runs named (key, variant)."""
        rows = []
        for key, name in names:
            content = self.get(key) or {"probes": [], "facts": {}}
            rows += [{**content["facts"], **row, "run": key, "variant": name} for row in content["probes"]]
        return pl.DataFrame(rows, schema=PROBES)

    def vectors(self, names: Iterable[tuple[str, str]]) -> pl.DataFrame:
        """Returns the vectors that runs named (key, variant) stored, one row per coordinate."""
        frames = [pl.DataFrame(schema=VECTORS)]
        for key, name in names:
            content = self.get(key) or {"probes": []}
            for row in content["probes"]:
                if "vectors" in row:
                    arrays = {n: np.load(io.BytesIO(base64.b64decode(text))) for n, text in row["vectors"].items()}
                    same = {"variant": name, "seed": content["facts"]["seed"], "step": row["step"], "tensor": row["tensor"]}
                    rest = {n: pl.lit(same.get(n)) for n in VECTORS if n not in arrays}
                    frame = pl.DataFrame(arrays).with_columns(**{**rest, "index": pl.int_range(pl.len())})
                    frames.append(frame.select(pl.col(n).cast(kind) for n, kind in VECTORS.items()))
        return pl.concat(frames)


def link(temporary: Path, path: Path) -> None:
    """Gives a finished file its name.  Raises FileExistsError where that name is taken."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        if path.exists():
            raise FileExistsError(path) from None
        os.replace(temporary, path)


@contextlib.contextmanager
def beside(path: Path) -> Iterator[Path]:
    """Yields a temporary name beside `path`, and removes the file afterwards."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomically(path: Path) -> Iterator[Path]:
    """Yields a temporary file beside `path` that replaces it when the block ends without an error."""
    with beside(path) as temporary:
        yield temporary
        os.replace(temporary, path)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Admits one writer at a time to a folder."""
    from filelock import FileLock

    with FileLock(folder / ".lock"):
        yield


def write_frames(folder: Path, rows: pl.DataFrame, probes: pl.DataFrame | None) -> None:
    """Writes results.parquet, and probes.parquet where something was measured."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, frame in (("results", rows), ("probes", probes)):
        if frame is not None:
            with atomically(folder / f"{name}.parquet") as path:
                frame.write_parquet(path)


class Claims:
    """Which process works on what in a folder: one lock per batch of runs, released by the system when its holder dies."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.held = folder / "runs" / "locks", dict[str, Any]()

    def take(self, name: str) -> bool:
        """Whether this process may do the work; true on file systems without locks, where two may do it and one counts."""
        from filelock import FileLock, Timeout

        if name in self.held:
            return True
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.folder / name, timeout=0, thread_local=False)
        try:
            lock.acquire()
        except Timeout:
            return False
        except (OSError, NotImplementedError):
            return True
        self.held[name] = lock
        return True

    def drop(self, name: str) -> None:
        """Releases the lock."""
        lock = self.held.pop(name, None)
        if lock is not None:
            lock.release()

    def close(self) -> None:
        """Releases all locks."""
        for name in list(self.held):
            self.drop(name)

"""Finished runs on disk: a file each, written beside its place and then linked into it, so that a kill, a full disk or a second
writer never leaves half a run, and none counts twice.

    folder/runs/<key>.json    {"run": key, "facts": …, "rows": […], "probes": […]}

The tables that people read (results.parquet, probes.parquet) are made from these at the end of a command.
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
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

if TYPE_CHECKING:
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

# a row a coordinate of a run's tensors; what a probe has not kept is null
VECTORS: dict[str, Any] = {
    **{name: PROBES[name] for name in ("variant", "seed", "step", "tensor")},
    "index": pl.Int64,
    "estimate": pl.Float64,
    "truth": pl.Float64,
    "floor": pl.Boolean,
    "theta_new": pl.Float64,
}


def packed(vector: Tensor) -> str:
    """A vector as text: NumPy's format in base 64."""
    held = io.BytesIO()
    np.save(held, vector.detach().cpu().numpy())
    return base64.b64encode(held.getvalue()).decode()


class Store:
    """The runs of a folder.  Another's results.parquet there is refused with ValueError; a run's file that cannot be read is
    named in `unreadable`, and moved aside when the run has been made again."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.runs = folder, folder / "runs"
        self.unreadable: list[Path] = []
        self._kept: dict[str, dict[str, Any]] = {}
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
        """What a run gave; None where it has not been made, or cannot be read."""
        if key in self._kept:
            return self._kept[key]
        path = self.runs / f"{key}.json"
        try:
            found = json.loads(path.read_text())
            if found["run"] != key or not isinstance(found["rows"], list):
                raise ValueError("another run's")
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError):
            if path not in self.unreadable:
                self.unreadable.append(path)
            return None
        self._kept[key] = found
        return found

    def missing(self, keys: Iterable[str]) -> set[str]:
        """Those that have not been made."""
        return {key for key in keys if self.get(key) is None}

    def add(self, key: str, facts: Mapping[str, Any], rows: list[dict[str, Any]], probes: list[dict[str, Any]]) -> None:
        """Keeps a run; the first writer's, where there are two.  Raises OSError where it cannot be written."""
        path = self.runs / f"{key}.json"
        text = json.dumps({"run": key, "facts": dict(facts), "rows": rows, "probes": probes}, ensure_ascii=False)
        if path in self.unreadable and self.get(key) is None:
            with contextlib.suppress(FileNotFoundError):
                path.replace(path.with_suffix(".unreadable"))
        with beside(path) as temporary:
            temporary.write_text(text)
            with contextlib.suppress(FileExistsError):
                link(temporary, path)
        self._kept.pop(key, None)

    def frame(self, names: Iterable[tuple[str, str]]) -> pl.DataFrame:
        """The rows of some runs, named (key, variant): equal recipes of two names share a run.

        There is a column more for every metric that the task names.
        """
        rows = []
        for key, name in names:
            found = self.get(key)
            if found is not None:
                facts = {k: v if isinstance(v, str | int | float) else json.dumps(v) for k, v in found["facts"].items()}
                rows += [{**facts, **row, "run": key, "variant": name} for row in found["rows"]]
        more = {c: pl.Float64 for row in rows for c in row if c.startswith(("validation_", "test_")) and c not in SCHEMA}
        return pl.DataFrame(rows, schema={**SCHEMA, **more})

    def probes(self, names: Iterable[tuple[str, str]]) -> pl.DataFrame:
        """What probes measured in some runs."""
        rows = []
        for key, name in names:
            found = self.get(key) or {"probes": [], "facts": {}}
            rows += [{**found["facts"], **row, "run": key, "variant": name} for row in found["probes"]]
        return pl.DataFrame(rows, schema=PROBES)

    def vectors(self, names: Iterable[tuple[str, str]]) -> pl.DataFrame:
        """The coordinates that some runs have kept."""
        frames = [pl.DataFrame(schema=VECTORS)]
        for key, name in names:
            found = self.get(key) or {"probes": []}
            for row in found["probes"]:
                if "vectors" in row:
                    held = {n: np.load(io.BytesIO(base64.b64decode(text))) for n, text in row["vectors"].items()}
                    same = {"variant": name, "seed": found["facts"]["seed"], "step": row["step"], "tensor": row["tensor"]}
                    rest = {n: pl.lit(same.get(n)) for n in VECTORS if n not in held}
                    frame = pl.DataFrame(held).with_columns(**{**rest, "index": pl.int_range(pl.len())})
                    frames.append(frame.select(pl.col(n).cast(kind) for n, kind in VECTORS.items()))
        return pl.concat(frames)


def link(temporary: Path, path: Path) -> None:
    """Gives a finished file its name, unless another has it.  Raises FileExistsError then."""
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
    """A temporary name beside `path`, gone afterwards."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomically(path: Path) -> Iterator[Path]:
    """A temporary file beside `path` that takes its place when the block ends well."""
    with beside(path) as temporary:
        yield temporary
        os.replace(temporary, path)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One writer at a time in a folder (where the system has POSIX locks)."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with open(folder / ".lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class Claims:
    """Who is at work on what in a folder: a lock a piece of work, given up by the system when its holder dies."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.held = folder / "runs" / "locks", dict[str, Any]()

    def take(self, name: str) -> bool:
        """Whether this process may do it; also where the system knows no locks: then two do the same, and one counts."""
        try:
            import fcntl
        except ImportError:
            return True
        if name in self.held:
            return True
        self.folder.mkdir(parents=True, exist_ok=True)
        file = open(self.folder / name, "w")  # noqa: SIM115 - held until `drop`
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return False
        except OSError:
            file.close()
            return True
        self.held[name] = file
        return True

    def drop(self, name: str) -> None:
        """It is done."""
        file = self.held.pop(name, None)
        if file is not None:
            file.close()

    def close(self) -> None:
        """Drops all."""
        for name in list(self.held):
            self.drop(name)

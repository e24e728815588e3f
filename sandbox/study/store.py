"""Results on disk: one Parquet file of rows and one manifest, both replaced atomically, so that a crash loses nothing."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import polars as pl

SCHEMA: dict[str, Any] = {
    "run": pl.String,
    "variant": pl.String,
    "task": pl.String,
    "fingerprint": pl.String,
    "role": pl.String,
    "lr": pl.Float64,
    "seed": pl.Int64,
    "steps": pl.Int64,
    "warmup": pl.Int64,
    "schedule": pl.String,
    "evaluations": pl.Int64,
    "backend": pl.String,
    "probes": pl.String,
    "task_identity": pl.String,
    "code": pl.String,
    "step": pl.Int64,
    "train_loss": pl.Float64,
    "validation_loss": pl.Float64,
    "validation_metric": pl.Float64,
    "floor_occupancy": pl.Float64,
    "test_loss": pl.Float64,
    "test_metric": pl.Float64,
    "diverged": pl.Boolean,
    "seconds_a_step": pl.Float64,
}


PROBES: dict[str, Any] = {
    **{name: SCHEMA[name] for name in ("run", "variant", "task", "role", "lr", "seed", "step")},
    "tensor": pl.String,
    "probe": pl.String,
    "value": pl.Float64,
}


class Store:
    """The rows of all runs in a folder, by run; `PROBES` in a file of its own.

    Raises ValueError where the file there is not one of ours.
    """

    def __init__(self, folder: Path, name: str = "results.parquet", schema: dict[str, Any] = SCHEMA) -> None:
        self.folder, self.path, self.schema = folder, folder / name, schema
        folder.mkdir(parents=True, exist_ok=True)
        self.frame = self._read()

    def _read(self) -> pl.DataFrame:
        if not self.path.exists():
            return pl.DataFrame(schema=self.schema)
        try:
            return pl.read_parquet(self.path).select(list(self.schema))
        except Exception as error:
            raise ValueError(
                f"{self.path} cannot be read as results ({error}); move it away or choose another folder"
            ) from error

    def missing(self, runs: Iterable[str]) -> set[str]:
        """Those of `runs` that are not here."""
        return set(runs) - set(self.frame["run"])

    def add(self, rows: list[dict[str, Any]]) -> None:
        """Adds the rows of one run to what is on disk now, so that two comparisons may share a folder."""
        new = pl.DataFrame([{name: row.get(name) for name in self.schema} for row in rows], schema=self.schema)
        with locked(self.folder):
            present = self._read()
            new = new.filter(~pl.col("run").is_in(present["run"].unique().to_list()))
            self.frame = pl.concat([present, new])
            with atomically(self.path) as temporary:
                self.frame.write_parquet(temporary)

    def rows(self, runs: dict[str, str]) -> pl.DataFrame:
        """The rows of some runs, with the variants named as `runs` (run -> name) says."""
        names = pl.DataFrame(
            {"run": list(runs), "variant": list(runs.values())}, schema={"run": pl.String, "variant": pl.String}
        )
        return self.frame.drop("variant").join(names, on="run", how="inner").select(list(self.schema))


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


@contextlib.contextmanager
def atomically(path: Path) -> Iterator[Path]:
    """A temporary file beside `path` that takes its place when the block ends well."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


# what only this command's manifest names
MARKS = {"compare": "grids", "sweep": "vary"}


def read_manifest(folder: Path, command: str) -> dict[str, Any] | None:
    """What the command's manifest in a folder says; None where there is none.

    Raises ValueError where manifest.json is another's: its results would lose theirs.
    """
    path = folder / "manifest.json"
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text())
    except ValueError:
        found = None
    named = found if isinstance(found, dict) else {}
    if MARKS[command] not in named:
        of = next((f"of {other}" for other, mark in MARKS.items() if mark in named), f"not of {command}")
        raise ValueError(f"{folder} holds results {of} ({path.name}); choose another folder (--out) for {command}")
    return named


def write_manifest(path: Path, facts: dict[str, Any]) -> None:
    """`facts` and where and with what they were found, as JSON."""
    with atomically(path) as temporary:
        temporary.write_text(json.dumps({**facts, "environment": environment()}, indent=2, ensure_ascii=False) + "\n")


def environment() -> dict[str, Any]:
    """Versions, git revision and machine."""
    versions = {name: metadata.version(name) for name in ("torch", "numpy", "scipy", "scikit-learn", "polars")}
    return {
        "python": platform.python_version(),
        "versions": versions,
        "git_revision": _revision(),
        "machine": {"system": platform.platform(), "processor": processor(), "cores": os.cpu_count()},
        "command": sys.argv,
    }


def processor() -> str:
    """The processor's name, as far as the system tells."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _revision() -> str | None:
    """The revision of this package's repository, with "+changes" where files differ from it."""
    home = Path(__file__).parent
    try:
        head, status = (
            subprocess.run(["git", *args], cwd=home, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
            for args in (["rev-parse", "HEAD"], ["status", "--porcelain"])
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return head + ("+changes" if status else "")

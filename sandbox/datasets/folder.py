"""Where data lies, and the checks that a folder must pass before anything is trained on it."""

from __future__ import annotations

import gzip
import hashlib
import lzma
import os
from pathlib import Path

VARIABLE = "SANDBOX_DATA"
PACKAGED = Path(__file__).parent / "files"


class DataError(ValueError):
    """Data that is missing or is not what it should be; the message names the check that failed and the form expected."""


def root(folder: str | Path | None) -> Path | None:
    """Returns the folder of full data sets: `folder`, else what SANDBOX_DATA names, else None.

    Raises DataError where the folder that is named does not exist.
    """
    named = folder if folder is not None else os.environ.get(VARIABLE) or None
    if named is None:
        return None
    path = Path(named).expanduser()
    if not path.is_dir():
        raise DataError(f"{'folder' if folder is not None else VARIABLE} must be an existing folder, got {str(named)!r}")
    return path


def require(folder: str | Path | None, form: str) -> Path:
    """Returns `root(folder)`, and raises DataError where there is none.  form: what the folder must hold, for the message."""
    path = root(folder)
    if path is None:
        raise DataError(f"this data set is not part of the package: give folder=… or set {VARIABLE}; it must hold {form}")
    return path


def existing(path: Path, form: str) -> Path:
    """Returns `path` if it exists.  Raises DataError with the form expected otherwise."""
    if not path.exists():
        raise DataError(f"{path} does not exist; the folder must hold {form}")
    return path


def check_count(what: str, count: int, *allowed: int) -> None:
    """Raises DataError unless `count` is one of the numbers `allowed`."""
    if count not in allowed:
        expected = " or ".join(f"{n:,}" for n in allowed)
        raise DataError(f"the number of {what} must be {expected}, found {count:,}")


def check_hash(path: Path, expected: str) -> Path:
    """Returns `path` if its digest is `expected`: SHA-256 in hexadecimal, or "md5:" and one.  Raises DataError otherwise."""
    name, _, digest = expected.rpartition(":")
    algorithm = name or "sha256"
    with path.open("rb") as file:
        actual = hashlib.file_digest(file, algorithm).hexdigest()
    if actual != digest:
        raise DataError(f"{algorithm} of {path} must be {digest}, found {actual}: the file is damaged or another one")
    return path


def read(path: Path) -> bytes:
    """Returns the content of a file, decompressed where its name ends in .gz or .xz."""
    raw = path.read_bytes()
    if path.suffix == ".gz":
        return gzip.decompress(raw)
    return lzma.decompress(raw) if path.suffix == ".xz" else raw


def rows(path: Path) -> list[list[str]]:
    """Returns the rows of a tab-separated file without its header, as lists of fields."""
    lines = read(path).decode("utf-8").rstrip("\n").split("\n")
    return [line.split("\t") for line in lines[1:]]

"""Makes the packaged data from full files: python -m sandbox.datasets.subset FOLDER [TARGET].

FOLDER holds fashion-mnist/, speeches-en.tsv.gz and verses-en-es.tsv.gz.  Images: of each class the first 1,000 of the training
files, then the next 200, and the first 200 of the test files, each part in the order of the files.  Texts: all.  The bytes
are the same every time.
"""

from __future__ import annotations

import lzma
import sys
from pathlib import Path

import numpy as np

from sandbox.datasets.folder import PACKAGED, check_hash, existing, read
from sandbox.datasets.images import FASHION_FILES, FASHION_FORM, idx
from sandbox.datasets.text import SPEECHES_SHA256, VERSES_SHA256

TRAIN, VALIDATION, TEST = 1_000, 200, 200  # images of each class
_TEXTS = {"speeches-en.tsv": SPEECHES_SHA256, "verses-en-es.tsv": VERSES_SHA256}


def first_of_each(labels: np.ndarray, *sizes: int) -> np.ndarray:
    """Returns rows: the first sizes[0] of each class, then the next sizes[1], …; in each part in the order of `labels`."""
    ranks = np.empty(len(labels), dtype=int)  # how many of its class stand before it
    for label in np.unique(labels):
        mine = labels == label
        ranks[mine] = np.arange(mine.sum())
    ends = np.cumsum(sizes)
    return np.concatenate(
        [np.flatnonzero((ranks >= end - size) & (ranks < end)) for size, end in zip(sizes, ends, strict=True)]
    )


def to_idx(array: np.ndarray) -> bytes:
    """Returns an array of bytes in the IDX form, read back by `images.idx`."""
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, dtype=">u4").tobytes()
    return header + np.ascontiguousarray(array, dtype=np.uint8).tobytes()


def contents(folder: Path) -> dict[str, bytes]:
    """Returns what the packaged files hold, by name, before compression.

    Raises DataError where a source file is missing or differs.
    """
    files = {}
    arrays = {}
    for name, digest in FASHION_FILES.items():
        path = check_hash(existing(folder / "fashion-mnist" / f"{name}.gz", FASHION_FORM), digest)
        arrays[name] = idx(read(path), path.name)
    for part, sizes in (("train", (TRAIN, VALIDATION)), ("t10k", (TEST,))):
        rows = first_of_each(arrays[f"{part}-labels-idx1-ubyte"], *sizes)
        for name in (f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte"):
            files[name] = to_idx(arrays[name][rows])
    for name, digest in _TEXTS.items():
        files[name] = read(check_hash(existing(folder / f"{name}.gz", f"{name}.gz"), digest))
    return files


def make(folder: Path, target: Path = PACKAGED) -> None:
    """Writes the packaged files into `target`."""
    target.mkdir(parents=True, exist_ok=True)
    for name, content in contents(folder).items():
        (target / f"{name}.xz").write_bytes(lzma.compress(content, preset=9 | lzma.PRESET_EXTREME))


if __name__ == "__main__":
    make(*map(Path, sys.argv[1:]))

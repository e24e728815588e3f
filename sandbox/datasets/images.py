"""Image data sets as tensors of bytes: Fashion-MNIST (packaged or full) and CIFAR-10."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sandbox.datasets.folder import PACKAGED, DataError, check_count, check_hash, existing, read, root

FASHION_FILES = {  # SHA-256 as published by Zalando Research's files
    "train-images-idx3-ubyte": "b0564c3eedabfbf835052cff8503ea422014ce006caf5b757f851416ee8300c7",
    "train-labels-idx1-ubyte": "0ae29f65d86684f32d1b9c85147786c547b9c6aebcaf235f0400a0cce308b056",
    "t10k-images-idx3-ubyte": "cc1d090a38ace84dfa1aa66e3ada7c336ef481a96936906477e6dd344da56eaa",
    "t10k-labels-idx1-ubyte": "8d3605d196f4be44669e46906da9733c8131fef761fdbfec72c424d5222f1a05",
}
FASHION_URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
FASHION_FORM = "fashion-mnist/ with " + ", ".join(f"{name}.gz" for name in FASHION_FILES)
PACKAGED_VALIDATION = 2_000

CIFAR_URL = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
CIFAR_SHA256 = "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"
CIFAR_FILES = {
    "data_batch_1": "md5:c99cafc152244af753f735de768cd75f",
    "data_batch_2": "md5:d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "md5:54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "md5:634d18415352ddfa80567beed471001a",
    "data_batch_5": "md5:482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "md5:40351d587109b95175f43aff81a1287e",
}
CIFAR_FORM = "cifar-10-batches-py/ with " + ", ".join(CIFAR_FILES)


@dataclasses.dataclass(frozen=True)
class Images:
    """x: bytes, (n, channels, height, width); y: the classes, int64, (n,)."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, rows: slice | Tensor) -> Images:
        return Images(self.x[rows], self.y[rows])


def idx(content: bytes, what: str) -> np.ndarray:
    """The array of bytes in a file of the IDX form (two zeros, type 8, the number of dimensions, the dimensions, the data).

    what: the file's name, for messages.  Raises DataError where the header or the length is wrong.
    """
    if len(content) < 4 or content[:3] != b"\x00\x00\x08":
        raise DataError(f"{what} is not an IDX file of bytes: it begins with {content[:4]!r}")
    dimensions = content[3]
    shape = tuple(int(n) for n in np.frombuffer(content, ">u4", dimensions, offset=4))
    data = np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions)
    check_count(f"bytes of {what} after its header", len(data), int(np.prod(shape)))
    return data.reshape(shape)


def fashion_mnist(full: bool = False, folder: str | Path | None = None, validation: int = 0) -> dict[str, Images]:
    """Fashion-MNIST, grey images of 28×28 in 10 classes: {"train", "validation", "test"}.

    full=False: the package's 10,000 / 2,000 / 2,000, every class equally often.  full=True: 60,000 - validation, validation and
    10,000, where the validation part is the end of the training files; from `folder` or SANDBOX_DATA, else downloaded with the
    extra `data`.
    Raises DataError where a file is missing or a check fails.
    """
    if not full:
        if folder is not None or validation:
            raise ValueError("folder and validation are for full=True: the packaged subset is fixed")
        return _fashion({name: PACKAGED / f"{name}.xz" for name in FASHION_FILES}, PACKAGED_VALIDATION)
    place = root(folder)
    if place is None:
        paths = {name: _download(FASHION_URL + f"{name}.gz", digest)[0] for name, digest in FASHION_FILES.items()}
    else:
        paths = {n: existing(place / "fashion-mnist" / f"{n}.gz", FASHION_FORM) for n in FASHION_FILES}
        for name, digest in FASHION_FILES.items():
            check_hash(paths[name], digest)
    splits = _fashion(paths, _check_validation(validation, 60_000))
    check_count("training and validation images", len(splits["train"]) + len(splits["validation"]), 60_000)
    check_count("test images", len(splits["test"]), 10_000)
    return splits


def cifar10(folder: str | Path | None = None, validation: int = 0) -> dict[str, Images]:
    """CIFAR-10, colour images of 32×32 in 10 classes: 50,000 - validation, validation and 10,000 images.

    From cifar-10-batches-py/ in `folder` or SANDBOX_DATA, else downloaded (extra `data`).
    Raises DataError where a file is missing or a check fails.
    """
    place = root(folder)
    if place is None:
        downloaded = {path.name: path for path in _download(CIFAR_URL, CIFAR_SHA256, unpack=True)}
        paths = {name: downloaded[name] for name in CIFAR_FILES}
    else:
        paths = {name: existing(place / "cifar-10-batches-py" / name, CIFAR_FORM) for name in CIFAR_FILES}
    parts = [_cifar(check_hash(paths[name], digest)) for name, digest in CIFAR_FILES.items()]
    train = Images(torch.cat([p.x for p in parts[:-1]]), torch.cat([p.y for p in parts[:-1]]))
    check_count("training and validation images", len(train), 50_000)
    check_count("test images", len(parts[-1]), 10_000)
    train_rows = 50_000 - _check_validation(validation, 50_000)
    return {"train": train[:train_rows], "validation": train[train_rows:], "test": parts[-1]}


def _check_validation(validation: int, of: int) -> int:
    if not 0 <= validation < of:
        raise ValueError(f"validation must lie in [0, {of}), got {validation}")
    return validation


def _fashion(paths: dict[str, Path], validation: int) -> dict[str, Images]:
    arrays = {name: torch.from_numpy(idx(read(path), path.name).copy()) for name, path in paths.items()}
    parts = []
    for part in ("train", "t10k"):
        x, y = arrays[f"{part}-images-idx3-ubyte"], arrays[f"{part}-labels-idx1-ubyte"]
        check_count(f"labels of {part}", len(y), len(x))
        parts.append(Images(x[:, None], y.long()))
    train_rows = len(parts[0]) - validation
    return {"train": parts[0][:train_rows], "validation": parts[0][train_rows:], "test": parts[1]}


def _cifar(path: Path) -> Images:
    with path.open("rb") as file:  # a pickle: read only after its hash was checked
        batch = pickle.load(file, encoding="bytes")
    return Images(torch.from_numpy(batch[b"data"].reshape(-1, 3, 32, 32)), torch.tensor(batch[b"labels"]))


def _download(url: str, digest: str, unpack: bool = False) -> list[Path]:
    try:
        import pooch
    except ImportError as error:
        raise DataError(f"{url} is downloaded by pooch: pip install 'apollo-sandbox[data]', or give folder=…") from error
    try:
        files = pooch.retrieve(url, known_hash=f"sha256:{digest}", processor=pooch.Untar() if unpack else None)
    except (OSError, ValueError) as error:
        raise DataError(f"{url} could not be downloaded ({error}); give folder=… or set SANDBOX_DATA") from error
    return [Path(path) for path in ([files] if isinstance(files, str) else files)]

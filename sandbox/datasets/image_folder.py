"""ImageNet from a folder of JPEG files, one folder per class; images are decoded when they are read."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from sandbox.datasets.folder import check_count, existing, require

FORM = "imagenet/train/<class>/ and imagenet/val/<class>/ with the JPEG files of 1,000 classes"
COUNTS = {"train": 1_281_167, "val": 50_000}


@dataclasses.dataclass(frozen=True)
class ImageFiles:
    """Paths of images and their classes, in the order of the folders' and the files' names."""

    paths: list[Path]
    classes: list[int]

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, row: int) -> np.ndarray[Any, Any]:
        """Image `row` as bytes, (height, width, 3)."""
        from PIL import Image

        with Image.open(self.paths[row]) as image:
            return np.asarray(image.convert("RGB"))


def imagenet(folder: str | Path | None = None) -> dict[str, ImageFiles]:
    """{"train", "test"}: 1,281,167 training images, and the 50,000 validation images, on which the paper tests.

    From imagenet/ in `folder` or SANDBOX_DATA.  Raises DataError where classes or images are missing.
    """
    place = existing(require(folder, FORM) / "imagenet", FORM)
    splits = {}
    for part, name in (("train", "train"), ("test", "val")):
        classes = sorted(entry for entry in existing(place / name, FORM).iterdir() if entry.is_dir())
        check_count(f"classes in imagenet/{name}", len(classes), 1_000)
        files = [(path, k) for k, each in enumerate(classes) for path in sorted(each.iterdir())]
        check_count(f"images in imagenet/{name}", len(files), COUNTS[name])
        splits[part] = ImageFiles([path for path, _ in files], [k for _, k in files])
    return splits

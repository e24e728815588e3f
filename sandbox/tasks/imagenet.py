"""ResNeXt-50 on ImageNet, from a folder of JPEG files."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from sandbox import datasets
from sandbox.datasets import ImageFiles
from sandbox.tasks.models import ResNeXt50
from sandbox.tasks.task import Task

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SIDE, SHORTER = 224, 256  # of a crop, and of the shorter side in evaluations


def random_window(height: int, width: int) -> tuple[int, int, int, int]:
    """(top, left, height, width) of 8 to 100 % of the area, sides in a ratio from 3/4 to 4/3.

    The middle, after ten windows that did not fit.  Draws from torch's global generator.
    """
    for _ in range(10):
        area = height * width * float(torch.empty(()).uniform_(0.08, 1.0))
        ratio = float(torch.empty(()).uniform_(np.log(3 / 4), np.log(4 / 3)).exp())
        w, h = round((area * ratio) ** 0.5), round((area / ratio) ** 0.5)
        if 0 < w <= width and 0 < h <= height:
            return int(torch.randint(height - h + 1, ())), int(torch.randint(width - w + 1, ())), h, w
    side = min(height, width)
    return (height - side) // 2, (width - side) // 2, side, side


def resize(x: Tensor, height: int, width: int) -> Tensor:
    """An image (3, h, w) at another size, bilinear with antialiasing."""
    return functional.interpolate(x[None], (height, width), mode="bilinear", antialias=True)[0]


class Crops(Dataset):
    """Images as (3, 224, 224), scaled: a random window and flip of each to train on, the middle to evaluate."""

    def __init__(self, files: ImageFiles, training: bool) -> None:
        self.files, self.training = files, training

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        x = torch.from_numpy(self.files.read(row).copy()).permute(2, 0, 1).float() / 255
        height, width = x.shape[1:]
        if self.training:
            top, left, h, w = random_window(height, width)
            x = resize(x[:, top : top + h, left : left + w], SIDE, SIDE)
            x = x.flip(2) if torch.rand(()) < 0.5 else x
        else:
            scale = SHORTER / min(height, width)
            x = resize(x, max(round(height * scale), SHORTER), max(round(width * scale), SHORTER))
            top, left = (x.shape[1] - SIDE) // 2, (x.shape[2] - SIDE) // 2
            x = x[:, top : top + SIDE, left : left + SIDE]
        mean, deviation = (torch.tensor(v)[:, None, None] for v in (MEAN, DEVIATION))
        return (x - mean) / deviation, self.files.classes[row]


class ResNeXt50ImageNet(Task):
    """ResNeXt-50 32×4d (25,028,904 parameters) on an ImageNet folder: the paper's, for several GPUs."""

    name, about = "resnext50-imagenet", __doc__ or ""

    def __init__(self, epochs: int = 120, batch_size: int = 256, folder: str | Path | None = None, workers: int = 8) -> None:
        self.epochs, self.batch_size, self.folder, self.workers = epochs, batch_size, folder, workers

    @functools.cached_property
    def files(self) -> Mapping[str, ImageFiles]:
        """Paths and classes of both splits."""
        return datasets.imagenet(self.folder)

    def data(self, split: str) -> Any:
        """A loader; the validation images, on which the paper tests, stand for both of the other splits."""
        crops = Crops(self.files["train" if split == "train" else "test"], split == "train")
        return DataLoader(crops, self.batch_size, shuffle=split == "train", num_workers=self.workers)

    def model(self) -> nn.Module:
        """ResNeXt-50, channels_last."""
        return ResNeXt50().to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def output(self, model: Any, batch: Any) -> Tensor:
        """Returns logits."""
        return model(batch[0].contiguous(memory_format=torch.channels_last))

    def criterion(self, output: Tensor, batch: Any) -> Tensor:
        """Returns the mean cross-entropy."""
        return functional.cross_entropy(output, batch[1])

    def accuracy(self, output: Tensor, batch: Any) -> Tensor:
        """Returns the share of images in their class."""
        return (output.argmax(-1) == batch[1]).float().mean()

    @property
    def metrics(self) -> Mapping[str, Callable[[Any, Any], Any]]:  # type: ignore[override]
        """The accuracy."""
        return {"accuracy": self.accuracy}

"""Image classification: Fashion-MNIST from the package, CIFAR-10 from a folder or by download.

    tasks.get("lenet-fashion", images=5_000, epochs=20)
    tasks.get("resnet110-cifar10", epochs=200)

Crops and flips draw from the run's own generator.  Images and networks are channels_last: a fifth
faster to train here, twice as fast to evaluate.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sandbox import datasets
from sandbox.datasets import Images
from sandbox.tasks.models import LeNet, ResNet
from sandbox.tasks.task import Task

GREY = (0.2860,), (0.3530,)  # Fashion-MNIST's mean and standard deviation, of its 60,000 training images
COLOUR = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)  # CIFAR-10's as its networks are commonly trained with
HALF = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)  # the tutorial's


def crop_and_flip(x: Tensor, padding: int) -> Tensor:
    """Each image, (n, channels, height, width), shifted by up to `padding` pixels each way, and half of them mirrored.

    Zeros come in at the borders.  Draws from torch's global generator.
    """
    n, _, height, width = x.shape
    wide = functional.pad(x, [padding] * 4)
    top, left = torch.randint(2 * padding + 1, (2, n, 1))
    flipped = torch.rand(n, 1) < 0.5
    rows, columns = top + torch.arange(height), torch.arange(width).expand(n, width)
    columns = left + torch.where(flipped, width - 1 - columns, columns)
    return wide[torch.arange(n)[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def halve(images: Images) -> Images:
    """Images of half the side: 2×2 means, rounded to bytes."""
    return Images(functional.avg_pool2d(images.x.float(), 2).round().to(torch.uint8), images.y)


class ImageTask(Task):
    """Cross-entropy on images; accuracy.

    epochs: passes through the training images.  batch_size: images a batch.
    images: train on the first so many only.  evaluated: evaluate on the first so many of the other splits.
    load: () -> {"train", "validation", "test"}, called when data are first needed.  Where there are no validation images, the
        test images take their place; nothing may then be chosen by them.
    padding: of random crops, with flips; 0 for none.  keep_rest: whether an epoch ends with a smaller batch of what is left.
    Raises ValueError for more images than there are.
    """

    mean: Sequence[float]
    deviation: Sequence[float]
    mean, deviation = GREY
    padding = 0
    keep_rest = False

    def __init__(
        self,
        load: Callable[[], Mapping[str, Images]],
        *,
        epochs: int,
        batch_size: int,
        images: int | None,
        evaluated: int | None = None,
    ) -> None:
        for name, value in {"epochs": epochs, "batch_size": batch_size, "images": images, "evaluated": evaluated}.items():
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        self._load, self.epochs, self.batch_size = load, epochs, batch_size
        self._most = {"train": images, "validation": evaluated, "test": evaluated}

    @functools.cached_property
    def images(self) -> dict[str, Images]:
        """The splits, as bytes."""
        splits = dict(self._load())
        most = self._most["train"]
        if most is not None and most > len(splits["train"]):
            raise ValueError(f"images must be at most {len(splits['train'])}, got {most}")
        splits = splits if len(splits["validation"]) else {**splits, "validation": splits["test"]}
        return {split: part[: self._most[split]] for split, part in splits.items()}

    def data(self, split: str) -> Any:
        """Tensors; for training with augmentation or a rest, a function of the seed."""
        if split == "train" and (self.padding or self.keep_rest):
            return self.training_batches
        part = self.images[split]
        return self.scaled(part.x), part.y

    def training_batches(self, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        """An epoch, shuffled and augmented by torch's global generator, which the training loop has seeded."""
        part = self.images["train"]
        for rows in torch.randperm(len(part)).split(self.batch_size or 1):
            if self.keep_rest or len(rows) == self.batch_size:
                x = part.x[rows]
                yield self.scaled(crop_and_flip(x, self.padding) if self.padding else x), part.y[rows]

    @functools.cached_property
    def epoch(self) -> int:
        """Updates in an epoch."""
        n, size = len(self.images["train"]), self.batch_size or 1
        return max(-(-n // size) if self.keep_rest else n // size, 1)

    def scaled(self, x: Tensor) -> Tensor:
        """Bytes -> (x/255 - mean)/deviation."""
        mean, deviation = (torch.tensor(v)[:, None, None] for v in (self.mean, self.deviation))
        return ((x.float() / 255 - mean) / deviation).contiguous(memory_format=torch.channels_last)

    def network(self) -> nn.Module:
        """A fresh network, in torch's usual layout."""
        raise TypeError(f"{type(self).__name__} must define network()")

    def model(self) -> nn.Module:
        """A fresh network, channels_last."""
        return self.network().to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def output(self, model: Any, batch: Any) -> Tensor:
        """Returns logits."""
        return model(batch[0])

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

    def __getstate__(self) -> dict[str, Any]:
        """Without what is loaded again elsewhere."""
        return {name: value for name, value in super().__getstate__().items() if name not in ("images", "_sources")}


@functools.lru_cache(maxsize=4)
def _fashion(full: bool, folder: str | Path | None, validation: int, half: bool) -> Mapping[str, Images]:
    splits = datasets.fashion_mnist(full, folder, validation)
    return {split: halve(part) for split, part in splits.items()} if half else splits


@functools.lru_cache(maxsize=1)
def _cifar10(folder: str | Path | None, validation: int) -> Mapping[str, Images]:
    return datasets.cifar10(folder, validation)


class LeNetFashion(ImageTask):
    """LeNet (44,426 parameters) on Fashion-MNIST, 10,000 images from the package."""

    name, about = "lenet-fashion", __doc__ or ""

    def __init__(
        self,
        epochs: int = 10,
        batch_size: int = 64,
        images: int | None = None,
        evaluated: int | None = None,
        full: bool = False,
        folder: str | Path | None = None,
        validation: int = 0,
    ) -> None:
        load = functools.partial(_fashion, full, folder, validation, False)
        super().__init__(load, epochs=epochs, batch_size=batch_size, images=images, evaluated=evaluated)

    def network(self) -> nn.Module:
        """LeNet for grey images of 28×28."""
        return LeNet(1, 28)


class ResNet8Fashion(ImageTask):
    """ResNet-8 (19,810 parameters) on Fashion-MNIST at 14×14, crops and flips, 10,000 images from the package."""

    name, about = "resnet8-fashion", __doc__ or ""
    padding = 2

    def __init__(
        self, epochs: int = 40, batch_size: int = 128, images: int | None = None, evaluated: int | None = None
    ) -> None:
        load = functools.partial(_fashion, False, None, 0, True)
        super().__init__(load, epochs=epochs, batch_size=batch_size, images=images, evaluated=evaluated)

    def network(self) -> nn.Module:
        """ResNet-8 of 8, 16 and 32 channels."""
        return ResNet(8, 1, (8, 16, 32))


class ResNet20Fashion(ImageTask):
    """ResNet-20 (272,186 parameters) on all of Fashion-MNIST, crops and flips: for a GPU."""

    name, about = "resnet20-fashion", __doc__ or ""
    padding, keep_rest = 2, True

    def __init__(
        self,
        epochs: int = 30,
        batch_size: int = 128,
        images: int | None = None,
        full: bool = True,
        folder: str | Path | None = None,
        validation: int = 0,
    ) -> None:
        super().__init__(
            functools.partial(_fashion, full, folder, validation, False), epochs=epochs, batch_size=batch_size, images=images
        )

    def network(self) -> nn.Module:
        """ResNet-20 of 16, 32 and 64 channels."""
        return ResNet(20, 1)


class ResNet110Cifar10(ImageTask):
    """ResNet-110 (1,730,714 parameters) on CIFAR-10, crops with padding 4 and flips: the paper's."""

    name, about = "resnet110-cifar10", __doc__ or ""
    mean, deviation = COLOUR
    padding, keep_rest = 4, True

    def __init__(
        self,
        epochs: int = 164,
        batch_size: int = 128,
        images: int | None = None,
        folder: str | Path | None = None,
        validation: int = 0,
        depth: int = 110,
    ) -> None:
        self.depth = depth
        super().__init__(functools.partial(_cifar10, folder, validation), epochs=epochs, batch_size=batch_size, images=images)

    def network(self) -> nn.Module:
        """ResNet of the depth asked for."""
        return ResNet(self.depth)


class TutorialCifar10(ImageTask):
    """LeNet (62,006 parameters) on CIFAR-10, as in PyTorch's tutorial: the paper's toy CNN."""

    name, about = "cnn-cifar10", __doc__ or ""
    mean, deviation = HALF
    keep_rest = True

    def __init__(
        self,
        epochs: int = 50,
        batch_size: int = 64,
        images: int | None = None,
        folder: str | Path | None = None,
        validation: int = 0,
    ) -> None:
        super().__init__(functools.partial(_cifar10, folder, validation), epochs=epochs, batch_size=batch_size, images=images)

    def network(self) -> nn.Module:
        """LeNet for colour images of 32×32."""
        return LeNet(3, 32)

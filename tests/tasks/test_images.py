"""Image tasks: data, augmentation, layouts."""

from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytest
import torch

from sandbox import tasks
from sandbox.datasets import Images
from sandbox.tasks import images
from sandbox.tasks.imagenet import Crops, random_window
from sandbox.tasks.streams import Generators


@pytest.mark.parametrize(("name", "epoch"), [("lenet-fashion", 156), ("resnet8-fashion", 78)])
def test_lengths_and_data_of_the_packaged_tasks(name, epoch):
    task = tasks.get(name, epochs=3)
    assert (task.epoch, task.steps) == (epoch, 3 * epoch)
    x, y = next(task.batches(0))
    assert len(x) == len(y) == task.batch_size
    assert x.mean().abs() < 0.2
    assert x.std() == pytest.approx(1, abs=0.2)
    loss, accuracy = task.evaluate(task.start(0), "validation")
    assert loss == pytest.approx(np.log(10), abs=0.8)  # before training
    assert 0.02 < accuracy < 0.3


def test_an_epoch_holds_every_image_once():
    task = tasks.get("lenet-fashion", images=640)
    seen = torch.cat([x for x, _ in itertools.islice(task.batches(1), 10)])
    expected = task.source("train").tensors[0]
    assert sorted(map(float, seen.sum((1, 2, 3)))) == sorted(map(float, expected.sum((1, 2, 3))))


def cifar(**_):
    x = torch.arange(10 * 3 * 32 * 32, dtype=torch.int64).view(10, 3, 32, 32).to(torch.uint8)
    part = Images(x, torch.arange(10))
    return {"train": part, "validation": part[:0], "test": part[:4]}


def test_a_rest_is_kept_where_the_paper_keeps_it(monkeypatch):
    monkeypatch.setattr(images, "_cifar10", lambda folder, validation: cifar())
    task = tasks.get("resnet110-cifar10", batch_size=4, epochs=2, depth=8)
    assert (task.epoch, task.steps) == (3, 6)
    assert [len(y) for _, y in itertools.islice(task.batches(0), 6)] == [4, 4, 2, 4, 4, 2]
    assert torch.equal(task.full("validation")[1], task.full("test")[1])  # no validation images: the test's


def test_updates_an_epoch_on_cifar10_are_the_papers(monkeypatch):
    whole = Images(torch.zeros(50_000, 1, dtype=torch.uint8), torch.zeros(50_000))
    monkeypatch.setattr(images, "_cifar10", lambda folder, validation: {"train": whole, "validation": whole[:0], "test": whole})
    assert (tasks.get("resnet110-cifar10").steps, tasks.get("resnet110-cifar10", epochs=200).steps) == (64_124, 78_200)
    assert tasks.get("cnn-cifar10").steps == 39_100


def test_crops_and_flips_move_every_pixel_alike():
    x = torch.arange(1, 2 * 5 * 6 + 1).view(1, 2, 5, 6).repeat(200, 1, 1, 1)
    with Generators(0, "order"):
        found = images.crop_and_flip(x, 2)
    seen = set()
    for image in found:
        matches = [
            (top, left, flip)
            for top, left, flip in itertools.product(range(5), range(5), (False, True))
            if torch.equal(
                image, torch.nn.functional.pad(x[0].flip(2) if flip else x[0], [2] * 4)[:, top : top + 5, left : left + 6]
            )
        ]
        assert len(matches) == 1
        seen.update(matches)
    assert len(seen) > 45  # of 50 possibilities, each with probability 1/50 in each of 200 draws
    assert 70 < sum(bool(flip) for *_, flip in seen) * 4 < 130


def test_augmentation_depends_on_the_seed_alone():
    task = tasks.get("resnet8-fashion", images=256)
    runs = [list(itertools.islice(task.batches(seed), 3)) for seed in (5, 5, 6)]
    torch.rand(3)
    assert all(torch.equal(a[0], b[0]) for a, b in zip(runs[0], runs[1], strict=True))
    assert not torch.equal(runs[0][0][0], runs[2][0][0])
    assert not torch.equal(runs[0][0][0], runs[0][2][0])  # another epoch, other crops


def test_halved_images_are_means():
    whole = Images(torch.tensor([[[[0, 1, 10, 20], [2, 5, 30, 40]]]], dtype=torch.uint8), torch.tensor([1]))
    assert images.halve(whole).x.tolist() == [[[[2, 25]]]]


def test_residual_networks_are_channels_last():
    task = tasks.get("resnet8-fashion", images=256)
    model = task.start(0)
    assert model.blocks[1].conv1.weight.is_contiguous(memory_format=torch.channels_last)
    assert next(task.batches(0))[0].is_contiguous(memory_format=torch.channels_last)
    loss = task.loss(model, next(task.batches(0)))
    loss.backward()
    assert all(p.grad is not None for p in model.parameters())


def test_more_images_than_there_are():
    with pytest.raises(ValueError, match="images must be at most 10000, got 10001"):
        tasks.get("lenet-fashion", images=10_001).full("train")
    with pytest.raises(ValueError, match="epochs must be at least 1, got 0"):
        tasks.get("lenet-fashion", epochs=0)


def test_a_task_travels_without_its_data():
    task = tasks.get("lenet-fashion", images=640)
    task.full("train")
    assert len(pickle.dumps(task)) < 10_000
    assert torch.equal(pickle.loads(pickle.dumps(task)).full("train")[0], task.full("train")[0])


@pytest.mark.parametrize("name", ["resnet110-cifar10", "cnn-cifar10", "resnext50-imagenet", "lstm-1bw", "transformer-wmt14"])
def test_what_needs_a_folder_says_so_when_it_starts(name, tmp_path):
    task = tasks.get(name, folder=tmp_path)
    with pytest.raises(ValueError, match=r"does not exist; the folder must hold (cifar-10-batches-py|imagenet|1bw|wmt14)/"):
        next(iter(task.batches(0)))


class Files:
    """Two grey images of other shapes, as ImageFiles reads them."""

    classes = (3, 4)

    def __len__(self):
        return 2

    def read(self, row):
        return np.full(((300, 400), (500, 260))[row] + (3,), 100 + row, dtype=np.uint8)


@pytest.mark.parametrize("training", [True, False])
def test_imagenet_crops(training):
    crops = Crops(Files(), training)
    for row in range(2):
        x, y = crops[row]
        assert x.shape == (3, 224, 224)
        assert y == 3 + row
        expected = ((100 + row) / 255 - torch.tensor([0.485, 0.456, 0.406])) / torch.tensor([0.229, 0.224, 0.225])
        torch.testing.assert_close(x, expected[:, None, None].expand_as(x), rtol=1e-5, atol=1e-5)


def test_random_windows_lie_inside_and_have_the_area_and_ratio_asked_for():
    with Generators(0, "order"):
        found = [random_window(300, 400) for _ in range(300)]
        narrow = random_window(10, 1000)
    for top, left, h, w in found:
        assert 0 <= top <= 300 - h
        assert 0 <= left <= 400 - w
        assert 0.079 < h * w / 120_000 <= 1
        assert 0.74 < w / h < 1.35  # 3/4 to 4/3, sides rounded to pixels
    assert narrow == (0, 495, 10, 10)  # no window of that ratio is large enough

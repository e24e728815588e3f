"""Full data sets from a folder: each check, and what its message says."""

from __future__ import annotations

import gzip
import hashlib
import pickle
import shutil

import numpy as np
import pytest

from sandbox import datasets
from sandbox.datasets import folder, image_folder, images, subset, text
from sandbox.datasets.folder import DataError


@pytest.fixture(autouse=True)
def no_folder(monkeypatch):
    monkeypatch.delenv(folder.VARIABLE, raising=False)


@pytest.fixture
def fashion(tmp_path, monkeypatch):
    """Writes a set to `tmp_path` that has the right hashes."""

    def write(**sizes):
        hashes = fashion_files(tmp_path, **sizes)
        monkeypatch.setattr(images, "FASHION_FILES", hashes)
        return hashes

    return write


def fashion_files(place, n=60_000, n_test=10_000, labels=None):
    """Files of the IDX form with their hashes."""
    (place / "fashion-mnist").mkdir()
    hashes = {}
    sizes = {"train": n, "t10k": n_test}
    for name in images.FASHION_FILES:
        rows = sizes[name.split("-")[0]]
        array = np.zeros((rows, 2, 2) if "images" in name else labels or rows, dtype=np.uint8)
        raw = gzip.compress(subset.to_idx(array), 1)
        (place / "fashion-mnist" / f"{name}.gz").write_bytes(raw)
        hashes[name] = hashlib.sha256(raw).hexdigest()
    return hashes


def test_a_full_set_from_a_folder(tmp_path, monkeypatch, fashion):
    fashion()
    found = datasets.fashion_mnist(full=True, folder=tmp_path, validation=2_000)
    assert {split: len(part) for split, part in found.items()} == {"train": 58_000, "validation": 2_000, "test": 10_000}
    monkeypatch.setenv(folder.VARIABLE, str(tmp_path))
    assert len(datasets.fashion_mnist(full=True)["train"]) == 60_000


def test_the_check_that_failed_is_named(tmp_path, fashion):
    fashion_files(tmp_path, n=59_999)
    with pytest.raises(DataError, match=r"sha256 of .*train-images-idx3-ubyte.gz must be b0564c3e.*, found"):
        datasets.fashion_mnist(full=True, folder=tmp_path)
    shutil.rmtree(tmp_path / "fashion-mnist")
    fashion(n=59_999)
    with pytest.raises(DataError, match="number of training and validation images must be 60,000, found 59,999"):
        datasets.fashion_mnist(full=True, folder=tmp_path)


def test_labels_that_are_missing(tmp_path, fashion):
    fashion(labels=7)
    with pytest.raises(DataError, match="number of labels of train must be 60,000, found 7"):
        datasets.fashion_mnist(full=True, folder=tmp_path)


def test_an_idx_file_that_is_cut_short():
    whole = subset.to_idx(np.zeros((3, 4), dtype=np.uint8))
    with pytest.raises(DataError, match="bytes of f after its header must be 12, found 11"):
        images.idx(whole[:-1], "f")
    with pytest.raises(DataError, match="f is not an IDX file"):
        images.idx(b"\x1f\x8b\x08\x00", "f")


def test_a_folder_that_is_not_there(tmp_path, monkeypatch):
    with pytest.raises(DataError, match="folder must be an existing folder"):
        datasets.fashion_mnist(full=True, folder=tmp_path / "no")
    monkeypatch.setenv(folder.VARIABLE, str(tmp_path / "no"))
    with pytest.raises(DataError, match="SANDBOX_DATA must be an existing folder"):
        datasets.cifar10()
    with pytest.raises(DataError, match=r"does not exist; the folder must hold fashion-mnist/ with train-images"):
        datasets.fashion_mnist(full=True, folder=tmp_path)


def test_the_subset_takes_no_options_of_the_full_set(tmp_path, fashion):
    with pytest.raises(ValueError, match="for full=True"):
        datasets.fashion_mnist(folder=tmp_path)
    fashion()
    with pytest.raises(ValueError, match=r"validation must lie in \[0, 60000\), got 60000"):
        datasets.fashion_mnist(full=True, folder=tmp_path, validation=60_000)


def cifar(place, n=10_000):
    """Batches of the form of CIFAR-10; image i of a batch is filled with i modulo 256."""
    (place / "cifar-10-batches-py").mkdir()
    hashes = {}
    for k, name in enumerate(images.CIFAR_FILES):
        data = np.tile((np.arange(n) % 256).astype(np.uint8)[:, None], (1, 3072))
        raw = pickle.dumps({b"data": data, b"labels": [k] * n})
        (place / "cifar-10-batches-py" / name).write_bytes(raw)
        hashes[name] = "md5:" + hashlib.md5(raw).hexdigest()
    return hashes


def test_cifar10_from_a_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(images, "CIFAR_FILES", cifar(tmp_path))
    found = datasets.cifar10(folder=tmp_path, validation=5_000)
    assert found["train"].x.shape == (45_000, 3, 32, 32)
    assert found["train"].y[[0, 10_000, 44_999]].tolist() == [0, 1, 4]
    assert found["validation"].y.unique().tolist() == [4]
    assert found["test"].y.unique().tolist() == [5]
    assert found["train"].x[300].unique().tolist() == [44]


def test_cifar10_is_not_unpickled_before_its_hash_is_checked(tmp_path):
    cifar(tmp_path)
    with pytest.raises(DataError, match=r"md5 of .*data_batch_1 must be c99cafc1"):
        datasets.cifar10(folder=tmp_path)


def billion(place):
    for part in ("train", "test"):
        (place / "1bw" / part).mkdir(parents=True)
        (place / "1bw" / part / "b").write_text("third one\n")
        (place / "1bw" / part / "a").write_text("first one\nsecond one\n")
    (place / "1bw" / "1b_word_vocab.txt").write_text("".join(f"w{i} {i}\n" for i in range(793_471)))


def test_one_billion_words_from_a_folder(tmp_path):
    billion(tmp_path)
    found = datasets.one_billion_words(tmp_path)
    assert found.vocabulary[:2] == ["w0", "w1"]
    assert list(found.sentences("train")) == ["first one", "second one", "third one"]
    (tmp_path / "1bw" / "1b_word_vocab.txt").write_text("one\ntwo\n")
    with pytest.raises(DataError, match=r"words in 1bw/1b_word_vocab\.txt must be 793,471, found 2"):
        datasets.one_billion_words(tmp_path)


def test_one_billion_words_without_shards(tmp_path):
    billion(tmp_path)
    for shard in (tmp_path / "1bw" / "test").iterdir():
        shard.unlink()
    with pytest.raises(DataError, match="has no shards"):
        datasets.one_billion_words(tmp_path)


@pytest.mark.parametrize("load", [datasets.one_billion_words, datasets.wmt14, datasets.imagenet])
def test_what_has_to_be_in_a_folder_says_its_form(load, tmp_path):
    with pytest.raises(DataError, match=r"give folder=… or set SANDBOX_DATA; it must hold (1bw|wmt14|imagenet)/"):
        load()
    with pytest.raises(DataError, match=r"does not exist; the folder must hold (1bw|wmt14|imagenet)/"):
        load(tmp_path)


def wmt(place, train=3_900_000, valid=3_000, test=3_003, missing=0):
    (place / "wmt14").mkdir()
    for name, n in (("train", train), ("valid", valid), ("test", test)):
        (place / "wmt14" / f"{name}.en").write_text("a\n" * n)
        (place / "wmt14" / f"{name}.de").write_text("b\n" * (n - missing))


def test_wmt14_from_a_folder(tmp_path):
    wmt(tmp_path)
    found = datasets.wmt14(tmp_path)
    assert len(found["train"]) == 3_900_000
    assert (found["test"].source[0], found["test"].target[-1]) == ("a", "b")


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"train": 10, "missing": 1}, "lines of wmt14/train.de must be 10, found 9"),
        ({"train": 10, "valid": 4}, "pairs in wmt14/valid must be 3,000, found 4"),
        ({"train": 10, "test": 3_000}, "pairs in wmt14/test must be 2,737 or 3,003, found 3,000"),
        ({"train": 10}, r"pairs in wmt14/train must lie in \[3,900,000, 4,600,000\], found 10"),
    ],
)
def test_wmt14_that_is_not_it(tmp_path, sizes, message):
    wmt(tmp_path, **sizes)
    with pytest.raises(DataError, match=message):
        datasets.wmt14(tmp_path)


def test_imagenet_from_a_folder(tmp_path, monkeypatch):
    from PIL import Image

    for part in ("train", "val"):
        for k in range(1_000):
            (tmp_path / "imagenet" / part / f"n{k:04d}").mkdir(parents=True)
    with pytest.raises(DataError, match="images in imagenet/train must be 1,281,167, found 0"):
        datasets.imagenet(tmp_path)
    Image.new("RGB", (3, 2), (9, 8, 7)).save(tmp_path / "imagenet" / "train" / "n0007" / "a.png")
    monkeypatch.setattr(image_folder, "COUNTS", {"train": 1, "val": 0})
    found = datasets.imagenet(tmp_path)
    assert found["train"].classes == [7]
    assert found["train"].read(0).shape == (2, 3, 3)
    assert found["train"].read(0)[1, 2].tolist() == [9, 8, 7]
    (tmp_path / "imagenet" / "val" / "n0999").rmdir()
    with pytest.raises(DataError, match="classes in imagenet/val must be 1,000, found 999"):
        datasets.imagenet(tmp_path)


def test_texts_from_a_folder_are_checked(tmp_path):
    (tmp_path / "speeches-en.tsv.gz").write_bytes(gzip.compress(b"speech\ttext\n"))
    with pytest.raises(DataError, match=f"speeches-en.tsv.gz must be {text.SPEECHES_SHA256[:8]}"):
        datasets.speeches(tmp_path)
    with pytest.raises(DataError, match=r"verses-en-es.tsv.gz does not exist"):
        datasets.verses(tmp_path)


def test_a_download_says_what_failed(monkeypatch):
    import pooch

    def refuse(url, **_):
        raise OSError(f"no route to {url}")

    monkeypatch.setattr(pooch, "retrieve", refuse)
    for load in (datasets.cifar10, lambda: datasets.fashion_mnist(full=True)):
        with pytest.raises(DataError, match=r"could not be downloaded \(no route to http.*give folder=… or set SANDBOX_DATA"):
            load()


def test_a_download_is_asked_for_by_its_hash(tmp_path, monkeypatch, fashion):
    import pooch

    hashes = fashion()
    asked = {}

    def retrieve(url, known_hash, processor):
        asked[url] = known_hash
        return str(tmp_path / "fashion-mnist" / url.rsplit("/", 1)[1])

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    assert len(datasets.fashion_mnist(full=True)["test"]) == 10_000
    assert asked == {f"{images.FASHION_URL}{name}.gz": f"sha256:{digest}" for name, digest in hashes.items()}

"""The packaged data: counts, splits, and that they are made from the full files, the same bytes every time."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from sandbox import datasets
from sandbox.datasets import folder, images, subset, text

FULL = os.environ.get(folder.VARIABLE)


def test_fashion_mnist_has_equally_many_images_of_each_class():
    for split, n in (("train", 1000), ("validation", 200), ("test", 200)):
        part = datasets.fashion_mnist()[split]
        assert part.x.shape == (10 * n, 1, 28, 28)
        assert part.x.dtype == torch.uint8
        assert part.y.bincount().tolist() == [n] * 10


def test_no_image_is_in_two_splits():
    parts = datasets.fashion_mnist()
    seen = [{bytes(image.numpy().tobytes()) for image in part.x} for part in parts.values()]
    assert not seen[0] & seen[1]
    assert not seen[0] & seen[2]
    assert not seen[1] & seen[2]


def test_speeches_are_split_in_time_order():
    found = datasets.speeches()
    assert [len(found[split]) for split in ("train", "validation", "test")] == [205, 13, 15]
    years = [int(name[:4]) for name, _ in folder.rows(folder.PACKAGED / "speeches-en.tsv.xz")]
    assert years == sorted(years)
    assert (years[204], years[205], years[217], years[218]) == (1993, 1994, 2006, 2007)


def test_speeches_have_the_words_that_were_counted():
    everything = [speech for part in datasets.speeches().values() for speech in part]
    assert sum(len(speech.split()) for speech in everything) == 1_794_884
    # another count of words and punctuation marks, with another rule for apostrophes, gave 2,000,387
    assert sum(len(text.words(speech)) for speech in everything) == pytest.approx(2_000_387, rel=2e-3)


def test_words_keep_apostrophes_and_part_punctuation():
    assert text.words("It isn't so; they’re “here”.") == ["it", "isn't", "so", ";", "they’re", "“", "here", "”", "."]


def test_the_most_frequent_words_ties_by_the_alphabet():
    assert text.most_frequent(["b", "a", "a", "c", "c", "b", "d"], 5) == ["<unk>", "a", "b", "c", "d"]
    assert text.most_frequent(["b", "a", "a", "c", "c", "b", "d"], 3) == ["<unk>", "a", "b"]
    with pytest.raises(ValueError, match="size must be at least 2"):
        text.most_frequent(["a"], 1)


def test_verses_are_split_by_whole_sections():
    found = datasets.verses()
    assert sum(map(len, found.values())) == 30_672
    words = {side: sum(len(line.split()) for p in found.values() for line in getattr(p, side)) for side in ("source", "target")}
    assert words == {"source": 849_609, "target": 804_364}
    sections = [section for section, *_ in folder.rows(folder.PACKAGED / "verses-en-es.tsv.xz")]
    assert len(found["validation"]) == sum(s in text.VALIDATION_SECTIONS for s in sections)
    assert len(found["test"]) == sum(s in text.TEST_SECTIONS for s in sections)


def test_verses_no_longer_than_asked_on_either_side():
    found = datasets.verses(longest=40)
    assert sum(map(len, found.values())) == 25_629
    assert len(found["validation"]) == 1_046
    assert len(found["test"]) == 1_001
    assert max(len(line.split()) for line in found["train"].source + found["train"].target) == 40


def test_first_of_each_class_in_order_without_repeats():
    labels = np.array([1, 0, 1, 1, 0, 0, 1])
    assert subset.first_of_each(labels, 1, 2).tolist() == [0, 1, 2, 3, 4, 5]
    assert subset.first_of_each(labels, 2, 1).tolist() == [0, 1, 2, 4, 3, 5]


def test_idx_form_is_read_back():
    array = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)
    assert (images.idx(subset.to_idx(array), "array") == array).all()


@pytest.mark.skipif(not FULL, reason="SANDBOX_DATA names no folder of full files")
def test_packaged_files_are_what_the_script_makes_of_the_full_ones():
    for name, content in subset.contents(Path(FULL)).items():
        assert folder.read(folder.PACKAGED / f"{name}.xz") == content, name


def test_licences_lie_beside_the_files():
    stated = (folder.PACKAGED / "LICENCES.md").read_text(encoding="utf-8")
    for path in folder.PACKAGED.glob("*.xz"):
        assert path.name.split("-")[0] in stated
    assert sum(path.stat().st_size for path in folder.PACKAGED.iterdir()) < 10e6

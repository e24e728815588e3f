"""Text data sets: packaged speeches and verses; One Billion Words and WMT 2014 from folders."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from sandbox.datasets.folder import PACKAGED, DataError, check_count, check_hash, existing, require, root, rows

SPEECHES_SHA256 = "d840e5f75d80d89a1a5c1f0734e977d2428d513ab755041fed1b95b1ba9a9a93"
VERSES_SHA256 = "0465015d44c46605cd9b66093e0e764fc101b0a31feb751c450649107278b6f5"
# In time order: speeches 0 to 204 (up to 1993), 205 to 217 (to 2006), 218 to 232 (to 2021).
SPEECH_SPLITS = {"train": slice(0, 205), "validation": slice(205, 218), "test": slice(218, 233)}
# Whole sections that no other section tells a second time, about a thousand pairs of at most 40 words each.
VALIDATION_SECTIONS = frozenset({"23", "24", "25", "26"})
TEST_SECTIONS = frozenset({"29", "53"})

_WORDS = re.compile(r"\w+(?:['’]\w+)*|[^\w\s]")

BILLION_FORM = "1bw/train/ and 1bw/test/ with the shards (one sentence a line) and 1bw/1b_word_vocab.txt (a word a line)"
WMT_FORM = "wmt14/{train,valid,test}.{en,de}, one sentence a line, after byte-pair encoding"


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Aligned sentences: source[i] is the translation of target[i]."""

    source: list[str]
    target: list[str]

    def __len__(self) -> int:
        return len(self.source)


def words(text: str) -> list[str]:
    """Lower-cased words and punctuation marks, each by itself; an apostrophe inside a word stays there."""
    return _WORDS.findall(text.lower())


def speeches(folder: str | Path | None = None) -> dict[str, list[str]]:
    """233 State of the Union addresses, 1790 to 2021, as texts, split by speech in time order (205, 13 and 15).

    From the package, or from speeches-en.tsv.gz in `folder`.  Raises DataError where a check fails.
    """
    table = rows(_packaged_file("speeches-en.tsv", SPEECHES_SHA256, folder))
    check_count("speeches", len(table), 233)
    return {split: [text for _, text in table[part]] for split, part in SPEECH_SPLITS.items()}


def verses(folder: str | Path | None = None, longest: int | None = None) -> dict[str, Pairs]:
    """30,672 aligned verses, English to Spanish, split by section (never at random: verses repeat phrases).

    longest: leave out pairs with more than so many white-space words on a side.
    From the package, or from verses-en-es.tsv.gz in `folder`.  Raises DataError where a check fails.
    """
    table = rows(_packaged_file("verses-en-es.tsv", VERSES_SHA256, folder))
    check_count("verse pairs", len(table), 30_672)
    split_of = dict.fromkeys(VALIDATION_SECTIONS, "validation") | dict.fromkeys(TEST_SECTIONS, "test")
    splits: dict[str, list[tuple[str, str]]] = {"train": [], "validation": [], "test": []}
    for section, english, spanish in table:
        if longest is None or max(len(english.split()), len(spanish.split())) <= longest:
            splits[split_of.get(section, "train")].append((english, spanish))
    return {split: Pairs([s for s, _ in pairs], [t for _, t in pairs]) for split, pairs in splits.items()}


@dataclasses.dataclass(frozen=True)
class BillionWords:
    """One Billion Words in a folder: the vocabulary, and the sentences of a part, read shard by shard."""

    folder: Path
    vocabulary: list[str]

    def sentences(self, part: str) -> Iterator[str]:
        """The sentences of "train" or "test", in the order of the shards' names."""
        for shard in sorted((self.folder / part).iterdir()):
            with shard.open(encoding="utf-8") as lines:
                yield from (line.rstrip("\n") for line in lines)


def one_billion_words(folder: str | Path | None = None) -> BillionWords:
    """One Billion Words with its 793,471 words, from 1bw/ in `folder` or SANDBOX_DATA.

    Raises DataError where a check fails.
    """
    place = existing(require(folder, BILLION_FORM) / "1bw", BILLION_FORM)
    with existing(place / "1b_word_vocab.txt", BILLION_FORM).open(encoding="utf-8") as lines:
        vocabulary = [line.split()[0] for line in lines if line.strip()]
    check_count("words in 1bw/1b_word_vocab.txt", len(vocabulary), 793_471)
    for part in ("train", "test"):
        if not any(existing(place / part, BILLION_FORM).iterdir()):
            raise DataError(f"{place / part} has no shards; the folder must hold {BILLION_FORM}")
    return BillionWords(place, vocabulary)


def wmt14(folder: str | Path | None = None) -> dict[str, Pairs]:
    """WMT 2014 English to German, encoded, from wmt14/ in `folder` or SANDBOX_DATA; validation newstest2013, test newstest2014.

    Raises DataError unless both sides have as many lines, with 3.9 to 4.6 million pairs to train, 3,000 and 3,003 (or the
    filtered 2,737) to evaluate.
    """
    place = existing(require(folder, WMT_FORM) / "wmt14", WMT_FORM)
    splits = {}
    for split, name in (("train", "train"), ("validation", "valid"), ("test", "test")):
        source, target = (_lines(existing(place / f"{name}.{side}", WMT_FORM)) for side in ("en", "de"))
        check_count(f"lines of wmt14/{name}.de", len(target), len(source))
        splits[split] = Pairs(source, target)
    check_count("pairs in wmt14/valid", len(splits["validation"]), 3_000)
    check_count("pairs in wmt14/test", len(splits["test"]), 2_737, 3_003)
    if not 3_900_000 <= len(splits["train"]) <= 4_600_000:
        raise DataError(
            f"the number of pairs in wmt14/train must lie in [3,900,000, 4,600,000], found {len(splits['train']):,}"
        )
    return splits


def _lines(path: Path) -> list[str]:
    with path.open(encoding="utf-8") as lines:
        return [line.rstrip("\n") for line in lines]


def _packaged_file(name: str, digest: str, folder: str | Path | None) -> Path:
    if folder is None:
        return PACKAGED / f"{name}.xz"
    place = root(folder)
    assert place is not None
    return check_hash(existing(place / f"{name}.gz", f"{name}.gz"), digest)


def most_frequent(words: Iterable[str], size: int) -> list[str]:
    """The `size` - 1 most frequent words (ties by the alphabet) after "<unk>", which stands for all others."""
    if size < 2:
        raise ValueError(f"size must be at least 2, got {size}")
    counts = Counter(words)
    return ["<unk>", *sorted(counts, key=lambda w: (-counts[w], w))[: size - 1]]

"""Language models: a two-layer LSTM with adaptive softmax on speeches from the package or on One Billion Words.

The loss is log perplexity, nats a word; perplexity = exp(loss).  The text is cut into as many equal pieces as a batch has
sequences, and each batch goes on where the last one ended: the state is carried, its history is not.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sandbox import datasets
from sandbox.datasets import text
from sandbox.tasks.models import LanguageModel
from sandbox.tasks.task import Task


def windows(words: Tensor, sequences: int, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    """(x, y), each (sequences, steps), y a word ahead of x: `words` in equal pieces side by side, read left to right.

    What does not fill a window is left out.  Raises ValueError where there is not one window.
    """
    length = (len(words) - 1) // sequences
    if length < steps:
        raise ValueError(f"{len(words)} words are too few for {sequences} sequences of {steps}")
    x, y = (words[k : k + sequences * length].view(sequences, length) for k in (0, 1))
    for start in range(0, length - steps + 1, steps):
        yield x[:, start : start + steps], y[:, start : start + steps]


class LanguageTask(Task):
    """A `LanguageModel` read from left to right.

    vocabulary, embedding, hidden, cutoffs, dropout, tied: as for `LanguageModel`.  sequences, window: shape of a batch.
    steps: updates in a run.
    """

    stretch = 5  # windows of an evaluation are so many times longer; what comes out is the same

    def __init__(
        self,
        *,
        vocabulary: int,
        embedding: int,
        hidden: int,
        cutoffs: Sequence[int],
        dropout: float,
        tied: bool,
        sequences: int,
        window: int,
        steps: int,
    ) -> None:
        for name, value in (("sequences", sequences), ("window", window), ("steps", steps)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        self._network = functools.partial(
            LanguageModel, vocabulary, embedding, hidden, tuple(cutoffs), dropout=dropout, tied=tied
        )
        self.vocabulary, self.sequences, self.window, self.steps = vocabulary, sequences, window, steps

    def model(self) -> nn.Module:
        """A fresh network."""
        return self._network()

    def words(self, split: str) -> Iterator[Tensor]:
        """The text of a split, in pieces that are read one after the other."""
        raise TypeError(f"{type(self).__name__} must define words(split)")

    def data(self, split: str) -> Any:
        """A function of the seed.  Training begins at one of the first words, drawn from torch's global generator."""
        return self.training_batches if split == "train" else functools.partial(self.evaluation_batches, split)

    def training_batches(self, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        """An epoch."""
        for words in self.words("train"):
            yield from windows(words[int(torch.randint(self.window, ())) :], self.sequences, self.window)

    def evaluation_batches(self, split: str, seed: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """A split once."""
        for words in self.words(split):
            length = (len(words) - 1) // self.sequences
            yield from windows(words, self.sequences, max(min(self.window * self.stretch, length), 1))

    def begin(self, model: Any, split: str, /) -> None:
        """State zero."""
        model.reset()

    def rows(self, batch: Any) -> float:
        """Words."""
        return batch[1].numel()

    def loss(self, model: Any, batch: Any, /) -> Tensor:
        """Mean of -log p of a word, given all before."""
        return model(*batch)

    def __getstate__(self) -> dict[str, Any]:
        """Without what is loaded again elsewhere."""
        return {name: value for name, value in super().__getstate__().items() if name not in ("_sources", "known")}


@functools.lru_cache(maxsize=4)
def _speeches(vocabulary: int, tokens: int | None, evaluated: int | None) -> dict[str, Tensor]:
    spoken = {split: [w for speech in found for w in text.words(speech)] for split, found in datasets.speeches().items()}
    known = {word: i for i, word in enumerate(text.most_frequent(spoken["train"], vocabulary))}
    most = {"train": tokens, "validation": evaluated, "test": evaluated}
    return {split: torch.tensor([known.get(w, 0) for w in found[: most[split]]]) for split, found in spoken.items()}


class LSTMSpeeches(LanguageTask):
    """A two-layer LSTM (885,484 parameters, 8,000 words) on speeches from 1790 to 2021, split in time order."""

    name, about = "lstm-speeches", __doc__ or ""

    sizes = {
        "vocabulary": 8000,
        "embedding": 64,
        "hidden": 128,
        "cutoffs": (600, 1000, 6450),
        "dropout": 0.1,
        "tied": False,
        "sequences": 32,
        "window": 20,
        "steps": 2000,
    }

    def __init__(self, tokens: int | None = None, evaluated: int | None = None, **sizes: Any) -> None:
        """tokens: train on the first so many.  evaluated: evaluate on the first so many of validation and test.

        sizes: those of `LanguageTask` that shall not be `LSTMSpeeches.sizes`.
        """
        super().__init__(**{**self.sizes, **sizes})
        self.tokens, self.evaluated = tokens, evaluated

    def words(self, split: str) -> Iterator[Tensor]:
        """The speeches of a split, one after the other, as one text."""
        yield _speeches(self.vocabulary, self.tokens, self.evaluated)[split]


class LSTMBillion(LanguageTask):
    """A two-layer LSTM (510 million parameters, 793,471 words) on One Billion Words from a folder: the paper's."""

    name, about = "lstm-1bw", __doc__ or ""

    # 20 epochs of 312,500 updates
    sizes = {
        "vocabulary": 793_471,
        "embedding": 300,
        "hidden": 2048,
        "cutoffs": (60_000, 100_000, 640_000),
        "dropout": 0.1,
        "tied": False,
        "sequences": 128,
        "window": 20,
        "steps": 6_250_000,
    }

    def __init__(self, folder: str | Path | None = None, **sizes: Any) -> None:
        """folder: that holds 1bw/; default SANDBOX_DATA.  sizes: those of `LanguageTask` that shall not be `sizes`."""
        super().__init__(**{**self.sizes, **sizes})
        self.folder = folder

    @functools.cached_property
    def known(self) -> tuple[datasets.BillionWords, dict[str, int]]:
        """The data, and the number of each word, most frequent first as the vocabulary lists them."""
        found = datasets.one_billion_words(self.folder)
        return found, {word: i for i, word in enumerate(found.vocabulary)}

    def words(self, split: str) -> Iterator[Tensor]:
        """A million words at a time, each sentence with its boundary; the test shards stand for validation too."""
        found, known = self.known
        unknown, boundary = known["<UNK>"], known["<S>"]
        sentences = found.sentences("train" if split == "train" else "test")
        for chunk in _chunks(sentences, 1_000_000, lambda s: [boundary, *(known.get(w, unknown) for w in s.split())]):
            if len(chunk) > self.sequences * self.window:
                yield torch.tensor(chunk)


def _chunks(sentences: Iterator[str], size: int, encode: Callable[[str], list[int]]) -> Iterator[list[int]]:
    chunk: list[int] = []
    for sentence in itertools.chain(sentences):
        chunk += encode(sentence)
        if len(chunk) >= size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk

"""Translation by an encoder-decoder Transformer: verses from the package, WMT 2014 from a folder.

The loss is smoothed cross-entropy, nats a piece; the metric "nll" is the same without smoothing.  `translate` and `bleu`
decode by beam search.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sandbox import datasets
from sandbox.tasks import decoding
from sandbox.tasks.models import Translator
from sandbox.tasks.models.transformer import BEGIN, END, PAD, UNKNOWN, translation_loss
from sandbox.tasks.subwords import Subwords
from sandbox.tasks.task import Task

Rows = list[np.ndarray]  # sentences as pieces, each ending in END


def pad(rows: Sequence[np.ndarray]) -> Tensor:
    """Rows as one tensor, PAD after the end."""
    return nn.utils.rnn.pad_sequence(
        [torch.from_numpy(row.astype(np.int64)) for row in rows], batch_first=True, padding_value=PAD
    )


def batch_of(source: Sequence[np.ndarray], target: Sequence[np.ndarray]) -> tuple[Tensor, Tensor, Tensor]:
    """(source, target behind BEGIN, target), each (n, longest)."""
    y = pad(target)
    begun = torch.cat((torch.full((len(y), 1), BEGIN), y[:, :-1]), dim=1)
    return pad(source), begun.masked_fill(begun == END, PAD), y


def groups_of(lengths: Sequence[int], order: Sequence[int], tokens: int) -> list[list[int]]:
    """`order` cut into groups in which (longest of the group) · (its size) ≤ tokens; a longer sentence stands alone."""
    batches: list[list[int]] = []
    longest = 0
    for i in order:
        longest = max(longest, lengths[i]) if batches else lengths[i]
        if batches and longest * (len(batches[-1]) + 1) <= tokens:
            batches[-1].append(i)
        else:
            batches.append([i])
            longest = lengths[i]
    return batches


class TranslationTask(Task):
    """A `Translator` on pairs of sentences.

    load: () -> ({"train", "validation", "test"} -> (source rows, target rows), how pieces become text).
    network: () -> a fresh `Translator`.  tokens: target pieces in a batch, padding included.  smoothing: of labels.
    steps: updates in a run.
    """

    lower_is_better = ("nll",)

    def __init__(
        self,
        load: Callable[[], tuple[Mapping[str, tuple[Rows, Rows]], Callable[[list[list[int]]], list[str]]]],
        network: Callable[[], Translator],
        *,
        tokens: int,
        smoothing: float,
        steps: int,
    ) -> None:
        for name, value in (("tokens", tokens), ("steps", steps)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if not 0 <= smoothing < 1:
            raise ValueError(f"smoothing must lie in [0, 1), got {smoothing}")
        self._load, self._network = load, network
        self.tokens, self.smoothing, self.steps = tokens, smoothing, steps

    def model(self) -> nn.Module:
        """A fresh network."""
        return self._network()

    def data(self, split: str) -> Any:
        """A function of the seed."""
        return self.training_batches if split == "train" else functools.partial(self.evaluation_batches, split)

    def training_batches(self, seed: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """An epoch: pairs of about equal length together; pairs and batches shuffled by torch's global generator."""
        source, target = self._load()[0]["train"]
        lengths = [len(row) for row in target]
        order = sorted(torch.randperm(len(target)).tolist(), key=lengths.__getitem__)
        groups = groups_of(lengths, order, self.tokens)
        for k in torch.randperm(len(groups)).tolist():
            yield batch_of([source[i] for i in groups[k]], [target[i] for i in groups[k]])

    def evaluation_batches(self, split: str, seed: int = 0) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """A split once, from short to long."""
        source, target = self._load()[0][split]
        lengths = [len(row) for row in target]
        for rows in groups_of(lengths, sorted(range(len(target)), key=lengths.__getitem__), 4 * self.tokens):
            yield batch_of([source[i] for i in rows], [target[i] for i in rows])

    def rows(self, batch: Any) -> float:
        """Target pieces without padding."""
        return int((batch[2] != PAD).sum())

    def output(self, model: Any, batch: Any) -> Tensor:
        """Returns logits, (sentences, places, pieces)."""
        source, begun, _ = batch
        return model(source, begun)

    def criterion(self, output: Tensor, batch: Any) -> Tensor:
        """Returns the smoothed cross-entropy per target piece."""
        return translation_loss(output, batch[2], self.smoothing)

    def nll(self, output: Tensor, batch: Any) -> Tensor:
        """Returns -log p per target piece."""
        return translation_loss(output, batch[2])

    @property
    def metrics(self) -> Mapping[str, Callable[[Any, Any], Any]]:  # type: ignore[override]
        """-log p a target piece."""
        return {"nll": self.nll}

    @torch.no_grad()
    def translate(self, model: Translator, split: str, beam: int = 5, longest: int = 200, most: int | None = None) -> list[str]:
        """Translations of the first `most` sentences of a split, by beam search, in evaluation mode."""
        splits, text = self._load()
        source = splits[split][0][:most]
        training, rows = model.training, []
        model.eval()
        for start in range(0, len(source), 32):
            rows += decoding.beam_search(model, pad(source[start : start + 32]), beam, longest)
        model.train(training)
        return text(rows)

    def bleu(self, model: Translator, split: str, beam: int = 5, longest: int = 200, most: int | None = None) -> float:
        """Corpus BLEU of `translate` against the references, 0 to 100."""
        splits, text = self._load()
        references = text([row[:-1].tolist() for row in splits[split][1][:most]])
        return decoding.bleu(self.translate(model, split, beam, longest, most), references)

    def __getstate__(self) -> dict[str, Any]:
        """Without what is loaded again elsewhere."""
        return {name: value for name, value in super().__getstate__().items() if name != "_sources"}


@functools.lru_cache(maxsize=2)
def _verses(vocabulary: int, longest: int, pairs: int | None) -> tuple[dict[str, tuple[Rows, Rows]], Callable[..., list[str]]]:
    verses = datasets.verses(longest=longest)
    train = verses["train"]
    pieces = Subwords([*train.source, *train.target], vocabulary)
    most = {"train": pairs, "validation": None, "test": None}

    def rows(texts: list[str]) -> Rows:
        return [np.array(row, dtype=np.int32) for row in pieces.encode(texts)]

    splits = {split: (rows(part.source[: most[split]]), rows(part.target[: most[split]])) for split, part in verses.items()}
    return splits, pieces.decode


class TransformerVerses(TranslationTask):
    """A small Transformer (361,472 parameters, 2,000 pieces) from English to Spanish verses, split by whole sections."""

    name, about = "transformer-verses", __doc__ or ""

    def __init__(
        self,
        steps: int = 2000,
        vocabulary: int = 2000,
        width: int = 64,
        heads: int = 4,
        feedforward: int = 256,
        layers: int = 2,
        dropout: float = 0.1,
        smoothing: float = 0.1,
        tokens: int = 1024,
        longest: int = 40,
        pairs: int | None = None,
    ) -> None:
        """longest: words of a verse on either side.  pairs: train on the first so many."""
        network = functools.partial(Translator, vocabulary, width, heads, feedforward, layers, dropout)
        load = functools.partial(_verses, vocabulary, longest, pairs)
        super().__init__(load, network, tokens=tokens, smoothing=smoothing, steps=steps)


@functools.lru_cache(maxsize=1)
def _wmt14(folder: str | Path | None, vocabulary: int) -> tuple[dict[str, tuple[Rows, Rows]], Callable[..., list[str]]]:
    splits = datasets.wmt14(folder)
    counts = Counter(piece for text in (*splits["train"].source, *splits["train"].target) for piece in text.split())
    special = {PAD: "<pad>", BEGIN: "<s>", END: "</s>", UNKNOWN: "<unk>"}
    pieces = [*special.values(), *sorted(counts, key=lambda p: (-counts[p], p))[: vocabulary - len(special)]]
    numbers = {piece: i for i, piece in enumerate(pieces)}

    def rows(texts: list[str]) -> Rows:
        return [np.array([*(numbers.get(p, UNKNOWN) for p in text.split()), END], dtype=np.int32) for text in texts]

    def text(rows: list[list[int]]) -> list[str]:
        return [" ".join(pieces[i] for i in row if i not in special).replace("@@ ", "") for row in rows]

    return {split: (rows(part.source), rows(part.target)) for split, part in splits.items()}, text


class TransformerWMT14(TranslationTask):
    """The Transformer base model (63 million parameters) from English to German, on a WMT 2014 folder: the paper's."""

    name, about = "transformer-wmt14", __doc__ or ""

    def __init__(
        self,
        steps: int = 500_000,
        vocabulary: int = 37_000,
        width: int = 512,
        heads: int = 8,
        feedforward: int = 2048,
        layers: int = 6,
        dropout: float = 0.1,
        smoothing: float = 0.1,
        tokens: int = 65_536,
        folder: str | Path | None = None,
    ) -> None:
        """folder: that holds wmt14/; default SANDBOX_DATA."""
        network = functools.partial(Translator, vocabulary, width, heads, feedforward, layers, dropout)
        super().__init__(
            functools.partial(_wmt14, folder, vocabulary), network, tokens=tokens, smoothing=smoothing, steps=steps
        )

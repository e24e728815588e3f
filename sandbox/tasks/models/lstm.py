"""An LSTM language model with an adaptive softmax (Grave et al. 2017), whose state is carried from batch to batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional


class LanguageModel(nn.Module):
    """Embeddings, `layers` LSTM layers, adaptive softmax; dropout on the embeddings and on the output of each layer.

    vocabulary: number of words, the most frequent first.  embedding, hidden: widths.
    cutoffs: where the clusters of the adaptive softmax begin, in (0, vocabulary), rising; cluster i ≥ 1 has width/4^i.
    tied: words are embedded by the weights of the softmax, in a cluster by both of its matrices; where `hidden` and `embedding`
        differ, a linear layer without bias leads from one to the other before it.
    The buffers h and c hold the state after the last batch; `reset` sets it to zero.  Raises ValueError for impossible sizes.
    """

    h: Tensor
    c: Tensor

    def __init__(
        self,
        vocabulary: int,
        embedding: int,
        hidden: int,
        cutoffs: Sequence[int],
        layers: int = 2,
        dropout: float = 0.1,
        tied: bool = False,
    ) -> None:
        super().__init__()
        width = embedding if tied else hidden
        if width < 4 ** len(cutoffs):
            raise ValueError(f"{len(cutoffs)} cutoffs need a softmax of width {4 ** len(cutoffs)} or more, got {width}")
        self.embedding = None if tied else nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True, dropout=dropout if layers > 1 else 0.0)
        self.narrow = nn.Linear(hidden, embedding, bias=False) if tied and hidden != embedding else nn.Identity()
        self.softmax = nn.AdaptiveLogSoftmaxWithLoss(width, vocabulary, list(cutoffs))
        self.dropout = nn.Dropout(dropout)
        for state in ("h", "c"):
            self.register_buffer(state, torch.zeros(layers, 0, hidden), persistent=False)

    def reset(self) -> None:
        """Forgets what was read: the next batch begins from zero, whatever its size."""
        self.h, self.c = self.h.new_zeros(len(self.h), 0, self.h.shape[2]), self.c.new_zeros(len(self.c), 0, self.c.shape[2])

    def embed(self, x: Tensor) -> Tensor:
        """Words (…) -> (…, embedding)."""
        return self.embedding(x) if self.embedding is not None else tied_embedding(self.softmax, x)

    def read(self, x: Tensor) -> Tensor:
        """Words (n, steps) -> what the softmax is given, (n, steps, width); goes on from the state and leaves a new one."""
        if self.h.shape[1] == 0:
            self.h, self.c = (s.new_zeros(s.shape[0], len(x), s.shape[2]) for s in (self.h, self.c))
        elif self.h.shape[1] != len(x):
            raise ValueError(f"the state is that of {self.h.shape[1]} sequences, got {len(x)}; reset() begins anew")
        out, (h, c) = self.lstm(self.dropout(self.embed(x)), (self.h, self.c))
        self.h, self.c = h.detach(), c.detach()
        return self.narrow(self.dropout(out))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Mean of -log p(y | x and all before), nats a word; x, y: (n, steps)."""
        return self.softmax(self.read(x).flatten(0, 1), y.flatten()).loss

    def log_probabilities(self, x: Tensor) -> Tensor:
        """log p of every word as the next one, (n, steps, vocabulary)."""
        out = self.read(x)
        return self.softmax.log_prob(out.flatten(0, 1)).unflatten(0, out.shape[:2])


def tied_embedding(softmax: nn.AdaptiveLogSoftmaxWithLoss, x: Tensor) -> Tensor:
    """Embeddings (…, in_features) made of the softmax's own weights: W_0[word], and W_i[word] P_i in cluster i."""
    words = x.flatten()
    out = softmax.head.weight.new_zeros(len(words), softmax.in_features)
    for i, (low, high) in enumerate(zip([0, *softmax.cutoffs[:-1]], softmax.cutoffs, strict=True)):
        rows = ((words >= low) & (words < high)).nonzero().squeeze(1)
        if i == 0:
            vectors = functional.embedding(words[rows], softmax.head.weight)
        else:
            project, weight = softmax.tail[i - 1].parameters()
            vectors = functional.embedding(words[rows] - low, weight) @ project
        out = out.index_put((rows,), vectors)
    return out.unflatten(0, x.shape)

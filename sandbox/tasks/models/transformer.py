"""An encoder-decoder Transformer (Vaswani et al. 2017) with one matrix of embeddings for source, target and output."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

PAD, BEGIN, END, UNKNOWN = 0, 1, 2, 3  # words of every vocabulary


def positions(longest: int, width: int) -> Tensor:
    """sin(t/10000^(2i/width)) and cos of the same in turn, (longest, width)."""
    angle = torch.arange(longest)[:, None] / 10_000 ** (torch.arange(0, width, 2) / width)
    return torch.stack((angle.sin(), angle.cos()), dim=2).flatten(1)


class Translator(nn.Module):
    """`layers` encoder and as many decoder layers with normalisation after each sum; sinusoidal positions.

    vocabulary: with the words PAD, BEGIN, END and UNKNOWN first.  width: even, a multiple of `heads`.  longest: of a sequence.
    361,472 parameters for (2,000, 64, 4, 256, 2); 44.1 million without embeddings for width 512, 8 heads, 2048, 6 layers.
    Raises ValueError for impossible sizes and for longer sequences.
    """

    positions: Tensor

    def __init__(
        self,
        vocabulary: int,
        width: int,
        heads: int,
        feedforward: int,
        layers: int,
        dropout: float = 0.1,
        longest: int = 1024,
    ) -> None:
        super().__init__()
        if width % 2 or width % heads:
            raise ValueError(f"width must be even and a multiple of heads, got {width} and {heads} heads")
        self.embedding = nn.Embedding(vocabulary, width, padding_idx=PAD)
        shape = width, heads, feedforward, dropout
        encoder = nn.TransformerEncoderLayer(*shape, batch_first=True)
        self.encoder = nn.TransformerEncoder(encoder, layers, enable_nested_tensor=False)
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(*shape, batch_first=True), layers)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("positions", positions(longest, width), persistent=False)
        for name, p in self.named_parameters():
            if p.ndim == 2 and name != "embedding.weight":
                nn.init.xavier_uniform_(p)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)
        with torch.no_grad():
            self.embedding.weight[PAD].zero_()

    def embed(self, x: Tensor) -> Tensor:
        """Words (n, length) -> √width times their embeddings plus positions, (n, length, width)."""
        if x.shape[1] > len(self.positions):
            raise ValueError(f"sequences may have at most {len(self.positions)} words, got {x.shape[1]}")
        width = self.positions.shape[1]
        return self.dropout(math.sqrt(width) * self.embedding(x) + self.positions[: x.shape[1]])

    def encode(self, source: Tensor) -> Tensor:
        """Source (n, length) -> memory (n, length, width)."""
        return self.encoder(self.embed(source), src_key_padding_mask=source == PAD)

    def decode(self, target: Tensor, memory: Tensor, source: Tensor) -> Tensor:
        """Logits of the word after each of `target` (n, steps) -> (n, steps, vocabulary)."""
        steps = target.shape[1]
        ahead = torch.ones(steps, steps, dtype=torch.bool, device=target.device).triu(1)
        out = self.decoder(
            self.embed(target),
            memory,
            tgt_mask=ahead,
            tgt_key_padding_mask=target == PAD,
            memory_key_padding_mask=source == PAD,
            tgt_is_causal=False,
        )
        return functional.linear(out, self.embedding.weight)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Logits of the word after each of `target`, which begins with BEGIN."""
        return self.decode(target, self.encode(source), source)


def translation_loss(logits: Tensor, y: Tensor, smoothing: float = 0.0) -> Tensor:
    """Mean over the words y ≠ PAD of (1 - s) (-log p(y)) + s times the mean of -log p over all words; s = smoothing."""
    return functional.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=PAD, label_smoothing=smoothing)

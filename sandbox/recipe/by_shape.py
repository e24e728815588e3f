"""A recipe has tensors of every shape: which recipe is whose, at what rate, and what it keeps."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from sandbox.blocks import COLUMNS, LEFT, RIGHT, ROWS, SQUARE, scope
from sandbox.blocks.number import is_function, known
from sandbox.recipe import parts


class ByShape:
    """What a `Composition` is to tensors of different shapes."""

    def check_vectors(self: Any) -> None:
        """Raises TypeError and ValueError for vectors that do not fit."""
        if self.vectors is None:
            return
        if not hasattr(self.vectors, "for_vectors") or self.vectors.vectors is not None:
            raise TypeError(f"vectors must be a Recipe that has no vectors of its own, or None, got {self.vectors!r}")
        if self.vectors.looks_again != self.looks_again:
            raise ValueError("vectors must look again at each batch where the recipe does, and only there")
        if is_function(self.lr) or is_function(self.vectors.lr) or 0.0 in known(self.lr):
            raise ValueError(
                "vectors keep the proportion of their lr to the recipe's: both must be numbers, the recipe's above 0"
            )

    def of(self: Any, p: Tensor) -> Any:
        """The recipe of one tensor."""
        return self.for_vectors if self._apart(p) else self.matrices

    def _apart(self: Any, p: Tensor) -> bool:
        return p.ndim < 2 or (self.basis.limit is not None and max(scope.matrix(p)) > self.basis.limit)

    @functools.cached_property
    def matrices(self: Any) -> Any:
        """The recipe of tensors with two axes or more."""
        return self if self.vectors is None else dataclasses.replace(self, vectors=None)

    @functools.cached_property
    def for_vectors(self: Any) -> Any:
        """The recipe of tensors with fewer."""
        if self.vectors is None:
            changes = {slot: parts.PLAIN[slot] for slot in ("basis", "solve") if getattr(self, slot).matrix}
            return dataclasses.replace(self, **changes) if changes else self
        return self.vectors

    @property
    def only_matrices(self: Any) -> bool:
        """Whether its own basis or solver takes no tensors with fewer than two axes."""
        return self.basis.matrix or self.solve.matrix

    def rate_of(self: Any, p: Tensor, lr: Any) -> Any:
        """η of one tensor's recipe, where this one's is `lr`: a number, a function of t, or None for its own."""
        if self.vectors is None or not self._apart(p) or lr is None:
            return lr
        ratio = self.vectors.lr / self.lr
        return (lambda t: ratio * lr(t)) if is_function(lr) else ratio * lr

    def at_rate(self: Any, lr: float) -> Any:
        """This recipe with another default rate, that of vectors in proportion."""
        if self.vectors is None:
            return dataclasses.replace(self, lr=lr)
        return dataclasses.replace(self, lr=lr, vectors=dataclasses.replace(self.vectors, lr=self.vectors.lr / self.lr * lr))

    def words(self: Any, shapes: Iterable[Sequence[int]]) -> float:
        """State words a parameter of tensors of these shapes: `state_words`, and what blocks keep of rows and columns."""
        kept, numbers = [torch.empty(tuple(shape), device="meta") for shape in shapes], 0
        for p in kept:
            own, (m, n) = self.of(p), scope.matrix(p)
            each = {ROWS: m, COLUMNS: n, LEFT: m * m, RIGHT: n * n, SQUARE: (m * n) ** 2}
            numbers += own.state_words * m * n + sum(each.get(kind, 0) for kind in own.state_kinds().values())
        return numbers / max(sum(p.numel() for p in kept), 1)

    @property
    def words_text(self: Any) -> str:
        """State words a parameter as text; of an (m, n) matrix where they depend on its shape."""
        each = {LEFT: "m/n", RIGHT: "n/m", ROWS: "1/n", COLUMNS: "1/m", SQUARE: "mn"}
        kinds = list(self.state_kinds().values())
        counts = {text: kinds.count(kind) for kind, text in each.items() if kind in kinds}
        return " + ".join(
            [str(self.state_words), *(f"{count if count > 1 else ''} {text}".strip() for text, count in counts.items())]
        )

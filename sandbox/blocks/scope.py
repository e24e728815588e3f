"""Which coordinates share one scalar.

A block never says "the whole tensor": it asks its scope for a sum or a largest magnitude, gets one number per scope, and
spreads it back over the coordinates.  So one equation serves the paper's per-tensor secant constraint, the classical one
over all tensors, one per channel and one per coordinate, and it runs unchanged on a tensor, on many tensors joined, or
on an arena.

    scope        coordinates that share a scalar                      scalars of a (6, 3, 5, 5) tensor
    parameter    one parameter tensor (the paper)                     1
    global       all tensors updated together                         1 (kept once per tensor, all equal)
    channel      each leading index of a tensor                       6
    coordinate   each coordinate on its own                           450
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

NAMES = ("parameter", "global", "channel", "coordinate")


class Scope(Protocol):
    """Sums and maxima over the coordinates that share a scalar, and the way back."""

    def sum(self, x: Tensor) -> Tensor:
        """Sum of `x` over each scope: one number per scope."""
        ...

    def amax(self, x: Tensor) -> Tensor:
        """Largest entry of `x` ≥ 0 over each scope; 0 for an empty one."""
        ...

    def mean(self, x: Tensor) -> Tensor:
        """Mean of `x` over each scope."""
        ...

    def spread(self, s: Tensor) -> Tensor:
        """One number per scope -> something that broadcasts over the coordinates."""
        ...


class OneTensor:
    """The whole of one tensor shares a scalar; `s` has shape ()."""

    def sum(self, x: Tensor) -> Tensor:
        """Σ_j x_j."""
        return x.sum()

    def amax(self, x: Tensor) -> Tensor:
        """max_j x_j, 0 where there is no j."""
        return x.amax() if x.numel() else x.sum()

    def mean(self, x: Tensor) -> Tensor:
        """Mean over the tensor; 0-d input is spread over it anyway, so its mean is itself."""
        return x.mean() if x.numel() else x.sum()

    def spread(self, s: Tensor) -> Tensor:
        """A 0-d tensor broadcasts by itself."""
        return s


class Channel:
    """Each leading index of one tensor shares a scalar; `s` has shape (n, 1, …, 1)."""

    def sum(self, x: Tensor) -> Tensor:
        """Sum over all axes but the first."""
        return x.sum(dim=_trailing(x), keepdim=True) if x.ndim > 1 else x

    def amax(self, x: Tensor) -> Tensor:
        """Maximum over all axes but the first."""
        if x.ndim < 2:
            return x
        return x.amax(dim=_trailing(x), keepdim=True) if x.numel() else self.sum(x)

    def mean(self, x: Tensor) -> Tensor:
        """Mean over all axes but the first."""
        return x.mean(dim=_trailing(x), keepdim=True) if x.ndim > 1 and x.numel() else self.sum(x)

    def spread(self, s: Tensor) -> Tensor:
        """Kept axes broadcast by themselves."""
        return s


class Coordinate:
    """Every coordinate for itself: nothing to sum."""

    def sum(self, x: Tensor) -> Tensor:
        """x."""
        return x

    amax = mean = spread = sum


class Over:
    """A scope, for values that may stand for a whole leaf without having its shape (a spread scalar, a 0-d tensor)."""

    def __init__(self, scope: Scope, like: Tensor) -> None:
        self.scope, self.like = scope, like

    def _whole(self, x: Tensor) -> Tensor:
        return x if x.shape == self.like.shape else x.expand(self.like.shape)

    def sum(self, x: Tensor) -> Tensor:
        """Σ x."""
        return self.scope.sum(self._whole(x))

    def amax(self, x: Tensor) -> Tensor:
        """max x, for x ≥ 0."""
        return self.scope.amax(self._whole(x))

    def mean(self, x: Tensor) -> Tensor:
        """Σ x / Σ 1."""
        return self.scope.mean(self._whole(x))

    def spread(self, s: Tensor) -> Tensor:
        """One number per scope -> something that broadcasts over the coordinates."""
        return self.scope.spread(s)


def _trailing(x: Tensor) -> list[int]:
    return list(range(1, x.ndim))


def of_tensor(name: str) -> Scope:
    """The scope called `name` within one tensor ("global" needs `Joined`, or a single tensor)."""
    kinds: dict[str, type[Scope]] = {"channel": Channel, "coordinate": Coordinate}
    return kinds.get(name, OneTensor)()


def shape_of(name: str, p: Tensor) -> tuple[int, ...]:
    """Shape of the scalars that a scope keeps for the tensor `p`."""
    if name in ("parameter", "global"):
        return ()
    return tuple(p.shape) if name == "coordinate" or p.ndim < 2 else (p.shape[0], *[1] * (p.ndim - 1))


def matrix(p: Tensor) -> tuple[int, int]:
    """(m, n) of a tensor as a matrix: m = shape[0], n all the rest; a vector is one column."""
    return (p.shape[0] if p.ndim else 1), math.prod(p.shape[1:])


def sides(p: Tensor) -> tuple[Tensor, Tensor]:
    """m and n of a matrix (m, n) as 0-d tensors, so that no graph takes a size for granted."""
    return torch.ones_like(p[:, :1]).sum(), torch.ones_like(p[:1]).sum()


class Joined:
    """Several tensors laid end to end in one vector; `tensor` and `everything` are its two scopes.

    Used where one scalar is shared across tensors.  A scope's scalars have shape (number of tensors,).
    """

    def __init__(self, like: Sequence[Tensor]) -> None:
        if len({(p.dtype, p.device) for p in like}) > 1:
            raise ValueError("scope 'global' needs all tensors of a group on one device and in one precision")
        self.shapes = [p.shape for p in like]
        self.sizes = [math.prod(shape) for shape in self.shapes]
        self.tensor: Scope = _Segments(self.sizes)
        self.everything: Scope = _Everything(self.sizes)

    def pack(self, tensors: Sequence[Tensor]) -> Tensor:
        """Tensors of the layout's shapes -> one vector."""
        return torch.cat([p.reshape(-1) for p in tensors])

    def unpack(self, x: Tensor) -> list[Tensor]:
        """The inverse of `pack`."""
        return [part.reshape(shape) for part, shape in zip(x.split(self.sizes), self.shapes, strict=True)]


class _Segments:
    """Each of several joined tensors shares a scalar."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = list(sizes)

    def sum(self, x: Tensor) -> Tensor:
        return torch.stack([part.sum() for part in x.split(self.sizes)])

    def amax(self, x: Tensor) -> Tensor:
        return torch.stack([OneTensor().amax(part) for part in x.split(self.sizes)])

    def mean(self, x: Tensor) -> Tensor:
        return torch.stack([OneTensor().mean(part) for part in x.split(self.sizes)])

    def spread(self, s: Tensor) -> Tensor:
        return torch.cat([s[i].expand(size) for i, size in enumerate(self.sizes)])


class _Everything(_Segments):
    """All of the joined tensors share one scalar, kept once per tensor."""

    def sum(self, x: Tensor) -> Tensor:
        return x.sum().expand(len(self.sizes))

    def amax(self, x: Tensor) -> Tensor:
        return OneTensor().amax(x).expand(len(self.sizes))

    def spread(self, s: Tensor) -> Tensor:
        return s[0]

    def mean(self, x: Tensor) -> Tensor:
        return OneTensor().mean(x).expand(len(self.sizes))

"""Chunk sizes from measured memory: how many vectors at a time fit."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from sandbox.utils.private_torch import TorchDispatchMode, storages


class Meter(TorchDispatchMode):
    """Measures the peak bytes of tensors created inside the context; a kernel's own scratch memory is not counted."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._seen: dict[int, weakref.ref] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given = {*storages((args, kwargs))}
        for key, storage in storages(out).items():
            if key not in given:
                self._add(key, storage)
        return out

    def _add(self, key: int, storage: Any) -> None:
        if key in self._seen:
            return
        nbytes = storage.nbytes()

        def release(_: Any) -> None:
            self.now -= nbytes
            self._seen.pop(key, None)

        self._seen[key] = weakref.ref(storage, release)
        self.now += nbytes
        self.peak = max(self.peak, self.now)


def peak(run: Callable[[], object]) -> int:
    """Returns the most bytes of tensors that `run` holds at once."""
    with Meter() as meter:
        run()
    return meter.peak


# A CPU is fastest with chunks that stay small: 64 MiB beats 256 MiB by a factor of 1.5 on a 4,810-parameter network.
USUAL = 1 << 26


def chunk(run: Callable[[int], object], memory: int | None, most: int, row: int) -> int:
    """Returns how many vectors at a time fit in `memory` bytes, from 1 to `most`; None means 64 MiB, or one vector at least.

    run: the work on k vectors.  row: bytes of one vector; each needs at least two rows, itself and its product.
    Raises ValueError where `memory` is not a positive number of bytes, or not enough for one vector.
    """
    if memory is not None:
        whole("memory (in bytes)", memory)
    one = peak(lambda: run(1))
    if memory is None:
        memory = max(USUAL, one)
    if one > memory:
        raise ValueError(f"memory must be at least {one:,} bytes, what one product takes here, got {memory:,}")
    if most == 1:
        return 1
    more = max(peak(lambda: run(2)) - one, 2 * row)
    return int(min(most, 1 + (memory - one) // more))


def whole(name: str, value: Any, least: int = 1) -> int:
    """Returns `value` if it is a whole number of at least `least`.  Raises ValueError otherwise."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be a whole number, at least {least}, got {value!r}")
    return value


def bytes_of(n: int, dtype: torch.dtype) -> int:
    """Returns the bytes of n numbers."""
    return n * dtype.itemsize

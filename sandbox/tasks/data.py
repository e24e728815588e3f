"""Where batches come from: a DataLoader, a Dataset, tensors, or a function of the seed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from sandbox.tasks.streams import Generators, number
from sandbox.utils.private_torch import pytree

SAMPLE = 20  # batches that stand for a training split that cannot be read in order


def check_source(name: str, source: Any, batch_size: int | None) -> Any:
    """Returns the source of a split, tensors as a Dataset.

    Raises TypeError for what is none, ValueError where `batch_size` is missing or out of place.
    """
    tensors = isinstance(source, Tensor) or (isinstance(source, tuple | list) and all(isinstance(x, Tensor) for x in source))
    if tensors:
        rows = (source,) if isinstance(source, Tensor) else tuple(source)
        if not rows or len({len(x) for x in rows}) != 1 or not len(rows[0]):
            raise ValueError(f"{name}: tensors must have equally many rows, at least one, got {[tuple(x.shape) for x in rows]}")
        source = TensorDataset(*rows)
    if isinstance(source, DataLoader):
        if source.num_workers and source.persistent_workers:
            raise ValueError(f"{name}: persistent_workers carry their random state from run to run; set them to False")
        return source
    if isinstance(source, Dataset):
        if name == "train" and (isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1):
            raise ValueError(f"batch_size must be a whole number of at least 1 for a Dataset or tensors, got {batch_size!r}")
        return source
    if callable(source):
        return source
    raise TypeError(
        f"{name} must be a DataLoader, a Dataset, tensors (or a tuple of them), or a function seed -> iterable of batches, "
        f"got a {type(source).__name__}"
    )


def length(source: Any, batch_size: int | None) -> int | None:
    """Returns the number of updates in an epoch; None where the source has no length."""
    try:
        if isinstance(source, DataLoader):
            return len(source)
        return None if not isinstance(source, Dataset) else max(len(source) // (batch_size or 1), 1)  # type: ignore[arg-type]
    except TypeError:  # an iterable without a length
        return None


def rows_in(source: Any) -> float:
    """Returns the number of rows of a Dataset or of a loader's; infinity for other sources and where it has no length."""
    source = source.dataset if isinstance(source, DataLoader) else source
    try:
        return len(source) if isinstance(source, Dataset) else math.inf  # type: ignore[arg-type]
    except TypeError:
        return math.inf


def epochs(
    source: Any, batch_size: int | None, seed: int, held: Sequence[Any], begin: Callable[[], None] = lambda: None
) -> Iterator[Any]:
    """Yields training batches without end: epoch after epoch, each shuffled and augmented by the seed and its number alone.

    held: the generators that the source holds.  begin: called at the start of each epoch.
    A rest of a Dataset that is too small for a batch is dropped.
    Raises ValueError where an epoch gives no batch.
    """
    draws = Generators(seed, "order", 0, held=held)
    for epoch in itertools.count():
        draws.restart(seed, "order", epoch)
        begin()
        with draws:
            batches = _epoch(source, batch_size, seed, epoch)
        empty = True
        while True:
            with draws:
                batch = next(batches, _END)
            if batch is _END:
                break
            empty = False
            yield batch
        if empty:
            raise ValueError(f"train must give at least one batch an epoch, got none in epoch {epoch + 1} for seed {seed}")


_END = object()


def _epoch(source: Any, batch_size: int | None, seed: int, epoch: int) -> Iterator[Any]:
    if isinstance(source, DataLoader):
        _reseed(source, number(seed, "order", epoch))
        return iter(source)
    if isinstance(source, IterableDataset):
        return iter(DataLoader(source, batch_size=batch_size))
    if isinstance(source, TensorDataset):
        rows = source.tensors
        size = min(batch_size or 1, len(rows[0]))
        order = torch.randperm(len(rows[0]))
        parts = (part for part in order.split(size) if len(part) == size)
        return (rows[0][part] if len(rows) == 1 else tuple(x[part] for x in rows) for part in parts)
    if isinstance(source, Dataset):
        size = min(batch_size or 1, len(source))  # type: ignore[arg-type]
        return iter(DataLoader(source, batch_size=size, shuffle=True, drop_last=True))
    return iter(source(number(seed, "order", epoch)))


def _reseed(loader: DataLoader, seed: int) -> None:
    """Seeds the generators of a loader and its samplers."""
    for owner in (loader, loader.sampler, getattr(loader.batch_sampler, "sampler", None)):
        generator = getattr(owner, "generator", None)
        if isinstance(generator, torch.Generator):
            generator.manual_seed(seed)


def in_order(source: Any, batch_size: int) -> Iterable[Any]:
    """Returns the batches of a split once, from its first row to its last; of a function, those for seed 0."""
    if isinstance(source, DataLoader):
        _reseed(source, 0)
        return source
    if isinstance(source, TensorDataset):
        parts = zip(*(x.split(batch_size) for x in source.tensors), strict=True)
        return (part[0] if len(part) == 1 else part for part in parts)
    if isinstance(source, Dataset):
        return DataLoader(source, batch_size=batch_size)
    return source(0)


def some(source: Any, count: int) -> Any:
    """Returns a Dataset of `count` rows of a Dataset, drawn at random, the same each time."""
    draw = torch.Generator().manual_seed(0)
    rows = torch.randperm(len(source), generator=draw)[:count].sort().values
    if isinstance(source, TensorDataset):
        return TensorDataset(*(x[rows] for x in source.tensors))
    return Subset(source, rows.tolist())


def sample(source: Any, batch_size: int | None, held: Sequence[Any]) -> list[Any]:
    """Returns the first `SAMPLE` batches of a stream that belongs to no run, for a training split without an order."""
    with Generators(0, "sample", held=held):
        return list(itertools.islice(_epoch(source, batch_size, 0, 0), SAMPLE))


def rows_of(batch: Any) -> int:
    """Returns the length of the batch's first tensor; 1 where it has none."""
    tensors = [x for x in pytree.tree_leaves(batch) if isinstance(x, Tensor)]
    return len(tensors[0]) if tensors and tensors[0].ndim else 1


def concatenate(batches: Iterable[Any]) -> Any:
    """Returns all batches as one.  Raises ValueError where they are no trees of tensors with rows."""
    parts = list(batches)
    if len(parts) == 1:
        return parts[0]
    try:
        return pytree.tree_map(lambda *rows: torch.cat(rows), *parts)
    except (RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"the batches of this split cannot be joined into one: {error}") from error

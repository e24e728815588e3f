"""Random streams: one for each use of randomness and each seed, so that none depends on how much another has drawn.

`stream` is for code that takes a generator.  `Generators` is for code that draws from Python's, NumPy's and torch's own global
generators, as layers, data sets and loaders do: it lends them its states and puts the old ones back afterwards.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from sandbox.utils import generators
from sandbox.utils.private_torch import pytree

_STREAMS = {"init": 0, "order": 1, "noise": 2}


def stream(seed: int, use: str) -> np.random.Generator:
    """Returns the random stream of one use ("init", "order" or "noise") for one seed."""
    return np.random.default_rng([seed, _STREAMS[use]])


def number(seed: int, *use: str | int) -> int:
    """Returns a seed in [0, 2³²) for one use of a run's seed; different uses give independent ones."""
    text = repr((int(seed), *use))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


class Generators:
    """States of the global generators of Python, NumPy and torch (the CPU's, and those of the CUDA devices in use).

        noise = Generators(seed, "dropout")
        with noise:
            ...  # draws from `noise`; whoever draws elsewhere is not disturbed

    The next `with` goes on where the last one ended; `restart(…)` begins again from another seed.
    held: generators of a task's own (`sandbox.utils.generators.held_by`), which are lent states in the same way.
    """

    def __init__(self, seed: int, *use: str | int, held: Sequence[Any] = ()) -> None:
        self._outer: list[Any] = []
        self._held = held
        self.restart(seed, *use)

    def restart(self, seed: int, *use: str | int) -> None:
        """Begins again; takes effect with the next `with`."""
        before = self.mark()
        start = number(seed, *use)
        random.seed(start)
        np.random.seed(start)  # noqa: NPY002 - the global generator is the one that others draw from
        torch.manual_seed(start)
        for k, generator in enumerate(self._held):
            generators.seed(generator, number(seed, *use, "held", k))
        self._states = self.mark()
        self.back_to(before)

    def mark(self) -> Any:
        """Returns where the stream stands, inside a `with`."""
        return generators.states(self._held)

    def back_to(self, mark: Any) -> None:
        """Goes on from a `mark`, inside a `with`."""
        generators.put(mark, self._held)

    def __enter__(self) -> Generators:
        self._outer.append(self.mark())
        self.back_to(self._states)
        return self

    def __exit__(self, *error: object) -> None:
        self._states = self.mark()
        self.back_to(self._outer.pop())


def draws(function: Callable[[], Any], held: Sequence[Any] = ()) -> bool:
    """Whether a call draws from the global generators or from those in `held`; all of them are put back."""
    with Generators(0, "noise", held=held) as noise:
        before = _numbers(noise.mark())
        with torch.no_grad():
            function()
        return _numbers(noise.mark()) != before


def _numbers(states: Any) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in pytree.tree_leaves(states)]

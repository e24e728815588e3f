"""The states of the global random generators: Python's, NumPy's, and torch's on the CPU and on the CUDA devices in use."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch


def states() -> Any:
    """Returns the states of all generators, for `put`."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() and torch.cuda.is_initialized() else None
    return random.getstate(), np.random.get_state(), torch.get_rng_state(), cuda  # noqa: NPY002


def put(saved: Any) -> None:
    """Restores what `states` returned."""
    python, numpy, cpu, cuda = saved
    random.setstate(python)
    np.random.set_state(numpy)  # noqa: NPY002
    torch.set_rng_state(cpu)
    if cuda is not None:
        torch.cuda.set_rng_state_all(cuda)


@contextlib.contextmanager
def restored() -> Iterator[None]:
    """A context after which the generators stand where they stood before it."""
    before = states()
    try:
        yield
    finally:
        put(before)

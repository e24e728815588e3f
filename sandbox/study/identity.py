"""What a run depends on beside its settings: the task with its options and data, and the code.

So a result on disk is only taken for a run that would give it again: another noise, another data set, or an edited block makes
another run.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sandbox.recipe import Recipe
from sandbox.tasks import Task

# What determines a run's numbers in this package; reports, tables and the command line do not.
_FILES = (
    "blocks/*.py",
    "backends/*.py",
    "tasks/*.py",
    "kernel.py",
    "recipe.py",
    "parts.py",
    "scope.py",
    "optimizer.py",
    "hessian.py",
)
_MORE = ("schedules.py", "study/run.py", "study/together.py", "ensemble/*.py", "probes/*.py")


def code(recipe: Recipe, task: Task) -> str:
    """Twelve digits of the source of this package and of the modules that define the recipe's blocks and the task."""
    classes = {type(task), *(type(block) for _, block in recipe.blocks())}
    modules = sorted({c.__module__ for c in classes if c.__module__.split(".")[0] != "sandbox"})
    digest = hashlib.sha256(_package().encode())
    for name in modules:
        digest.update(_source(name))
    return digest.hexdigest()[:12]


@functools.cache
def _package() -> str:
    home = Path(__file__).parent.parent
    files = sorted(path for pattern in (*_FILES, *_MORE) for path in home.glob(pattern))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def _source(module: str) -> bytes:
    try:
        return inspect.getsource(sys.modules[module]).encode()
    except (OSError, TypeError, KeyError):  # typed into a notebook or shell: no file to read
        return module.encode()


def task(made: Task) -> str:
    """Twelve digits of a task's class and of everything that the instance holds."""
    digest = hashlib.sha256(f"{type(made).__module__}:{type(made).__qualname__}".encode())
    for part in _parts(vars(made)):
        digest.update(part)
    return digest.hexdigest()[:12]


def _parts(value: Any) -> Iterator[bytes]:
    if isinstance(value, dict):
        for key in sorted(value, key=str):
            yield str(key).encode()
            yield from _parts(value[key])
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _parts(item)
    elif isinstance(value, torch.nn.Module):
        yield str(value).encode()
        yield from _parts({name: list(p.shape) for name, p in value.named_parameters()})
    elif isinstance(value, torch.Tensor):
        yield f"{value.dtype}{tuple(value.shape)}".encode()
        yield (
            value.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()
            if value.numel() and value.ndim
            else repr(value.tolist()).encode()
        )
    elif isinstance(value, np.ndarray):
        yield f"{value.dtype}{value.shape}".encode()
        yield np.ascontiguousarray(value).tobytes()
    elif value is None or isinstance(value, str | int | float | bool | torch.dtype):
        yield repr(value).encode()
    else:
        yield f"{type(value).__module__}:{type(value).__qualname__}".encode()

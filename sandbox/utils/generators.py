"""The states of random generators: the global ones of Python, NumPy and torch, and those that objects hold."""

from __future__ import annotations

import contextlib
import gc
import random
import types
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

KINDS = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)
_GLOBAL = (random.random.__self__, np.random.rand.__self__, torch.default_generator)  # type: ignore[attr-defined]
_CLOSED = (type, types.ModuleType, types.FrameType, types.CodeType, torch.Tensor, np.ndarray)


def states(held: Sequence[Any] = ()) -> Any:
    """Returns the states of the global generators (CUDA's where it is in use) and of those in `held`, for `put`."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() and torch.cuda.is_initialized() else None
    own = [_state(generator) for generator in held]
    return random.getstate(), np.random.get_state(), torch.get_rng_state(), cuda, own  # noqa: NPY002


def put(saved: Any, held: Sequence[Any] = ()) -> None:
    """Sets the states that `states(held)` returned."""
    python, numpy, cpu, cuda, own = saved
    random.setstate(python)
    np.random.set_state(numpy)  # noqa: NPY002
    torch.set_rng_state(cpu)
    if cuda is not None:
        torch.cuda.set_rng_state_all(cuda)
    for generator, state in zip(held, own, strict=True):
        if isinstance(generator, random.Random):
            generator.setstate(state)
        elif isinstance(generator, np.random.Generator):
            generator.bit_generator.state = state
        else:
            generator.set_state(state)


@contextlib.contextmanager
def restored() -> Iterator[None]:
    """A context after which the generators stand where they stood before it."""
    before = states()
    try:
        yield
    finally:
        put(before)


def _state(generator: Any) -> Any:
    if isinstance(generator, random.Random):
        return generator.getstate()
    return generator.bit_generator.state if isinstance(generator, np.random.Generator) else generator.get_state()


def seed(generator: Any, number: int) -> None:
    """Seeds a generator of any of `KINDS` with a number in [0, 2³²)."""
    if isinstance(generator, torch.Generator):
        generator.manual_seed(number)
    elif isinstance(generator, np.random.Generator):
        bits = generator.bit_generator
        bits.state = type(bits)(number).state
    else:
        generator.seed(number)


def held_by(root: Any, without: Iterable[Any] = ()) -> list[Any]:
    """Returns the generators that an object reaches, always in the same order, without the global ones.

    Searched are attributes, containers, closures, default arguments, and the globals and class attributes that functions
    and methods name.  Not searched are modules and the objects in `without`; a `random.SystemRandom` is left out,
    since nothing can repeat it.
    """
    seen = {id(value): value for value in without}
    generators, waiting = list[Any](), [root]
    while waiting:
        value = waiting.pop()
        if id(value) in seen or not (gc.is_tracked(value) or isinstance(value, KINDS)) or isinstance(value, _CLOSED):
            continue
        seen[id(value)] = value
        if isinstance(value, KINDS):
            generators += [] if isinstance(value, random.SystemRandom) or value in _GLOBAL else [value]
        elif isinstance(value, types.FunctionType):
            waiting += [*_globals(value), value.__defaults__, value.__kwdefaults__, value.__closure__]
        else:
            kind = type(value)
            waiting += gc.get_referents(value) if id(kind) in seen else [*_of_class(kind), *gc.get_referents(value)]
            seen[id(kind)] = kind
    return generators


def _of_class(kind: type) -> list[Any]:
    """Returns the generators among a class's attributes and among the globals that its methods name."""
    values = [value for each in kind.__mro__ for value in vars(each).values()]
    functions = [getattr(value, "__func__", getattr(value, "fget", value)) for value in values]
    named = [value for f in functions if isinstance(f, types.FunctionType) for value in _globals(f)]
    return [value for value in (*values, *named) if isinstance(value, KINDS)]


def _globals(function: types.FunctionType) -> list[Any]:
    """Returns the generators among the globals that a function names."""
    codes, values = [function.__code__], list[Any]()
    while codes:
        code = codes.pop()
        codes += [value for value in code.co_consts if isinstance(value, types.CodeType)]
        values += [value for name in code.co_names if isinstance(value := function.__globals__.get(name), KINDS)]
    return values

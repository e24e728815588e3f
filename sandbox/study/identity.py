"""What a run depends on beside its settings: the task with its options and data, and the code.

So a result on disk is only taken for a run that would give it again: another noise, another data set, or an edited block makes
another run.  A class or function outside of this package and of what is installed counts with the whole file of its module and
of the user's modules that this one takes from, with its bytecode, and with all that it refers to: base classes, closures,
defaults, globals.  What cannot be told (an open file, a lock, a generator half way) makes a random identity: nothing is then
taken from disk.
"""

from __future__ import annotations

import dataclasses
import dis
import functools
import hashlib
import importlib.util
import secrets
import site
import sys
import sysconfig
import types
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sandbox.blocks import Block
from sandbox.probes import measures
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
    """Twelve digits of the source of this package, and of the code of the recipe's blocks and functions and of the task."""
    fields = {f.name: getattr(recipe, f.name) for f in dataclasses.fields(recipe) if f.name not in ("name", "lr")}
    functions = recipe.lr if callable(recipe.lr) and not isinstance(recipe.lr, torch.Tensor) else None
    return _digest((_package(), fields, functions, type(task)))


def task(made: Task) -> str:
    """Twelve digits of a task's class and of everything that the instance holds."""
    return _digest(made)


def probe(name: str, measure: Callable[..., Any]) -> str:
    """A probe's name; for one that is not this package's, with twelve digits of its code."""
    return name if measures.ALL.get(name) is measure else f"{name}:{_digest(measure)}"


@functools.cache
def _package() -> str:
    home = Path(__file__).parent.parent
    files = sorted(path for pattern in (*_FILES, *_MORE) for path in home.glob(pattern))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def _digest(value: Any) -> str:
    """Twelve digits that are the same in every process; random ones for what cannot be told."""
    digest = hashlib.sha256()
    try:
        for part in _Walk().parts(value):
            digest.update(part)
    except Exception:  # whatever pickling an unknown object raises
        return secrets.token_hex(6)
    return digest.hexdigest()[:12]


_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...), torch.dtype, torch.device, torch.Size, range)
# What a class holds that says nothing of what it does, or is said by its bases.
_SILENT = ("__dict__", "__weakref__", "__doc__", "__annotations__", "__dataclass_fields__", "__dataclass_params__", "_abc_impl")


class _Walk:
    """One walk through a value, as bytes; what was seen before counts as its number."""

    def __init__(self) -> None:
        self.seen: dict[int, tuple[int, Any]] = {}  # by id; the values are kept, so that no id is used again
        self.files: set[str] = set()

    def parts(self, value: Any) -> Iterator[bytes]:
        """The bytes of a value.  Raises what pickling it raises, where it has no form of its own here."""
        if isinstance(value, _PLAIN):
            yield f"{type(value).__name__} {value!r};".encode()
            return
        if id(value) in self.seen:
            yield f"again {self.seen[id(value)][0]};".encode()
            return
        if not isinstance(value, tuple | frozenset | types.CodeType):  # constants: whether equal ones are one object varies
            self.seen[id(value)] = len(self.seen), value
        yield f"{type(value).__name__}(".encode()
        if isinstance(value, torch.Tensor):
            yield from _tensor(value)
        elif isinstance(value, np.ndarray) and value.dtype != object:
            yield f"{value.dtype}{value.shape}".encode()
            yield np.ascontiguousarray(value).tobytes()
        elif type(value) in (list, tuple) and all(type(v) in _PLAIN for v in value):
            yield repr(value).encode()
        elif type(value) in (list, tuple):
            for item in value:
                yield from self.parts(item)
        elif type(value) in (dict, types.MappingProxyType):
            for key in sorted(value, key=str):
                yield from self.parts(key)
                yield from self.parts(value[key])
        elif type(value) in (set, frozenset):
            yield repr(sorted(map(_digest, value))).encode()
        elif isinstance(value, types.ModuleType):
            yield from self.module(value.__name__)
        elif isinstance(value, type):
            yield from self.kind(value)
        elif isinstance(value, types.FunctionType):
            yield from self.function(value)
        elif isinstance(value, types.CodeType):
            yield from self.bytecode(value)
        else:
            yield from self.object(value)
        yield b")"

    def object(self, value: Any) -> Iterator[bytes]:
        """Anything else: what it wraps, a block's numbers, or what it would be pickled as."""
        inside: Iterable[Any]
        if isinstance(value, types.MethodType):
            inside = value.__func__, value.__self__
        elif isinstance(value, staticmethod | classmethod):
            inside = (value.__func__,)
        elif isinstance(value, property):
            inside = value.fget, value.fset, value.fdel
        elif isinstance(value, functools.cached_property):
            inside = (value.func,)
        elif isinstance(value, types.BuiltinFunctionType) and not isinstance(value.__self__, types.ModuleType | None):
            inside = value.__name__, value.__self__
        elif isinstance(value, Block):  # its fields alone, not what it has computed from them
            inside = type(value), *(getattr(value, f.name) for f in dataclasses.fields(value))  # type: ignore[arg-type]
        elif hasattr(value, "__wrapped__") and hasattr(value, "__qualname__"):  # decorated, as by functools.cache
            inside = value.__qualname__, value.__wrapped__
        else:
            reduced = value.__reduce_ex__(4)
            if isinstance(reduced, str):  # found by its name
                yield f"{getattr(value, '__module__', '')}:{reduced}".encode()
                return
            inside = [list(part) if isinstance(part, Iterator) else part for part in reduced]
        for part in inside:
            yield from self.parts(part)

    def kind(self, value: type) -> Iterator[bytes]:
        """A class: its name, and, where a user wrote it, its module's file, its members and its bases."""
        yield f"{value.__module__}:{value.__qualname__}".encode()
        if not _own(value.__module__):
            return
        yield from self.module(value.__module__)
        for name, member in sorted(vars(value).items()):
            if name not in _SILENT and not isinstance(member, types.MemberDescriptorType | types.GetSetDescriptorType):
                yield name.encode()
                yield from self.parts(member)
        for base in value.__bases__:
            yield from self.parts(base)

    def function(self, value: types.FunctionType) -> Iterator[bytes]:
        """A function: its name, and, where a user wrote it, its module's file, its bytecode and all that it refers to."""
        home = value.__module__ or "?"
        yield f"{home}:{value.__qualname__}".encode()
        if not _own(home):
            return
        yield from self.module(home)
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        yield from self.parts([value.__code__, value.__defaults__, value.__kwdefaults__, vars(value), cells])
        for name in sorted(_names(value.__code__, "IMPORT_NAME")):
            yield from self.module(name)
        for name in sorted(_names(value.__code__, "LOAD_GLOBAL", "LOAD_NAME")):
            if name in value.__globals__:
                yield name.encode()
                yield from self.parts(value.__globals__[name])

    def bytecode(self, value: types.CodeType) -> Iterator[bytes]:
        """What a function does, whether or not there is a file with its source."""
        yield value.co_code
        yield from self.parts([value.co_names, value.co_varnames, value.co_freevars, list(value.co_consts)])

    def module(self, name: str) -> Iterator[bytes]:
        """A module's name; the first time, where a user wrote it, its file and those of the modules that it takes from."""
        yield name.encode()
        if name in self.files or not _own(name):
            return
        self.files.add(name)
        file = _file(name)  # none where it was typed into a notebook or shell
        if file is None:
            return
        yield Path(file).read_bytes()
        for _, value in sorted(vars(sys.modules[name]).items() if name in sys.modules else ()):
            home = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
            if isinstance(home, str) and home in sys.modules:
                yield from self.module(home)


def _tensor(value: torch.Tensor) -> Iterator[bytes]:
    yield f"{value.dtype}{tuple(value.shape)}{value.device.type if value.is_meta else ''}".encode()
    if not value.is_meta:
        yield value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _names(code: types.CodeType, *operations: str) -> set[str]:
    """The names that a function, and the functions in it, use in some operations of the interpreter."""
    inner = [_names(c, *operations) for c in code.co_consts if isinstance(c, types.CodeType)]
    return {i.argval for i in dis.get_instructions(code) if i.opname in operations}.union(*inner)


def _file(module: str) -> str | None:
    """A module's file, imported or not."""
    if module in sys.modules:
        return getattr(sys.modules[module], "__file__", None)
    try:
        found = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    return found.origin if found else None


@functools.cache
def _installed() -> tuple[Path, ...]:
    paths = [*(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")), *site.getsitepackages()]
    return tuple({Path(path).resolve() for path in [*paths, site.getusersitepackages()] if path})


@functools.cache
def _own(module: str) -> bool:
    """Whether a user wrote a module: it is none of this package's, of Python's, nor of what is installed."""
    if module == "__main__":  # a script, a notebook's cells, a shell; also where an installed program runs them
        return True
    top = module.partition(".")[0]
    if top == "sandbox" or top in sys.stdlib_module_names:
        return False
    file = _file(module)
    return file is None or not any(Path(file).resolve().is_relative_to(home) for home in _installed())

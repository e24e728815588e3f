"""Fingerprints of code and data: a stored result stands for a run where these are the same.

Counted are this package's source and version and torch's version, and of everything that a run uses (blocks, task, optimizer,
schedule, probes) the source file of the module it comes from, if a user wrote that, with the user's modules that the file
imports, and what the task holds: numbers, texts, tensors, arrays, containers and plain objects of these.  Sources count
without comments and docstrings.  Not counted is what lies outside of all that: a file that the code reads, say.

What comes from `__main__`, a shell or a notebook has no source that can be trusted: it is run again, unless `reuse` is set.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import hashlib
import importlib.util
import secrets
import site
import sys
import sysconfig
import types
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from sandbox.blocks import Block
from sandbox.utils import imports

# What does not change a run's numbers: how they are shown and requested.
_SHOWN = ("cli", "reports", "calibrate.py", "describe.py", "callbacks.py", "literal.py", "progress.py", "verdicts")


def fingerprint(value: Any, reuse: bool = False) -> str:
    """Returns twelve digits of a value, the same in every process; random ones where it cannot be identified.

    reuse: identify what comes from `__main__` by its name and bytecode.
    """
    return fingerprint_or_none(value, reuse) or secrets.token_hex(6)


def fingerprint_or_none(value: Any, reuse: bool = False) -> str | None:
    """Returns the same digits, or None where the value cannot be identified."""
    digest = hashlib.sha256()
    try:
        for part in _Walk(reuse).parts(value):
            digest.update(part)
    except _Unidentifiable:
        return None
    return digest.hexdigest()[:12]


@functools.cache
def package() -> str:
    """Returns twelve digits of this package's source and torch's version."""
    home = imports.PACKAGE
    files = [path for path in sorted(home.rglob("*.py")) if not set(path.relative_to(home).parts) & set(_SHOWN)]
    text = metadata.version("torch") + "".join(_source(path) for path in files)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


class _Unidentifiable(Exception):
    """Raised for a value that has no stable identity."""


_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...), torch.dtype, torch.device, torch.Size, range)


class _Walk:
    """One walk through a value, as bytes; an object met again counts as the number of its first visit."""

    def __init__(self, reuse: bool) -> None:
        self.reuse, self.seen, self.files = reuse, dict[int, tuple[int, Any]](), set[str]()

    def parts(self, value: Any) -> Iterator[bytes]:
        if isinstance(value, _PLAIN):
            yield f"{type(value).__name__} {value!r};".encode()
            return
        if id(value) in self.seen:
            yield f"again {self.seen[id(value)][0]};".encode()
            return
        if not isinstance(value, tuple | frozenset):  # whether equal constants are one object varies
            self.seen[id(value)] = len(self.seen), value
        yield f"{type(value).__name__}(".encode()
        if isinstance(value, torch.Tensor):
            yield f"{value.dtype}{tuple(value.shape)}".encode()
            if not value.is_meta:
                yield value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        elif isinstance(value, torch.Generator):
            yield str(value.device).encode()  # a loader's: each run seeds it
        elif isinstance(value, np.ndarray) and value.dtype != object:
            yield f"{value.dtype}{value.shape}".encode() + np.ascontiguousarray(value).tobytes()
        elif isinstance(value, list | tuple):
            for item in value:
                yield from self.parts(item)
        elif isinstance(value, dict):
            for key in sorted(value, key=str):
                yield from self.parts(key)
                yield from self.parts(value[key])
        elif isinstance(value, set | frozenset):
            yield repr(sorted(fingerprint(item, self.reuse) for item in value)).encode()
        elif isinstance(value, types.ModuleType):
            yield from self.module(value.__name__)
        elif isinstance(value, type):
            yield from self.module(value.__module__)
            yield value.__qualname__.encode()
        elif isinstance(value, types.FunctionType):
            yield from self.function(value)
        elif isinstance(value, types.MethodType):
            yield from self.parts([value.__func__.__qualname__, value.__self__])
        elif isinstance(value, types.BuiltinFunctionType):
            yield f"{value.__module__}:{value.__qualname__}".encode()
        elif isinstance(value, functools.partial):
            yield from self.parts([value.func, value.args, value.keywords])
        else:
            yield from self.object(value)
        yield b")"

    def function(self, value: types.FunctionType) -> Iterator[bytes]:
        """Yields a function's module, name, closure, and bytecode, which tells lambdas of one file apart."""
        yield from self.module(value.__module__ or "__main__")
        yield value.__qualname__.encode()
        if by_user(value.__module__ or "__main__"):
            yield from self.parts(_bytecode(value.__code__))
            cells = [cell.cell_contents for cell in value.__closure__ or ()]
            yield from self.parts([value.__defaults__, value.__kwdefaults__, cells])

    def object(self, value: Any) -> Iterator[bytes]:
        """Yields an object's class and content: a block's numbers, the attributes of anything else."""
        yield from self.parts(type(value))
        if isinstance(value, Block):
            content: Any = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}  # type: ignore[arg-type]
        elif isinstance(value, DataLoader):  # and not its position in the data
            names = "dataset batch_size drop_last sampler batch_sampler collate_fn num_workers worker_init_fn"
            content = [getattr(value, name) for name in names.split()]
        elif isinstance(value, np.random.Generator):
            content = value.bit_generator.state
        elif hasattr(value, "__dict__"):
            state = value.__getstate__()
            content = state if isinstance(state, dict) else vars(value)
        elif isinstance(value, np.generic):
            content = value.item()
        else:
            raise _Unidentifiable
        yield from self.parts(content)

    def module(self, name: str) -> Iterator[bytes]:
        """Yields a module's name; for a user's module, the first time, also its source and that of its imports by users."""
        yield name.encode()
        if name in self.files or not by_user(name):
            return
        self.files.add(name)
        file = _file(name)
        if name == "__main__" or file is None:
            if not self.reuse:
                raise _Unidentifiable
            return
        path = Path(file)
        if path.suffix != ".py":  # a compiled extension
            yield hashlib.sha256(path.read_bytes()).digest()
            return
        yield _source(path).encode()
        for imported in _imports(name, path):
            yield from self.module(imported)


def _bytecode(code: types.CodeType) -> list[Any]:
    constants = list(code.co_consts)
    if constants and isinstance(constants[0], str) and not code.co_name.startswith("<"):
        del constants[0]  # where a function's docstring stands
    return [code.co_code.hex(), code.co_names, code.co_varnames, [_constant(c) for c in constants]]


def _constant(value: Any) -> Any:
    if isinstance(value, types.CodeType):
        return _bytecode(value)
    if isinstance(value, tuple):
        return [_constant(v) for v in value]
    return sorted(map(repr, value)) if isinstance(value, frozenset) else repr(value)


def _source(path: Path) -> str:
    """Returns a module's source as a syntax tree, without comments, docstrings and line numbers."""
    tree = ast.parse(path.read_bytes())
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and ast.get_docstring(node) is not None
        ):
            del node.body[0]
    return ast.dump(tree)


def _imports(name: str, path: Path) -> list[str]:
    """Returns the names of the user's modules that a file imports."""
    names = set()
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = package.split(".")
                base = ".".join([*parts[: len(parts) - node.level + 1], *([base] if base else [])])
            names |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    return sorted(name for name in names if name and by_user(name) and _file(name))


def _file(module: str) -> str | None:
    """Returns a module's file, whether it is imported yet or not."""
    if module in sys.modules:
        return getattr(sys.modules[module], "__file__", None)
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError, AttributeError):
        return None
    return spec.origin if spec and spec.has_location else None


@functools.cache
def installed() -> tuple[Path, ...]:
    """Returns the folders of Python and its packages."""
    paths = [*(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")), *site.getsitepackages()]
    return tuple({Path(path).resolve() for path in [*paths, site.getusersitepackages()] if path})


def by_user(module: str) -> bool:
    """Whether a user wrote a module: it belongs neither to this package, nor to Python or an installed package."""
    if module == "__main__":
        return True
    top = module.partition(".")[0]
    if top in ("sandbox", "variants", "theory_checks") or top in sys.stdlib_module_names:
        return False
    file = _file(module)
    if file is None:
        return module in sys.modules or importlib.util.find_spec(top) is None
    return not any(Path(file).resolve().is_relative_to(home) for home in installed())

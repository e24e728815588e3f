"""From what a user names to a recipe: a variant's name, a TOML file, "module:attribute" or "file.py:attribute"."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from sandbox.forms import toml
from sandbox.recipe import Recipe
from sandbox.utils import imports


def recipe(what: str | Recipe) -> Recipe:
    """The recipe meant by `what`.

    A Recipe is itself.  A text ending in .toml is a file; one with a colon is "module:attribute" or "file.py:attribute" (a
    Recipe or a function that returns one; modules in the working directory, and beside the file, can be imported); everything
    else is a name of `variants`.
    Raises ValueError for what is none of these, FileNotFoundError for a missing file, and ImportError where a folder or module
    of the user's hides one of this package.
    """
    if isinstance(what, Recipe):
        return what
    if not isinstance(what, str):
        raise TypeError(
            f"a recipe is a Recipe, a variant's name, a TOML file, 'module:attribute' or 'file.py:attribute', got {what!r}"
        )
    if what.endswith(".toml"):
        path = Path(what)
        if not path.is_file():
            raise FileNotFoundError(f"no recipe file {what!r} in {Path.cwd()}")
        imports.importable(str(path.resolve().parent))
        try:
            return toml.loads(path.read_text())
        except (ValueError, TypeError) as error:
            raise ValueError(f"{what}: {error}") from error
    if ":" in what:
        return _attribute(what)
    variant: Recipe = package("variants").get(what)
    return variant


def package(name: str) -> ModuleType:
    """`variants` or `theory_checks`: the one beside this package, whatever folder of that name comes first on the path.

    Raises ImportError where another one has been imported already.
    """
    home = HOME / name
    if _BESIDE not in sys.meta_path:
        sys.meta_path.insert(0, _BESIDE)
    _BESIDE.names.add(name)
    module = importlib.import_module(name)  # waits for another thread that is importing it
    if home.resolve() not in (folders := _folders(module)):
        raise ImportError(f"{name!r} was imported from {folders[0]}, which hides {home}; rename the former")
    return module


HOME = imports.PACKAGE.parent  # where the packages lie


class _Beside(importlib.abc.MetaPathFinder):
    """Finds packages beside this one, before the path is searched, once they have been requested by name."""

    def __init__(self) -> None:
        self.names = set[str]()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.PathFinder.find_spec(name, [str(HOME)]) if name in self.names else None


_BESIDE = _Beside()


def _folders(module: ModuleType) -> list[Path]:
    """Where a package, or the file of a module, lies."""
    return [Path(folder).resolve() for folder in getattr(module, "__path__", None) or [module.__file__ or module.__name__]]


def _attribute(path: str) -> Recipe:
    here = Path.cwd()
    if here != HOME.resolve() and ((here / "sandbox").exists() or (here / "sandbox.py").exists()):
        raise ImportError(f"{here} contains another 'sandbox', which would hide this package: rename it, or work elsewhere")
    if not {"", str(here)} & set(sys.path):
        sys.path.insert(0, str(here))
    package("variants")  # before a folder called so in the working directory
    top = path.partition(":")[0].partition(".")[0]
    try:
        target = imports.attribute(path)
    except ValueError as error:
        module = sys.modules.get(top)
        if module is None or not (here / top).exists() or (here / top).resolve() in _folders(module):
            raise
        raise ValueError(f"{error} ({top!r} is the one in {_folders(module)[0]}, not the folder {here / top})") from error
    value = target() if callable(target) and not isinstance(target, Recipe) else target
    if not isinstance(value, Recipe):
        raise ValueError(f"{path!r} is a {type(value).__name__}, not a Recipe")
    return value

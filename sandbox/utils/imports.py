"""Objects from import paths: "module:attribute" or "file.py:attribute"."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

from sandbox.utils import suggest

PACKAGE = Path(__file__).parents[1]  # the folder of this package


def attribute(path: str) -> Any:
    """Returns the object that a path names; the working directory, and a file's own folder, are importable then.

    Raises ValueError where there is no such thing, or importing it fails; FileNotFoundError for a missing file.
    """
    where, _, name = path.rpartition(":")
    try:
        module: Any = _file(Path(where)) if where.endswith(".py") else _module(where)
        value = module
        for part in name.split("."):
            if not hasattr(value, part):
                raise ValueError(
                    f"cannot import {path!r}: {suggest.unknown('attribute', part, [n for n in dir(value) if n[0] != '_'])}"
                )
            value = getattr(value, part)
        return value
    except (ValueError, FileNotFoundError):
        raise
    except Exception as error:  # whatever a user's module raises when it is imported
        raise ValueError(f"cannot import {path!r}: {suggest.short(error)}") from error


def _module(name: str) -> Any:
    importable(os.getcwd())
    return importlib.import_module(name)


def _file(path: Path) -> Any:
    if not path.is_file():
        raise FileNotFoundError(f"no file {str(path)!r} in {Path.cwd()}")
    path = path.resolve()
    importable(str(path.parent))
    loaded = sys.modules.get(path.stem)
    if loaded is not None and getattr(loaded, "__file__", None) != str(path):
        raise ValueError(
            f"cannot import {str(path)!r}: a module called {path.stem!r} is there already; give the file another name"
        )
    return importlib.import_module(path.stem)


def importable(folder: str) -> None:
    """Appends a folder to Python's path."""
    if folder not in sys.path:
        sys.path.append(folder)

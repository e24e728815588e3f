"""What a user names on the command line: file.py:attribute or module:attribute."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any


def given(what: str) -> Any:
    """The object that "file.py:attribute" or "module:attribute" names; any other text as it is.

    The working directory is importable.  Raises FileNotFoundError for a missing file; ValueError for a module that cannot be
    imported or an attribute that it lacks, with the nearest name.
    """
    from sandbox import suggest

    where, colon, name = what.rpartition(":")
    if not colon or what.endswith(".toml"):
        return what
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        module = _file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
    except FileNotFoundError:
        raise
    except Exception as error:
        raise ValueError(f"{where!r} cannot be imported: {suggest.short(error)}") from error
    if not hasattr(module, name):
        raise ValueError(suggest.unknown(f"attribute of {where}", name, [n for n in vars(module) if not n.startswith("_")]))
    return getattr(module, name)


def _file(path: Path) -> Any:
    if not path.is_file():
        raise FileNotFoundError(f"no file {str(path)!r} in {Path.cwd()}")
    name = path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module

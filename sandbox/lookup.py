"""From what a user names to a recipe: a variant's name, a TOML file, or "module:attribute"."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from sandbox.forms import toml
from sandbox.recipe import Recipe


def recipe(what: str | Recipe) -> Recipe:
    """The recipe meant by `what`.

    A Recipe is itself.  A text ending in .toml is a file; one with a colon is "module:attribute" (a Recipe or a function that
    returns one; the working directory is importable); everything else is a name of `variants`.
    Raises ValueError for what is none of these, FileNotFoundError for a missing file.
    """
    if isinstance(what, Recipe):
        return what
    if not isinstance(what, str):
        raise TypeError(f"a recipe is a Recipe, a variant's name, a TOML file or 'module:attribute', got {what!r}")
    if what.endswith(".toml"):
        path = Path(what)
        if not path.is_file():
            raise FileNotFoundError(f"no recipe file {what!r} in {Path.cwd()}")
        try:
            return toml.loads(path.read_text())
        except (ValueError, TypeError) as error:
            raise ValueError(f"{what}: {error}") from error
    if ":" in what:
        return _attribute(what)
    import variants

    return variants.get(what)


def _attribute(path: str) -> Recipe:
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    found = toml.imported(path)
    made = found() if callable(found) and not isinstance(found, Recipe) else found
    if not isinstance(made, Recipe):
        raise ValueError(f"{path!r} is a {type(made).__name__}, not a Recipe")
    return made

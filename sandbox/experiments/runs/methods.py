"""What takes part in an experiment: a recipe, or an optimizer that is none.

Both have a name, a default rate, numbers that may be searched, and make the optimizers of a run.
"""

from __future__ import annotations

from typing import Any

from sandbox.blocks import Block
from sandbox.experiments.runs.ours import Ours
from sandbox.experiments.runs.outside import Outside, spelled
from sandbox.forms import lookup
from sandbox.recipe import Recipe

Method = Ours | Outside


def method(what: Any) -> Method:
    """The method meant by a recipe's name, TOML file or "module:attribute", a Recipe, an `Outside`, or "module:Class(…)"
    or "module:Class" of a torch optimizer.

    Raises what `sandbox.forms.lookup.recipe` raises.
    """
    if isinstance(what, Ours | Outside):
        return what
    if isinstance(what, str) and (found := spelled(what)) is not None:
        return found
    return Ours(lookup.recipe(what))


def methods(what: Any, who: str) -> list[Method]:
    """All of them, of different names.  Raises ValueError for a single one, none, or two of one name."""
    if isinstance(what, str | Recipe | Outside) or not what:
        raise ValueError(f"{who} needs a list of at least one recipe")
    found = [method(each) for each in what]
    names = [each.name for each in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"two recipes are called {twice!r}; give one another name: recipe.replace(name=…)")
    return found


def plain(value: Any) -> Any:
    """A searched value in a form that JSON keeps."""
    return repr(value) if isinstance(value, Block | tuple) else value

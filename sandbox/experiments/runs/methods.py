"""What takes part in an experiment: a recipe, or a torch optimizer.

Both have a name, a default rate, numbers that may be searched, and make the optimizers of a run.
"""

from __future__ import annotations

from typing import Any

from sandbox.experiments.runs.recipe_method import RecipeMethod
from sandbox.experiments.runs.torch_optimizer import TorchOptimizer, parse
from sandbox.forms import lookup
from sandbox.recipe import Recipe

Method = RecipeMethod | TorchOptimizer


def method(what: Any) -> Method:
    """Resolves a method from a recipe's name, TOML file or "module:attribute", a Recipe, a `TorchOptimizer`, or
    "module:Class(…)" or "module:Class" of a torch optimizer.

    Raises what `sandbox.forms.lookup.recipe` raises.
    """
    if isinstance(what, Method):
        return what
    if isinstance(what, str) and (optimizer := parse(what)) is not None:
        return optimizer
    return RecipeMethod(lookup.recipe(what))


def methods(what: Any, caller: str) -> list[Method]:
    """Resolves a list of methods.  Raises ValueError for a single one, an empty list, or two of one name."""
    if isinstance(what, str | Recipe | TorchOptimizer) or not what:
        raise ValueError(f"{caller} needs a list of at least one recipe")
    resolved = [method(each) for each in what]
    names = [each.name for each in resolved]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"two recipes are called {twice!r}; give one another name: recipe.replace(name=…)")
    return resolved

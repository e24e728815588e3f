"""Named recipes: Apollo, its ablations, and the peers it is compared with.

    variants.names()            every name
    variants.get("apollo")      its recipe
    variants.about("apollo")    equation and source
    variants.families()         the names by family
    variants.year("sgd")        when the method was published

Each variant is a function that returns its Recipe and whose docstring gives equation and source; it is listed under its
function's name with dashes.  No mathematics here: only which block sits in which slot.
"""

from __future__ import annotations

import inspect
import re

from sandbox.recipe import Recipe
from sandbox.utils import suggest
from variants import ablations, adaptive, apollo, averages, cautious, history, layerwise, matrix, peers, sharpness

__all__ = ["about", "families", "get", "names", "year"]

_MODULES = {
    "Apollo": apollo,
    "Ablations of Apollo": ablations,
    "First-order and diagonal second-order peers": peers,
    "Adaptive methods": adaptive,
    "Quasi-Newton methods with a history": history,
    "Methods of matrices": matrix,
    "Averages of weights": averages,
    "Directions that agree with the gradient": cautious,
    "Steps in proportion to the weights": layerwise,
    "Gradients up the slope": sharpness,
}
_MAKERS = {
    name.replace("_", "-"): maker
    for module in _MODULES.values()
    for name, maker in vars(module).items()
    if inspect.isfunction(maker) and maker.__module__ == module.__name__ and not name.startswith("_")
}


def names() -> list[str]:
    """Every variant's name: Apollo's own forms, then the ablations, the peers, later adaptive methods, those with a
    history, those of matrices, those that evaluate averages of weights, cautious ones, layerwise ones."""
    return list(_MAKERS)


def families() -> dict[str, list[str]]:
    """The names of each family, in the order of `names`."""
    return {
        family: [name for name, maker in _MAKERS.items() if maker.__module__ == module.__name__]
        for family, module in _MODULES.items()
    }


def get(name: str) -> Recipe:
    """The recipe called `name`.  Raises ValueError, with the nearest name, for one that does not exist."""
    if name not in _MAKERS:
        raise ValueError(suggest.unknown("variant", str(name), _MAKERS))
    return _MAKERS[name]().replace(name=name)


def about(name: str) -> str:
    """Equation and source of the variant called `name`."""
    get(name)
    return inspect.getdoc(_MAKERS[name]) or ""


def year(name: str) -> int:
    """When the method was published: the first year in `about`; of Apollo and its ablations 2020."""
    years = re.findall(r"\b(?:19|20)\d\d\b", about(name))
    return int(years[0]) if years else 2020

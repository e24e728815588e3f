"""Members of an ensemble: recipes with their rates, grouped by structure, their numbers stacked."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from sandbox.recipe import Recipe
from sandbox.utils.private_torch import pytree

if TYPE_CHECKING:
    import polars as pl

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Config:
    """A recipe and its rate: a number, or a function of t."""

    recipe: Recipe
    lr: Any

    def rate(self, t: int) -> float:
        """Returns η at update t, without any schedule around it."""
        return float(self.lr(t) if callable(self.lr) else self.lr)


@dataclasses.dataclass(frozen=True)
class Group:
    """Configurations of one structure.  places: their places in the list of all configurations."""

    places: list[int]
    configs: list[Config]
    spec: Any
    fixed: list[Any]  # the leaves, None where they vary
    varied: list[Tensor]  # (configs,) in float64, in the order of the Nones
    roles: Any = None  # of the parameters: see `Recipe.init`

    @property
    def first(self) -> Recipe:
        """The recipe of the first configuration."""
        return self.recipe([float(v[0]) for v in self.varied])

    def part(self, start: int, stop: int) -> Group:
        """Returns some of them, next to each other."""
        return dataclasses.replace(
            self, places=self.places[start:stop], configs=self.configs[start:stop], varied=[v[start:stop] for v in self.varied]
        )

    def recipe(self, varied: Sequence[Any]) -> Recipe:
        """Returns the recipe with these numbers in the places that vary."""
        rest = iter(varied)
        return pytree.tree_unflatten([next(rest) if leaf is None else leaf for leaf in self.fixed], self.spec)


def structure(spec: Any) -> tuple[Any, ...]:
    """Returns what only equal structures share: the spec and its classes, since specs of classes of one name are equal."""

    def classes(spec: Any) -> Iterator[Any]:
        yield spec.type
        for child in spec.children():
            yield from classes(child)

    return spec, tuple(classes(spec))


def _numbers(recipe: Recipe) -> tuple[list[float], Any]:
    """Returns its numbers but the rate, and its structure."""
    leaves, spec = pytree.tree_flatten(recipe.at_rate(1.0))
    return [float(leaf) for leaf in leaves], spec


def _once_each(configs: Sequence[Config], function: Callable[[Recipe], T]) -> list[T]:
    """Returns function(recipe) of each, called once for all rates of a recipe: for a thousand it takes most of the time."""
    recipes = {id(config.recipe): config.recipe for config in configs}
    values = {key: function(recipe) for key, recipe in recipes.items()}
    return [values[id(config.recipe)] for config in configs]


def groups(configs: Sequence[Config]) -> list[Group]:
    """Groups configurations of equal structure; numbers that all of them share stay numbers."""
    alike: dict[Any, tuple[Any, list[int], list[list[Any]]]] = {}
    for place, (row, spec) in enumerate(_once_each(configs, _numbers)):
        _, places, rows = alike.setdefault(structure(spec), (spec, [], []))
        places.append(place)
        rows.append(row)
    grouped = []
    for spec, places, rows in alike.values():
        fixed: list[Any] = []
        varied = []
        for column in zip(*rows, strict=True):
            same = len(set(column)) == 1
            fixed.append(column[0] if same else None)
            varied += [] if same else [torch.tensor(column, dtype=torch.float64)]
        grouped.append(Group(places, [configs[i] for i in places], spec, fixed, varied))
    return grouped


def stacked(recipe: Recipe, numbers: dict[str, Any]) -> tuple[Recipe, Recipe]:
    """Returns a recipe with batches (n,) in some numbers, by dotted name, and its `in_dims` for torch.func.vmap.

    What needs more of each step than `run` keeps (a whole history, say) steps such a recipe itself.
    """
    batch = recipe.with_hyperparameters(
        {name: torch.as_tensor(values, dtype=torch.float64) for name, values in numbers.items()}
    )
    leaves, spec = pytree.tree_flatten(batch)
    return batch, pytree.tree_unflatten([0 if isinstance(leaf, Tensor) and leaf.ndim else None for leaf in leaves], spec)


def table(configs: Sequence[Config], seeds: Sequence[int]) -> pl.DataFrame:
    """Returns one row per member: "member", "variant", every number that some configurations do not share, "lr" and "seed"."""
    import polars as pl

    numbers = _once_each(configs, Recipe.hyperparameters)
    names = {name: None for row in numbers for name in row if name != "lr" and not name.startswith("lr.")}
    differ = [name for name in names if len({_plain(row.get(name)) for row in numbers}) > 1]
    rows = []
    for config, row in zip(configs, numbers, strict=True):
        differing = {name: _plain(row.get(name)) for name in differ}
        lr = math.nan if callable(config.lr) else float(config.lr)
        rows += [{"variant": config.recipe.name, **differing, "lr": lr, "seed": seed} for seed in seeds]
    # a number that the first recipes lack is None in their rows
    return pl.DataFrame([{"member": i, **row} for i, row in enumerate(rows)], infer_schema_length=None)


def _plain(value: Any) -> float | None:
    return None if value is None or callable(value) else float(value)

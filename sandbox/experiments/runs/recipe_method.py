"""A recipe as a method of an experiment."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from sandbox.blocks import ScheduleFree
from sandbox.blocks.number import show
from sandbox.forms import lookup, toml
from sandbox.optimizer import Optimizer
from sandbox.optimizer.groups import paths
from sandbox.recipe import Recipe


@dataclasses.dataclass(frozen=True)
class RecipeMethod:
    """A recipe.  Where its rate is a function of t, the rate of a run is a factor before it, 1 by default."""

    recipe: Recipe

    functions = 0

    @property
    def name(self) -> str:
        """The recipe's name."""
        return self.recipe.name

    @property
    def lr(self) -> float:
        """The default rate, or factor."""
        return 1.0 if self.moving else float(self.recipe.lr)

    @property
    def moving(self) -> bool:
        """Whether the rate is a function of t."""
        return callable(self.recipe.lr) and not isinstance(self.recipe.lr, torch.Tensor)

    @property
    def steady(self) -> bool:
        """Whether its rate must not follow a schedule: it is a function of t, or the recipe is schedule-free."""
        return self.moving or isinstance(self.recipe.readout, ScheduleFree)

    @property
    def second_order(self) -> bool:
        """Whether a step computes a Hessian-vector product."""
        return self.recipe.analysis.second_order

    @property
    def gradients_per_call(self) -> int:
        """Gradients that one call of the closure takes; a Hessian-vector product counts as one."""
        return 1 + len({"hessian", "product"} & set(self.recipe.analysis.inputs))

    def fingerprint(self) -> str:
        """Returns twelve digits of blocks and numbers."""
        try:
            return toml.fingerprint(self.recipe)
        except ValueError:  # a block or function of a script or notebook, which `identity` tells apart by its code
            text = repr((self.recipe.structure(), {name: show(v) for name, v in self.recipe.hyperparameters().items()}))
            return hashlib.sha256(text.encode()).hexdigest()[:12]

    def parts(self) -> Any:
        """Returns the objects on whose code a run depends."""
        fields = (
            [_fields(self.recipe), *map(_fields, self.recipe.inner.values())] if self.recipe.inner else _fields(self.recipe)
        )
        return [fields, self.recipe.lr if self.moving else None]

    def text(self) -> str:
        """Returns the recipe as TOML, or as an algorithm where a part of it has no import path."""
        try:
            return toml.dumps(self.recipe)
        except ValueError:
            return str(self.recipe)

    def words(self) -> float:
        """Returns the number of state elements per parameter."""
        return float(self.recipe.analysis.state_elements)

    def hyperparameters(self) -> dict[str, Any]:
        """Returns the numbers and slots that a search may vary, "lr" included."""
        slots = {slot: getattr(self.recipe, slot) for slot in self.recipe.structure()}
        return {"lr": self.lr, **self.recipe.hyperparameters(), **slots}

    def replaced(self, values: Mapping[str, Any]) -> RecipeMethod:
        """Returns the method with other numbers and blocks, by dotted name; the name stays."""
        return RecipeMethod(self.recipe.replace(**values, name=self.recipe.name)) if values else self

    def allows(self, lr: float) -> bool:
        """Whether the recipe's decay allows the rate."""
        try:
            self.recipe.decay.check_lr(lr)
        except ValueError:
            return False
        return True

    def make(
        self, groups: list[dict[str, Any]], lr: float, options: Mapping[str, Any], roles: Callable[[], Any] = dict
    ) -> list[Any]:
        """Returns the optimizer of a run, in a list.  options: keyword arguments of `sandbox.Optimizer`.

        roles: gives name -> `Role` of the parameters, and is called for recipes with roles alone.

        Raises ValueError for a group whose recipe takes Hessian-vector products where the run's recipe takes none.
        """
        rows = []
        for group in groups:
            recipe = lookup.recipe(group.get("recipe", self.recipe))
            if recipe.analysis.second_order and not self.second_order:
                raise ValueError(
                    f"a parameter group of the task has recipe {recipe.name!r}, which takes Hessian-vector products: make it "
                    f"the run's recipe, and {self.name!r} that of the other groups"
                )
            accepted = {*paths(recipe), "params", "recipe"}
            row = {name: value for name, value in group.items() if name in accepted}
            if "lr_factor" in group:
                row["lr"] = self._rate(lr * group["lr_factor"])
            rows.append(row)
        return [Optimizer(rows, self.recipe, lr=self._rate(lr), roles=self._roles(rows, roles), **options)]

    def trained(self, groups: list[dict[str, Any]], roles: Callable[[], Any]) -> Iterator[tuple[str, str, Any]]:
        """Yields (the name of who trains it, what it is, parameter) for all parameters."""
        known = self._roles(groups, roles) or {}
        for group in groups:
            recipe = lookup.recipe(group.get("recipe", self.recipe))
            for name, p in group["params"]:
                role = known[name].role if name in known else None
                by = recipe.branch(p, role)
                what = role or ("two axes or more" if p.ndim > 1 else "fewer than two axes")
                yield recipe.member(by).name if by in recipe.inner else recipe.name, what, p

    def _roles(self, groups: list[dict[str, Any]], roles: Callable[[], Any]) -> Any:
        """Returns the roles, None where no recipe has any."""
        recipes = (lookup.recipe(group.get("recipe", self.recipe)) for group in groups)
        return roles() if any(recipe.roles for recipe in recipes) else None

    def _rate(self, lr: float) -> Any:
        """Returns lr, or lr · η(t)."""
        rate = self.recipe.lr
        if not self.moving:
            return lr
        return rate if lr == 1 else (lambda t: lr * rate(t))


def _fields(recipe: Recipe) -> list[Any]:
    return [getattr(recipe, f.name) for f in dataclasses.fields(recipe) if f.name not in ("name", "lr", "vectors", "roles")]

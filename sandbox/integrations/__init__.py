"""Recipes in the trainers of other packages, none of which is imported here.

`named` for transformers' Trainer, `titan` for torchtitan's pattern groups; `sandbox.integrations.transformers.SecondOrder` and
`sandbox.integrations.lightning.SecondOrder` for recipes that take Hessian-vector products.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import nn

from sandbox.forms import lookup
from sandbox.optimizer import Optimizer
from sandbox.recipe import Recipe, find_roles

__all__ = ["named", "titan"]

Patterns = Mapping[str, Mapping[str, Any]]


class _OfModel:
    """What transformers' Trainer calls as cls()(model, **kwargs)."""

    def __call__(
        self,
        model: nn.Module,
        *,
        recipe: str | Recipe,
        lr: float | None = None,
        patterns: Patterns | None = None,
        **options: Any,
    ) -> Optimizer:
        params = ((name, p) for name, p in model.named_parameters() if p.requires_grad)
        roles = find_roles.of_parameters(model, lookup.recipe(recipe), options.pop("roles", None))
        return Optimizer(_grouped(params, patterns or {}), recipe, lr=lr, roles=roles, **options)


def named(
    recipe: str | Recipe, lr: float | None = None, *, patterns: Patterns | None = None, **options: Any
) -> tuple[type, Any]:
    """Returns `optimizer_cls_and_kwargs` of transformers' Trainer: a recipe on the model's named parameters.

        Trainer(model, arguments, train_dataset=data, optimizer_cls_and_kwargs=named("apollo", lr=arguments.learning_rate))

    The pair (sandbox.Optimizer, {"recipe": …, "lr": …}) works too; then the Trainer makes the groups, one with its weight_decay
    and one without, and the parameters have no names.
    patterns: {regular expression: entries of a group}: a parameter belongs to the first one that is found in its name, and what
        belongs to none is in a group without entries.  Here a weight decay is an entry, or an option; the Trainer's own is
        not seen.
    options: of `sandbox.Optimizer`.  Raises ValueError for a pattern that no parameter belongs to.
    """
    return _OfModel, {"recipe": recipe, "lr": lr, "patterns": dict(patterns or {}), **options}


def titan(recipe: str | Recipe, **options: Any) -> Callable[..., Optimizer]:
    """Returns factory(groups, **more), as torchtitan makes one optimizer of the groups of its patterns.

    Its entries `betas` and `eps` are translated where the recipe has them; `fused` and `foreach` change nothing.
    options: of `sandbox.Optimizer`; those of a call come before them.
    """
    return lambda groups, **more: Optimizer(groups, recipe, **{**options, **more})


def _grouped(params: Iterable[tuple[str, Any]], patterns: Patterns) -> list[dict[str, Any]]:
    """Groups by the first pattern that is found in a parameter's name, then those of none."""
    groups: dict[str | None, dict[str, Any]] = {key: {"params": [], **patterns[key]} for key in patterns}
    groups[None] = {"params": []}
    for name, p in params:
        groups[next((key for key in patterns if re.search(key, name)), None)]["params"].append((name, p))
    if empty := [key for key in patterns if not groups[key]["params"]]:
        raise ValueError(f"patterns: no parameter belongs to {', '.join(map(repr, empty))}")
    return [group for group in groups.values() if group["params"]]

"""Building blocks for optimizers around Apollo (arXiv 2009.13586): compose, run, compare, verify.

    import sandbox, variants
    recipe = variants.get("apollo").replace(rectifier=sandbox.blocks.SoftAbsolute(sigma=0.01))
    optimizer = sandbox.Optimizer(model.parameters(), recipe, lr=0.01)

Nothing heavy is imported before it is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "Recipe": "sandbox.recipe",
    "ablate": "sandbox.ablation",
    "Optimizer": "sandbox.optimizer",
    "Task": "sandbox.tasks",
    "Outside": "sandbox.experiments.outside",
    "export": "sandbox.backends.exported",
    "script": "sandbox.backends.scripted",
    "compare": "sandbox.experiments.compare",
    "inspect": "sandbox.experiments.inspect",
    "sweep": "sandbox.experiments.sweep",
}
_MODULES = (
    *("ablation", "backends", "blocks", "curvature", "drivers", "ensemble", "experiments", "forms", "hessian", "kernel"),
    *("lookup", "probes", "recipe", "schedules", "scope", "tasks"),
)

if TYPE_CHECKING:
    from sandbox.ablation import ablate
    from sandbox.backends.exported import export
    from sandbox.backends.scripted import script
    from sandbox.experiments.compare import compare
    from sandbox.experiments.inspect import inspect
    from sandbox.experiments.outside import Outside
    from sandbox.experiments.sweep import sweep
    from sandbox.optimizer import Optimizer
    from sandbox.recipe import Recipe
    from sandbox.tasks import Task

__all__ = ["Optimizer", "Outside", "Recipe", "Task", "ablate", "compare", "export", "inspect", "script", "sweep"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in _MODULES:
        return importlib.import_module(f"sandbox.{name}")
    raise AttributeError(f"module 'sandbox' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES, *_MODULES])

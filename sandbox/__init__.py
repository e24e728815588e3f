"""Building blocks for optimizers around Apollo (arXiv 2009.13586): compose, run, compare, verify.

    import sandbox, variants
    recipe = variants.get("apollo").replace(rectifier=sandbox.blocks.SoftAbsolute(sigma=0.01))
    optimizer = sandbox.Optimizer(model.parameters(), recipe, lr=0.01)

Nothing heavy is imported before it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandbox.utils import lazy

__version__ = "1.0.0rc1"

if TYPE_CHECKING:
    from sandbox.backends.torchscript.exported import export
    from sandbox.backends.torchscript.scripted import script
    from sandbox.equivalence import same
    from sandbox.experiments.compare import compare
    from sandbox.experiments.inspect import inspect
    from sandbox.experiments.reports.saved import load
    from sandbox.experiments.runs.torch_optimizer import TorchOptimizer
    from sandbox.experiments.sweep import sweep
    from sandbox.forms.ablation import ablate
    from sandbox.forms.source import source
    from sandbox.optimizer import Optimizer
    from sandbox.recipe import Recipe
    from sandbox.recipe.find_roles import roles
    from sandbox.tasks import Task

_NAMES = {
    "Recipe": "sandbox.recipe",
    "ablate": "sandbox.forms.ablation",
    "Optimizer": "sandbox.optimizer",
    "Task": "sandbox.tasks",
    "TorchOptimizer": "sandbox.experiments.runs.torch_optimizer",
    "Outside": "sandbox.experiments.runs.torch_optimizer",  # its name in version 0.1
    "export": "sandbox.backends.torchscript.exported",
    "script": "sandbox.backends.torchscript.scripted",
    "compare": "sandbox.experiments.compare",
    "inspect": "sandbox.experiments.inspect",
    "same": "sandbox.equivalence",
    "roles": "sandbox.recipe.find_roles",
    "load": "sandbox.experiments.reports.saved",
    "source": "sandbox.forms.source",
    "sweep": "sandbox.experiments.sweep",
}
_MODULES = (
    *("backends", "blocks", "closure_optimizers", "curvature", "datasets", "distributed", "ensemble", "equivalence"),
    *("experiments", "forms", "integrations", "probes", "schedules", "studies", "tasks"),
)

__all__ = ["Optimizer", "Recipe", "Task", "TorchOptimizer", "ablate", "compare", "export", "inspect", "load", "roles", "same"]
__all__ += ["script", "source", "sweep", *_MODULES]

lazy.install()
__getattr__ = lazy.attach(__name__, modules=_MODULES, names=_NAMES)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])

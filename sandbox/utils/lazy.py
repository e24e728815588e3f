"""Packages whose names load at first use, and modules that can still be imported by an old path."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any


def attach(package: str, *, modules: Sequence[str], names: Mapping[str, str] | None = None) -> Callable[[str], Any]:
    """Returns a package's `__getattr__`, which imports what is asked for.

    modules: its public submodules.  names: public name -> the module that defines it.
    """
    names = names or {}

    def load(name: str) -> Any:
        if name in names:
            return getattr(importlib.import_module(names[name]), name)
        if name in modules or f"{package}.{name}" in MOVED:
            return importlib.import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return load


# Old import path -> new one, for what the README, the docs or a notebook of version 0.1 named.
MOVED = {
    "sandbox.ablation": "sandbox.forms.ablation",
    "sandbox.drivers": "sandbox.closure_optimizers",
    "sandbox.hessian": "sandbox.curvature.hessian",
    "sandbox.lookup": "sandbox.forms.lookup",
    "sandbox.rounding": "sandbox.recipe.rounding",
    "sandbox.scope": "sandbox.blocks.scope",
    "sandbox.backends.exported": "sandbox.backends.torchscript.exported",
    "sandbox.backends.scripted": "sandbox.backends.torchscript.scripted",
    "sandbox.experiments.outside": "sandbox.experiments.runs.torch_optimizer",
    "sandbox.experiments.runs.outside": "sandbox.experiments.runs.torch_optimizer",
    "sandbox.experiments.statistics": "sandbox.experiments.selection.statistics",
    **{f"theory_checks.{name}": f"theory_checks.claims.{name}" for name in ("premises", "regret", "nonconvex")},
    **dict.fromkeys(("theory_checks.frozen", "theory_checks.claims.frozen"), "theory_checks.claims.momentum_worst_case"),
    **{f"theory_checks.{name}": f"theory_checks.proofs.{name}" for name in ("certificates", "counterexamples")},
    **{f"theory_checks.{name}": f"theory_checks.open_questions.{name}" for name in ("drift", "questions", "rates")},
    "theory_checks.adversary": "theory_checks.search.adversary",
}


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports a moved module under its old name too; both names are one module.

    What other threads find under the old name, also while it is being imported, is the finished module and no empty one.
    """

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(name, self) if name in MOVED else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = importlib.import_module(MOVED[spec.name])
        spec.loader_state = _own_spec(module)  # importlib now writes `spec` over it
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = _own_spec(module)


def _own_spec(module: ModuleType) -> importlib.machinery.ModuleSpec | None:
    """Returns the spec of a module's new name, where the last one may be that of an old name."""
    spec = module.__spec__
    while spec is not None and spec.name in MOVED:
        spec = spec.loader_state
    return spec


def install() -> None:
    """Lets old paths be imported; called once, by the package itself."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())

"""A step as TorchScript: saved to a file, it runs in a process that has torch and nothing of this package.

    sandbox.script(recipe, "apollo.pt")              # here

    program = torch.jit.load("apollo.pt")            # anywhere, in Python or C++
    state = program.init(params)                     # params: a list of tensors
    program.step(params, grads, state, 0.01)         # in place; grads may hold None

The graph of `tracing.graph`, overloads stripped, becomes a script; around it goes the program of `script_source`.
TorchScript is deprecated in torch: only these two files use it.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from sandbox.backends.base import Cohort, Step, totals
from sandbox.backends.torchscript.script_source import source
from sandbox.backends.tracing import graph, selfcheck
from sandbox.forms import lookup
from sandbox.recipe import Recipe, pure
from sandbox.recipe.pure import state_dtype

_PROGRAMS: dict[Any, Any] = {}  # for the process; made under `graph.LOCK`, and nothing in them changes afterwards


def program(recipe: Recipe, dtype: torch.dtype, device: torch.device) -> Any:
    """Returns the script of a recipe for parameters of `dtype`: a torch.jit.ScriptModule with `init`, `step` and `numbers`.

    Raises ValueError, with the reason, for a recipe that cannot be scripted.
    """
    values, structure = _numbers(recipe)
    layouts = ["arena"] if recipe.scope == "global" else ["whole", "channels"] if recipe.scope == "channel" else ["whole"]
    layouts = ["wide", "tall"] if recipe.analysis.matrix else layouts
    leaves = {}
    for kind in layouts:
        wide = state_dtype(dtype)
        signature = graph.Signature(structure, kind, 1, recipe.scope, dtype, dtype, wide, str(device), evaluated=False)
        try:
            leaves[kind] = graph.trace(recipe, signature, opaque=False)
        except Exception as error:
            hint = "\nA function of t must accept t as a 0-d float64 tensor" if recipe.analysis.has_schedules else ""
            raise ValueError(f"recipe {recipe.name!r} cannot be scripted: {error}{hint}") from error
        selfcheck.check(recipe, signature, leaves[kind])
    shell = torch.nn.Module()
    shell.register_buffer("numbers", torch.tensor(values, dtype=torch.float64))
    with warnings.catch_warnings():
        _ignore_deprecation()
        for kind, traced in leaves.items():
            shell.add_module(kind, torch.jit.script(_without_overloads(traced)))
        module = torch.jit.script(shell)
    module.define(source(recipe, dtype))
    return module


def script(recipe: str | Recipe, path: str | Path, dtype: torch.dtype = torch.float32) -> None:
    """Saves the step as TorchScript for parameters of `dtype`: `torch.jit.load(path)` in a process without this package gives a
    program with `init(params)` and `step(params, grads, state, lr)`.  recipe: as for `sandbox.Optimizer`.

    Raises ValueError, with the reason, for a recipe that cannot be scripted.
    """
    recipe = lookup.recipe(recipe)
    graph.check_one_step(recipe)
    with warnings.catch_warnings():
        _ignore_deprecation()
        torch.jit.save(program(recipe, dtype, torch.device("cpu")), str(path))


def _without_overloads(traced: GraphModule) -> GraphModule:
    """Strips overloads, which TorchScript resolves itself, and renames sizes as it knows them."""
    for node in traced.graph.nodes:
        if node.target is torch.ops.aten.sym_size.int:
            node.target = torch.ops.aten.size
        elif hasattr(node.target, "overloadpacket"):
            node.target = node.target.overloadpacket
    traced.recompile()
    return traced


def _ignore_deprecation() -> None:
    """Ignores the deprecation of TorchScript, in the words of several versions of torch, and of annotations in its classes."""
    for start in ("torch.jit", "`torch.jit", "TorchScript"):
        warnings.filterwarnings("ignore", message=start, category=FutureWarning)
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    warnings.filterwarnings("ignore", message=".*TorchScript type system.*", category=UserWarning)


class Scripted:
    """The scripted backend."""

    name = "scripted"

    def load(self, cohort: Cohort, step: Step, *, check: bool) -> list[Tensor]:
        """Copies nothing."""
        cohort.check(step.grads)
        return totals(step.grads) if check else []

    def step(self, cohort: Cohort, step: Step) -> None:
        """Makes one step of the cohort, by the script of each dtype and device in it."""
        values, structure = _numbers(step.recipe)
        numbers = torch.tensor(values, dtype=torch.float64, device="cpu")
        groups: dict[Any, list[int]] = {}
        for i, p in enumerate(cohort.params):
            groups.setdefault((p.dtype, p.device), []).append(i)
        if step.recipe.scope == "global" and len(groups) > 1:
            raise ValueError("scope 'global' needs all tensors of a group on one device and in one precision")
        for (dtype, device), members in groups.items():
            key = structure, step.recipe.scope, dtype, device
            with graph.LOCK, torch.device("cpu"):  # not on another default device
                if key not in _PROGRAMS:
                    _PROGRAMS[key] = program(step.recipe, dtype, device).to(device)
            script = _PROGRAMS[key]
            params = [cohort.params[i].detach() for i in members]
            grads, states = [step.grads[i] for i in members], [cohort.states[i] for i in members]
            extra: list[Any] = [step.norm.to(device, state_dtype(dtype))] if step.norm is not None else []
            extra += [[row[i] for i in members] for row in step.inputs.values()]
            script.update(params, grads, states, step.lr, numbers.to(device), *extra)


def _numbers(recipe: Recipe) -> tuple[list[float], Any]:
    """Returns the hyperparameters as a script takes them, and their tree; t, rates and last numbers come from its states."""
    values, structure = graph.numbers_of(recipe, 1.0, 0.0, pure.first_numbers(recipe), evaluated=False)
    return [float(value) for value in values], structure

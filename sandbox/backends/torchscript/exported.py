"""A step as torch.export's program, TorchScript's successor upstream.

    program = sandbox.export(recipe)                                # an ExportedProgram; torch.export.save writes it
    run = program.module()
    run(numbers, theta, g, *state)                              # in place; theta, g and state as vectors of one length

numbers: `exported.numbers(recipe, t, lr)`, a float64 vector: a zero in place of the recipe's own rate, its other
hyperparameters in the order of `recipe.hyperparameters()`, t (from 1), η_t, and at the end the last rate and the `recalled`
hyperparameters of the last step, which a step replaces by its own.  A recipe that needs ‖g‖₂ over all tensors takes it after
g, with shape (1,); then come its inputs, in the order of `analysis.inputs`.  State: in the order of `analysis.state_kinds`;
those with one number per tensor have shape (1,).
"""

from __future__ import annotations

from typing import Any

import torch
from torch.export import Dim

from sandbox.backends.tracing import graph, selfcheck
from sandbox.forms import lookup
from sandbox.recipe import Recipe, pure
from sandbox.recipe.pure import state_dtype


def numbers(recipe: Recipe, t: float, lr: float, last: torch.Tensor | None = None) -> torch.Tensor:
    """Returns the first input of an exported step.  last: the end of the one before, `numbers[-k:]`; None at first."""
    names = ("lr", *recipe.analysis.recalled)
    given = dict(zip(names, last.tolist(), strict=True)) if last is not None else pure.first_numbers(recipe)
    values, _ = graph.numbers_of(recipe, float(t), lr, given, evaluated=False)
    return torch.tensor([float(v) for v in values], dtype=torch.float64)


def export(recipe: str | Recipe, dtype: torch.dtype = torch.float32) -> Any:
    """Exports the step of one tensor as a vector.  Raises ValueError for scope "global" and "channel".

    recipe: as for `sandbox.Optimizer`.
    """
    recipe = lookup.recipe(recipe)
    if recipe.scope in ("global", "channel"):
        raise ValueError(f"recipe {recipe.name!r}: a step of one vector has no scope {recipe.scope!r}; script() takes it")
    if recipe.analysis.own_layout:
        raise ValueError(f"recipe {recipe.name!r}: a step of one vector has no matrix of a tensor; script() takes it")
    graph.check_one_step(recipe)
    _, structure = graph.numbers_of(recipe, 1.0, 0.0, pure.first_numbers(recipe), evaluated=False)
    signature = graph.Signature(structure, "whole", 1, recipe.scope, dtype, dtype, state_dtype(dtype), "cpu", evaluated=False)
    traced = graph.trace(recipe, signature, opaque=False)
    selfcheck.check(recipe, signature, traced)
    inputs = graph.example(recipe, signature)
    size = Dim("size", min=2)
    shapes = tuple({0: size} if i and tensor.ndim and len(tensor) > 1 else None for i, tensor in enumerate(inputs))
    return torch.export.export(traced, tuple(inputs), dynamic_shapes=shapes)

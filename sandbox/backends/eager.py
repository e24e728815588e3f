"""The reference: the pure update, tensor by tensor, copied into place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from sandbox import kernel, pure
from sandbox.backends.base import Cohort, Step, totals


class Eager:
    """Runs each tensor on its own (all tensors joined where the recipe's scope is global)."""

    name = "eager"

    def load(self, cohort: Cohort, step: Step, *, check: bool) -> list[Tensor]:
        """Copies nothing."""
        cohort.check(step.grads)
        return totals(step.grads) if check else []

    def step(self, cohort: Cohort, step: Step) -> None:
        """One step of every tensor of the cohort."""
        everything = list(range(len(cohort.params)))
        advance(cohort, step, [everything] if step.recipe.scope == "global" else [[i] for i in everything])


def advance(cohort: Cohort, step: Step, leaves: Sequence[Sequence[int]]) -> None:
    """One step of some tensors of a cohort, by their places in it; those of one leaf share a scope."""
    exact, prepared = kernel.evaluate(step.recipe, cohort.steps + 1, step.lr, cohort.last), {}
    for members in leaves:
        p = cohort.params[members[0]]
        key = pure.state_dtype(p.dtype), p.device
        if key not in prepared:
            prepared[key] = exact.to(*key)
        rows: list[Any] = [[row[i] for i in members] for row in (cohort.states, cohort.params, step.grads)]
        rows.append([step.extra(i) for i in members])
        after = pure.together(step.recipe, prepared[key], rows, step.norm)
        for i, (state, theta) in zip(members, after, strict=True):
            old = [cohort.params[i], *(cohort.states[i][name] for name in state)]
            for tensor, value in zip(old, kernel.dealias(old, [theta, *state.values()]), strict=True):
                tensor.copy_(value)

"""The reference: the pure update, tensor by tensor, copied into place."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from sandbox.backends.base import Cohort, Step, totals
from sandbox.blocks import Flow
from sandbox.distributed.ranks import SumRequests
from sandbox.distributed.shards import scopes_of_joined, scopes_of_one
from sandbox.distributed.sums import Sums
from sandbox.recipe import Recipe, kernel, pure, rounding


class Reference:
    """Runs each tensor on its own (all tensors joined where the recipe's scope is global)."""

    name, rounds = "reference", True

    def load(self, cohort: Cohort, step: Step, *, check: bool) -> list[Tensor]:
        """Copies nothing."""
        cohort.check(step.grads)
        return totals(step.grads) if check else []

    def step(self, cohort: Cohort, step: Step) -> None:
        """Makes one step of every tensor of the cohort."""
        advance(cohort, step, leaves_of(cohort, step))

    def phases(self, cohort: Cohort, step: Step) -> SumRequests[Callable[[], None]]:
        """Makes the step where each rank has a part of the tensors: yields the sums over all ranks that it waits for."""
        sums: list[Sums] = []

        def across(members: list[int]) -> pure.Across:
            sums.append(reduced := Sums())
            parts, like = [cohort.parts[i] for i in members], cohort.params[members[0]]  # type: ignore[index]
            if step.recipe.scope == "global":
                return lambda tensor, _: scopes_of_joined(parts, reduced, tensor, like)
            return lambda tensor, within: scopes_of_one(parts[0], reduced, tensor, within, step.recipe.scope, like.ndim)

        leaves = list(runs(cohort, step, leaves_of(cohort, step), across))
        results: list[Any] = [None] * len(leaves)
        while True:
            for k, (_, run) in enumerate(leaves):
                if results[k] is None:
                    results[k] = sums[k].attempt(run)
            waiting = [s for s, result in zip(sums, results, strict=True) if result is None]
            if not waiting:
                break
            totals = iter((yield [pending for s in waiting for pending in s.waiting]))
            for s in waiting:
                s.receive([next(totals) for _ in s.waiting])

        def finish() -> None:
            for (members, _), after in zip(leaves, results, strict=True):
                _write(cohort, step, members, after)

        return finish


def advance(cohort: Cohort, step: Step, leaves: list[list[int]]) -> None:
    """Makes one step of some tensors of a cohort, by their places in it; those of one leaf share a scope."""
    for members, run in runs(cohort, step, leaves):
        _write(cohort, step, members, run())


def leaves_of(cohort: Cohort, step: Step) -> list[list[int]]:
    """Returns the tensors that share a scope, all or each alone, by their places in the cohort."""
    everything = list(range(len(cohort.params)))
    return [everything] if step.recipe.scope == "global" else [[i] for i in everything]


def runs(
    cohort: Cohort,
    step: Step,
    leaves: list[list[int]],
    across: Callable[[list[int]], pure.Across] | None = None,
    observe: Callable[[list[int], Recipe, Flow], None] | None = None,
) -> Iterator[tuple[list[int], Any]]:
    """Yields the tensors of each leaf, and the function that computes their step and changes nothing.

    observe: receives the tensors, the recipe as it is at this step, and all that the step computed.
    """
    exact, prepared = kernel.evaluate(step.recipe, cohort.steps + 1, step.lr, cohort.last), {}
    for members in leaves:
        p = cohort.params[members[0]]
        key = pure.state_dtype(p.dtype), p.device
        if key not in prepared:
            prepared[key] = exact.to(*key)
        rows: list[Any] = [[row[i] for i in members] for row in (cohort.states, cohort.params, step.grads)]
        rows.append([step.extra(i) for i in members])
        over = None if across is None else across(members)
        look = None if observe is None else functools.partial(observe, members, prepared[key].recipe)
        yield members, functools.partial(pure.together, step.recipe, prepared[key], rows, step.norm, look, over)


def _write(cohort: Cohort, step: Step, members: list[int], after: Any) -> None:
    for i, (state, theta) in zip(members, after, strict=True):
        if step.state_dtype is not None:
            counter = rounding.entry_numbers(theta) + rounding.key(step.seed, cohort.steps + 1, cohort.first(i))
            state = rounding.round_states(step.recipe.analysis.state_kinds, state, counter)
        old = [cohort.params[i], *(cohort.states[i][name] for name in state)]
        for tensor, value in zip(old, kernel.dealias(old, [theta, *state.values()]), strict=True):
            tensor.copy_(value)

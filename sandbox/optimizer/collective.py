"""A step that several ranks make together, each with its parts of the tensors: what they ask each other for, round by round."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from sandbox.backends import Backend, Cohort, Step, needs_sums
from sandbox.distributed import shards
from sandbox.distributed.ranks import Ranks, Round, Rounds, SumRequests, advance, lockstep
from sandbox.distributed.sums import Pending
from sandbox.optimizer import groups
from sandbox.recipe import Recipe

Planned = list[tuple[int, Cohort, Step]]  # number of the group, and what steps


def check(p: Tensor, name: str, recipe: Recipe, own: Recipe, backend: Backend, dealt: ProcessGroup | None) -> None:
    """Raises TypeError or ValueError for what cannot be trained where ranks hold different tensors, or parts of them.

    dealt: the ranks over which whole tensors are dealt out.
    """
    shards.check(p, name)
    if recipe.analysis.second_order and (shards.is_sharded(p) or dealt is not None):
        raise ValueError(
            f"recipe {recipe.name!r} needs Hessian-vector products, which no rank can form of parameter {name} alone: train "
            "replicas (DistributedDataParallel) with process_group=, or take a first-order recipe"
        )
    if shards.is_sharded(p) and own.analysis.own_layout:
        raise ValueError(f"recipe {recipe.name!r} needs whole matrices, and of parameter {name} each rank has a part")
    if shards.is_sharded(p) and (recipe.analysis.inputs or recipe.analysis.second_gradient):
        raise ValueError(f"recipe {recipe.name!r} needs two gradients per step, which a DTensor ({name}) does not take")
    if shards.is_sharded(p) and (getattr(backend, "flat", False) or getattr(backend, "mode", None)):
        raise ValueError(f"parameter {name} is a DTensor, which flat=True and torch.compile's modes do not take")
    if (shards.is_sharded(p) or (dealt is not None and recipe.scope == "global")) and not hasattr(backend, "phases"):
        raise ValueError(f"backend {backend.name!r} has no sums over several ranks, which parameter {name} needs; use 'eager'")


def check_watch(watch: Any) -> None:
    """Raises ValueError where there is one."""
    if watch is not None:
        raise ValueError("a Watch sees whole tensors; take it off an optimizer whose ranks hold parts of them")


def ranks(params: list[Tensor], given: ProcessGroup | None, dealt: ProcessGroup | None) -> Ranks | None:
    """The ranks that hold `params` between them: those of their DTensors (or `given`), else `dealt`."""
    group = (given or shards.group_of(params)) if any(map(shards.is_sharded, params)) else dealt
    device = shards.local(params[0]).device if params else torch.device("cpu")
    return None if group is None else Ranks(group, device)


def rounds(
    planned: Planned,
    param_groups: list[dict[str, Any]],
    backend: Backend,
    needs_norm: bool,
    finite: Callable[[list[Tensor]], bool] | None,
) -> Rounds[list[Callable[[], None]]]:
    """What makes the step, a function a cohort, once all ranks agree that it can be made; none where `finite` says no.

    needs_norm: whether some recipe clips by the norm of all gradients.  finite: told a total that is finite only if all
    gradients are; the same total on every rank.
    """
    common = Round((), *_common(planned), names=lambda: _names(planned, param_groups))
    rows = [[(param_groups[k]["params"][i], g) for i, g in zip(c.members, s.grads, strict=True)] for k, c, s in planned]
    local: list[list[Any]] = [[shards.local_gradient(p, g) for p, g in row] for row in rows]
    if any(g is None for row in local for g in row):
        yield common  # every rank is here, and has the same gradients
        pairs = [zip(row, mine, strict=True) for row, mine in zip(rows, local, strict=True)]
        local = [[shards.exchange(p, g) if there is None else there for (p, g), there in each] for each in pairs]
    planned = [(k, c, dataclasses.replace(s, grads=mine)) for (k, c, s), mine in zip(planned, local, strict=True)]
    if needs_norm:
        for _, cohort, step in planned:
            cohort.check(step.grads)
        (square,) = yield dataclasses.replace(common, pending=[Pending(_square(planned))])
        planned = [
            (k, c, dataclasses.replace(s, norm=square.sqrt()) if s.recipe.analysis.needs_norm else s) for k, c, s in planned
        ]
    totals = [total for _, cohort, step in planned for total in backend.load(cohort, step, check=finite is not None)]
    runs = lockstep([_run(backend, cohort, step) for _, cohort, step in planned])
    asked, finish = advance(runs, None)
    totals += [pending.value for pending in asked if pending.check]
    first = [] if finite is None else [Pending(_added(totals))]
    answers = yield dataclasses.replace(common, pending=[*first, *(pending for pending in asked if not pending.check)])
    if finite is not None and not finite(answers[:1]):
        return []
    others = iter(answers[len(first) :])
    answers = [pending.value if pending.check else next(others) for pending in asked]
    while finish is None:
        asked, finish = advance(runs, answers)
        if finish is None:
            answers = yield Round(asked)
    return finish


def _common(planned: Planned) -> tuple[Any, tuple[float, ...]]:
    """What the ranks must have in common: the plan, and rates, hyperparameters and step counts.

    Ranks with tensors of their own share only what a scope over all of them joins.
    """
    plan, numbers = [], []
    for index, cohort, step in planned:
        joint = step.recipe.scope == "global"
        if joint or any(part.alike for part in cohort.parts or ()):
            plan.append((index, [] if joint else cohort.members, step.recipe.structure()))
            numbers += [step.lr, *map(float, step.recipe.leaves), *cohort.last.values()]
            numbers += [float(step.seed)] if step.state_dtype is not None else []
    return plan, tuple(numbers)


def _names(planned: Planned, param_groups: list[dict[str, Any]]) -> list[list[str]]:
    """The names of the tensors that ranks must have in common, cohort by cohort."""
    shared = [(k, c) for k, c, s in planned if s.recipe.scope != "global" and any(part.alike for part in c.parts or ())]
    return [[groups.name(param_groups, k, i) for i in cohort.members] for k, cohort in shared]


def _square(planned: Planned) -> Tensor:
    """This rank's part of ‖g‖₂² over all gradients, in float64."""
    square = torch.zeros((), dtype=torch.float64)
    for _, cohort, step in planned:
        for part, g in zip(cohort.parts or (), step.grads, strict=True):
            square += torch.linalg.vector_norm(g, dtype=torch.float64).square().to(square.device) * part.weight
    return square


def _added(totals: list[Tensor]) -> Tensor:
    """One number that is finite only if all are, unless it overflows."""
    wide = [total.to(torch.float64) for total in totals]
    return torch.stack([total.to(wide[0].device) for total in wide]).sum() if wide else torch.zeros((), dtype=torch.float64)


def _run(backend: Backend, cohort: Cohort, step: Step) -> SumRequests[Callable[[], None]]:
    """The cohort's phases; of whole tensors with scalars of their own, none."""
    if needs_sums(cohort, step):
        return backend.phases(cohort, step)  # type: ignore[attr-defined]  # `check` has seen that there is one
    return _alone(backend, cohort, step)


def _alone(backend: Backend, cohort: Cohort, step: Step) -> SumRequests[Callable[[], None]]:
    yield from ()
    return lambda: backend.step(cohort, step)

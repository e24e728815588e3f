"""A plan's step in phases, where each rank has a part of the tensors: between two phases, sums go over all ranks.

Arenas and large tensors run each for itself up to the sums that they wait for.  Of a cohort these make one vector a sum, with
an entry for each tensor, so that it does not matter which rank has a large part of a tensor and which a small one or none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from sandbox.backends.base import Cohort, Step
from sandbox.backends.tracing.cut import CHECK, Reduction
from sandbox.distributed.ranks import Run
from sandbox.distributed.sums import MAX, Pending

Finish = Callable[[], None]


class PhasedRun(Protocol):
    """A kernel on one leaf that can stop between phases.  reductions: of each phase, of its outputs."""

    reductions: list[list[Reduction]]

    def begin(self, inputs: Sequence[Tensor]) -> None:
        """Takes the inputs of a step."""
        ...

    def phase(self, number: int, sums: Sequence[Tensor]) -> Sequence[Tensor]:
        """Runs a phase with the completed sums of those before; only the last one changes anything."""
        ...


def checks(run: Any) -> bool:
    """Whether the first phase of a run also sums up the gradient (`sandbox.backends.tracing.cut.checking`)."""
    return any(kind.over == CHECK for kinds in getattr(run, "reductions", ()) for kind in kinds)


@dataclasses.dataclass(frozen=True)
class Unit:
    """An arena or a large tensor in a step.  members: places of its tensors in the cohort.  after: called when it has run."""

    members: list[int]
    run: PhasedRun
    inputs: list[Tensor]
    after: Finish


def phases(units: list[Unit], cohort: Cohort, step: Step) -> Run[Finish]:
    """The step of a cohort; see `Backend`.  All units have as many phases, with the same sums."""
    assert cohort.parts is not None
    weights = torch.tensor([part.weight for part in cohort.parts], dtype=torch.float64)
    order = torch.tensor([place for unit in units for place in unit.members])
    *others, _ = units[0].run.reductions if units else [[]]
    sums: list[list[Tensor]] = [[] for _ in units]
    for unit in units:
        unit.run.begin(unit.inputs)
    for number, kinds in enumerate(others):
        found = [unit.run.phase(number, known) for unit, known in zip(units, sums, strict=True)]
        values = list(zip(*found, strict=True))  # of each sum, the units' parts
        joint = [kind.over == "scope" and step.recipe.scope == "global" for kind in kinds]
        totals = yield [_pending(*each, units, order, weights) for each in zip(kinds, joint, values, strict=True)]
        for kind, one, mine, total in zip(kinds, joint, values, totals, strict=True):
            if kind.over != CHECK:
                for known, part in zip(sums, _back(one, mine, total, units, order), strict=True):
                    known.append(part)

    def finish() -> None:
        for unit, known in zip(units, sums, strict=True):
            unit.run.phase(len(others), known)
            unit.after()

    return finish


def _pending(
    kind: Reduction, joint: bool, values: Sequence[Tensor], units: list[Unit], order: Tensor, weights: Tensor
) -> Pending:
    """One entry a tensor of the cohort; joint: one for all of them, which are in one arena.  order: of the units' members."""
    if kind.over == CHECK:
        return Pending(torch.stack([value.to("cpu", torch.float64) for value in values]).sum(), kind.op, check=True)
    if joint:
        (value,) = values
        mine, weight = value[:1].to("cpu", torch.float64), weights[:1]
    else:
        # an arena may have an owner more, and a large tensor's number no axis
        parts = [value.reshape(-1)[: len(unit.members)].to("cpu") for unit, value in zip(units, values, strict=True)]
        mine, weight = torch.zeros_like(weights), weights
        mine[order] = torch.cat(parts).to(torch.float64)
    return Pending(mine if kind.op == MAX else mine * weight, kind.op)


def _back(joint: bool, values: Sequence[Tensor], total: Tensor, units: list[Unit], order: Tensor) -> list[Tensor]:
    """The totals of the units' tensors, in the form of their own sums."""
    if joint:
        return [total.to(mine.device, mine.dtype).expand(mine.shape).contiguous() for mine in values]
    parts = total[order].to(values[0].device, values[0].dtype).split([len(unit.members) for unit in units])
    return [_like(mine, part.to(mine.device, mine.dtype)) for mine, part in zip(values, parts, strict=True)]


def _like(mine: Tensor, part: Tensor) -> Tensor:
    """`part` in the form of `mine`, which may have more entries."""
    if mine.numel() == part.numel():
        return part.view(mine.shape)
    found = mine.clone()
    found.view(-1)[: part.numel()] = part
    return found

"""A plan's step in phases, where each rank has a part of the tensors: between two phases, sums go over all ranks.

Arenas and large tensors run each for itself up to the sums that they wait for.  Of a cohort these make one vector a sum, with
an entry for each tensor, so that it does not matter which rank has a large part of a tensor and which a small one or none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from sandbox.backends.base import Cohort, Step
from sandbox.backends.cut import CHECK, Reduction
from sandbox.distributed.ranks import Run, advance
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
    """Whether the first phase of a run also sums up the gradient (`sandbox.backends.cut.checking`)."""
    return any(kind.over == CHECK for kinds in getattr(run, "reductions", ()) for kind in kinds)


@dataclasses.dataclass(frozen=True)
class Unit:
    """An arena or a large tensor in a step.  members: places of its tensors in the cohort.  after: called when it has run."""

    members: list[int]
    run: PhasedRun
    inputs: list[Tensor]
    after: Finish


def phases(units: list[Unit], cohort: Cohort, step: Step) -> Run[Finish]:
    """The step of a cohort; see `Backend`."""
    assert cohort.parts is not None
    weights = torch.tensor([part.weight for part in cohort.parts], dtype=torch.float64)
    runs = [_unit(unit) for unit in units]
    finish: list[Finish] = []
    answers: dict[int, list[Tensor] | None] = dict.fromkeys(range(len(runs)))
    while answers:
        asked: dict[int, list[tuple[Reduction, Tensor]]] = {}
        for i, totals in answers.items():
            pending, done = advance(runs[i], totals)
            if done is None:
                asked[i] = pending
            else:
                finish.append(done)
        if not asked:
            break
        kinds = [kind for kind, _ in next(iter(asked.values()))]
        joint = [kind.over == "scope" and step.recipe.scope == "global" for kind in kinds]
        found = yield [
            _pending(kind, [(units[i], values[j][1]) for i, values in asked.items()], weights, joint[j])
            for j, kind in enumerate(kinds)
        ]
        answers = {
            i: [
                _back(kind, units[i], mine, total, joint[j])
                for j, ((kind, mine), total) in enumerate(zip(values, found, strict=True))
            ]
            for i, values in asked.items()
        }

    def all_of_them() -> None:
        for each in finish:
            each()

    return all_of_them


def _unit(unit: Unit) -> Generator[list[tuple[Reduction, Tensor]], list[Tensor], Finish]:
    sums: list[Tensor] = []
    unit.run.begin(unit.inputs)
    last = len(unit.run.reductions) - 1
    for number, kinds in enumerate(unit.run.reductions[:last]):
        found = yield list(zip(kinds, unit.run.phase(number, sums), strict=True))
        sums += [total for kind, total in zip(kinds, found, strict=True) if kind.over != CHECK]

    def finish() -> None:
        unit.run.phase(last, sums)
        unit.after()

    return finish


def _pending(kind: Reduction, values: list[tuple[Unit, Tensor]], weights: Tensor, joint: bool) -> Pending:
    """One entry a tensor of the cohort; joint: one for all of them, which are in one arena."""
    if kind.over == CHECK:
        return Pending(torch.stack([value.to("cpu", torch.float64) for _, value in values]).sum(), kind.op, check=True)
    if joint:
        ((_, value),) = values
        mine, weight = value[:1].to("cpu", torch.float64), weights[:1]
    else:
        mine, weight = torch.zeros_like(weights), weights
        for unit, value in values:
            mine[unit.members] = value.reshape(-1)[: len(unit.members)].to("cpu", torch.float64)  # 0-d of a large tensor
    return Pending(mine if kind.op == MAX else mine * weight, kind.op)


def _back(kind: Reduction, unit: Unit, mine: Tensor, total: Tensor, joint: bool) -> Tensor:
    """The totals of a unit's tensors, in the form of its own sums."""
    if kind.over == CHECK:
        return total
    if joint:
        return total.to(mine.device, mine.dtype).expand(mine.shape).contiguous()
    found = mine.clone()
    found.view(-1)[: len(unit.members)] = total[unit.members].to(mine.device, mine.dtype)
    return found

"""A step in phases, where each rank has a part of the tensors: between two phases, sums go over all ranks.

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
from sandbox.distributed.ranks import SumRequests
from sandbox.distributed.sums import MAX, Pending

Finish = Callable[[], None]


class PhasedKernel(Protocol):
    """A kernel bound to one leaf that can stop between phases.  reductions: of each phase, of its outputs."""

    reductions: list[list[Reduction]]

    def begin(self, inputs: Sequence[Tensor]) -> None:
        """Takes the inputs of a step."""
        ...

    def phase(self, number: int, sums: Sequence[Tensor]) -> Sequence[Tensor]:
        """Runs a phase with the completed sums of those before; only the last one changes anything."""
        ...


def checks(kernel: Any) -> bool:
    """Whether the first phase of a bound kernel also sums up the gradient (`sandbox.backends.tracing.cut.checking`)."""
    return any(kind.over == CHECK for kinds in getattr(kernel, "reductions", ()) for kind in kinds)


@dataclasses.dataclass(frozen=True)
class PhasedLeaf:
    """An arena or a large tensor in a step.  members: places of its tensors in the cohort.  after: called when it has run."""

    members: list[int]
    kernel: PhasedKernel
    inputs: list[Tensor]
    after: Finish


def phases(leaves: list[PhasedLeaf], cohort: Cohort, step: Step) -> SumRequests[Finish]:
    """Makes the step of a cohort; see `Backend`.  All leaves have as many phases, with the same sums."""
    assert cohort.parts is not None
    weights = torch.tensor([part.weight for part in cohort.parts], dtype=torch.float64)
    order = torch.tensor([place for leaf in leaves for place in leaf.members])
    *requests, _ = leaves[0].kernel.reductions if leaves else [[]]
    sums: list[list[Tensor]] = [[] for _ in leaves]
    for leaf in leaves:
        leaf.kernel.begin(leaf.inputs)
    for number, kinds in enumerate(requests):
        outputs = [leaf.kernel.phase(number, complete) for leaf, complete in zip(leaves, sums, strict=True)]
        values = list(zip(*outputs, strict=True))  # of each sum, the leaves' parts
        joint = [kind.over == "scope" and step.recipe.scope == "global" for kind in kinds]
        totals = yield [_pending(*each, leaves, order, weights) for each in zip(kinds, joint, values, strict=True)]
        for kind, one, mine, total in zip(kinds, joint, values, totals, strict=True):
            if kind.over != CHECK:
                for complete, part in zip(sums, _split(one, mine, total, leaves, order), strict=True):
                    complete.append(part)

    def finish() -> None:
        for leaf, complete in zip(leaves, sums, strict=True):
            leaf.kernel.phase(len(requests), complete)
            leaf.after()

    return finish


def _pending(
    kind: Reduction, joint: bool, values: Sequence[Tensor], leaves: list[PhasedLeaf], order: Tensor, weights: Tensor
) -> Pending:
    """Returns one entry per tensor of the cohort; joint: one for all of them, which are in one arena.

    order: of the leaves' members.
    """
    if kind.over == CHECK:
        return Pending(torch.stack([value.to("cpu", torch.float64) for value in values]).sum(), kind.op, check=True)
    if joint:
        (value,) = values
        mine, weight = value[:1].to("cpu", torch.float64), weights[:1]
    else:
        # an arena may have an owner more, and a large tensor's number no axis
        parts = [value.reshape(-1)[: len(leaf.members)].to("cpu") for leaf, value in zip(leaves, values, strict=True)]
        mine, weight = torch.zeros_like(weights), weights
        mine[order] = torch.cat(parts).to(torch.float64)
    return Pending(mine if kind.op == MAX else mine * weight, kind.op)


def _split(joint: bool, values: Sequence[Tensor], total: Tensor, leaves: list[PhasedLeaf], order: Tensor) -> list[Tensor]:
    """Returns the totals of each leaf's tensors, in the shape of its own sums."""
    if joint:
        return [total.to(mine.device, mine.dtype).expand(mine.shape).contiguous() for mine in values]
    parts = total[order].to(values[0].device, values[0].dtype).split([len(leaf.members) for leaf in leaves])
    return [_like(mine, part.to(mine.device, mine.dtype)) for mine, part in zip(values, parts, strict=True)]


def _like(mine: Tensor, part: Tensor) -> Tensor:
    """Returns `part` in the shape of `mine`, which may have more entries."""
    if mine.numel() == part.numel():
        return part.view(mine.shape)
    padded = mine.clone()
    padded.view(-1)[: part.numel()] = part
    return padded

"""Sums over a scope whose coordinates lie on several ranks.

A block asks its scope for sums one at a time, and each would cost a collective.  Here a sum is only recorded: its result can be
passed on, and the first operation that needs its value suspends the step (`Suspended`).  When every tensor is suspended or
done, all recorded sums are exchanged at once, and the suspended tensors start again with their values.  The kernel is pure,
so what is computed twice is the same twice, and blocks need not know.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.distributed import ProcessGroup

from sandbox.blocks.scope import Scope
from sandbox.distributed import private

SUM, MAX = "sum", "max"
_METADATA = {getattr(Tensor, name).__get__ for name in ("shape", "dtype", "device", "ndim", "layout", "requires_grad")}


@dataclasses.dataclass
class Pending:
    """This rank's part of a sum or maximum.  groups: over which ranks it goes, one group after another; none: all of them.

    check: whether its only use is that it is finite where the gradients are.
    """

    value: Tensor
    op: str = SUM
    groups: tuple[ProcessGroup, ...] = ()
    check: bool = False


class Suspended(Exception):
    """A step needs a sum that has not been exchanged yet."""


class Deferred(Tensor):
    """A placeholder for a sum that has not been exchanged: it has a shape, and every use of its value suspends the step."""

    @staticmethod
    def __new__(cls, like: Tensor) -> Deferred:
        """Returns a placeholder of the shape, dtype and device of `like`."""
        return private.without_data(cls, like)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Suspends the step, unless only metadata such as shape or dtype is read."""
        if func in _METADATA:
            with private.without_override():
                return func(*args)
        raise Suspended

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Suspends the step where an operator reaches the placeholder in another way."""
        raise Suspended


class Sums:
    """The sums of one leaf's step, in the order in which blocks ask for them: those exchanged, and those waiting."""

    def __init__(self) -> None:
        self.exchanged: list[Tensor] = []
        self.waiting: list[Pending] = []
        self._count = 0

    def defer(self, pending: Pending, finish: Callable[[Tensor], Tensor] = lambda total: total) -> Tensor:
        """Returns `finish` of the sum over all ranks, or a placeholder."""
        place, self._count = self._count, self._count + 1
        if place < len(self.exchanged):
            return finish(self.exchanged[place])
        self.waiting.append(pending)
        return Deferred(finish(pending.value))

    def attempt(self, run: Callable[[], Any]) -> Any:
        """Returns what `run` returns, None while it waits for sums."""
        self._count, self.waiting = 0, []
        try:
            result = run()
        except Suspended:
            return None
        return None if self.waiting else result

    def receive(self, totals: Sequence[Tensor]) -> None:
        """Takes the totals of the sums that are waiting, for the next attempt."""
        self.exchanged += [total.to(p.value.dtype) for total, p in zip(totals, self.waiting, strict=True)]


class Reduced:
    """A scope whose coordinates lie on several ranks; `inner` reduces those of this one.

    count: coordinates of each scope on all ranks together, for means.
    weight: of this rank's sums; 1/(number of ranks that hold the same coordinates).
    joint: one number for all of inner's scopes together, of which each has a copy.
    """

    def __init__(
        self,
        inner: Scope,
        sums: Sums,
        count: float | Tensor,
        weight: float | Tensor = 1.0,
        groups: tuple[ProcessGroup, ...] = (),
        *,
        joint: bool = False,
    ) -> None:
        self.inner, self.sums, self.count, self.weight, self.groups, self.joint = inner, sums, count, weight, groups, joint

    def sum(self, x: Tensor) -> Tensor:
        """Computes Σ x over all ranks."""
        return self._total(x, 1.0)

    def mean(self, x: Tensor) -> Tensor:
        """Computes Σ x / Σ 1 over all ranks."""
        return self._total(x, self.count)

    def _total(self, x: Tensor, divisor: float | Tensor) -> Tensor:
        part = self.inner.sum(x)
        shape, part = part.shape, part * self.weight
        part = part.sum() if self.joint else part
        return self.sums.defer(Pending(part, SUM, self.groups), lambda total: (total / divisor).expand(shape))

    def amax(self, x: Tensor) -> Tensor:
        """Computes max x over all ranks, for x ≥ 0."""
        part = self.inner.amax(x)
        shape, part = part.shape, part.amax() if self.joint else part
        return self.sums.defer(Pending(part, MAX, self.groups), lambda total: total.expand(shape))

    def spread(self, s: Tensor) -> Tensor:
        """Turns one number per scope into something that broadcasts over the coordinates."""
        return self.inner.spread(s)

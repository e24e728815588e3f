"""Sums over a scope whose coordinates lie on several ranks.

A block asks its scope for sums one at a time, and each would cost a collective.  Here a sum is only noted: its result can be
handed on, and the first operation that needs its value suspends the step (`Suspended`).  When every tensor is suspended or
done, all noted sums are exchanged at once, and the suspended tensors begin again with the values known.  The kernel is pure,
so what is computed twice is the same twice, and blocks know nothing of it.
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

    check: it is asked for only because it is finite where the gradients are.
    """

    value: Tensor
    op: str = SUM
    groups: tuple[ProcessGroup, ...] = ()
    check: bool = False


class Suspended(Exception):
    """A step needs the value of a sum that has not been exchanged yet."""


class Deferred(Tensor):
    """Stands for a sum that is not known yet: it has a shape, and every use of its value suspends the step."""

    @staticmethod
    def __new__(cls, like: Tensor) -> Deferred:
        """One of the shape, dtype and device of `like`."""
        return private.without_data(cls, like)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Suspends the step, unless only shape or dtype is asked for."""
        if func in _METADATA:
            with private.without_override():
                return func(*args)
        raise Suspended

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Nothing reaches a deferred sum on another way."""
        raise Suspended


class Sums:
    """The sums of one leaf's step, in the order in which blocks ask for them: those known, and those waiting."""

    def __init__(self) -> None:
        self.known: list[Tensor] = []
        self.waiting: list[Pending] = []
        self._asked = 0

    def defer(self, pending: Pending, finish: Callable[[Tensor], Tensor] = lambda total: total) -> Tensor:
        """`finish` of the sum over all ranks, or what stands for it."""
        place, self._asked = self._asked, self._asked + 1
        if place < len(self.known):
            return finish(self.known[place])
        self.waiting.append(pending)
        return Deferred(finish(pending.value))

    def attempt(self, run: Callable[[], Any]) -> Any:
        """What `run` gives, None while it waits for sums."""
        self._asked, self.waiting = 0, []
        try:
            result = run()
        except Suspended:
            return None
        return None if self.waiting else result

    def receive(self, totals: Sequence[Tensor]) -> None:
        """The values of those waiting, for the next attempt."""
        self.known += [total.to(p.value.dtype) for total, p in zip(totals, self.waiting, strict=True)]


class Reduced:
    """A scope whose coordinates lie on several ranks; `inner` reduces those of this one.

    count: coordinates of each scope on all ranks together, for means.
    weight: of this rank's sums; 1/(number of ranks that hold the same coordinates).
    joint: one number for all of inner's scopes together, kept once for each.
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
        """Σ x over all ranks."""
        return self._total(x, 1.0)

    def mean(self, x: Tensor) -> Tensor:
        """Σ x / Σ 1 over all ranks."""
        return self._total(x, self.count)

    def _total(self, x: Tensor, divisor: float | Tensor) -> Tensor:
        mine = self.inner.sum(x)
        shape, mine = mine.shape, mine * self.weight
        mine = mine.sum() if self.joint else mine
        return self.sums.defer(Pending(mine, SUM, self.groups), lambda total: (total / divisor).expand(shape))

    def amax(self, x: Tensor) -> Tensor:
        """max x over all ranks, for x ≥ 0."""
        mine = self.inner.amax(x)
        shape, mine = mine.shape, mine.amax() if self.joint else mine
        return self.sums.defer(Pending(mine, MAX, self.groups), lambda total: total.expand(shape))

    def spread(self, s: Tensor) -> Tensor:
        """One number per scope -> something that broadcasts over the coordinates."""
        return self.inner.spread(s)

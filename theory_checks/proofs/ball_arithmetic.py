"""Ball arithmetic: numbers with a rigorous error bound, by Arb through python-flint (extra `theory`).

An operation on balls gives a ball that contains every result of the operation on numbers in them.  So `x > y` on balls is a
proof, and where neither x > y nor x ≤ y is proved, a `max` is the ball that holds both, and is counted as undecided.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any


class Unseparated(Exception):
    """This precision does not enclose a run, and its message says where."""


@dataclasses.dataclass(frozen=True)
class Proof:
    """A claim refuted where left > right while the margin of every premise is ≥ 0; all of them are balls.

    first: the first T at which left > right, for a claim about T.
    """

    claim: str
    left: Any
    right: Any
    premises: dict[str, Any] = dataclasses.field(default_factory=dict)
    first: int | None = None


class Balls:
    """Balls with `bits` of precision, made inside `precision(bits)`.

    undecided: how many maxima met two balls that overlap.
    """

    def __init__(self) -> None:
        self.undecided = 0

    @staticmethod
    def number(x: float) -> Any:
        """The exact value of x."""
        from flint import arb

        return arb(x)

    @staticmethod
    def sqrt(x: Any) -> Any:
        """√x; not finite where x may be negative."""
        return x.sqrt()

    def largest(self, x: Any, y: Any) -> Any:
        """max(x, y): the larger one where that is proved, else a ball that holds both."""
        if x >= y:
            return x
        if y >= x:
            return y
        self.undecided += 1
        return x.max(y)

    @staticmethod
    def quotient(x: Any, y: Any) -> Any:
        """x/y, and 0 where y is 0 exactly.  A ball around 0 that is not 0 gives one that is not finite, and no proof."""
        return 0 * y if y.is_zero() else x / y


@contextlib.contextmanager
def precision(bits: int) -> Iterator[Balls]:
    """Everything inside is computed with that many bits.  Raises ImportError where python-flint is not installed."""
    try:
        from flint import ctx
    except ImportError as error:
        raise ImportError("certificates need python-flint: pip install 'apollo-sandbox[theory]'") from error
    before, ctx.prec = ctx.prec, bits
    try:
        yield Balls()
    finally:
        ctx.prec = before


def show(x: Any, digits: int = 8) -> str:
    """A ball as "mid ± radius", rounded outward; an exact number as itself."""
    return str(x.str(digits)).strip("[]").replace("+/-", "±")

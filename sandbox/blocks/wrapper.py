"""Blocks around another block of their slot."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, ClassVar

from torch import Tensor

from sandbox.blocks.base import Block, Flow


class Wrapper(Block):
    """Base of a block with a field `inner`, a block of the same slot: it needs what the inner block needs and keeps its state.

    Its `step` calls `inner_step` for the inner block's step.  The equation, in text and LaTeX, follows the inner one's.
    Class attributes: `own_state` (its own state, if any), `own_latex` (its own equation in LaTeX).
    Raises TypeError for an inner block of another slot, and for one with a state named as one of `own_state`.
    """

    inner: Block
    own_state: ClassVar[Mapping[str, str]] = {}
    own_latex: ClassVar[str] = ""

    def check(self) -> None:
        """The inner block fits the slot, and names no state as this one does."""
        name, inner = type(self).__name__, self.inner
        if not isinstance(inner, Block) or not set(self.slots) <= set(inner.slots):
            raise TypeError(f"{name}: inner must be a block for slot {self.slots[0]!r}, got {inner}")
        for state in self.own_state.keys() & inner.state.keys():
            raise TypeError(f"{name}: inner must not keep a state named {state}, {type(inner).__name__} does")

    @property
    def matrix(self) -> bool:
        """As the inner block."""
        return super().matrix or self.inner.matrix

    @property
    def needs(self) -> tuple[str, ...]:
        """What the inner block needs."""
        return self.inner.needs

    @property
    def state(self) -> Mapping[str, str]:
        """Its own, and the inner block's."""
        return {**self.own_state, **self.inner.state}

    @property
    def text(self) -> str:
        """The inner equation, then its own."""
        return f"{self.inner.text};  {super().text}"

    @property
    def latex(self) -> str:
        """The inner equation, then its own."""
        return rf"{self.inner.latex},\quad {self.own_latex}"

    def initial(self, name: str) -> Any:
        """The inner block's."""
        return self.inner.initial(name)

    def coefficients(self, t: Any) -> dict[str, Any]:
        """The inner block's, under names that are not its own."""
        return {f"inner.{name}": value for name, value in self.inner.coefficients(t).items()}

    def inner_step(self, x: Flow, **state: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """The inner block's step, from its own state and coefficients."""
        coefficients = x.c
        x.c = SimpleNamespace(**{n.removeprefix("inner."): v for n, v in vars(coefficients).items() if n.startswith("inner.")})
        result = self.inner.step(x, **state)
        x.c = coefficients
        return result

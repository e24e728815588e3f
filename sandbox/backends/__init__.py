"""How a step is run.  A backend takes batches of tensors that make a step together and changes them in place."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from sandbox import suggest

if TYPE_CHECKING:
    from sandbox.recipe import Recipe


@dataclasses.dataclass(frozen=True)
class Batch:
    """Tensors of one parameter group that have made the same number of steps, the last one with the same rate."""

    recipe: Recipe
    t: int  # number of the step to make, from 1
    lr: Any  # η_t: a float, or a function of t
    lr_old: float  # η_{t-1}
    params: list[Tensor]
    grads: list[Tensor]
    hessians: list[Tensor | None]
    states: list[dict[str, Any]]
    norm: Tensor | None  # ‖g‖₂ over all gradients of the optimizer, where the recipe needs it


class Backend(Protocol):
    """Runs one step."""

    def step(self, batch: Batch) -> None:
        """Changes parameters and state ("step" and "lr" apart) of the batch in place."""
        ...


NAMES = ("eager",)


def get(name: str) -> Backend:
    """The backend called `name`.  Raises ValueError for an unknown one."""
    if name not in NAMES:
        raise ValueError(suggest.unknown("backend", name, NAMES))
    from sandbox.backends import eager

    return eager.Eager()

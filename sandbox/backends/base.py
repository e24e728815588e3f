"""What a backend is: it takes cohorts of tensors that make a step together, and changes them in place."""

from __future__ import annotations

import dataclasses
import itertools
import operator
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from sandbox.recipe import Recipe


class Cohort:
    """Tensors of one parameter group with equal host numbers: as many steps made, the last one with the same hyperparameters.

    members: their places in the group.  states: their entries in the optimizer's state.  plan: what the backend keeps.
    last: the host numbers, by `recipe.host_names`.  In the states they are views of one tensor, so that a step writes them
    all at once, and its version tells whether somebody else has written to one.
    """

    def __init__(
        self, members: list[int], params: list[Tensor], states: list[dict[str, Any]], last: Mapping[str, float]
    ) -> None:
        self.members, self.params, self.states, self.last = members, params, states, dict(last)
        self.plan: Any = None
        self._numbers = torch.tensor([list(last.values())] * len(params), dtype=torch.float64, device="cpu")
        views = iter(self._numbers.view(-1).unbind())
        for state in states:
            state.update({name: next(views) for name in last})
        self._version = self._numbers._version
        self._entries: list[Any] | None = None

    @property
    def steps(self) -> int:
        """Updates made."""
        return int(self.last["step"])

    def put(self, i: int, name: str, value: Tensor) -> None:
        """Puts a backend's own tensor of the same values (a view of a buffer, say) into the state of member i."""
        self.states[i][name] = value
        self._entries = None

    def advance(self, applied: Mapping[str, float]) -> None:
        """Counts a step and keeps the hyperparameters with which it was made."""
        self.last = {"step": self.last["step"] + 1, **applied}
        self._numbers.copy_(torch.tensor(list(self.last.values()), dtype=torch.float64, device="cpu"))
        self._version = self._numbers._version
        if self._entries is None:
            self._entries = list(self._values())

    def stands(self) -> bool:
        """Whether the states hold what the last step left there: nobody has replaced, removed or counted anything."""
        if self._entries is None or self._numbers._version != self._version:
            return False
        # in C, since it is asked in every step for every entry
        return sum(map(len, self.states)) == len(self._entries) and all(map(operator.is_, self._values(), self._entries))

    def _values(self) -> Any:
        return itertools.chain.from_iterable(map(dict.values, self.states))


@dataclasses.dataclass(frozen=True)
class Step:
    """What a cohort's step takes: the recipe at this t, η_t, and for each member gradient and z ⊙ Hz (or None)."""

    recipe: Recipe
    lr: float
    grads: list[Tensor]
    hessians: list[Tensor | None]
    norm: Tensor | None  # ‖g‖₂ over all gradients of the optimizer, where the recipe needs it


class Backend(Protocol):
    """Runs steps.  `name` is what users call it."""

    name: str

    def load(self, cohort: Cohort, step: Step, *, check: bool) -> list[Tensor]:
        """Takes gradients in where the backend copies them; nothing that a user sees changes.

        With `check`, returns 0-d tensors that are all finite only if all gradients are (`totals`, or cheaper ones).
        """
        ...

    def step(self, cohort: Cohort, step: Step) -> None:
        """Makes step number `cohort.steps + 1`: changes parameters and the states of blocks in place."""
        ...


def totals(grads: list[Tensor]) -> list[Tensor]:
    """One number a tensor that is finite only if all its entries are: its sum, or its norm where norms are one kernel."""
    if grads and grads[0].device.type == "cuda":
        return list(torch._foreach_norm(grads))
    return [g.sum() for g in grads]


def all_finite(numbers: list[Tensor]) -> bool:
    """Whether 0-d tensors of any dtype and device are all finite."""
    groups: dict[Any, list[Tensor]] = {}
    for number in numbers:
        groups.setdefault((number.dtype, number.device), []).append(number)
    return all(bool(torch.stack(same).isfinite().all()) for same in groups.values())

"""How a step is run.  A backend takes cohorts of tensors that make a step together and changes them in place."""

from __future__ import annotations

import dataclasses
import itertools
import operator
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from sandbox import suggest

if TYPE_CHECKING:
    from sandbox.recipe import Recipe


@dataclasses.dataclass
class Cohort:
    """Tensors of one parameter group that have made the same number of steps, the last one with the same rate.

    members: their places in the group.  states: their entries in the optimizer's state; a backend may put other tensors of the
    same values into these dicts (views of a buffer, say).  plan: what the backend keeps for this cohort.
    recipe: with its numbers as they were at the last step; base: the group's, from which it came.
    """

    members: list[int]
    params: list[Tensor]
    states: list[dict[str, Any]]
    steps: int
    lr_old: float
    recipe: Recipe | None = None
    base: Recipe | None = None
    plan: Any = None

    @property
    def key(self) -> tuple[Any, ...]:
        """What tensors that make a step together have in common."""
        return self.steps, self.lr_old, None if self.recipe is None else tuple(self.recipe.leaves)

    def stands(self, params: list[Tensor]) -> bool:
        """Whether these are still its parameters, and its count what the states say: someone may have set "step" to 0."""
        if not identical(params, self.params):
            return False
        if self.plan is not None:  # all of them are views of one tensor
            return bool(self.plan.counted())
        return all(int(state["step"]) == self.steps for state in self.states)

    def advance(self, lr: float) -> None:
        """Counts a step made at rate `lr`, here and in the states."""
        self.steps, self.lr_old = self.steps + 1, lr
        for state in self.states:
            state["step"].add_(1)
            state["lr"].fill_(lr)


def identical(one: Iterable[Any], two: Iterable[Any]) -> bool:
    """Whether two sequences hold the same objects; without a loop in Python, since it is asked in every step."""
    end = (None,)
    return all(map(operator.is_, itertools.chain(one, end), itertools.chain(two, end)))


@dataclasses.dataclass(frozen=True)
class Step:
    """What a cohort's step takes: the recipe with its numbers, η_t, and for each member gradient and z ⊙ Hz (or None)."""

    recipe: Recipe
    lr: float
    grads: list[Tensor]
    hessians: list[Tensor | None]
    old: Recipe | None  # with the numbers of the cohort's last step, where the recipe computes its direction again
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
        """Makes step number `cohort.steps + 1`: changes parameters and states in place, and counts it."""
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


NAMES = ("eager", "compiled", "scripted")


def get(backend: str | Backend, *, flat: bool = False) -> Backend:
    """The backend called `backend`, or one made by hand.

    flat: see `sandbox.backends.compiled`.  Raises ValueError for an unknown name, or for `flat` with another backend.
    """
    if isinstance(backend, str) and backend not in NAMES:
        raise ValueError(suggest.unknown("backend", backend, NAMES))
    if flat and backend != "compiled":
        raise ValueError(f"flat=True needs backend='compiled', got {backend!r}")
    if backend == "compiled":
        from sandbox.backends.compiled import Compiled

        return Compiled(flat=flat)
    if backend == "scripted":
        from sandbox.backends.scripted import Scripted

        return Scripted()
    if backend == "eager":
        from sandbox.backends.eager import Eager

        return Eager()
    if isinstance(backend, str) or not hasattr(backend, "step") or not hasattr(backend, "load"):
        raise TypeError(f"a backend is one of {', '.join(NAMES)} or an object with load and step, got {backend!r}")
    return backend

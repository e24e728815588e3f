"""What a backend is: it takes cohorts, the tensors that make a step together, and changes them in place."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from sandbox.distributed.shards import Part
from sandbox.recipe import Recipe
from sandbox.utils.private_torch import norm_each, version


class Cohort:
    """Tensors of one parameter group with equal host numbers: as many steps made, the last one with the same hyperparameters.

    members: their places in the group.  states: their entries in the optimizer's state.  cache: whatever the backend keeps for
    them, None at first.  name: of a member, by its place in the group.  changed: whether tensors in the states were replaced
    since it was last reset.  branch: which of the group's recipes trains them (`Recipe.branch`).
    params: where each rank has a part of them, the local tensors; parts: which parts, None where this process is alone.
    last: the host numbers, by `analysis.host_names`.  In the states they are views of one tensor, so that a step writes them
    all at once, and its version tells whether somebody else has written to one.
    """

    def __init__(
        self,
        members: list[int],
        params: list[Tensor],
        states: list[dict[str, Any]],
        last: Mapping[str, float],
        name: Callable[[int], str],
        parts: list[Part] | None = None,
        branch: str = "",
    ) -> None:
        self.members, self.params, self.states, self.last = members, params, states, dict(last)
        self.parts, self.branch = parts, branch
        self.shapes = [p.shape for p in params]
        self.cache: Any = None
        self.name, self.changed = name, True
        self._numbers = torch.tensor([list(last.values())] * len(params), dtype=torch.float64, device="cpu")
        views = iter(self._numbers.view(-1).unbind())
        for state in states:
            state.update({name: next(views) for name in last})
        # NumPy writes past the version counter, which then counts what others write; and two calls of torch would cost more
        self._values, self._version = self._numbers.numpy(), version(self._numbers)

    @property
    def steps(self) -> int:
        """The number of updates so far."""
        return int(self.last["step"])

    def first(self, i: int) -> int:
        """Returns the place in its tensor of the first entry of member i."""
        return 0 if self.parts is None else self.parts[i].first

    def check(self, grads: list[Tensor]) -> None:
        """Raises TypeError for a sparse gradient, ValueError for one of another shape than its parameter."""
        for place, p, g in zip(self.members, self.params, grads, strict=True):
            if g.layout is not torch.strided:
                raise TypeError(
                    f"the gradient of parameter {self.name(place)} is sparse ({g.layout}); recipes need dense ones: "
                    "use sparse=False in the layer that makes it"
                )
            if g.shape != p.shape:
                raise ValueError(f"parameter {self.name(place)} has shape {tuple(p.shape)}, its gradient {tuple(g.shape)}")

    def check_shapes(self, grads: list[Tensor]) -> None:
        """Raises ValueError where a parameter or its gradient has another shape than the state was made for."""
        if [p.shape for p in self.params] == self.shapes == [g.shape for g in grads]:
            return
        for place, p, shape in zip(self.members, self.params, self.shapes, strict=True):
            if p.shape != shape:
                raise ValueError(
                    f"parameter {self.name(place)} has shape {tuple(p.shape)}, its state was made for {tuple(shape)}: "
                    "make a new optimizer for it"
                )
        self.check(grads)

    def replace_state(self, i: int, name: str, value: Tensor) -> None:
        """Replaces a state of member i by the backend's own tensor of the same values (a view of a buffer, say)."""
        self.states[i][name] = value
        self.changed = True

    def advance(self, applied: Mapping[str, float]) -> None:
        """Counts a step and stores the hyperparameters with which it was made."""
        self.last = {"step": self.last["step"] + 1, **applied}
        self._values[:] = list(self.last.values())

    def unchanged(self) -> bool:
        """Whether nothing else has written to the host numbers since the last step."""
        return version(self._numbers) == self._version


@dataclasses.dataclass(frozen=True)
class Step:
    """What a cohort's step needs: the recipe at this t, η_t, and for each member its gradient and its inputs by name."""

    recipe: Recipe
    lr: float
    grads: list[Tensor]
    inputs: dict[str, list[Tensor]]
    norm: Tensor | None  # ‖g‖₂ over all gradients of the optimizer, where the recipe needs it
    state_dtype: torch.dtype | None = None  # of per-coordinate states (`sandbox.recipe.rounding`); None: as computed
    seed: int = 0  # of their rounding

    def extra(self, i: int) -> dict[str, Tensor]:
        """Returns the inputs of member i."""
        return {name: row[i] for name, row in self.inputs.items()}


class Backend(Protocol):
    """Runs steps.  `name` is what users call it.

    One that can train parts of tensors also has `phases(cohort, step)`: after `load`, a generator that yields the parts of sums
    that it waits for (`Pending`) and gets their totals over all ranks; it changes nothing, and returns a function that does.
    One that keeps states in `Step.state_dtype` says so by `rounds = True`.
    """

    name: str

    def load(self, cohort: Cohort, step: Step, *, check: bool) -> list[Tensor]:
        """Copies gradients where the backend needs it; nothing that a user sees changes.

        Raises TypeError and ValueError for a gradient that does not fit (`Cohort.check`).
        With `check`, returns 0-d tensors that are all finite only if all gradients are (`totals`, or cheaper ones), apart from
        those of which the first of its phases asks for such a number (`Pending.check`).
        """
        ...

    def step(self, cohort: Cohort, step: Step) -> None:
        """Makes step number `cohort.steps + 1`: changes parameters and the states of blocks in place."""
        ...


class Observer(Protocol):
    """Sees each step before it is made; `sandbox.probes.Watch` is one."""

    def observe(self, planned: Sequence[tuple[list[str], Cohort, Step]]) -> None:
        """Receives, for each cohort, the names of its tensors, the cohort and the step that it is about to make."""
        ...


def needs_sums(cohort: Cohort, step: Step) -> bool:
    """Whether a cohort's scalars are sums over several ranks."""
    parts = cohort.parts or ()
    return any(part.split for part in parts) or (bool(parts) and step.recipe.scope == "global")


def only_tensorwise(cohort: Cohort, step: Step) -> bool:
    """Whether ranks share scalars in a way that only the reference knows: channels in parts, or one scalar for all tensors
    of which not all have as many replicas."""
    weights = {part.weight for part in cohort.parts or ()}
    return needs_sums(cohort, step) and (step.recipe.scope == "channel" or (step.recipe.scope == "global" and len(weights) > 1))


def totals(grads: list[Tensor]) -> list[Tensor]:
    """Returns one number per tensor that is finite only if all its entries are: its sum, or its norm where that is faster."""
    if grads and grads[0].device.type == "cuda":
        return list(norm_each(grads))
    return [g.sum() for g in grads]


def all_finite(numbers: list[Tensor]) -> bool:
    """Whether 0-d tensors of any dtype and device are all finite."""
    groups: dict[Any, list[Tensor]] = {}
    for number in numbers:
        groups.setdefault((number.dtype, number.device), []).append(number)
    return all(math.isfinite(value) for same in groups.values() for value in torch.stack(same).tolist())

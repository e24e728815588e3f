"""The default: a step without a compiler; recipes that have no graph run tensor by tensor."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable

from torch import Tensor

from sandbox.backends.arena.plan import Planned
from sandbox.backends.base import Cohort, Step, only_tensorwise
from sandbox.backends.recorded.pieces import Program, program_of
from sandbox.backends.reference import Reference
from sandbox.backends.tracing import graph
from sandbox.distributed.ranks import Run
from sandbox.recipe import Recipe

_REFERENCE = Reference()

# State words of a recipe from which on its history is left to the reference: its graph takes long to record (ten pairs .5 s, a
# hundred 11 s, once a process).  In phases a step of L-BFGS with ten pairs takes .31 of the reference's time on 6 M parameters,
# .73 on a small network; with a hundred pairs, 3.3 times as long on the small network.  On shards always in phases: there the
# reference begins anew at each sum (a hundred pairs, two ranks: 7.4 s a step, in phases .14 s).
HISTORY = 64


class Eager(Planned):
    """The eager backend: plain Python over pieces of tensors (`sandbox.backends.recorded.pieces`)."""

    name = "eager"

    def kernel(self, recipe: Recipe, signature: graph.Signature, *, step_only: bool, phased: bool) -> Program:
        """Written at the first call in the process; it always has phases."""
        return program_of(recipe, signature, step_only=step_only)

    def load(self, cohort: Cohort, step: Step, *, check: bool) -> list[Tensor]:
        """As `Planned.load`; matrices, which are no sum of pieces, long histories and recipes without a graph are left to the
        reference."""
        if cohort.plan is None and _needs_reference(cohort, step):
            cohort.plan = _Refused("", warned=True)
        if not isinstance(cohort.plan, _Refused):
            try:
                return super().load(cohort, step, check=check)
            except graph.NoGraph as error:
                cohort.plan = _Refused(str(error))
        return _REFERENCE.load(cohort, step, check=check)

    def phases(self, cohort: Cohort, step: Step) -> Run[Callable[[], None]]:
        """See `Backend`."""
        if isinstance(cohort.plan, _Refused):
            return _REFERENCE.phases(cohort, step)
        return super().phases(cohort, step)

    def step(self, cohort: Cohort, step: Step) -> None:
        """One step of the cohort; warns at its first one by the reference, which raises what is wrong with the block itself."""
        if not isinstance(cohort.plan, _Refused):
            super().step(cohort, step)
            return
        _REFERENCE.step(cohort, step)
        if not cohort.plan.warned:
            cohort.plan.warned = True
            warnings.warn(f"{cohort.plan.why}\nIts steps run tensor by tensor, as with backend='reference'.", stacklevel=4)


def _needs_reference(cohort: Cohort, step: Step) -> bool:
    """Whether the recipe takes whole matrices or keeps a long history, or no plan knows how the ranks share its scalars."""
    long = cohort.parts is None and step.recipe.analysis.state_elements >= HISTORY
    return step.recipe.analysis.own_layout or long or only_tensorwise(cohort, step)


@dataclasses.dataclass
class _Refused:
    """In the place of a plan: why there is none."""

    why: str
    warned: bool = False

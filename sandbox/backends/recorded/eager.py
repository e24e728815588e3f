"""The default: a step without a compiler; recipes that have no graph run tensor by tensor."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable

from torch import Tensor

from sandbox.backends.arena.placement import KernelBackend
from sandbox.backends.base import Cohort, Step, only_tensorwise
from sandbox.backends.recorded.program import Program, program_of
from sandbox.backends.reference import Reference
from sandbox.backends.tracing import graph
from sandbox.distributed.ranks import SumRequests
from sandbox.recipe import Recipe

_REFERENCE = Reference()

# State elements per parameter from which on a history is left to the reference: its graph takes long to record (ten pairs .5 s,
# a hundred 11 s, once per process).  In phases a step of L-BFGS with ten pairs takes .31 of the reference's time on 6 M
# parameters, .73 on a small network; with a hundred pairs, 3.3 times as long on the small network.  On shards always in phases:
# there the reference begins anew at each sum (a hundred pairs, two ranks: 7.4 s per step, in phases .14 s).
HISTORY = 64


class Eager(KernelBackend):
    """The eager backend: plain Python over pieces of tensors (`sandbox.backends.recorded.program`)."""

    name = "eager"

    def kernel(self, recipe: Recipe, signature: graph.Signature, *, step_only: bool, phased: bool) -> Program:
        """Returns the program of a signature, written at the first call in the process; it always has phases."""
        return program_of(recipe, signature, step_only=step_only)

    def load(self, cohort: Cohort, step: Step, *, check: bool) -> list[Tensor]:
        """As `KernelBackend.load`; matrices, which are no sum of pieces, long histories and recipes without a graph are left to
        the reference."""
        if cohort.cache is None and _needs_reference(cohort, step):
            cohort.cache = _Refused("", warned=True)
        if not isinstance(cohort.cache, _Refused):
            try:
                return super().load(cohort, step, check=check)
            except graph.NoGraph as error:
                cohort.cache = _Refused(str(error))
        return _REFERENCE.load(cohort, step, check=check)

    def phases(self, cohort: Cohort, step: Step) -> SumRequests[Callable[[], None]]:
        """See `Backend`."""
        if isinstance(cohort.cache, _Refused):
            return _REFERENCE.phases(cohort, step)
        return super().phases(cohort, step)

    def step(self, cohort: Cohort, step: Step) -> None:
        """Makes one step; warns at the first one by the reference, which raises what is wrong with the block itself."""
        if not isinstance(cohort.cache, _Refused):
            super().step(cohort, step)
            return
        _REFERENCE.step(cohort, step)
        if not cohort.cache.warned:
            cohort.cache.warned = True
            warnings.warn(f"{cohort.cache.why}\nIts steps run tensor by tensor, as with backend='reference'.", stacklevel=4)


def _needs_reference(cohort: Cohort, step: Step) -> bool:
    """Whether the recipe takes whole matrices or a long history, or only the reference knows how ranks share its scalars."""
    long = cohort.parts is None and step.recipe.analysis.state_elements >= HISTORY
    return step.recipe.analysis.own_layout or long or only_tensorwise(cohort, step)


@dataclasses.dataclass
class _Refused:
    """Takes the place of a `Placement`, and says why there is none."""

    why: str
    warned: bool = False

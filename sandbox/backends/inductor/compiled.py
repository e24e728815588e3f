"""A step compiled by Inductor: one graph for all models, at the speed of the memory bus.

How tensors lie: `sandbox.backends.arena.plan`.  `flat=True`: parameters become views of one buffer, so nothing is copied back.
"""

from __future__ import annotations

from torch import Tensor

from sandbox.backends.arena.plan import Planned
from sandbox.backends.base import Cohort, Step, only_tensorwise
from sandbox.backends.inductor.kernels import Kernel, PhasedKernel, kernel_of, phased_of
from sandbox.backends.tracing import graph
from sandbox.recipe import Recipe


class Compiled(Planned):
    """The compiled backend.  mode: torch.compile's ("reduce-overhead" for CUDA graphs).  flat: see the module."""

    name = "compiled"

    def __init__(self, *, flat: bool = False, mode: str | None = None) -> None:
        self.flat, self.mode = flat, mode

    def load(self, cohort: Cohort, step: Step, *, check: bool) -> list[Tensor]:
        """As `Planned.load`.  Raises ValueError for parts of tensors that share scalars in a way that no plan knows."""
        if cohort.plan is None and only_tensorwise(cohort, step):
            raise ValueError(
                f"recipe {step.recipe.name!r} with scope {step.recipe.scope!r} is not compiled for such parts of tensors; "
                "use backend='eager'"
            )
        return super().load(cohort, step, check=check)

    def kernel(self, recipe: Recipe, signature: graph.Signature, *, step_only: bool, phased: bool) -> Kernel | PhasedKernel:
        """Compiled at the first call in the process."""
        if phased:
            return phased_of(recipe, signature, step_only=step_only)
        return kernel_of(recipe, signature, step_only=step_only, mode=self.mode)

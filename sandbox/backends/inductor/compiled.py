"""A step compiled by Inductor: one graph for all models, at the speed of the memory bus.

How tensors lie: `sandbox.backends.arena.placement`.  With `flat=True` parameters become views of one buffer, so that nothing is
copied back.
"""

from __future__ import annotations

from torch import Tensor

from sandbox.backends.arena.placement import KernelBackend
from sandbox.backends.base import Cohort, Step, only_tensorwise
from sandbox.backends.inductor.kernels import Kernel, kernel_of
from sandbox.backends.tracing import graph
from sandbox.recipe import Recipe


class Compiled(KernelBackend):
    """The compiled backend.  mode: torch.compile's ("reduce-overhead" for CUDA graphs).  flat: see the module."""

    name = "compiled"

    def __init__(self, *, flat: bool = False, mode: str | None = None) -> None:
        self.flat, self.mode = flat, mode

    def load(self, cohort: Cohort, step: Step, *, check: bool) -> list[Tensor]:
        """As `KernelBackend.load`.  Raises ValueError for parts of tensors whose ranks share scalars in another way."""
        if cohort.cache is None and only_tensorwise(cohort, step):
            raise ValueError(
                f"recipe {step.recipe.name!r} with scope {step.recipe.scope!r} is not compiled for such parts of tensors; "
                "use backend='eager'"
            )
        return super().load(cohort, step, check=check)

    def kernel(self, recipe: Recipe, signature: graph.Signature, *, step_only: bool, phased: bool) -> Kernel:
        """Returns the kernel of a signature, compiled at the first call in the process."""
        return kernel_of(recipe, signature, step_only=step_only, phased=phased, mode=None if phased else self.mode)

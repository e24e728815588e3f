"""A step compiled by Inductor: one graph for all models, at the speed of the memory bus.

How tensors lie: `sandbox.backends.plan`.  `flat=True`: parameters become views of one buffer, so that nothing is copied back.
"""

from __future__ import annotations

from sandbox.backends import graph
from sandbox.backends.kernels import Kernel, kernel_of
from sandbox.backends.plan import Planned
from sandbox.recipe import Recipe


class Compiled(Planned):
    """The compiled backend.  mode: torch.compile's ("reduce-overhead" for CUDA graphs).  flat: see the module."""

    name = "compiled"

    def __init__(self, *, flat: bool = False, mode: str | None = None) -> None:
        self.flat, self.mode = flat, mode

    def kernel(self, recipe: Recipe, signature: graph.Signature, *, step_only: bool) -> Kernel:
        """Compiled at the first call in the process."""
        return kernel_of(recipe, signature, step_only=step_only, mode=self.mode)

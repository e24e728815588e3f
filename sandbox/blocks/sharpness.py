"""The gradient at a point up the slope: sharpness-aware minimisation."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from sandbox.blocks.base import Flow, block
from sandbox.blocks.number import Number, number
from sandbox.blocks.slots import Gradient


@block
class Sharpness(Gradient):
    """g ← ∇f(θ + e),  e = ρ w² ⊙ g/‖w ⊙ g‖₂ over all tensors   (Foret et al. 2021, SAM: w = 1)

    The same batch a second time; it must come first in `gradient`.
    rho: ρ ≥ 0.  adaptive: w = |θ| + s (Kwon et al. 2021, ASAM).  shift: s ≥ 0.
    """

    rho: Number = number(default=0.05, range="[0, inf)")
    adaptive: bool = False
    shift: Number = number(default=0.0, range="[0, inf)")
    needs = ("displaced",)
    latex = (
        r"g \leftarrow \nabla f(\theta + e),\quad e = \rho\, w^2 \odot g / \lVert w \odot g \rVert_2 \quad\text{all tensors}"
    )

    def weights(self, theta: Tensor) -> Any:
        """w."""
        # w = |θ| + s, or 1
        return theta.abs() + self.shift if self.adaptive else 1.0

    def displacement(self, theta: Tensor, g: Tensor, norm: Tensor) -> Tensor:
        """e of one tensor; norm: ‖w ⊙ g‖₂ over all tensors.  0 where that is 0 or not finite."""
        # e = ρ w² g/(‖w g‖ + 1e-12)
        w = self.weights(theta)
        e = self.rho * w * w * g / (norm + 1e-12)
        return e.where(norm.isfinite(), e.new_zeros(()))

    def step(self, x: Flow, **state: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """The gradient at θ + e."""
        return x.displaced, state

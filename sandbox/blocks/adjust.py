"""Changes of the direction p after the solver: by the signs of the gradient, or to a size."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sandbox.blocks.base import Flow, block
from sandbox.blocks.number import Number, number
from sandbox.blocks.slots import Adjust


@block
class Cautious(Adjust):
    """p ← p ⊙ k/max(⟨k⟩, c), k = [p ⊙ g > 0]   (Liang et al. 2024; ⟨k⟩ per tensor)

    Leaves out the coordinates in which the step would climb, and lengthens the others by as much.  least: c in (0, 1].
    """

    least: Number = number(default=1e-3, range="(0, 1]")
    latex = r"p_t \leftarrow p_t \odot k_t / \max(\langle k_t \rangle, c), \quad k_t = [p_t \odot g_t > 0]"

    def step(self, x: Flow, **state: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """p where it agrees with the gradient."""
        # p ← p ⊙ k/max(⟨k⟩, c), k = [p ⊙ g > 0]
        k = agreement(x)
        return x.value * k * x.tensor.spread(1 / torch.clamp(x.tensor.mean(k), min=self.least)), state


@block
class CautiousCount(Adjust):
    """p ← p ⊙ k n/(Σk + 1), k = [p ⊙ g > 0], of a tensor of n entries   (Liang et al. 2024, first version)"""

    latex = r"p_t \leftarrow p_t \odot k_t\, n / (\Sigma k_t + 1), \quad k_t = [p_t \odot g_t > 0]"

    def step(self, x: Flow, **state: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """p where it agrees with the gradient."""
        # p ← p ⊙ k n/(Σk + 1), k = [p ⊙ g > 0]
        k = agreement(x)
        return x.value * k * x.tensor.spread(x.tensor.sum(torch.ones_like(k)) / (x.tensor.sum(k) + 1)), state


def agreement(x: Flow) -> Tensor:
    """k = [p ⊙ g > 0], as numbers 0 and 1."""
    return (x.value * x.g).sign().clamp(min=0)


@block
class GradientSigns(Adjust):
    """p ← |p| ⊙ sign(g)   (Cao et al. 2024, Grams; a coordinate without a gradient stands still)"""

    latex = r"p_t \leftarrow |p_t| \odot \mathrm{sign}(g_t)"

    def step(self, x: Flow, **state: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """|p| in the gradient's direction."""
        # p ← |p| ⊙ sign(g)
        return x.value.abs() * x.g.sign(), state


@block
class ClipRMS(Adjust):
    """p ← p/max(1, RMS(p)/c)   (Shazeer & Stern 2018, Adafactor; RMS per tensor)

    limit: c > 0.
    """

    limit: Number = number(default=1.0, range="(0, inf)")
    latex = r"p_t \leftarrow p_t / \max(1, \mathrm{RMS}(p_t)/c)"

    def step(self, x: Flow, **state: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """p, with a root mean square of c at most."""
        # p ← p/max(1, RMS(p)/c)
        rms = x.tensor.mean(x.value.square()).sqrt()
        return x.value / x.tensor.spread(torch.clamp(rms / self.limit, min=1.0)), state

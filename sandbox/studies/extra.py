"""Parts of studies that the sandbox lacks: a rectifier without the absolute value, a task of any size, L-BFGS for images."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from sandbox.blocks import AbsoluteFloor
from sandbox.blocks.base import block
from sandbox.tasks import Params, PureTask


@block
class SignedFloor(AbsoluteFloor):
    """D = max(B̄, σ)   (Apollo's without the absolute value: directions of negative curvature get the longest steps).

    sigma: σ > 0, in units of B.
    """

    latex = r"D_t = \max(\bar B_t, \sigma)"

    def read(self, B: Tensor) -> Tensor:
        """Returns max(B̄, σ)."""
        # D = max(B̄, σ)
        return B.clamp(min=self.sigma)

    def on_floor(self, B: Tensor) -> Tensor:
        """Whether B̄ ≤ σ, per coordinate."""
        return self.sigma >= B


class Parabola(PureTask):
    """½ ‖θ - x‖² of `size` parameters in one tensor, x a batch of two numbers taken in turn: next to no work but the update's.

    Raises ValueError for a size below 1.
    """

    name, about, metric, higher_is_better, steps = "parabola", "½ ‖θ - x‖², of any size.", "loss", False, 100
    convex = True

    def __init__(self, size: int = 1000) -> None:
        if size < 1:
            raise ValueError(f"size must be at least 1, got {size}")
        self.size = size

    def init(self, seed: int) -> Params:
        """Returns zeros."""
        return {"theta": torch.zeros(self.size)}

    def batches(self, seed: int) -> Iterator[Tensor]:
        """Yields 1 and 2 in turn."""
        while True:
            yield from (torch.tensor(1.0), torch.tensor(2.0))

    def loss(self, params: Params, batch: Tensor, /) -> Tensor:
        """Returns ½ ‖θ - x‖² / size."""
        return 0.5 * (params["theta"] - batch).square().mean()

    def full(self, split: str) -> Tensor:
        """Returns the mean of the two."""
        return torch.tensor(1.5)

    def score(self, params: Params, batch: Tensor) -> Tensor:
        """Returns the loss."""
        return self.loss(params, batch)


class ContiguousLBFGS(torch.optim.LBFGS):
    """torch's L-BFGS for parameters in any layout: it views gradients as vectors, which channels_last ones are not."""

    def step(self, closure: Callable[[], Any]) -> Any:
        """Makes one step; `closure` returns the loss and leaves the gradients in place."""

        def evaluate() -> Any:
            loss = closure()
            for group in self.param_groups:
                for p in group["params"]:
                    p.grad = p.grad.contiguous()
            return loss

        return super().step(evaluate)

"""Second-order recipes in Lightning; made for Lightning 2."""

from __future__ import annotations

from typing import Any

from torch import Tensor


class SecondOrder:
    """class Net(SecondOrder, LightningModule): automatic optimization with backward() left to the optimizer's step.

    Lost are gradient clipping and accumulation by the Trainer, which are refused, loss scaling (16-mixed on a GPU) and several
    processes.
    """

    trainer: Any
    _attached: Tensor

    def backward(self, loss: Tensor, *args: Any, **options: Any) -> None:
        """Keeps the loss for the step."""
        self._attached = loss

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        """Makes a step with the batch's loss.  Raises ValueError for arguments of the Trainer that would have no effect."""
        if self.trainer.gradient_clip_val or self.trainer.accumulate_grad_batches != 1:
            raise ValueError(
                "gradient_clip_val and accumulate_grad_batches have no effect on a second-order recipe: leave them out"
            )

        def closure() -> Tensor:
            optimizer_closure()
            return self._attached

        optimizer.step(closure=closure)

"""Second-order recipes in transformers' Trainer; made for transformers 5."""

from __future__ import annotations

from typing import Any

from torch import Tensor


class SecondOrder:
    """class SecondOrderTrainer(SecondOrder, Trainer): the loss stays attached to its graph, and backward() is left to the step.

    Lost are gradient accumulation, clipping, loss scaling (fp16) and several processes or devices; the first three are refused:
    set gradient_accumulation_steps=1 and max_grad_norm=0.  Attention needs a second derivative: attn_implementation="eager".
    """

    args: Any
    optimizer: Any
    _attached: Tensor

    def create_optimizer(self, *args: Any, **options: Any) -> Any:
        """Makes the Trainer's optimizer, whose steps then take the loss of the last training step.

        Raises ValueError for arguments of the Trainer that would have no effect.
        """
        lost = {"gradient_accumulation_steps": 1, "max_grad_norm": 0, "fp16": False}
        for name, value in lost.items():
            if (given := getattr(self.args, name)) not in (value, None):
                raise ValueError(f"{name}={given} has no effect on a second-order recipe: set {name}={value}")
        optimizer = super().create_optimizer(*args, **options)  # type: ignore[misc]
        step = optimizer.step
        optimizer.step = lambda closure=None: step(lambda: self._attached)
        return optimizer

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Computes the loss of a batch."""
        model.train()
        with self.compute_loss_context_manager():  # type: ignore[attr-defined]
            prepared = self._prepare_inputs(inputs)  # type: ignore[attr-defined]
            self._attached = self.compute_loss(model, prepared, num_items_in_batch=num_items_in_batch)  # type: ignore[attr-defined]
        return self._attached.detach()

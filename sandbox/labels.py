"""Labels drawn from the model: the gradient at them has the Gauss-Newton matrix for its second moment (times 1/n, n labels).

    with labels.Drawn(generator) as drawn:
        loss = F.cross_entropy(model(x), y)     # y is replaced by a draw from softmax(model(x))

Inside the context the losses of `torch.nn.functional` whose negative is a log-likelihood see drawn labels in the place of
theirs: cross_entropy and nll_loss (categories), binary_cross_entropy_with_logits (0 or 1), mse_loss (normal, of variance ½).
A label that is ignored (`ignore_index`) stays so.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode


class Drawn(TorchFunctionMode):
    """The context.  count: labels drawn so far; at its end RuntimeError where none was, since no loss above was called."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.generator, self.count = generator, 0

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        if error[0] is None and not self.count:
            raise RuntimeError(
                "labels are to be drawn from the model, but the loss calls none of torch.nn.functional's cross_entropy, "
                "nll_loss, binary_cross_entropy_with_logits and mse_loss"
            )

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _DRAWS:
            given = dict(zip(("input", "target"), args, strict=False)) | kwargs
            with torch.no_grad():
                target = _DRAWS[func](self, given["input"].detach(), given["target"], kwargs.get("ignore_index", -100))
            kwargs = {**{k: v for k, v in kwargs.items() if k not in ("input", "target")}, "target": target}
            args = (given["input"], *((target, *args[2:]) if len(args) > 2 else ()))
            if len(args) > 1:
                del kwargs["target"]
        return func(*args, **kwargs)

    def uniform(self, like: Tensor) -> Tensor:
        """Numbers in (0, 1), drawn on the CPU in the shape of `like`."""
        drawn = torch.rand(like.shape, generator=self.generator, dtype=torch.float64).clamp(min=1e-300)
        return drawn.to(like.device)


def _category(self: Drawn, logits: Tensor, target: Tensor, ignored: int) -> Tensor:
    # argmax of logits with Gumbel noise is a draw from their softmax
    axis = 1 if logits.ndim > 1 else 0
    drawn = (logits.double() - (-self.uniform(logits).log()).log()).argmax(axis)
    if target.is_floating_point():  # probabilities of classes
        self.count += drawn.numel()
        return F.one_hot(drawn, logits.shape[axis]).movedim(-1, axis).to(target.dtype)
    kept = target == ignored
    self.count += int((~kept).sum())
    return torch.where(kept, target, drawn)


def _coin(self: Drawn, logits: Tensor, target: Tensor, ignored: int) -> Tensor:
    self.count += logits.numel()
    return (self.uniform(logits) < logits.double().sigmoid()).to(target.dtype)


def _normal(self: Drawn, mean: Tensor, target: Tensor, ignored: int) -> Tensor:
    noise = torch.randn(mean.shape, generator=self.generator, dtype=torch.float64).to(mean.device, mean.dtype)
    self.count += mean.numel()
    return mean + 0.5**0.5 * noise


_DRAWS = {
    F.cross_entropy: _category,
    F.nll_loss: _category,
    F.binary_cross_entropy_with_logits: _coin,
    F.mse_loss: _normal,
}

"""Labels drawn from the model: the gradient at them has the Gauss-Newton matrix for its second moment (times 1/n, n labels).

    with labels.Drawn(key) as drawn:
        loss = F.cross_entropy(model(x), y)     # y is replaced by a draw from softmax(model(x))

Inside the context the losses of `torch.nn.functional` whose negative is a log-likelihood see drawn labels in the place of
theirs: cross_entropy and nll_loss (categories), binary_cross_entropy_with_logits (0 or 1), mse_loss (normal, of variance ½).
A label that is ignored (`ignore_index`) stays so.  What is drawn is a function of the key, of the call and of the place in a
tensor alone: the same on every device, and under vmap, where each seed has its key.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode


class Drawn(TorchFunctionMode):
    """The context.  key: a whole number or a 0-d int64 tensor.  count: labels drawn so far, an int or a 0-d tensor.

    Raises RuntimeError at its end where no loss above was called.
    """

    def __init__(self, key: int | Tensor) -> None:
        super().__init__()
        self.key = key if isinstance(key, Tensor) else torch.tensor(key, device="cpu")
        self.calls = 0
        self.count: int | Tensor = 0

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        if error[0] is None and not self.calls:
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
        """Numbers in (0, 1), float64, in the shape and on the device of `like`."""
        self.calls += 1
        places = torch.arange(like.numel(), device=like.device)
        bits = _mixed(_mixed(self.key.to(like.device) * _GAMMA + self.calls) + places * _GAMMA)
        # the upper 52 of 64 bits, in the middle between two multiples of 2⁻⁵²
        return ((_shifted(bits, 12).double() + 0.5) * 2.0**-52).reshape(like.shape)


_GAMMA = 0x9E3779B97F4A7C15 - 2**64  # the golden ratio's bits, as a signed number


def _shifted(x: Tensor, k: int) -> Tensor:
    """x >> k of unsigned numbers."""
    return (x >> k) & (2 ** (64 - k) - 1)


def _mixed(x: Tensor) -> Tensor:
    """SplitMix64's mix of 64 bits (Steele, Lea & Flood 2014); int64 products wrap."""
    x = (x ^ _shifted(x, 30)) * (0xBF58476D1CE4E5B9 - 2**64)
    x = (x ^ _shifted(x, 27)) * (0x94D049BB133111EB - 2**64)
    return x ^ _shifted(x, 31)


def _category(self: Drawn, logits: Tensor, target: Tensor, ignored: int) -> Tensor:
    # argmax of logits with Gumbel noise is a draw from their softmax
    axis = 1 if logits.ndim > 1 else 0
    drawn = (logits.double() - (-self.uniform(logits).log()).log()).argmax(axis)
    if target.is_floating_point():  # probabilities of classes
        self.count = self.count + drawn.numel()
        return F.one_hot(drawn, logits.shape[axis]).movedim(-1, axis).to(target.dtype)
    kept = target == ignored
    self.count = self.count + kept.logical_not().sum(dtype=torch.float64)
    return torch.where(kept, target, drawn)


def _coin(self: Drawn, logits: Tensor, target: Tensor, ignored: int) -> Tensor:
    self.count = self.count + logits.numel()
    return (self.uniform(logits) < logits.double().sigmoid()).to(target.dtype)


def _normal(self: Drawn, mean: Tensor, target: Tensor, ignored: int) -> Tensor:
    # Box and Muller's, times √½
    noise = (-self.uniform(mean).log()).sqrt() * (2 * torch.pi * self.uniform(mean)).cos()
    self.count = self.count + mean.numel()
    return mean + noise.to(mean.dtype)


_DRAWS = {
    F.cross_entropy: _category,
    F.nll_loss: _category,
    F.binary_cross_entropy_with_logits: _coin,
    F.mse_loss: _normal,
}

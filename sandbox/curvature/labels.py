"""Labels drawn from the model: the gradient at them has the Gauss-Newton matrix for its second moment.

    with labels.Drawn(key):
        loss = F.cross_entropy(model(x), y)     # y is replaced by a draw from softmax(model(x))

Inside the context the losses of `torch.nn.functional` whose negative is a log-likelihood see drawn labels in the place of
theirs: cross_entropy and nll_loss (categories), binary_cross_entropy_with_logits (0 or 1), mse_loss (normal, of variance ½).
What is drawn is a function of the key, of the call and of the place in a tensor alone: the same on every device, and under
vmap, where each seed has its key.

A loss is L = Σ_i c_i ℓ_i over its labels i.  Whatever makes c_i, a mean or a sum, ignored labels, weights of classes, a
division by hand, the gradient that arrives at ℓ_i is c_i.  It is replaced by its root, so that

    ĝ = Σ_i √c_i ∇ℓ_i(drawn label),   E ĝ ĝᵀ = Σ_i c_i E ∇ℓ_i ∇ℓ_iᵀ = the Gauss-Newton matrix of L

Weights are those of the given labels, and smoothing changes no curvature but by them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

Arguments = dict[str, Any]
NAMES = "cross_entropy, nll_loss, binary_cross_entropy_with_logits and mse_loss"


class Drawn(TorchFunctionMode):
    """The context.  key: a whole number or a 0-d int64 tensor.

    Raises RuntimeError at its end where no loss above was called.
    """

    def __init__(self, key: int | Tensor) -> None:
        super().__init__()
        self.key = key if isinstance(key, Tensor) else torch.tensor(key, device="cpu")
        self.calls = self.losses = 0

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        if error[0] is None and not self.losses:
            raise RuntimeError(
                f"labels are to be drawn from the model, but the loss calls none of torch.nn.functional's {NAMES}"
            )

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in LOSSES:
            return func(*args, **(kwargs or {}))
        self.losses += 1
        given = arguments(func, args, kwargs)
        with torch.no_grad():
            target, weights = _DRAWS[func](self, given["input"].detach()), coefficients(func, given)
        each = func(given["input"], target, reduction="none")
        if each.requires_grad:
            each.register_hook(_root)
        return each * weights if given["reduction"] == "none" else (each * weights).sum()

    def uniform(self, like: Tensor) -> Tensor:
        """Returns numbers in (0, 1), float64, in the shape and on the device of `like`."""
        self.calls += 1
        places = torch.arange(like.numel(), device=like.device)
        bits = _mix(_mix(self.key.to(like.device) * _GAMMA + self.calls) + places * _GAMMA)
        # the upper 52 of 64 bits, in the middle between two multiples of 2⁻⁵²
        return ((_shift(bits, 12).double() + 0.5) * 2.0**-52).reshape(like.shape)


def _root(c: Tensor) -> Tensor:
    """Returns √c, of a loss that is maximised √-c."""
    return c.detach().abs().sqrt()


_GAMMA = 0x9E3779B97F4A7C15 - 2**64  # the golden ratio's bits, as a signed number


def _shift(x: Tensor, k: int) -> Tensor:
    """Returns x >> k of unsigned numbers."""
    return (x >> k) & (2 ** (64 - k) - 1)


def _mix(x: Tensor) -> Tensor:
    """Returns SplitMix64's mix of 64 bits (Steele, Lea & Flood 2014); int64 products wrap."""
    x = (x ^ _shift(x, 30)) * (0xBF58476D1CE4E5B9 - 2**64)
    x = (x ^ _shift(x, 27)) * (0x94D049BB133111EB - 2**64)
    return x ^ _shift(x, 31)


def _category(self: Drawn, logits: Tensor) -> Tensor:
    # argmax of logits with Gumbel noise is a draw from their softmax
    return (logits.double() - (-self.uniform(logits).log()).log()).argmax(_axis(logits))


def _coin(self: Drawn, logits: Tensor) -> Tensor:
    return (self.uniform(logits) < logits.double().sigmoid()).to(logits.dtype)


def _normal(self: Drawn, mean: Tensor) -> Tensor:
    # Box and Muller's, times √½
    noise = (-self.uniform(mean).log()).sqrt() * (2 * torch.pi * self.uniform(mean)).cos()
    return mean + noise.to(mean.dtype)


_DRAWS: dict[Any, Callable[[Drawn, Tensor], Tensor]] = {
    F.cross_entropy: _category,
    F.nll_loss: _category,
    F.binary_cross_entropy_with_logits: _coin,
    F.mse_loss: _normal,
}

# -- the coefficient of each label in the value of a call ---------------------------------------------------------------------


def arguments(func: Any, args: Any, kwargs: Any) -> Arguments:
    """Returns all arguments of a call by name; those of a squared error broadcast, and `reduction` as its old names have it."""
    bound = inspect.signature(func).bind(*args, **(kwargs or {}))
    bound.apply_defaults()
    given = bound.arguments
    if given["size_average"] is not None or given["reduce"] is not None:
        mean = "sum" if given["size_average"] is False else "mean"
        given["reduction"] = "none" if given["reduce"] is False else mean
    if func is F.mse_loss:
        given["input"], given["target"] = torch.broadcast_tensors(given["input"], given["target"])
    return given


def coefficients(func: Any, given: Arguments) -> Tensor:
    """Returns the factor of each label's -log p in the value of a call: its weight, over n where that is a mean."""
    weights, total = _WEIGHTS[func](given)
    return weights / total if given["reduction"] == "mean" else weights


def _axis(logits: Tensor) -> int:
    return 1 if logits.ndim > 1 else 0


def _class_weights(given: Arguments) -> tuple[Tensor, Any]:
    """Returns the weight of each label, 0 for an ignored one, and what a mean divides the sum by."""
    logits, target, w, smoothing = given["input"], given["target"], given["weight"], given.get("label_smoothing", 0.0)
    w = torch.ones(logits.shape[_axis(logits)], dtype=logits.dtype, device=logits.device) if w is None else w
    if target.is_floating_point():  # probabilities of classes
        weights = target.movedim(_axis(logits), -1) @ w
        return (1 - smoothing) * weights + smoothing * w.mean(), weights.numel()
    kept = target != given["ignore_index"]
    weights = torch.where(kept, w[torch.where(kept, target, 0)], 0)
    return torch.where(kept, (1 - smoothing) * weights + smoothing * w.mean(), 0), weights.sum()


def _coin_weights(given: Arguments) -> tuple[Tensor, Any]:
    weights = torch.ones_like(given["input"])
    if given["pos_weight"] is not None:
        weights = 1 + (given["pos_weight"] - 1) * given["target"]
    return weights if given["weight"] is None else weights * given["weight"], weights.numel()


def _square_weights(given: Arguments) -> tuple[Tensor, Any]:
    weights = torch.ones_like(given["input"]) if given["weight"] is None else given["weight"]
    return weights, weights.sum()


_WEIGHTS: dict[Any, Callable[[Arguments], tuple[Tensor, Any]]] = {
    F.cross_entropy: _class_weights,
    F.nll_loss: _class_weights,
    F.binary_cross_entropy_with_logits: _coin_weights,
    F.mse_loss: _square_weights,
}
LOSSES = frozenset(_WEIGHTS)

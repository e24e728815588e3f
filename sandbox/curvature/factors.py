"""K-FAC's factors, seen while a closure runs: A from what goes into a layer, G from the gradient after it.

    seen = factors.Seen(weights)
    with seen.watching():
        loss = closure()               # calls backward()
    G, A = seen.pair(0)                  # of weights[0]

Layers are found by their calls, `torch.nn.functional.linear` and `conv2d` with one of the weights: of modules, of
torch.func.functional_call, of code without modules.  Under torch.func.grad and vmap the weights are those that the loss is
called with.

With h_r the gradient after the layer at row r (an example, or one of its positions) and a_r what goes in there,

    A = Σ_r a_r a_rᵀ / rows,   G = s Σ_r h_r h_rᵀ

s = 1 at labels that `labels.Drawn` draws.  At the given ones s = Σ c_i / Σ c_i² over the coefficients of L = Σ_i c_i ℓ_i: n for
the mean over n labels, however many positions a layer has for each; 1 for their sum.  It is exact where all c_i ≠ 0 are equal.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from sandbox.curvature import labels


class Seen(TorchFunctionMode):
    """Sums of a aᵀ over the rows that went into each weight, and of h hᵀ over the gradients that came back.

    drawn: whether labels are drawn around it.
    """

    def __init__(self, weights: Sequence[Tensor], *, drawn: bool = False) -> None:
        super().__init__()
        self.weights, self.drawn = weights, drawn
        self.places = {id(weight): place for place, weight in enumerate(weights)}
        self.sums: dict[int, tuple[Any, Any, int]] = {}
        self.coefficients: tuple[Any, Any] | None = None  # Σ |c|, Σ c²

    def watching(self) -> contextlib.AbstractContextManager[Any]:
        """Returns the context; an empty one where there is nothing to watch."""
        return self if self.weights else contextlib.nullcontext()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func in (F.linear, F.conv2d):
            given = dict(zip(("input", "weight", "bias", "stride", "padding", "dilation", "groups"), args, strict=False))
            given |= kwargs or {}
            place = self.places.get(id(given["weight"]))
            if place is not None and out.requires_grad:
                rows = _rows(func is F.conv2d, given)
                if rows is not None:
                    out.register_hook(lambda h: self._add(place, rows, h.detach()))
        elif func in labels.LOSSES and not self.drawn and out.requires_grad:
            with torch.no_grad():
                c = labels.coefficients(func, labels.arguments(func, args, kwargs))
            out.register_hook(lambda h: self._weigh(h.detach().double() * c.detach()))
        return out

    def _add(self, place: int, a: Tensor, h: Tensor) -> None:
        convolution = self.weights[place].ndim == 4
        h = h.flatten(2).mT.reshape(-1, h.shape[1]) if convolution else h.reshape(-1, h.shape[-1])
        A, G, rows = self.sums.get(place, (0.0, 0.0, 0))
        # Σ a aᵀ,  Σ h hᵀ
        self.sums[place] = A + a.mT @ a, G + h.mT @ h, rows + len(a)

    def _weigh(self, c: Tensor) -> None:
        first, second = self.coefficients or (0.0, 0.0)
        self.coefficients = first + c.abs().sum(), second + c.square().sum()

    def pair(self, place: int) -> tuple[Tensor, Tensor]:
        """Returns G and A.

        Raises RuntimeError for a parameter that no linear or convolution layer without groups has used, and at given labels
        where the loss calls no function whose labels are known.
        """
        if place not in self.sums:
            shape = tuple(self.weights[place].shape)
            raise RuntimeError(
                f"no linear or conv2d layer (of one group) has used the parameter of shape {shape} in this step: it has no "
                "Kronecker factors; put it into a group with another recipe"
            )
        A, G, rows = self.sums[place]
        return G * self._scale(), A / rows

    def _scale(self) -> float | Tensor:
        if self.drawn:
            return 1.0
        if self.coefficients is None:
            raise RuntimeError(
                "Kronecker factors at the given labels need to know over how many of them the loss is a mean, but it calls "
                f"none of torch.nn.functional's {labels.NAMES}"
            )
        first, second = self.coefficients
        return (first / second.clamp_min(torch.finfo(second.dtype).tiny)).to(self.weights[0].dtype)


def _rows(convolution: bool, given: dict[str, Any]) -> Tensor | None:
    """Returns what each output is a product of the weight with, as rows; None for groups and paddings by name."""
    a = given["input"].detach()
    if not convolution:
        return a.reshape(-1, a.shape[-1])
    if given.get("groups", 1) != 1 or isinstance(given.get("padding", 0), str) or a.ndim != 4:
        return None
    options = {name: given.get(name, default) for name, default in (("dilation", 1), ("padding", 0), ("stride", 1))}
    patches = F.unfold(a, given["weight"].shape[2:], **options)
    return patches.mT.reshape(-1, patches.shape[1])

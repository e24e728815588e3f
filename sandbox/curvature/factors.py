"""K-FAC's factors, seen while a closure runs: A from what goes into a layer, G from the gradient after it.

    seen = factors.Seen(weights)
    with seen.watching():
        loss = closure()               # calls backward()
    G, A = seen.of(0, count)           # of weights[0]

Layers are found by their calls, `torch.nn.functional.linear` and `conv2d` with one of the weights: of modules, of
torch.func.functional_call, of code without modules.  Under torch.func.grad and vmap the weights are those that the loss is
called with.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from sandbox.utils.private_torch import without_overrides


class Seen(TorchFunctionMode):
    """Sums of a aᵀ over the rows that went into each weight, and of h hᵀ over the gradients that came back."""

    def __init__(self, weights: Sequence[Tensor]) -> None:
        super().__init__()
        self.weights = weights
        self.places = {id(weight): place for place, weight in enumerate(weights)}
        self.sums: dict[int, tuple[Any, Any, int]] = {}

    def watching(self) -> contextlib.AbstractContextManager[Any]:
        """The context; nothing at all where there is nothing to watch."""
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
        return out

    def _add(self, place: int, a: Tensor, h: Tensor) -> None:
        convolution = self.weights[place].ndim == 4
        h = h.flatten(2).mT.reshape(-1, h.shape[1]) if convolution else h.reshape(-1, h.shape[-1])
        A, G, rows = self.sums.get(place, (0.0, 0.0, 0))
        # Σ a aᵀ,  Σ h hᵀ
        self.sums[place] = A + a.mT @ a, G + h.mT @ h, rows + len(a)

    def of(self, place: int, count: int | Tensor | None) -> tuple[Tensor, Tensor]:
        """G = n Σ h hᵀ for a loss that is the mean over n labels (None: as many as rows), and A = Σ a aᵀ / rows.

        Raises RuntimeError for a parameter that no linear or convolution layer without groups has used.
        """
        if place not in self.sums:
            shape = tuple(self.weights[place].shape)
            raise RuntimeError(
                f"no linear or conv2d layer (of one group) has used the parameter of shape {shape} in this step: it has no "
                "Kronecker factors; put it into a group with another recipe"
            )
        A, G, rows = self.sums[place]
        return G * (rows if count is None else count), A / rows


def _rows(convolution: bool, given: dict[str, Any]) -> Tensor | None:
    """What each output is a product of the weight with, as rows; None for groups and paddings by name."""
    a = given["input"].detach()
    if not convolution:
        return a.reshape(-1, a.shape[-1])
    if given.get("groups", 1) != 1 or isinstance(given.get("padding", 0), str) or a.ndim != 4:
        return None
    options = {name: given.get(name, default) for name, default in (("dilation", 1), ("padding", 0), ("stride", 1))}
    with without_overrides():
        patches = F.unfold(a, given["weight"].shape[2:], **options)
    return patches.mT.reshape(-1, patches.shape[1])

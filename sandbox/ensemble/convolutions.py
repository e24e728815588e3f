"""Convolutions of many members on a CPU, which vmap makes one convolution whose groups are the members.

Inductor runs these with the channels last in memory, where oneDNN is faster than in torch's own order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def forward(x: Tensor, weight: Tensor, *args: Any) -> Tensor:
    """Computes aten.convolution, of images (n, channels, height, width), with the channels last in memory."""
    return aten.convolution(_channels_last(x), _channels_last(weight), *args)


def backward(g: Tensor, x: Tensor, weight: Tensor, biases: Any, *args: Any) -> tuple[Tensor | None, ...]:
    """Computes aten.convolution_backward, the gradients of input, weight and bias, with the channels last in memory."""
    *geometry, mask = args
    g = _channels_last(g)
    to_input = _to_input(g, weight, *geometry) if mask[0] else None
    mask = [mask[0] and to_input is None, *mask[1:]]
    first, *rest = aten.convolution_backward(g, _channels_last(x), weight, biases, *geometry, mask)
    # a weight's gradient goes into the update, whose tensors have no channels
    return first if to_input is None else to_input, *(v if v is None else v.contiguous() for v in rest)


def _to_input(
    g: Tensor, weight: Tensor, stride: Any, padding: Any, dilation: Any, transposed: bool, output_padding: Any, groups: int
) -> Tensor | None:
    """∂/∂x of Σ g · (x * w): g convolved with w turned round, for which oneDNN has a faster kernel where groups are many.

    None where the forward pass skips places or pads by more than its kernel, and for a single group.
    """
    height, width = weight.shape[-2:]
    edges = [height - 1 - padding[0], width - 1 - padding[-1]]
    if groups == 1 or transposed or min(edges) < 0 or any(step != 1 for step in (*stride, *dilation)):
        return None
    turned = weight.unflatten(0, (groups, -1)).transpose(1, 2).flip(-2, -1).flatten(0, 1)
    return forward(g, turned, None, [1, 1], edges, [1, 1], False, [0, 0], groups)


def _channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


RULES: dict[Any, Callable[..., Any]] = {aten.convolution.default: forward, aten.convolution_backward.default: backward}

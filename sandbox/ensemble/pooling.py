"""Pooling in a traced step of many members."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class PoolsAsMeans(TorchFunctionMode):
    """Average pooling without overlap as a mean over windows: vmap's own rule makes rows of the members, and so a copy."""

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        windows = _windows(*args, **kwargs) if func is torch.nn.functional.avg_pool2d else None
        return func(*args, **kwargs) if windows is None else windows.mean((-3, -1))


def _windows(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor | None:
    """(…, h, kₕ, w, k_w) of images (…, h kₕ, w k_w), where windows tile them; else None.  The arguments are `avg_pool2d`'s."""
    size, step, edge = (_pair(v) for v in (kernel_size, stride or kernel_size, padding))
    if step != size or edge != (0, 0) or divisor_override or any(n % k for n, k in zip(input.shape[-2:], size, strict=True)):
        return None
    return input.unflatten(-1, (-1, size[1])).unflatten(-3, (-1, size[0]))


def _pair(v: Any) -> tuple[int, int]:
    return (v, v) if isinstance(v, int) else (v[0], v[-1])

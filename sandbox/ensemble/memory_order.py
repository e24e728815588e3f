"""The order in memory in which a traced step of many members computes."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from sandbox.ensemble import convolutions
from sandbox.utils.private_torch import TorchDispatchMode, pytree, schema

aten = torch.ops.aten
LARGE = 2**16  # entries from which a call of its own pays for tanh


@torch.library.custom_op("sandbox::tanh_", mutates_args=("x",), device_types="cpu")
def tanh_(x: Tensor) -> None:
    """x ← tanh x by torch's own kernel, a third of the time of the one that Inductor generates."""
    x.tanh_()


class InMemoryOrder(TorchDispatchMode):
    """Operators see their axes from the outermost in memory to the innermost.

    vmap makes the members channels of one convolution and then puts their axis first.  Inductor lays results out in the order
    of their axes, so it would transpose whatever goes into a convolution or comes out of one.  Under this mode a pointwise
    operator, a sum or a mean on a tensor without gaps takes the axes as they lie in memory, and a convolution on a CPU has its
    channels last.  The values are the same, those of sums and convolutions to rounding.  What comes before the first
    convolution, and a step without any, is left as it is.
    """

    convolved = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in convolutions.RULES and args[0].dim() == 4 and args[0].device.type == "cpu":
            self.convolved = True
            return convolutions.RULES[func](*args)
        if not self.convolved:
            return func(*args, **kwargs)
        if func in (aten.sum.dim_IntList, aten.mean.dim) and args[1] and _moved(args[0]):
            return _reduced(func, *args, **kwargs)
        if torch.Tag.pointwise in func.tags and not schema(func).is_mutable and "memory_format" not in kwargs:
            return _pointwise(func, args, kwargs)
        return func(*args, **kwargs)


def _reduced(func: Any, x: Tensor, axes: list[int], keepdim: bool = False, **kwargs: Any) -> Tensor:
    order = _order(x)
    x, where = x.permute(order), sorted(order.index(axis % x.dim()) for axis in axes)
    if func is aten.sum.dim_IntList and where == list(range(len(where))) and where[1:]:
        # rows that are far apart in memory: a few at a time, while they are in the cache
        x, where = func(x, where[1:], True, **kwargs), where[:1]
    out = _back(func(x, where, True, **kwargs), order)
    return out if keepdim else out.squeeze(axes)


def _pointwise(func: Any, args: Any, kwargs: Any) -> Any:
    leaves, spec = pytree.tree_flatten((args, kwargs))
    tensors = [x for x in leaves if isinstance(x, Tensor)]
    shape = torch.broadcast_shapes(*(x.shape for x in tensors))
    order = next((_order(x) for x in tensors if x.shape == shape and _moved(x)), None)
    if order is None:
        return func(*args, **kwargs)

    def moved(x: Tensor) -> Tensor:
        if not x.dim():
            return x
        out = x.reshape((1,) * (len(shape) - x.dim()) + x.shape).permute(order)
        return out.contiguous() if x.shape == shape else out

    args, kwargs = pytree.tree_unflatten([moved(x) if isinstance(x, Tensor) else x for x in leaves], spec)
    if func is aten.tanh.default and args[0].numel() >= LARGE and args[0].device.type == "cpu":
        out = args[0].clone()
        torch.ops.sandbox.tanh_(out)
    else:
        out = func(*args, **kwargs)
    return pytree.tree_map_only(Tensor, lambda x: _back(x, order), out)


def _order(x: Tensor) -> list[int]:
    """The axes from the outermost in memory to the innermost."""
    return sorted(range(x.dim()), key=x.stride, reverse=True)


def _moved(x: Tensor) -> bool:
    """Whether x has no gaps, and its axes another order in memory than their own."""
    order = [axis for axis in _order(x) if x.shape[axis] > 1]
    inner = [math.prod(x.shape[axis] for axis in order[k + 1 :]) for k in range(len(order))]
    return not x.is_contiguous() and inner == [x.stride(axis) for axis in order]


def _back(x: Tensor, order: list[int]) -> Tensor:
    """x, of axes in this order, with its axes in their own."""
    return x.permute([order.index(axis) for axis in range(x.dim())])

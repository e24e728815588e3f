"""A hyperparameter: what a numeric field of a block may hold, and in which interval."""

from __future__ import annotations

import dataclasses
import math
import numbers
import re
from typing import Annotated, Any

import torch
from torch import Tensor

from sandbox.utils.private_torch import is_concrete

# A hyperparameter: a float, a 0-d tensor, a batch of values under vmap, or a function of t.
Number = Annotated[Any, "float, Tensor or function of t"]


def number(*, default: Any = dataclasses.MISSING, range: str = "(-inf, inf)") -> Any:
    """A numeric field: its default and the interval in which its value must lie, as "[0, 1)"."""
    return dataclasses.field(default=default, metadata={"range": Interval(range)})


class Interval:
    """An interval written as in mathematics, "[0, 1)"."""

    def __init__(self, text: str) -> None:
        match = re.fullmatch(r"([\[(])\s*([^,]+),\s*([^,]+)([\])])", text)
        if match is None:
            raise ValueError(f"an interval is written as '[0, 1)', got {text!r}")
        self.text = text
        self.closed = match[1] == "[", match[4] == "]"
        self.low, self.high = float(match[2]), float(match[3])

    def __contains__(self, value: float) -> bool:
        above = value >= self.low if self.closed[0] else value > self.low
        below = value <= self.high if self.closed[1] else value < self.high
        return above and below


def is_number(field: dataclasses.Field) -> bool:
    """Whether a dataclass field is a hyperparameter (declared by `number`, or annotated float or Number)."""
    return "range" in field.metadata or field.type in ("float", "Number", float, Number)


def is_function(value: Any) -> bool:
    """Whether a hyperparameter is given as a function of t (a Schedule is one too)."""
    return callable(value) and not isinstance(value, Tensor)


def show(value: Any) -> str:
    """A field's value as people write it."""
    if isinstance(value, bool | str):
        return str(value)
    if isinstance(value, float):
        return f"{value:g}" if math.isinf(value) or float(f"{value:g}") == value else repr(value)
    if isinstance(value, Tensor):
        return show(float(value)) if value.ndim == 0 and is_concrete(value) else f"<tensor of shape {tuple(value.shape)}>"
    if callable(value) and not dataclasses.is_dataclass(value):
        return f"{getattr(value, '__name__', type(value).__name__)}(t)"
    return str(value)


def concrete_values(value: Any) -> list[float]:
    """The values that a number is known to have: none for a function of t, a tracer, or a tensor without data."""
    if isinstance(value, Tensor):
        return value.detach().reshape(-1).tolist() if is_concrete(value) and not value.is_meta else []
    return [value] if isinstance(value, float) else []


def validated(owner: str, field: dataclasses.Field, value: Any) -> Any:
    """`value` as a float, tensor or function of t, within the field's interval."""
    interval = field.metadata.get("range", Interval("[-inf, inf]"))
    wrong = f"{owner}: {field.name} must lie in {interval.text}, got "
    if isinstance(value, Tensor):
        if not value.is_floating_point():
            raise TypeError(f"{owner}: {field.name} must be a floating-point tensor, got {value.dtype}")
        for entry in concrete_values(value):
            if entry not in interval:
                raise ValueError(wrong + show(entry))
        return value
    if callable(value):
        return value
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{owner}: {field.name} must be a number, a tensor or a function of t, got {value!r}")
    try:
        converted = float(value)
    except OverflowError:
        raise ValueError(wrong + "a number too large for a float") from None
    if converted not in interval:  # NaN lies in no interval
        raise ValueError(wrong + show(converted))
    return converted


def where(condition: Any, a: Any, b: Any) -> Any:
    """`a if condition else b`, also for tensors (under vmap and tracing t is one)."""
    if not isinstance(condition, Tensor):
        return a if condition else b
    a, b = (torch.as_tensor(v, dtype=torch.float64, device=condition.device) for v in (a, b))
    return torch.where(condition, a, b)


def whole(owner: Any, name: str, least: int) -> None:
    """Raises ValueError where a block's field, which is structure and no number, is not a whole number of at least `least`."""
    value = getattr(owner, name)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{type(owner).__name__}: {name} must be a whole number of at least {least}, got {value!r}")

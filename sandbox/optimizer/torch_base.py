"""torch.optim.Optimizer, without the two seconds that its first method call takes.

torch wraps the methods below so that torch.compile leaves them alone.  The wrapper imports torch._dynamo, which loads by name
every object that it knows a rule for, torch.onnx among them.  Until something imports torch._dynamo nothing can be compiling,
and what is inside the wrapper does the same.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from typing import Any

import torch


def _light(name: str) -> Any:
    wrapped = getattr(torch.optim.Optimizer, name)
    return _unless_compiling(inspect.unwrap(wrapped), wrapped)


def _unless_compiling(inside: Any, wrapped: Any) -> Any:
    @functools.wraps(inside)
    def method(*args: Any, **options: Any) -> Any:
        return (wrapped if "torch._dynamo" in sys.modules else inside)(*args, **options)

    return method


def step_method(method: Any) -> Any:
    """Decorates a step, which torch.compile calls and does not trace: it has programs of its own.

    It runs as without torch.inference_mode, under which tensors are made that cannot be written to outside.
    """

    @functools.wraps(method)
    def outside(*args: Any, **options: Any) -> Any:
        with torch.inference_mode(False) if torch.is_inference_mode_enabled() else contextlib.nullcontext():
            return method(*args, **options)

    return _unless_compiling(outside, torch._disable_dynamo(outside))


def load_hooks(optimizer: Any, when: str) -> list[Any]:
    """Returns the hooks that users have registered to run before ("pre") or after ("post") `load_state_dict`."""
    before, after = optimizer._optimizer_load_state_dict_pre_hooks, optimizer._optimizer_load_state_dict_post_hooks
    return list((before if when == "pre" else after).values())


class Base(torch.optim.Optimizer):
    """torch's base class with light methods."""

    add_param_group = _light("add_param_group")
    zero_grad = _light("zero_grad")
    state_dict = _light("state_dict")
    load_state_dict = _light("load_state_dict")

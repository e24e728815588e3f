"""The step of a whole grid as one graph, compiled once for each group, loss and set of shapes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from sandbox.backends.inductor import private
from sandbox.backends.inductor.kernels import without_gc
from sandbox.ensemble import convolutions
from sandbox.ensemble.arguments import BareLoss
from sandbox.ensemble.members import structure
from sandbox.utils.private_torch import TorchDispatchMode, pytree

_COMPILED: dict[Any, tuple[Callable[..., Any], Any]] = {}


def compiled(group: Any, task: Any, function: Callable[..., Any], inputs: Any) -> Callable[..., Any]:
    """Returns `function`, traced by make_fx on flat tensors and given to Inductor; kept for the process."""
    # a number that all members share comes out of vmap with stride 0; the graph is made for tensors without gaps
    leaves, spec = pytree.tree_flatten(pytree.tree_map_only(torch.Tensor, torch.Tensor.contiguous, inputs))
    owner = task.loss if isinstance(task, BareLoss) else task  # of a bare loss each run makes a task anew
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    shapes = tuple((leaves[i].shape, leaves[i].dtype, leaves[i].device) for i in places)
    key = structure(group.spec), tuple(group.fixed), id(owner), shapes, torch.get_num_threads()
    if key not in _COMPILED:
        _COMPILED[key] = (_graph(function, leaves, spec, places), owner)  # it, so that its id stays its own
    run = _COMPILED[key][0]

    def call(*arguments: Any) -> Any:
        return run([leaf.contiguous() for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, torch.Tensor)])

    return call


def _graph(function: Callable[..., Any], leaves: list[Any], spec: Any, places: list[int]) -> Callable[..., Any]:
    form: list[Any] = []

    def flat(*tensors: torch.Tensor) -> list[Any]:
        filled = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            filled[place] = tensor
        out, out_spec = pytree.tree_flatten(function(*pytree.tree_unflatten(filled, spec)))
        form[:] = [out_spec, [isinstance(x, torch.Tensor) for x in out]]
        return [x for x in out if isinstance(x, torch.Tensor)]

    tensors = [leaves[i] for i in places]
    with without_gc():
        graph = _compile(_trace(flat, tensors), tensors)

    def run(tensors: list[torch.Tensor]) -> Any:
        outputs = iter(graph(*tensors))
        out_spec, present = form
        return pytree.tree_unflatten([next(outputs) if is_tensor else None for is_tensor in present], out_spec)

    return run


def _compile(traced: torch.fx.GraphModule, tensors: list[torch.Tensor]) -> Callable[..., Any]:
    try:
        return private.compile_for(traced, tensors)
    except private.Unavailable as error:
        if not private.is_off():
            warnings.warn(f"{error}; the grid goes through torch.compile, which costs some microseconds per step", stacklevel=2)
        return torch.compile(traced, fullgraph=True, dynamic=False)


class _ChannelsLast(TorchDispatchMode):
    """Convolutions of images on a CPU by the rules of `convolutions`."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        rule = convolutions.RULES.get(func) if args and isinstance(args[0], torch.Tensor) and args[0].is_cpu else None
        return rule(*args) if rule and args[0].dim() == 4 else func(*args, **(kwargs or {}))


def _trace(flat: Callable[..., Any], tensors: list[torch.Tensor]) -> torch.fx.GraphModule:
    def channels_last(*tensors: torch.Tensor) -> list[Any]:
        with _ChannelsLast():
            return flat(*tensors)

    try:
        return make_fx(channels_last)(*tensors)
    except RuntimeError:
        # vmap makes no copy with channels last, and group_norm for one asks for it
        return make_fx(flat)(*tensors)

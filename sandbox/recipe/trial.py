"""A user's own blocks, tried on a small tensor before anything is trained with them: what is wrong has the block's name."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from sandbox.blocks import ELEMENT, INPUTS, Flow
from sandbox.recipe import pure
from sandbox.utils import suggest

STEPS = 3


def check(recipe: Any) -> None:
    """Makes a few steps of a recipe that has blocks from outside this package; of others it does nothing.

    Raises ValueError, naming block and slot, for a block that fails, draws random numbers, changes its input in place, or does
    not keep the shape, and for a rectifier whose D is not above 0.
    """
    foreign = [block for _, block in recipe.blocks() if not type(block).__module__.startswith("sandbox.blocks")]
    if foreign and not vars(recipe).get("_tried"):
        _try(recipe, foreign)
        vars(recipe)["_tried"] = True


def _try(recipe: Any, foreign: list[Any]) -> None:
    names = list(dict.fromkeys(type(block).__name__ for block in foreign))
    who = " or ".join(names)
    draw = torch.Generator().manual_seed(0)
    theta = torch.randn(3, 2, generator=draw, dtype=torch.float64)
    state = pure.init(recipe.of(theta), theta)

    def observe(members: list[int], x: Flow) -> None:
        D = torch.as_tensor(x.D)
        if not bool((D > 0).all()):
            raise ValueError(
                f"recipe {recipe.name!r}: block {type(recipe.rectifier).__name__} in slot 'rectifier' gave D = "
                f"{float(D[~(D > 0)][0]):g}; D must be above 0"
            )

    for _ in range(STEPS):
        g = torch.randn(3, 2, generator=draw, dtype=torch.float64)
        inputs = {name: g if kind == ELEMENT else g @ g.mT if name == "G" else g.mT @ g for name, kind in INPUTS.items()}
        given = {name: inputs[name] for name in recipe.analysis.inputs}
        arguments = theta.clone(), g.clone(), {name: value.clone() for name, value in state.items()}
        (new, after), (again, _) = (_step(recipe, names, state, theta, g, given, watch) for watch in (observe, None))
        unchanged = zip((theta, g, *state.values()), (*arguments[:2], *arguments[2].values()), strict=True)
        if not all(torch.equal(x.nan_to_num(), y.nan_to_num()) for x, y in unchanged):
            raise ValueError(f"recipe {recipe.name!r}: {who} changes what it is given in place; return a new tensor")
        if after.shape != theta.shape:
            raise ValueError(
                f"recipe {recipe.name!r}: {who} turns a tensor of shape {tuple(theta.shape)} into one of {tuple(after.shape)}"
            )
        if not all(torch.equal(new[name].nan_to_num(), again[name].nan_to_num()) for name in new):
            raise ValueError(
                f"recipe {recipe.name!r}: two equal steps differ, so {who} draws random numbers; a block is a function of its "
                "arguments (second-order blocks get random vectors from the optimizer)"
            )
        state, theta = new, after


def _step(recipe: Any, who: list[str], state: Any, theta: Tensor, g: Tensor, given: dict[str, Any], observe: Any) -> Any:
    try:
        with _NoNumPy():
            return pure.update(recipe, state, theta, g, lr=1e-3, inputs=given, observe=observe)
    except Exception as error:
        notes = getattr(error, "__notes__", None)
        if not notes:
            raise
        also = "" if any(name in notes[0] for name in who) else f" (blocks of your own: {', '.join(who)})"
        raise ValueError(f"recipe {recipe.name!r}: {notes[0]}: {suggest.short(error)}{also}") from error


class _NoNumPy(TorchFunctionMode):
    """Refuses to hand tensors to NumPy: what it computes is in no graph."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (Tensor.numpy, Tensor.__array__):
            raise TypeError("a block computes with torch's functions; what NumPy computes cannot be compiled or batched")
        return func(*args, **(kwargs or {}))

"""Tells whether second derivatives are what they seem: nothing is cut off from the graph, and the Hessian is symmetric.

Two faults leave no trace in the numbers.  A custom autograd.Function whose backward pass has no derivative (it is marked
`once_differentiable`, computed in NumPy or under no_grad, or is a reentrant checkpoint) takes its part of H for zero.  And a
second derivative may be wrong, as torch's own of `_weight_norm` is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction

HINT = (
    "fused kernels often lack second derivatives, and torch can be told to avoid them: with "
    "torch.nn.attention.sdpa_kernel(SDPBackend.MATH) around the loss, or torch.backends.mkldnn.flags(enabled=False)"
)
ROUNDINGS = 100  # asymmetries of right products are at most 2.1 defects of linearity (40 cases), of wrong ones at least 40,000


def _nodes(value: Tensor) -> set[Any]:
    todo = [] if value.grad_fn is None else [value.grad_fn]
    seen = set(todo)
    while todo:
        new = {node for node, _ in todo.pop().next_functions if node is not None} - seen
        seen |= new
        todo.extend(new)
    return seen


def custom_functions(value: Tensor) -> list[Any]:
    """Returns the nodes of custom autograd.Functions in the graph of a value."""
    return [node for node in _nodes(value) if isinstance(node, BackwardCFunction)]


def hidden(value: Tensor, params: Sequence[Tensor]) -> list[Tensor]:
    """Returns those of `params` to which backward() gives a gradient; the graph and every `grad` stay as they are."""
    leaves = [*params, *(node.variable for node in _nodes(value) if hasattr(node, "variable"))]
    before = [leaf.grad for leaf in leaves]
    for leaf in leaves:
        leaf.grad = None
    try:
        value.backward(retain_graph=True)
        return [p for p in params if p.grad is not None]
    finally:
        for leaf, g in zip(leaves, before, strict=True):
            leaf.grad = g


def gradients(value: Tensor, params: Sequence[Tensor], nodes: Sequence[Any]) -> list[Tensor | None]:
    """Returns ∇value, to be differentiated again; None where no gradient reaches a parameter.  nodes: its custom functions.

    Raises RuntimeError, naming the function, where a backward pass among `nodes` has no derivative.  Every backward pass is
    linear in the gradient that it is given.  So, begun with a 1 that itself requires a gradient, all that it returns must
    require one, a linear function's as well; what does not is cut off.
    """
    cut = []

    def look(node: Any, grad_inputs: Sequence[Tensor | None], grad_outputs: Sequence[Tensor | None]) -> None:
        for g in grad_inputs:
            detached = g is not None and not g.requires_grad and bool(g.any())
            if detached or (g is not None and g.grad_fn is not None and g.grad_fn.name().endswith("::Error")):
                cut.append(f"{node.name().removesuffix('Backward')}{'' if detached else ', marked once_differentiable'}")

    one = torch.ones_like(value, requires_grad=True) if nodes else None
    handles = [node.register_hook(lambda *grads, node=node: look(node, *grads)) for node in nodes]
    try:
        with torch.enable_grad():
            grads: Sequence[Tensor | None] = torch.autograd.grad(value, params, one, create_graph=True, allow_unused=True)
    finally:
        for handle in handles:
            handle.remove()
    if cut:
        raise RuntimeError(
            "the backward pass of an autograd.Function has no derivative, so products with the Hessian would lack its part: "
            + cut[0]
        )
    return list(grads)


def asymmetry(u: Tensor, v: Tensor, products: Sequence[Tensor]) -> str | None:
    """Returns what is wrong with the products H u, H v and H (u + v) of random u, v = ±1; None where nothing is.

    uᵀHv = vᵀHu holds for second derivatives alone; H (u + v) = Hu + Hv for any matrix: its defect is the size of rounding.
    """
    Hu, Hv, Hw = (x.double() for x in products)
    left, right = float(u.double() @ Hv), float(v.double() @ Hu)
    least = torch.finfo(products[0].dtype).eps * (Hu.norm() + Hv.norm())
    if abs(left - right) <= ROUNDINGS * float((Hw - Hu - Hv).norm() + least):
        return None
    return (
        f"the Hessian is not symmetric (uᵀHv = {left:.6g}, vᵀHu = {right:.6g} for random u and v): some second derivative is "
        "wrong, as that of torch.nn.utils.parametrizations.weight_norm is, or some gradient is not that of the loss, as with a "
        "padding_idx of an embedding that shares its weight"
    )

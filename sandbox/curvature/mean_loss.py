"""L(θ) = Σ_b w_b loss(θ, batch_b): the function whose curvature is taken, checked once before anything is spent on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from sandbox.distributed.shards import check_whole
from sandbox.utils.private_torch import pytree

Loss = Callable[[Any, Any], Tensor]


def size(batch: Any) -> int:
    """Rows of a batch: the length of its first tensor that has an axis; 1 where it has none."""
    return next((x.shape[0] for x in pytree.tree_leaves(batch) if isinstance(x, Tensor) and x.ndim), 1)


def several(batch: Any) -> list[Any]:
    """The batches that are meant: a list of tensors is one batch [X, y], as a DataLoader gives it; any other list is several.

    Raises TypeError for what gives batches (take some of it as a list), and for a list that is neither: of tensors beside other
    things, or of numbers, texts or arrays.
    """
    if isinstance(batch, Iterator | DataLoader):
        raise TypeError(f"batch must be one batch or a list of batches, got {type(batch).__name__}; take some of it as a list")
    if not isinstance(batch, list):
        return [batch]
    tensors = [isinstance(entry, Tensor) for entry in batch]
    if batch and all(tensors):
        return [batch]
    if any(tensors) or any(isinstance(entry, int | float | str | bytes | np.ndarray | None) for entry in batch):
        kinds = ", ".join(sorted({type(entry).__name__ for entry in batch}))
        raise TypeError(
            "a list must hold the tensors of one batch, [X, y], or several batches, each a tuple, list or dict; "
            f"got one of {kinds}. Give one batch as a tuple"
        )
    return batch


class MeanLoss:
    """The mean loss over batches, weighted by their sizes, as a function of the parameters' list of tensors.

    leaves: the parameters, detached, in the order of the tree.  batches: pairs (w_b, batch_b), Σ w_b = 1.
    batch: as `several` takes it.
    Raises TypeError for parameters that are not all float32 or all float64 tensors on one device, for DTensors, and what
    `several` raises; ValueError for a loss that is not a finite 0-d tensor, is random, or does not depend on the parameters.
    """

    def __init__(self, loss: Loss, params: Any, batch: Any) -> None:
        found, self.tree = pytree.tree_flatten(params)
        check_whole(found, "curvature")
        kinds = {f"{x.dtype} on {x.device}" if isinstance(x, Tensor) else type(x).__name__ for x in found}
        if len(kinds) != 1 or not isinstance(found[0], Tensor) or found[0].dtype not in (torch.float32, torch.float64):
            raise TypeError(
                "params must be a tree of tensors, all float32 or all float64 and on one device; "
                f"got {', '.join(sorted(kinds)) or 'an empty tree'}"
            )
        many = several(batch)
        total = sum(size(b) for b in many)
        if not total:
            raise ValueError("batch must have at least one row, got none")
        self.loss = loss
        self.leaves: list[Tensor] = [x.detach() for x in found]
        self.batches = [(size(b) / total, b) for b in many]
        self.sizes = [x.numel() for x in self.leaves]
        self.n, self.dtype, self.device = sum(self.sizes), self.leaves[0].dtype, self.leaves[0].device
        self._check()

    def at(self, leaves: list[Tensor], batch: Any) -> Tensor:
        """loss(θ, batch), with θ given as a list of tensors."""
        return self.loss(pytree.tree_unflatten(leaves, self.tree), batch)

    def value(self, leaves: list[Tensor]) -> Tensor:
        """L(θ), 0-d."""
        return torch.stack([w * self.at(leaves, batch) for w, batch in self.batches]).sum()

    def _check(self) -> None:
        attached = [x.detach().requires_grad_() for x in self.leaves]
        batch = self.batches[0][1]
        with torch.enable_grad():
            first = self.at(attached, batch)
        if not isinstance(first, Tensor) or first.ndim:
            got = f"one of shape {tuple(first.shape)}" if isinstance(first, Tensor) else repr(first)
            raise ValueError(f"loss must return a 0-d tensor, got {got}")
        if not first.requires_grad:
            raise ValueError("loss must depend on params by differentiable operations, got a value without a graph")
        with torch.no_grad():
            for _, b in self.batches:
                value = self.at(self.leaves, b)
                if not torch.isfinite(value):
                    raise ValueError(f"loss must be finite at params, got {float(value)}")
            if not torch.equal(self.at(self.leaves, batch), self.at(self.leaves, batch)):
                raise ValueError(
                    "loss must be a function of params and batch alone, got two values for the same; is there dropout? "
                    "Put the module in eval mode"
                )

    # -- between trees and rows of numbers -------------------------------------------------------------------------------

    def flatten(self, tree: Any, name: str) -> Tensor:
        """A tree as params, [*shape] a leaf, as one vector [n].  Raises ValueError where it is of another form."""
        leaves, spec = pytree.tree_flatten(tree)
        shapes = [tuple(x.shape) for x in self.leaves]
        if spec != self.tree or [tuple(x.shape) for x in leaves if isinstance(x, Tensor)] != shapes:
            raise ValueError(f"{name} must be a tree of tensors as params, of shapes {shapes}")
        return torch.cat([x.reshape(-1).to(self.device, self.dtype) for x in leaves])

    def split(self, V: Tensor) -> list[Tensor]:
        """[…, n] as a list of […, *shape], a tensor a leaf."""
        parts = V.split(self.sizes, -1)
        return [part.reshape(V.shape[:-1] + x.shape) for part, x in zip(parts, self.leaves, strict=True)]

    def unflatten(self, V: Tensor) -> Any:
        """[…, n] as a tree of […, *shape]."""
        return pytree.tree_unflatten(self.split(V), self.tree)

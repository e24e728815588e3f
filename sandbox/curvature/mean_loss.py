"""L(θ) = Σ_b w_b loss(θ, batch_b): the function whose curvature is taken, checked once before anything is spent on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.data import DataLoader

from sandbox.curvature import checks
from sandbox.distributed.shards import check_whole
from sandbox.utils import generators
from sandbox.utils.frame import Frame
from sandbox.utils.private_torch import pytree

Loss = Callable[[Any, Any], Tensor]


def size(batch: Any) -> int:
    """Returns the rows of a batch: the length of its first tensor that has an axis; 1 where it has none."""
    return next((x.shape[0] for x in pytree.tree_leaves(batch) if isinstance(x, Tensor) and x.ndim), 1)


def split_batches(batch: Any) -> list[Any]:
    """Returns the batches: a list of tensors is one batch [X, y], as a DataLoader gives it; any other list is several.

    Raises TypeError for a source of batches (take some of it as a list), and for a list that is neither: tensors beside other
    things, or numbers, texts or arrays.
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


def named_parameters(model: nn.Module, parameters: Iterable[Tensor] | None) -> dict[str, Tensor]:
    """Returns the model's parameters by name: those in `parameters`, or all that require a gradient.

    Raises ValueError where `parameters` has one that is not the model's.
    """
    everything: dict[str, Tensor] = dict(model.named_parameters())
    if parameters is None:
        return {name: p for name, p in everything.items() if p.requires_grad}
    wanted = {id(p) for p in parameters}
    chosen = {name: p for name, p in everything.items() if id(p) in wanted}
    if len(chosen) != len(wanted):
        raise ValueError(f"parameters must be the model's own, got {len(wanted) - len(chosen)} that it does not have")
    return chosen


class MeanLoss:
    """The mean loss over batches, weighted by their sizes, as a function of the parameters' list of tensors.

    Evaluations change neither the model nor the global random generators: the loss of a module sees copies of its buffers.

    loss, model, batch, parameters: as for `Hessian`.
    leaves: the parameters, detached, in the order of the tree.  batches: pairs (w_b, batch_b), Σ w_b = 1.
    Raises TypeError for parameters that are not all float32 or all float64 tensors on one device, for DTensors, for a loss that
    cannot be called with this model, and what `split_batches` raises; ValueError for a loss that is not a finite 0-d tensor, is
    random, or does not depend on the parameters.
    """

    def __init__(self, loss: Loss, model: Any, batch: Any, parameters: Iterable[Tensor] | None = None) -> None:
        self.loss, self.frame = loss, Frame(model) if isinstance(model, nn.Module) else None
        if parameters is not None and self.frame is None:
            raise TypeError("parameters= chooses among those of a module; of a tree of tensors give the part itself")
        params = model if self.frame is None else named_parameters(model, parameters)
        tensors, self.tree = pytree.tree_flatten(params)
        check_whole(tensors, "curvature")
        kinds = {f"{x.dtype} on {x.device}" if isinstance(x, Tensor) else type(x).__name__ for x in tensors}
        if len(kinds) != 1 or not isinstance(tensors[0], Tensor) or tensors[0].dtype not in (torch.float32, torch.float64):
            raise TypeError(
                "model must be a module, or params a tree of tensors, all float32 or all float64 and on one device; "
                f"got {', '.join(sorted(kinds)) or 'an empty tree'}"
            )
        batches = split_batches(batch)
        total = sum(size(b) for b in batches)
        if not total:
            raise ValueError("batch must have at least one row, got none")
        self.leaves: list[Tensor] = [x.detach() for x in tensors]
        self.batches = [(size(b) / total, b) for b in batches]
        self.sizes = [x.numel() for x in self.leaves]
        self.n, self.dtype, self.device = sum(self.sizes), self.leaves[0].dtype, self.leaves[0].device
        with generators.restored():
            self._check()

    def at(self, leaves: list[Tensor], batch: Any) -> Tensor:
        """Returns loss(θ, batch), with θ given as a list of tensors."""
        params = pytree.tree_unflatten(leaves, self.tree)
        if self.frame is None:
            return self.loss(params, batch)
        copies = {name: buffer.clone() for name, buffer in self.frame.named_buffers()}
        return functional_call(self.frame, copies | {f"model.{name}": p for name, p in params.items()}, (self.loss, batch))

    def value(self, leaves: list[Tensor]) -> Tensor:
        """Returns L(θ), 0-d."""
        return torch.stack([w * self.at(leaves, batch) for w, batch in self.batches]).sum()

    def _check(self) -> None:
        attached = [x.detach().requires_grad_() for x in self.leaves]
        batch = self.batches[0][1]
        try:
            with torch.enable_grad():
                first = self.at(attached, batch)
        except (TypeError, AttributeError, KeyError, IndexError) as error:
            model = "a tree of tensors" if self.frame is None else f"the module, a {type(self.frame.model).__name__}"
            raise TypeError(
                f"loss is called as loss(model, batch), here with {model}, and failed: {type(error).__name__}: {error}. A loss "
                "that calls its model needs the module in its place (curvature.diagonal(loss, module, batch)); a criterion of "
                "outputs and labels needs a function around it (lambda model, batch: criterion(model(batch[0]), batch[1]))"
            ) from error
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

    def check_graph(self) -> None:
        """Raises RuntimeError where the graph of the first batch's loss is cut, so that products would lack a part unseen."""
        attached = [x.detach().requires_grad_() for x in self.leaves]
        batch = self.batches[0][1]
        with torch.enable_grad(), generators.restored():
            value = self.at(attached, batch)
            if nodes := checks.custom_functions(value):
                for i, g in enumerate(checks.gradients(value, attached, nodes)):
                    moved = [x + 0.01 * (1 + x.abs()) if i == j else x for j, x in enumerate(self.leaves)]
                    if g is None and not torch.equal(self.at(moved, batch), value):
                        raise RuntimeError(
                            f"the loss depends on a parameter of shape {tuple(self.leaves[i].shape)} that its gradient does "
                            "not reach: a custom autograd.Function hides it, as torch.utils.checkpoint with "
                            "use_reentrant=True does (take use_reentrant=False)"
                        )

    # -- between trees and rows of numbers -------------------------------------------------------------------------------

    def flatten(self, tree: Any, name: str) -> Tensor:
        """Returns a tree as params, [*shape] per leaf, as one vector [n].  Raises ValueError where it is of another form."""
        leaves, spec = pytree.tree_flatten(tree)
        shapes = [tuple(x.shape) for x in self.leaves]
        if spec != self.tree or [tuple(x.shape) for x in leaves if isinstance(x, Tensor)] != shapes:
            raise ValueError(f"{name} must be a tree of tensors as params, of shapes {shapes}")
        return torch.cat([x.reshape(-1).to(self.device, self.dtype) for x in leaves])

    def split(self, V: Tensor) -> list[Tensor]:
        """Returns [..., n] as a list of [..., *shape], one tensor per leaf."""
        parts = V.split(self.sizes, -1)
        return [part.reshape(V.shape[:-1] + x.shape) for part, x in zip(parts, self.leaves, strict=True)]

    def unflatten(self, V: Tensor) -> Any:
        """Returns [..., n] as a tree of [..., *shape]."""
        return pytree.tree_unflatten(self.split(V), self.tree)

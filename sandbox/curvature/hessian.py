"""Hessian-vector products for second-order blocks, through torch.autograd.grad and never backward(create_graph=True)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from sandbox.distributed.shards import check_whole

HOW = (
    "a second-order recipe needs step(closure) with a closure that computes the loss and returns it, still attached to its "
    "graph: no backward() inside, no .item() or .detach() on the result; step() takes gradients and Hessian-vector products "
    "from it and sets p.grad itself"
)


def key(seed: int, draw: int) -> int:
    """32 bits that belong to a seed and the number of a draw (from 0), so that a run resumes by its count alone."""
    digest = hashlib.blake2b(f"{seed}/{draw}".encode(), digest_size=4).digest()  # torch's generator takes 32 bits of a seed
    return int.from_bytes(digest, "little")


def generator(seed: int, draw: int) -> torch.Generator:
    """The generator of a draw."""
    return torch.Generator(device="cpu").manual_seed(key(seed, draw))


def rademacher(like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """±1 with equal odds, of the shape and dtype of `like`; drawn on the generator's device (CPU by default)."""
    device = generator.device if generator is not None else torch.device("cpu")
    bits = torch.randint(0, 2, like.shape, generator=generator, device=device)
    return (2 * bits - 1).to(like.device, like.dtype)


def gradients(loss: Tensor, params: Sequence[Tensor], *, create_graph: bool = True) -> list[Tensor | None]:
    """∇loss (0-d) at `params`, to be differentiated again; None where the loss does not depend on a parameter.

    Raises RuntimeError, saying what the closure must do, where `loss` has no graph any more; TypeError for DTensors, on which
    the loss does not depend by way of autograd: fully_shard puts gathered tensors in their place.
    """
    check_whole(params, "a Hessian-vector product")
    if not isinstance(loss, Tensor) or loss.grad_fn is None:
        raise RuntimeError(
            f"the closure returned {'a loss without a graph' if isinstance(loss, Tensor) else repr(loss)}: {HOW}"
        )
    try:
        with torch.enable_grad():
            return list(torch.autograd.grad(loss, params, create_graph=create_graph, allow_unused=True))
    except RuntimeError as error:
        if "second time" in str(error):
            raise RuntimeError(f"the closure has already called backward(): {HOW}") from error
        raise


def product(
    grads: Sequence[Tensor | None], params: Sequence[Tensor], v: Sequence[Tensor], *, keep: bool = False
) -> list[Tensor | None]:
    """Hv from `gradients`; None where the loss does not depend on a parameter.  keep: the graph, for another product."""
    # Hv = ∇(gᵀv), from the gradients that depend on the parameters at all
    live = [i for i, g in enumerate(grads) if g is not None and g.requires_grad]
    products: list[Tensor | None] = [None if g is None else torch.zeros_like(g) for g in grads]
    if live:
        Hv = torch.autograd.grad(
            [cast(Tensor, grads[i]) for i in live],
            [params[i] for i in live],
            [v[i] for i in live],
            materialize_grads=True,
            retain_graph=keep,
        )
        for i, value in zip(live, Hv, strict=True):
            products[i] = value
    return products


def hutchinson(
    loss: Tensor, params: Sequence[Tensor], generator: torch.Generator | None = None
) -> tuple[list[Tensor | None], list[Tensor], list[Tensor | None]]:
    """Gradients, probes z and products Hz of `loss` (0-d) at `params`; None where the loss does not depend on a parameter.

    z ⊙ Hz estimates the Hessian's diagonal without bias (Hutchinson; Bekas, Kokiopoulou & Saad 2007).
    Raises RuntimeError, saying what the closure must do, where `loss` has no graph any more.
    """
    grads = gradients(loss, params)
    z = [rademacher(p, generator) for p in params]
    products = product(grads, params, z)
    return [None if g is None else g.detach() for g in grads], z, products

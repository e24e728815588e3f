"""Computes Hessian-vector products of a closure's loss, by torch.autograd.grad and never by backward(create_graph=True)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from sandbox.curvature import checks
from sandbox.distributed.shards import check_whole

HOW = (
    "a second-order recipe needs step(closure) with a closure that computes the loss and returns it, still attached to its "
    "graph: no backward() inside, no .item() or .detach() on the result; step() takes gradients and Hessian-vector products "
    "from it and sets p.grad itself"
)


def key(seed: int, draw: int) -> int:
    """Returns 32 bits that belong to a seed and the number of a draw (from 0), so that a run resumes by its count alone."""
    digest = hashlib.blake2b(f"{seed}/{draw}".encode(), digest_size=4).digest()  # torch's generator takes 32 bits of a seed
    return int.from_bytes(digest, "little")


def generator(seed: int, draw: int) -> torch.Generator:
    """Returns the generator of a draw."""
    return torch.Generator(device="cpu").manual_seed(key(seed, draw))


def rademacher(like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Returns ±1 with equal odds, of the shape and dtype of `like`; drawn on the generator's device (CPU by default)."""
    device = generator.device if generator is not None else torch.device("cpu")
    bits = torch.randint(0, 2, like.shape, generator=generator, device=device)
    return (2 * bits - 1).to(like.device, like.dtype)


def gradients(loss: Tensor, params: Sequence[Tensor], *, create_graph: bool = True) -> list[Tensor | None]:
    """Returns ∇loss (0-d) at `params`, to be differentiated again; None where the loss does not depend on a parameter.

    Raises RuntimeError, saying what the closure must do, where `loss` has no graph any more, and where products with the
    Hessian would silently lack a part, that of a custom function without second derivatives or of a reentrant checkpoint;
    TypeError for DTensors, on which the loss does not depend by way of autograd: fully_shard puts gathered tensors in their
    place.
    """
    check_whole(params, "a Hessian-vector product")
    if not isinstance(loss, Tensor) or loss.grad_fn is None:
        raise RuntimeError(
            f"the closure returned {'a loss without a graph' if isinstance(loss, Tensor) else repr(loss)}: {HOW}"
        )
    if loss.numel() != 1:
        raise RuntimeError(f"the loss has shape {tuple(loss.shape)} and must be one number: take its mean or sum")
    try:
        if not create_graph:
            return list(torch.autograd.grad(loss, params, allow_unused=True))
        nodes = checks.custom_functions(loss)
        grads = checks.gradients(loss, params, nodes)
    except RuntimeError as error:
        if "second time" in str(error):
            raise RuntimeError(f"the closure has already called backward(): {HOW}") from error
        raise
    unreached = [p for p, g in zip(params, grads, strict=True) if g is None]
    if nodes and unreached and (hidden := checks.hidden(loss, unreached)):
        raise RuntimeError(
            f"backward() reaches a parameter of shape {tuple(hidden[0].shape)} and torch.autograd.grad does not: a custom "
            "autograd.Function hides it, as torch.utils.checkpoint with use_reentrant=True does (take use_reentrant=False)"
        )
    return grads


def product(
    grads: Sequence[Tensor | None], params: Sequence[Tensor], v: Sequence[Tensor], *, keep: bool = False
) -> list[Tensor | None]:
    """Returns Hv from `gradients`; None where the loss does not depend on a parameter.  keep: whether the graph stays.

    Raises RuntimeError, with what to do, where an operator of the loss has no second derivative.
    """
    # Hv = ∇(gᵀv), from the gradients that depend on the parameters at all
    live = [i for i, g in enumerate(grads) if g is not None and g.requires_grad]
    products: list[Tensor | None] = [None if g is None else torch.zeros_like(g) for g in grads]
    if live:
        try:
            Hv = torch.autograd.grad(
                [cast(Tensor, grads[i]) for i in live],
                [params[i] for i in live],
                [v[i] for i in live],
                materialize_grads=True,
                retain_graph=keep,
            )
        except RuntimeError as error:
            if "not implemented" not in str(error):
                raise
            raise RuntimeError(f"the closure's loss has no Hessian-vector products ({checks.HINT}): {error}") from error
        for i, value in zip(live, Hv, strict=True):
            products[i] = value
    return products


def check_symmetry(grads: Sequence[Tensor | None], params: Sequence[Tensor]) -> None:
    """Raises RuntimeError where products with the Hessian, from `gradients`, are not those of a symmetric matrix.

    Takes three products, and leaves the graph for more.
    """
    draws = torch.Generator().manual_seed(0)
    u, v = ([rademacher(p, draws) for p in params] for _ in range(2))
    products = [product(grads, params, w, keep=True) for w in (u, v, [a + b for a, b in zip(u, v, strict=True)])]
    if reached := [i for i, x in enumerate(products[0]) if x is not None]:
        vectors: list[Sequence[Tensor | None]] = [u, v, *products]
        rows = [torch.cat([cast(Tensor, x[i]).reshape(-1) for i in reached]) for x in vectors]
        if bool(torch.stack(rows).isfinite().all()) and (asymmetry := checks.asymmetry(rows[0], rows[1], rows[2:])):
            raise RuntimeError(f"the closure's loss has no right Hessian-vector products: {asymmetry}")


def hutchinson(
    loss: Tensor, params: Sequence[Tensor], generator: torch.Generator | None = None
) -> tuple[list[Tensor | None], list[Tensor], list[Tensor | None]]:
    """Returns gradients, random z and products Hz of `loss` (0-d) at `params`; None where it does not depend on a parameter.

    z ⊙ Hz estimates the Hessian's diagonal without bias (Hutchinson; Bekas, Kokiopoulou & Saad 2007).
    Raises RuntimeError, saying what the closure must do, where `loss` has no graph any more.
    """
    grads = gradients(loss, params)
    z = [rademacher(p, generator) for p in params]
    products = product(grads, params, z)
    return [None if g is None else g.detach() for g in grads], z, products

"""What a step starts from: the closure's loss, gradients, and for second-order recipes z ⊙ Hz; and what is wrong with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from sandbox import backends, hessian
from sandbox.distributed import replicas, shards
from sandbox.distributed.ranks import Ranks
from sandbox.optimizer import groups
from sandbox.recipe import Recipe


def evaluate(
    closure: Callable[[], Any] | None, param_groups: list[dict[str, Any]], recipes: list[Recipe], group: ProcessGroup | None
) -> tuple[Any, dict[Tensor, Tensor]]:
    """The closure's result, and z ⊙ Hz for the groups whose recipe is of second order; group: of replicas, to average over.

    Raises RuntimeError for a second-order recipe without a loss, or without a group where there are several processes, and
    ValueError for one on shards.
    """
    second = [(entries, recipe) for entries, recipe in zip(param_groups, recipes, strict=True) if recipe.second_order]
    if second and group is None and replicas.several():
        raise RuntimeError(
            f"recipe {second[0][1].name!r} takes its gradients from the loss itself, past DistributedDataParallel, so it must "
            f"know over which ranks to average them: {replicas.HOW}"
        )
    if any(shards.is_sharded(p) for entries, _ in second for p in entries["params"]):
        raise ValueError(f"recipe {second[0][1].name!r} needs Hessian-vector products, which cannot be taken of shards")
    if closure is None:
        if second:
            raise RuntimeError(f"recipe {second[0][1].name!r}: {hessian.HOW}")
        return None, {}
    with torch.enable_grad():
        loss = closure()
    if not second:
        return loss, {}
    params = [p for g in param_groups for p in g["params"] if p.requires_grad]
    draws = max(entries["draws"] for entries, _ in second)
    grads, z, Hz = hessian.hutchinson(loss, params, hessian.generator(second[0][0]["seed"], draws))
    for entries, _ in second:
        entries["draws"] = draws + 1
    curvature = {p: (entries, recipe.curvature) for entries, recipe in second for p in entries["params"]}
    products: list[Tensor | None] = []
    for p, probe, product in zip(params, z, Hz, strict=True):
        products.append(None)
        if p in curvature and product is not None:
            entries, block = curvature[p]
            h = block.hessian(probe, product)
            products[-1] = -h if entries["maximize"] else h
    if group is not None:
        means = replicas.average([*grads, *products], [*params, *params], group)
        grads, products = means[: len(params)], means[len(params) :]
    for p, g in zip(params, grads, strict=True):
        p.grad = g
    return loss.detach(), {p: h for p, h in zip(params, products, strict=True) if h is not None}


def not_finite(
    totals: list[Tensor], param_groups: list[dict[str, Any]], tensors: Sequence[Sequence[Tensor | None]], ranks: Ranks | None
) -> list[str]:
    """The names of the parameters whose tensor holds NaN or infinity, on any of the ranks; none where all totals are finite."""
    if backends.all_finite(totals):
        return []
    named = [  # a sum may overflow where every entry is finite
        groups.name(param_groups, index, i)
        for index, row in enumerate(tensors)
        for i, g in enumerate(row)
        if g is not None and not bool(shards.local(g).isfinite().all())
    ]
    everywhere = [named] if ranks is None else ranks.gather(named)
    return list(dict.fromkeys(name for names in everywhere for name in names))

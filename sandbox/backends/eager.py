"""The reference: the pure update, tensor by tensor, copied into place."""

from __future__ import annotations

from typing import Any

from sandbox import kernel
from sandbox.backends import Batch
from sandbox.recipe import state_dtype


class Eager:
    """Runs each tensor on its own (all tensors joined where the recipe's scope is global)."""

    def step(self, batch: Batch) -> None:
        """One step of every tensor in the batch."""
        prepared: dict = {}
        everything = list(range(len(batch.params)))
        for members in [everything] if batch.recipe.scope == "global" else [[i] for i in everything]:
            p = batch.params[members[0]]
            key = state_dtype(p.dtype), p.device
            if key not in prepared:
                prepared[key] = kernel.prepare(batch.recipe, batch.t, batch.lr, batch.lr_old, *key)
            all_rows: list[list[Any]] = [batch.states, batch.params, batch.grads, batch.hessians]
            rows = [[row[i] for i in members] for row in all_rows]
            after = batch.recipe.leaf_update(prepared[key], rows, batch.norm)
            for i, (state, theta) in zip(members, after, strict=True):
                batch.params[i].copy_(theta)
                for name, value in state.items():
                    batch.states[i][name].copy_(value)

"""Which tensors of a step are not finite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from sandbox import backends
from sandbox.distributed import shards
from sandbox.distributed.ranks import Ranks
from sandbox.optimizer import groups


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

"""Roles: what a parameter does in its module, and which recipe trains it there.

    muon = Recipe(…, vectors=adam, roles={"embedding": "vectors", "head": adam.replace(lr=1e-3)})

An embedding, an output layer and a hidden matrix are all tensors with two axes; what tells them apart is where they stand in
the model (`sandbox.optimizer.roles` finds it).
"""

from __future__ import annotations

import dataclasses
from typing import Any

from sandbox.blocks.base import register

# Roles of tensors that act coordinate by coordinate, whatever their shape: the recipe of vectors trains them.
COORDINATEWISE = ("norm", "bias", "scalar")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Roles:
    """Role -> who trains its tensors: a Recipe, "vectors" for the recipe of vectors, "matrices" for the recipe itself, or None.

    None leaves tensors with two axes or more to the recipe itself and all others, with norms, biases and scalars, to the recipe
    of vectors; tensors of role "other" it refuses.  True if some role is given.
    """

    hidden: Any = None  # a linear map between activations
    conv: Any = None  # a convolution's kernel
    embedding: Any = None  # a table of rows that are looked up
    head: Any = None  # the last linear map, to the outputs
    attention_in: Any = None  # queries, keys, values
    attention_out: Any = None  # the map after attention
    recurrent: Any = None  # the gates of a recurrent network, stacked
    norm: Any = None  # scale and shift of a normalisation
    bias: Any = None
    scalar: Any = None  # gains, slopes, kernels of depthwise convolutions
    other: Any = None  # two axes or more, in a module of unknown kind

    def __bool__(self) -> bool:
        return any(getattr(self, role) is not None for role in ROLES)

    def given(self) -> dict[str, Any]:
        """Returns the roles that are not None."""
        return {role: value for role in ROLES if (value := getattr(self, role)) is not None}


register(Roles)
ROLES = tuple(f.name for f in dataclasses.fields(Roles))

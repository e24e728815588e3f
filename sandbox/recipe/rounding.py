"""State in bfloat16, rounded up or down at random so that the mean is right: stochastic rounding.

A float32 number x lies between two neighbours in bfloat16, l ≤ x < u, and becomes u with probability (x - l)/(u - l), else l.
Rounded to the nearest, an average with β = 0.999 stands still as soon as its change is below 1/512 of it; at random, it moves
by as much in the mean (Gupta et al., "Deep Learning with Limited Numerical Precision", 2015).

The random bits come from a counter and keep no state: those of an entry are a hash of the optimizer's seed, the number of its
tensor's step, the state and the entry's place in its tensor.  So they are the same in every layout and backend, on any number
of threads, and after a checkpoint.  Tensors of one shape share them.

Only per-coordinate states are rounded.  What is kept once per scope or tensor (floors, counters, norms) is few,
and is often compared or counted exactly; it stays in the precision of the step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sandbox.blocks import ELEMENT

NARROW = torch.bfloat16


def check(state_dtype: torch.dtype | None) -> None:
    """Raises ValueError for a dtype in which no state is kept."""
    if state_dtype not in (None, NARROW):
        raise ValueError(
            f"state_dtype must be None (the precision of a step, at least float32) or torch.bfloat16, got {state_dtype}"
        )


def dtype_of(recipe: Any, name: str, wide: torch.dtype, state_dtype: torch.dtype | None = None) -> torch.dtype:
    """The dtype in which a recipe's state is kept (without `state_dtype`: computed), where steps compute in `wide`."""
    if name in recipe.analysis.exact:
        return torch.float64
    return state_dtype if state_dtype is not None and recipe.analysis.state_kinds.get(name) == ELEMENT else wide


def key(seed: int, t: int, first: int = 0) -> int:
    """What the counter of step t begins with, at the entry `first` of its tensor: 32 bits, as a signed number."""
    digest = hashlib.blake2b(f"rounding {seed}/{t}".encode(), digest_size=4).digest()
    return signed(int.from_bytes(digest, "little") + first)


def entry_numbers(like: Tensor) -> Tensor:
    """The place of each entry in its tensor, from 0, row by row: int32, which wraps around."""
    return torch.arange(like.numel(), device=like.device).to(torch.int32).view(like.shape)


def round_states(kinds: Mapping[str, str], new: Mapping[str, Tensor], counter: Tensor) -> dict[str, Tensor]:
    """Returns new states as they are stored: per-coordinate ones rounded, the rest unchanged.

    kinds: of all states of the recipe.  counter: int32, `key` + the place of each entry.
    """
    rounded_states = dict(new)
    bits: dict[int, Tensor] = {}
    for number, name in enumerate(name for name, kind in kinds.items() if kind == ELEMENT):
        pair, half = divmod(number, 2)
        if name in new:
            if pair not in bits:
                bits[pair] = _hash(counter + signed(pair * 0x9E3779B9) if pair else counter)
            rounded_states[name] = round_to_bfloat16(new[name], bits[pair] >> 16 if half else bits[pair])
    return rounded_states


def round_to_bfloat16(x: Tensor, bits: Tensor) -> Tensor:
    """x in bfloat16, up or down by the lower half of `bits` (int32); infinities and NaN stay."""
    x = x.to(torch.float32)
    # bfloat16 is the upper half of a float32: the carry out of the lower half rounds away from zero
    upper = (x.view(torch.int32) + (bits & 0xFFFF)) & -0x10000
    return torch.where(x == x, upper.view(torch.float32), x).to(NARROW)


def _hash(x: Tensor) -> Tensor:
    """32 bits of which either half is as good as random where x runs through any interval; int32, modulo 2³².

    The middle of a 32-bit finaliser (multiply, shift, multiply; constants by C. Wellons, "lowbias32"): the shifts before and
    after it would mix what is mixed already here, an interval that begins anywhere.
    """
    x = x * 0x7FEB352D
    x = x ^ ((x >> 15) & 0x1FFFF)
    return x * signed(0x846CA68B)


def signed(x: int) -> int:
    """A number modulo 2³² as int32."""
    return (x + 2**31) % 2**32 - 2**31

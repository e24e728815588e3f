"""Computes diag H exactly: H_jj = e_jᵀ H e_j, a chunk of basis vectors at a time.

n products for n parameters, without n² memory.  For the tensor that e_j lies in, only its own block of H is multiplied: the
rest of H e_j is not computed, since H_jj does not need it.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from sandbox.curvature.product import Hessian
from sandbox.utils import memory as budget
from sandbox.utils.progress import bar


def basis(start: int, count: int, n: int, like: Tensor) -> Tensor:
    """Returns e_start, …, e_{start+count-1} as rows, [count, n]."""
    E = torch.zeros(count, n, dtype=like.dtype, device=like.device)
    E[:, start : start + count].fill_diagonal_(1.0)
    return E


def exact(H: Hessian, *, memory: int | None = None, chunk: int | None = None, progress: bool = False) -> Tensor:
    """Computes diag H, [n].

    memory: bytes for tensors at once, from which the number of basis vectors at a time follows; chunk: that number itself.
    Raises ValueError where either is not positive, or memory not enough for one product.
    """
    # allocated first: a small tensor left by every chunk between large freed ones would keep the heap from reuse
    diagonal, place = torch.empty(H.function.n, dtype=H.dtype, device=H.device), 0
    with bar("exact diagonal", H.function.n, progress) as advance:
        for i, (theta, n) in enumerate(zip(H.function.leaves, H.function.sizes, strict=True)):

            def run(start: int, count: int, i: int = i, theta: Tensor = theta, n: int = n) -> Tensor:
                return H.block(i, basis(start, count, n, theta))[:, start : start + count].diagonal()

            row = budget.bytes_of(n, H.dtype)
            k = chunk or (budget.chunk(functools.partial(run, 0), memory, n, row) if n else 1)
            for start in range(0, n, k):
                count = min(k, n - start)
                diagonal[place : place + count] = run(start, count)
                place += count
                advance(count)
    return diagonal

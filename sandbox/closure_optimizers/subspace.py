"""An orthonormal basis of few columns, in which vectors of many numbers are held by their coordinates."""

from __future__ import annotations

import torch
from torch import Tensor


def extend(P: Tensor, k: int, v: Tensor) -> int:
    """Writes the part of v (n,) outside P's first k columns, at length one, into column k of P (n, K); the columns then in use.

    Nothing is written where that part is rounding alone, or where the columns span everything already.
    """
    floor = max(1e-12, 16 * torch.finfo(P.dtype).eps)
    length = float(v.norm())
    if k >= len(P) or length < floor:
        return k
    v = v / length
    for _ in range(3):
        # v ← (v - PPᵀv)/‖·‖, again where most of v has gone: what is left of it is then inexact
        v = v - P @ (P.T @ v)
        length = float(v.norm())
        if length < floor:
            return k
        v = v / length
        if length > 0.1:
            break
    P[:, k] = v
    return k + 1


def collapse(P: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, int]:
    """Returns (P', T, k) for the basis P' (n, K) of the vectors whose coordinates in P (n, K) are `rows` (r, K), of rank k < K.

    T (K, K) takes coordinates in P to those in P' of the orthogonal projection; columns of P' from k on are 0.
    """
    Q, k = rows.new_zeros(P.shape[1], P.shape[1]), 0
    for row in rows:
        k = extend(Q, k, row)
    basis = torch.zeros_like(P)
    basis[:, :k] = torch.linalg.qr(P @ Q[:, :k].to(P))[0]  # orthonormal but for rounding, which else would grow
    return basis, (basis.T @ P).to(rows), k

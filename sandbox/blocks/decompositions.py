"""Matrices of inner products and decompositions, in float64 whatever the precision of a step.

They are small, and what float32 rounds off a matrix of scale 1 are whole eigenvalues where a method adds a ridge of 1e-6.
Where a matrix is not finite they give NaN, as operations by element do (torch.linalg raises there).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

EXACT = torch.float64


def gram(columns: Sequence[Tensor], total: Callable[[Tensor], Tensor]) -> Tensor:
    """G = MᵀM (…, n, n) of n columns of one shape; total: the sum over a scope, (…).  Each product is taken once.

    In float64, sums included.
    """
    n, columns = len(columns), [column.to(EXACT) for column in columns]
    # G_ij = Σ m_i m_j
    dots = {(i, j): total(columns[i] * columns[j]) for i in range(n) for j in range(i + 1)}
    return torch.stack([torch.stack([dots[max(i, j), min(i, j)] for j in range(n)], -1) for i in range(n)], -2)


def eigh(A: Tensor) -> tuple[Tensor, Tensor]:
    """λ (…, n) by rising size and Q (…, n, n) of a symmetric A = Q λ Qᵀ (…, n, n); both in float64."""
    A, zero = _finite(A.to(EXACT))
    # A = Q λ Qᵀ
    values, Q = torch.linalg.eigh(A)
    return values + zero[..., 0], Q + zero


def polar(X: Tensor) -> Tensor:
    """U Vᵀ of X = U Σ Vᵀ (m, n), in float64."""
    X, zero = _finite(X.to(EXACT))
    # X = U Σ Vᵀ
    U, _, Vt = torch.linalg.svd(X, full_matrices=False)
    return U @ Vt + zero


def solve(A: Tensor, B: Tensor) -> Tensor:
    """A⁻¹ B, in float64; infinite or NaN where A has no inverse."""
    return torch.linalg.solve_ex(A.to(EXACT), B.to(EXACT))[0]


def qr(A: Tensor) -> Tensor:
    """The orthogonal Q (m, m) of A = Q R, in float64."""
    return torch.linalg.qr(A.to(EXACT))[0]


def _finite(A: Tensor) -> tuple[Tensor, Tensor]:
    """A, or zeros in its place, and 0 (…, 1, 1), which is NaN where some entry of A is not finite."""
    zero = (A * 0).flatten(-2).sum(-1)[..., None, None]
    return torch.where(zero == 0, A, 0.0), zero

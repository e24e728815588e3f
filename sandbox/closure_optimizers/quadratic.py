"""A function's Hessian from the changes of its gradient along past steps: BFGS from a multiple of the identity."""

from __future__ import annotations

import torch
from torch import Tensor

RATIO = 1e8  # of the largest curvature to the smallest that is believed


def bfgs(S: Tensor, Y: Tensor, spare: float) -> tuple[float, Tensor, Tensor]:
    """(λ, B, c) of the positive definite H = λI + Bᵀ diag(c) B with H s near y.

    S, Y (h, K), h ≥ 1: steps and changes of the gradient, newest first.  B (r, K), orthonormal rows; c (r,); r = min(2h, K).
    λ is the least of the h largest singular values of Y S⁺, which is the Hessian on a quadratic, and `spare` where one of these
    is 0 or not finite.
    Eigenvalues below the largest's size over 1e8 become the median of the positive ones.
    """
    Q = torch.linalg.qr(torch.cat([S, Y]).T)[0]
    s, y = S @ Q, Y @ Q
    sizes = torch.linalg.svdvals(y.T @ torch.linalg.pinv(s.T, rtol=1e-15))[: len(S)]
    if not bool((sizes.isfinite() & (sizes > 0)).all()):
        sizes = torch.full_like(sizes, spare)
    largest = float(sizes.max())
    lam = max(float(sizes.min()), largest / RATIO)
    C = lam * torch.eye(Q.shape[1], dtype=Q.dtype, device=Q.device)
    for s_j, y_j in zip(s.flip(0), y.flip(0), strict=True):
        # C ← C + yyᵀ/yᵀs - Cs sᵀC/sᵀCs
        Cs = C @ s_j
        updated = C + y_j.outer(y_j) / (y_j @ s_j) - Cs.outer(Cs) / (s_j @ Cs)
        if bool(updated.isfinite().all()):
            C = updated
    values, V = torch.linalg.eigh(C)
    positive = values[values > 0]
    median = float(positive.quantile(0.5)) if len(positive) else largest
    values = torch.where((values <= 0) | (values < values.abs().max() / RATIO), median, values)
    return lam, (Q @ V).T, values - lam

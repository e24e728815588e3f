"""Solving A p = -g, and taking |A|, from products with A alone, on one flat vector."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Product = Callable[[Tensor], Tensor]


def conjugate_gradients(A: Product, g: Tensor, start: Tensor, most: int, tolerance: float) -> tuple[Tensor, float]:
    """Returns p near -A⁻¹g and the model's q(p) = gᵀp + ½pᵀAp, by conjugate gradients from `start`, stopped as Martens (2010).

    It ends at step i where q(p_i) < 0 and (q(p_i) - q(p_{i-k}))/q(p_i) < k·tolerance, k = max(10, i/10), after `most` steps, or
    where the gradient of q has vanished.  A direction of no positive curvature ends it too, with the p before it, or with -g
    where it is the first.
    """
    p, r = start, A(start) + g
    # q(p) = ½pᵀ(Ap + g) + ½gᵀp
    v, q = -r, 0.5 * float(p @ (r + g))
    values, size = [q], float(g.norm())
    for i in range(1, most + 1):
        rr = float(r @ r)
        if rr**0.5 <= 1e-14 * size:
            break
        Av = A(v)
        vAv = float(v @ Av)
        if vAv <= 0:
            return (p, q) if i > 1 or bool(start.any()) else (-g, float(-(g @ g) + 0.5 * (g @ A(g))))
        a = rr / vAv
        # p ← p + a v;  r ← r + a A v;  v ← -r + (rᵀr / r'ᵀr') v
        p, r = p + a * v, r + a * Av
        v = -r + float(r @ r) / rr * v
        q = 0.5 * float(p @ (r + g))
        values.append(q)
        k = max(10, i // 10)
        if i > k and q < 0 and (q - values[-1 - k]) / q < k * tolerance:
            break
    return p, q


def lanczos(A: Product, g: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Returns (V, T): an orthonormal basis of g, Ag, … (n, k) and VᵀAV (k, k) for symmetric A; k ≤ `most`.

    Every vector is orthogonalised against all before it, twice, so that rounding does not bring any back.
    """
    V, alphas, betas = [g / g.norm()], list[float](), list[float]()
    for _ in range(min(most, len(g))):
        w = A(V[-1])
        alphas.append(float(w @ V[-1]))
        size, basis = float(w.norm()), torch.stack(V, 1)
        for _ in range(2):
            w = w - basis @ (basis.T @ w)
        beta = float(w.norm())
        if len(V) == min(most, len(g)) or beta <= 1e-12 * size:
            break
        betas.append(beta)
        V.append(w / beta)
    T = torch.diag(torch.tensor(alphas, dtype=g.dtype, device=g.device))
    if betas:
        off = torch.diag(torch.tensor(betas, dtype=g.dtype, device=g.device), 1)
        T = T + off + off.T
    return torch.stack(V, 1), T

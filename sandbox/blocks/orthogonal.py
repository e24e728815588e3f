"""A solver for matrices: the direction is made orthogonal."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sandbox.blocks.base import Flow, block
from sandbox.blocks.decompositions import polar
from sandbox.blocks.number import whole
from sandbox.blocks.scope import sides
from sandbox.blocks.slots import Solve
from sandbox.utils import suggest

# Jordan's quintic: its slope at 0 is steep, and five steps take singular values of [0.01, 1] into [0.68, 1.14].
A, B, C = 3.4445, -4.7750, 2.0315


@block
class Orthogonalize(Solve):
    """p = s X,  X = a X + (b S + c S²) X with S = X Xᵀ, from X = (m/D)/‖m/D‖   (Jordan et al. 2024, Muon: Newton-Schulz).

    X comes near to U Vᵀ of m/D = U Σ Vᵀ.  a, b, c = 3.4445, -4.7750, 2.0315.
    steps: k ≥ 0, iterations; exact=True takes U Vᵀ itself, by a singular value decomposition.
    scale: s of an (m, n) matrix: "original" √max(1, m/n), "rms" 0.2 √max(m, n) (Liu et al. 2025: updates as large as AdamW's),
    or "none" 1.
    bfloat16: whether the iterations are computed in it, as published code does, or in the precision of the state.
    """

    steps: int = 5
    exact: bool = False
    bfloat16: bool = False
    scale: str = "original"
    matrix = True
    recalls = False
    latex = (
        r"p_t = s X,\quad X \leftarrow a X + (b S + c S^2) X,\; S = X X^T,"
        r"\quad X = (m_t/D_t)/\lVert m_t/D_t \rVert \text{ at first}"
    )

    def check(self) -> None:
        """steps ≥ 0 and a known scale."""
        whole(self, "steps", 0)
        if self.scale not in _SCALES:
            raise ValueError(f"Orthogonalize: {suggest.unknown('scale', str(self.scale), _SCALES)}")

    def step(self, x: Flow, **state: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """s X."""
        p = x.value
        m, n = sides(p)
        X = polar(p) if self.exact else orthogonal(p.to(torch.bfloat16) if self.bfloat16 else p, self.steps)
        return _SCALES[self.scale](m, n) * X.to(p.dtype), state


_SCALES = {
    # s = √max(1, m/n)
    "original": lambda m, n: (m / n).clamp(min=1.0).sqrt(),
    # s = 0.2 √max(m, n)
    "rms": lambda m, n: 0.2 * torch.maximum(m, n).sqrt(),
    "none": lambda m, n: 1.0,
}


def orthogonal(X: Tensor, steps: int) -> Tensor:
    """Newton-Schulz iterations on X/‖X‖, on its smaller side."""
    # X = X / max(‖X‖, 1e-7)
    X = X / X.square().sum().sqrt().clamp(min=1e-7)
    for _ in range(steps):
        if X.shape[0] > X.shape[1]:
            # X ← a X + X (b S + c S²), S = Xᵀ X: the same
            S = X.mT @ X
            X = A * X + X @ (B * S + C * (S @ S))
        else:
            # X ← a X + (b S + c S²) X, S = X Xᵀ
            S = X @ X.mT
            X = A * X + (B * S + C * (S @ S)) @ X
    return X

"""GGT's solver: full-matrix preconditioning by the last gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sandbox.blocks.base import ELEMENT, Flow, block
from sandbox.blocks.decompositions import EXACT, eigh, gram
from sandbox.blocks.number import Number, number, where, whole
from sandbox.blocks.slots import Solve


@block
class FullMatrix(Solve):
    """p = M U (√σ + ε)⁻³ Uᵀ Mᵀ u + (u - M U σ⁻¹ Uᵀ Mᵀ u)/√σ₁, M the last w of u over √w   (Agarwal et al. 2019, GGT).

    U σ Uᵀ = Mᵀ M + δ I over the scope; the second term, outside the window's span, only where the least √σ₁ > 10⁻⁴.  So p is
    nearly (M Mᵀ)^{-1/2} u.  Before w steps M holds what there is, over √t.
    window: w ≥ 1, a word of state each.  eps: ε > 0, `sigma_eps` there.  ridge: δ > 0, `svd_eps` there.
    """

    window: int = 10
    eps: Number = number(default=1e-2, range="(0, inf)")
    ridge: Number = number(default=1e-6, range="(0, inf)")
    recalls = False
    latex = (
        r"p_t = M U (\sqrt\sigma + \epsilon)^{-3} U^T M^T u_t + (u_t - M U \sigma^{-1} U^T M^T u_t)/\sqrt{\sigma_1},"
        r"\quad M^T M + \mathrm{ridge}\, I = U \sigma U^T"
    )

    def check(self) -> None:
        """A whole number of vectors."""
        whole(self, "window", 1)

    @property
    def state(self) -> Mapping[str, str]:
        """The last u, newest first."""
        return {f"u{i}": ELEMENT for i in range(self.window)}

    def coefficients(self, t: Any) -> dict[str, Any]:
        """How many there are."""
        return {"filled": where(t < self.window, t, float(self.window))}

    def step(self, x: Flow, **state: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """p, and the window with u in it."""
        u = x.value
        columns = [u, *list(state.values())[:-1]]
        # G = Mᵀ M, with M = [u_t, u_{t-1}, …]/√w
        G = gram(columns, x.scope.sum) / x.c.filled
        # U σ Uᵀ = G + δ I
        sigma, U = eigh(G + self.ridge * torch.eye(self.window, dtype=G.dtype, device=G.device))
        root = sigma.clamp(min=self.ridge).sqrt()
        least = root[..., :1]
        rest = torch.where(least > 1e-4, 1 / least, 0.0)
        # p = M U [(√σ + ε)⁻³ - σ⁻¹/√σ₁] Uᵀ Mᵀ u + u/√σ₁
        f = (root + self.eps) ** -3 - rest / root.square()
        k = (U @ (f * (U.mT @ G[..., :1]).squeeze(-1)).unsqueeze(-1)).squeeze(-1)
        p = x.scope.spread(rest.squeeze(-1)) * u.to(EXACT)
        for column, share in zip(columns, k.unbind(-1), strict=True):
            p = p + x.scope.spread(share) * column.to(EXACT)
        return p.to(u.dtype), dict(zip(state, columns, strict=True))

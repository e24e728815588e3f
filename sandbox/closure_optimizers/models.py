"""One quadratic model for each of N functions, and their sum, in coordinates of a basis P that follows the gradients."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from sandbox.closure_optimizers import quadratic, subspace

TINY = 1e-12  # lengths and cosines below it are rounding


def begin(theta: Tensor, N: int, h: int) -> dict[str, Tensor]:
    """Returns the state of N models at θ (n,), with h pairs each; K columns of P, 3N + 3 or n where that is less."""
    n = len(theta)
    K = min(n, math.ceil(1.5 * min(n, 2 * N + 2)))
    P, columns = (torch.eye(n).to(theta), n) if n == K else (theta.new_zeros(n, K), 0)
    columns = subspace.extend(P, columns, theta)
    x = (P.T @ theta).double()
    z = x.new_zeros
    return {
        "P": P, "columns": torch.tensor(columns), "x": x, "x_old": x.clone(), "H": z(K, K), "X": x.repeat(N, 1), "G": z(N, K),
        "S": z(N, h, K), "Y": z(N, h, K), "B": z(N, 2 * h, K), "c": z(N, 2 * h), "lam": z(N), "f": z(N) + math.nan,
        "active": torch.zeros(N, dtype=torch.bool, device=theta.device),
    }  # fmt: skip


class Models:
    """q_i(θ) = f_i + g_iᵀd + ½ dᵀH_i d,  d = θ - θ_i,  H_i = λ_i I + B_iᵀ diag(c_i) B_i.

    s: the state.  "x", "x_old" (K,): θ and the point before; "X", "G" (N, K): θ_i and g_i; "f" (N,): NaN for what was never
    seen; "S", "Y" (N, h, K): pairs, newest first, 0 where there are none; "B" (N, 2h, K), "c" (N, 2h), "lam" (N,); "H" (K, K):
    the sum of B_iᵀ diag(c_i) B_i; "active" (N,): which functions are in the sum.
    """

    def __init__(self, state: dict[str, Any]) -> None:
        self.s = state

    def predicted(self, i: int) -> float:
        """Returns q_i(θ)."""
        s = self.s
        d = s["x"] - s["X"][i]
        return float(s["f"][i] + s["G"][i] @ d + 0.5 * self.squares()[i])

    def squares(self) -> Tensor:
        """Returns dᵀH_i d for every i (N,)."""
        s = self.s
        D = s["x"] - s["X"]
        return s["lam"] * D.square().sum(1) + (s["c"] * self._within(D).square()).sum(1)

    def gradient(self) -> Tensor:
        """Returns Σ_i [g_i + H_i (θ - θ_i)] (K,)."""
        s = self.s
        D = s["x"] - s["X"]
        return (s["G"] + s["lam"][:, None] * D).sum(0) + torch.einsum("nr,nrk->k", s["c"] * self._within(D), s["B"])

    def hessian(self) -> Tensor:
        """Returns Σ_i H_i (K, K)."""
        s = self.s
        return s["H"] + s["lam"][s["active"]].sum() * torch.eye(len(s["H"])).to(s["H"])

    def span(self, vectors: list[Tensor]) -> None:
        """Adds vectors (n,) to the basis, which shrinks when it is full to the span of all g_i, θ_i, θ and these."""
        s = self.s
        for v in vectors:
            k = subspace.extend(s["P"], int(s["columns"]), v)
            s["columns"].fill_(k)
            if k < s["P"].shape[1] or k == len(s["P"]):
                continue
            coordinates = torch.stack([(s["P"].T @ v).double() for v in vectors])
            G, X = s["G"][s["active"]], s["X"][s["active"]]
            P, T, k = subspace.collapse(s["P"], torch.cat([G, X - s["x"], s["x"][None], coordinates]))
            s["P"].copy_(P)
            s["columns"].fill_(k)
            for name in ("x", "x_old", "X", "G", "S", "Y", "B"):
                s[name].copy_(s[name] @ T.T)
            # H = Σ B_iᵀ diag(c_i) B_i
            B = s["B"].flatten(0, 1)
            s["H"].copy_(B.T @ (s["c"].flatten()[:, None] * B))

    def record(self, i: int, x: Tensor, f: float, g: Tensor) -> None:
        """Records that f_i has value f and gradient g (K,) at x (K,)."""
        s = self.s
        step, change = x - s["X"][i], g - s["G"][i]
        lengths = float(step.norm()), float(change.norm())
        if bool(s["f"][i].isfinite()) and min(lengths) >= TINY and abs(float(step @ change)) >= TINY * lengths[0] * lengths[1]:
            for name, new in (("S", step), ("Y", change)):
                s[name][i] = torch.cat([new[None], s[name][i, :-1]])
        s["X"][i], s["G"][i], s["f"][i] = x, g, f

    def fit(self, i: int) -> None:
        """Fits H_i to the pairs; without any it is the median eigenvalue of H over the number of active functions."""
        s = self.s
        pairs, before = s["S"][i].square().sum(1) > 0, s["B"][i].T @ (s["c"][i][:, None] * s["B"][i])
        if bool(pairs.any()):
            lam, B, c = quadratic.bfgs(s["S"][i][pairs], s["Y"][i][pairs], float(s["lam"][s["active"]].max()))
        else:
            lam, B, c = (
                float(torch.linalg.eigvalsh(self.hessian()).quantile(0.5) / s["active"].sum()),
                s["B"][i, :0],
                s["c"][i, :0],
            )
        for name, new in (("lam", lam), ("B", 0.0), ("c", 0.0)):
            s[name][i] = new
        s["B"][i, : len(B)], s["c"][i, : len(c)] = B, c
        s["H"] += B.T @ (c[:, None] * B) - before

    def _within(self, D: Tensor) -> Tensor:
        """B_i d_i (N, 2h) for the rows d_i of D (N, K)."""
        return torch.einsum("nrk,nk->nr", self.s["B"], D)

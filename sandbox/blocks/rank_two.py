"""Quasi-Newton matrices kept as a diagonal and the changes made to it: DFP, BFGS, SR1, and regularised BFGS."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sandbox.blocks.base import ELEMENT, SCOPE, Flow, block
from sandbox.blocks.decompositions import EXACT, gram, solve
from sandbox.blocks.number import Number, number, whole
from sandbox.blocks.slots import Solve
from sandbox.utils import suggest

_RULES = {
    "dfp": "H + ssᵀ/sᵀy - Hy yᵀH/yᵀHy",
    "bfgs": "(I - syᵀ/sᵀy) H (I - ysᵀ/sᵀy) + ssᵀ/sᵀy",
    "sr1": "H + wwᵀ/wᵀy, w = s - Hy",
}


@block
class Broyden(Solve):
    """p = H m, H = 1/D and the changes of the pairs (s, y) by DFP, BFGS or SR1; each gives H y = s   (Davidon 1959 to 1970)

    With a constant D, and as much memory as steps, H is the classical dense matrix.  When the memory is full it begins again
    from 1/D with the newest pair.  DFP and BFGS leave a pair of sᵀy ≤ tiny out, SR1 one of |wᵀy| < 1e-8 ‖w‖‖y‖.

    rule: "dfp", "bfgs" or "sr1".  memory: h ≥ 1 pairs.  tiny ≥ 0, in units of sᵀy.
    Keeps 2h state elements per parameter, and d.
    """

    rule: str = "bfgs"
    memory: int = 20
    tiny: Number = number(default=1e-10, range="[0, inf)")
    needs = ("s", "y")
    recalls = False

    def check(self) -> None:
        """A known rule, memory ≥ 1."""
        if self.rule not in _RULES:
            raise ValueError(suggest.unknown("rule of Broyden", str(self.rule), _RULES))
        whole(self, "memory", 1)

    @property
    def text(self) -> str:
        """The equation as configured."""
        return f"p = H m, H from 1/D by H = {_RULES[self.rule]} with at most {self.memory} pairs"

    @property
    def latex(self) -> str:
        """The rule by its name."""
        how = rf"\text{{ by {self.rule.upper()}, at most {self.memory} pairs}}"
        return rf"p_t = H_t m_t,\quad H_t \text{{ from }} D_t^{{-1}} {how}"

    @property
    def state(self) -> Mapping[str, str]:
        """s and p = Hy of each pair, newest first, and the three factors of its change; 0 in an empty place."""
        kinds = {"s": ELEMENT, "p": ELEMENT, "ss": SCOPE, "pp": SCOPE, "sp": SCOPE}
        return {f"{name}{k}": kind for name, kind in kinds.items() for k in range(self.memory)}

    def _times(self, x: Flow, state: Mapping[str, Tensor], v: Tensor) -> Tensor:
        """H v."""
        total, spread = x.scope.sum, x.scope.spread
        out = v / x.D
        for k in range(self.memory):
            s, p = state[f"s{k}"], state[f"p{k}"]
            sv, pv = total(s * v), total(p * v)
            ss, pp, sp = (state[f"{name}{k}"] for name in ("ss", "pp", "sp"))
            # H v ← H v + (ss sᵀv + sp pᵀv) s + (pp pᵀv + sp sᵀv) p
            out = out + spread(ss * sv + sp * pv) * s + spread(pp * pv + sp * sv) * p
        return out

    def step(self, x: Flow, **state: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """p, and the changes."""
        total, spread = x.scope.sum, x.scope.spread
        last = self.memory - 1
        full = (state[f"ss{last}"] != 0) | (state[f"sp{last}"] != 0)
        everywhere = spread(torch.where(full, 1.0, 0.0).to(x.u.dtype)) > 0
        # p = H y, of H₀ where it begins again
        p = torch.where(everywhere, x.y / x.D, self._times(x, state, x.y))
        sy, yp = total(x.s * x.y), total(x.y * p)
        accepted, factors = self._change(x, p, sy, yp)
        here = spread(torch.where(accepted, 1.0, 0.0).to(x.u.dtype)) > 0
        newest = {"s": x.s, "p": p, **{name: torch.where(accepted, f, 0.0) for name, f in factors.items()}}
        new: dict[str, Tensor] = {}
        for name, value in newest.items():
            long = name in ("s", "p")
            emptied = [torch.where(everywhere if long else full, 0.0, state[f"{name}{k}"]) for k in range(last)]
            shifted = [value, *emptied]
            old = [state[f"{name}{k}"] for k in range(self.memory)]
            new |= {f"{name}{k}": torch.where(here if long else accepted, shifted[k], old[k]) for k in range(self.memory)}
        return self._times(x, new, x.u), new

    def _change(self, x: Flow, p: Tensor, sy: Tensor, yp: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Whether the pair is taken, and the factors of ssᵀ, ppᵀ and spᵀ + psᵀ in the change of H."""
        total = x.scope.sum
        if self.rule == "sr1":
            w = x.s - p
            wy = total(w * x.y)
            accepted = (wy.square() > 1e-16 * total(w.square()) * total(x.y.square())) & (total(x.s.square()) > 0)
            # wwᵀ/wᵀy
            c = 1 / torch.where(accepted, wy, 1.0)
            return accepted, {"ss": c, "pp": c, "sp": -c}
        accepted = (sy > self.tiny) & (yp > 0) if self.rule == "dfp" else sy > self.tiny
        rho = 1 / torch.where(accepted, sy, 1.0)
        if self.rule == "dfp":
            # ssᵀ/sᵀy - ppᵀ/yᵀp
            return accepted, {"ss": rho, "pp": -1 / torch.where(accepted, yp, 1.0), "sp": torch.zeros_like(rho)}
        # (1 + yᵀp/sᵀy) ssᵀ/sᵀy - (spᵀ + psᵀ)/sᵀy
        return accepted, {"ss": (1 + yp * rho) * rho, "pp": torch.zeros_like(rho), "sp": -rho}


@block
class RegularizedBFGS(Solve):
    """p = (B⁻¹ + Γ) m, B = BFGS of the last pairs (v, r) from B₀, + δ with each   (Mokhtari & Ribeiro 2014, RES)

        B ← B + rrᵀ/vᵀr - Bv vᵀB/vᵀBv + δ I,   v = s, r = y (give `SameBatch(ridge=-δ)`)

    So B ≥ δ.  B = c + W K Wᵀ with W the pairs and a small K, which is built and inverted from their inner products.
    A pair of vᵀr ≤ 0 is left out.
    memory: h ≥ 1 pairs.  delta: δ ≥ 0, gamma: Γ ≥ 0, in units of B and 1/B.  start: B₀ > 0, times D.
    """

    memory: int = 10
    delta: Number = number(default=1e-3, range="[0, inf)")
    gamma: Number = number(default=1e-4, range="[0, inf)")
    start: Number = number(default=1.0, range="(0, inf)")
    needs = ("s", "y")
    recalls = False
    latex = (
        r"p_t = (B_t^{-1} + \Gamma) m_t,\quad "
        r"B \leftarrow B + \frac{r r^T}{v^T r} - \frac{B v v^T B}{v^T B v} + \delta I"
    )

    def check(self) -> None:
        """memory ≥ 1."""
        whole(self, "memory", 1)

    @property
    def state(self) -> Mapping[str, str]:
        """The pairs, newest first."""
        return {f"{name}{k}": ELEMENT for name in ("v", "r") for k in range(self.memory)}

    def step(self, x: Flow, **state: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """p, and the pairs."""
        total, spread, h = x.scope.sum, x.scope.spread, self.memory
        taken = spread(torch.where(total(x.s * x.y) > 0, 1.0, 0.0).to(x.u.dtype)) > 0
        for name, value in (("v", x.s), ("r", x.y)):
            shifted = [value, *(state[f"{name}{k}"] for k in range(h - 1))]
            state |= {f"{name}{k}": torch.where(taken, shifted[k], state[f"{name}{k}"]) for k in range(h)}
        # in coordinates that make D the unit: oldest pair first, v then r
        root = x.D.sqrt()
        W = [state[f"{name}{k}"] * (root if name == "v" else 1 / root) for name in ("v", "r") for k in reversed(range(h))]
        u = x.u / root
        # G = WᵀW
        G = gram(W, total)
        K, c = self._small(G)
        # B⁻¹u = (u - W (c + K G)⁻¹ K Wᵀu) / c
        Wu = torch.stack([total(w.to(EXACT) * u) for w in W], -1)[..., None]
        unit = torch.eye(2 * h, dtype=G.dtype, device=G.device)
        a = solve(c[..., None, None] * unit + K @ G, K @ Wu)[..., 0]
        q = u.to(EXACT)
        for k, w in enumerate(W):
            q = q - spread(a[..., k]) * w
        return ((spread(1 / c) * q).to(u.dtype) + self.gamma * u) / root, state

    def _small(self, G: Tensor) -> tuple[Tensor, Tensor]:
        """K and c of B = c + W K Wᵀ from G = WᵀW."""
        h = self.memory
        unit = torch.eye(2 * h, dtype=G.dtype, device=G.device)
        K, c = torch.zeros_like(G), torch.zeros_like(G[..., 0, 0]) + self.start
        for k in range(h):
            vr = G[..., k, h + k]
            there = vr > 0
            # B v = W b;  vᵀBv
            b = c[..., None] * unit[k] + (K @ G[..., :, k, None])[..., 0]
            vBv = (G[..., k, :] * b).sum(-1)
            rr = torch.where(there, 1 / torch.where(there, vr, 1.0), 0.0)[..., None, None] * unit[h + k, :, None] * unit[h + k]
            bb = torch.where(there, 1 / torch.where(there, vBv, 1.0), 0.0)[..., None, None] * b[..., :, None] * b[..., None, :]
            # B ← B + rrᵀ/vᵀr - Bv vᵀB/vᵀBv + δ
            K, c = K + rr - bb, c + torch.where(there, 1.0, 0.0).to(c.dtype) * self.delta
        return K, c

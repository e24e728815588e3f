"""Curvatures with one number per row, per column or per tensor."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sandbox.blocks.base import COLUMNS, ROWS, TENSOR, Flow, block
from sandbox.blocks.number import Number, number
from sandbox.blocks.slots import Curvature


@block
class SM3(Curvature):
    """B_ij = min(r_i, c_j) + g_ij²;  r_i = max_j B_ij,  c_j = max_i B_ij   (Anil et al. 2019, SM3-II).

    Keeps one number per row and per column.  B is never below Adagrad's sum of squares; on vectors it is that sum.
    """

    recalls = False
    state = {"r": ROWS, "c": COLUMNS}
    latex = r"B_{ij} = \min(r_i, c_j) + g_{ij}^2,\quad r_i \leftarrow \max_j B_{ij},\; c_j \leftarrow \max_i B_{ij}"

    def step(self, x: Flow, *, r: Tensor, c: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """B, and its largest entries by row and by column."""
        # B = min(r, c) + g²
        B = torch.minimum(r, c) + x.g.square()
        # r_i = max_j B_ij,  c_j = max_i B_ij
        return B, {"r": B.amax(1, keepdim=True), "c": B.amax(0, keepdim=True)} if B.numel() else {"r": r, "c": c}


@block
class RowSecondMoment(Curvature):
    """v = β v + (1-β) ⟨g²⟩ per row;  B = v/(1-βᵗ)   (Zhang et al. 2024, Adam-mini: one number per output neuron or token)

    beta: β in [0, 1).
    """

    beta: Number = number(default=0.999, range="[0, 1)")
    recalls = False
    state = {"v": ROWS}
    latex = r"v_i \leftarrow \beta v_i + (1-\beta) \langle g_{ij}^2 \rangle_j,\quad B_{ij} = v_i/(1-\beta^t)"

    def coefficients(self, t: Any) -> dict[str, Any]:
        """1/(1-β^t)."""
        return {"unbias": 1 / (1 - self.beta**t)}

    def step(self, x: Flow, *, v: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """B and v."""
        # v = β v + (1-β) ⟨g²⟩ per row
        v = self.beta * v + (1 - self.beta) * x.g.square().mean(1, keepdim=True)
        return (v * x.c.unbias).expand_as(x.g), {"v": v}


@block
class TensorSecondMoment(Curvature):
    """v = β v + (1-β) ⟨g²⟩ per tensor;  B = v/(1-βᵗ)   (Zhang et al. 2024, Adam-mini)

    beta: β in [0, 1).
    """

    beta: Number = number(default=0.999, range="[0, 1)")
    recalls = False
    state = {"v": TENSOR}
    latex = r"v \leftarrow \beta v + (1-\beta) \langle g^2 \rangle,\quad B = v/(1-\beta^t)"

    def coefficients(self, t: Any) -> dict[str, Any]:
        """1/(1-β^t)."""
        return {"unbias": 1 / (1 - self.beta**t)}

    def step(self, x: Flow, *, v: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """B and v."""
        # v = β v + (1-β) ⟨g²⟩
        v = self.beta * v + (1 - self.beta) * x.tensor.mean(x.g.square())
        return x.tensor.spread(v * x.c.unbias).expand_as(x.g), {"v": v}


@block
class FactoredSecondMoment(Curvature):
    """B_ij = r_i c_j/max(⟨r⟩, δ);  r = (1-a) r + a ⟨g² + ε⟩ per row, c per column, a = t^-k   (Shazeer & Stern 2018)

    On a vector, which is one column, B is the average of g² + ε itself.
    decay: k in (0, 1].  eps: ε ≥ 0, in units of g².  floor: δ ≥ 0, of ⟨r⟩.
    """

    decay: Number = number(default=0.8, range="(0, 1]")
    eps: Number = number(default=0.0, range="[0, inf)")
    floor: Number = number(default=0.0, range="[0, inf)")
    recalls = False
    state = {"r": ROWS, "c": COLUMNS}
    latex = (
        r"B_{ij} = r_i c_j/\max(\langle r \rangle, \delta),\quad r \leftarrow (1-a) r + a \langle g^2 + \epsilon \rangle_j,"
        r"\; c \leftarrow (1-a) c + a \langle g^2 + \epsilon \rangle_i,\; a = t^{-k}"
    )

    def coefficients(self, t: Any) -> dict[str, Any]:
        """a, and 1 - a."""
        # a = t^-k
        return {"a": t**-self.decay, "keep": 1 - t**-self.decay}

    def step(self, x: Flow, *, r: Tensor, c: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """B, and the averages per row and per column."""
        # r = (1-a) r + a ⟨g² + ε⟩ per row, c per column
        q = x.g.square() + self.eps
        if not q.numel():
            return q, {"r": r, "c": c}
        r = x.c.keep * r + x.c.a * q.mean(1, keepdim=True)
        c = x.c.keep * c + x.c.a * q.mean(0, keepdim=True)
        # B_ij = r_i c_j/max(⟨r⟩, δ), 0 where no gradient has been
        mean = torch.clamp(r.mean(), min=self.floor)
        return r * c / torch.where(mean > 0, mean, 1.0), {"r": r, "c": c}


@block
class KroneckerEigenvalues(Curvature):
    """B_ij = λ_i λ_j   (of the basis's left and right factor: Gupta et al. 2018, Shampoo; Martens & Grosse 2015, K-FAC)."""

    needs = ("left", "right")
    recalls = False
    latex = r"B_{ij} = \lambda_{L,i}\, \lambda_{R,j}"

    def step(self, x: Flow, **state: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """λ_i λ_j."""
        # B_ij = λ_i λ_j
        return x.left * x.right, state

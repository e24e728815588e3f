"""Bases: coordinates in which curvature, rectifier and solver see a tensor, a matrix v as v' = Q_Lᵀ v Q_R."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sandbox.blocks.base import COLUMNS, LEFT, RIGHT, ROWS, Flow, block
from sandbox.blocks.decompositions import eigh, qr
from sandbox.blocks.number import Number, number, where, whole
from sandbox.blocks.slots import Basis
from sandbox.utils import suggest

Pair = tuple[Tensor, Tensor]


@block
class Standard(Basis):
    """v' = v   (the coordinates of the parameters)"""

    latex = "v' = v"


class TwoSided(Basis):
    """Orthogonal matrices Q_L and Q_R beside a matrix, from factors L and R; all four in float64 where eigenvalues divide.

    What float32 rounds off a factor of rank below its size are eigenvalues of 1e-7 of the largest, where there should be ε: at
    gradients of 1e6 that is 1e5 in place of 1e-6, and a turn by Q mixes as much into the coordinates that ε divides.
    """

    every: int
    limit: int
    recalls = False
    exact = True

    def check(self) -> None:
        """Whole numbers, at least 1."""
        for name in ("every", "limit"):
            whole(self, name, 1)

    def initial(self, name: str) -> Any:
        """Q = I, λ = 1."""
        return 0.0 if name in ("L", "R") else 1.0

    def into(self, v: Tensor, *, QL: Tensor, QR: Tensor, **state: Tensor) -> Tensor:
        """Q_Lᵀ v Q_R."""
        # v' = Q_Lᵀ v Q_R
        return (QL.mT @ v.to(QL.dtype) @ QR).to(v.dtype)

    def out(self, v: Tensor, *, QL: Tensor, QR: Tensor, **state: Tensor) -> Tensor:
        """Q_L v Q_Rᵀ."""
        # v = Q_L v' Q_Rᵀ
        return (QL @ v.to(QL.dtype) @ QR.mT).to(v.dtype)


class Eigenbasis(TwoSided):
    """The eigenvectors of L and R, used as soon as they are known; their eigenvalues are at least ε."""

    eps: Any
    before = True

    def due(self, t: Any) -> Any:
        """At t = 1, 1 + k, 1 + 2k, …"""
        return (t - 1) % self.every == 0

    def eigenvalues(self, *, a: Tensor, b: Tensor, **state: Tensor) -> Pair:
        """λ_L (m, 1) and λ_R (1, n)."""
        return a, b

    def decomposed(self, x: Flow, L: Tensor, R: Tensor, old: dict[str, Tensor]) -> dict[str, Tensor]:
        """Eigenvectors and eigenvalues of both factors, where due."""

        def fresh() -> dict[str, Tensor]:
            # L = Q_L λ_L Q_Lᵀ,  R = Q_R λ_R Q_Rᵀ
            (a, QL), (b, QR) = eigh(L), eigh(R)
            a, b = a.clamp(min=self.eps).to(x.g.dtype)[:, None], b.clamp(min=self.eps).to(x.g.dtype)[None, :]
            return {"QL": QL.to(L.dtype), "QR": QR.to(R.dtype), "a": a, "b": b}

        return {"L": L, "R": R, **when(x.due, fresh, old)}


@block
class Kronecker(Eigenbasis):
    """v' = Q_Lᵀ v Q_R, L = Q_L λ_L Q_Lᵀ = β L + (1-β) g gᵀ, R = Q_R λ_R Q_Rᵀ = β R + (1-β) gᵀ g   (Gupta et al. 2018, Shampoo).

    beta: β in [0, 1]; 1 adds up, L + g gᵀ, as the paper does.  eps: ε ≥ 0, L = R = ε I at first and the least eigenvalue.
    every: k ≥ 1, steps between two decompositions; eigenvectors and eigenvalues wait for them, L and R do not.
    limit: a tensor with a longer side is updated by the recipe for vectors.
    """

    beta: Number = number(default=1.0, range="[0, 1]")
    eps: Number = number(default=1e-6, range="[0, inf)")
    every: int = 1
    limit: int = 10_000
    state = {"L": LEFT, "R": RIGHT, "QL": LEFT, "QR": RIGHT, "a": ROWS, "b": COLUMNS}
    latex = (
        r"v' = Q_L^T v\, Q_R,\quad L \leftarrow \beta L + (1-\beta)\, g g^T = Q_L \lambda_L Q_L^T,\; "
        r"R \leftarrow \beta R + (1-\beta)\, g^T g = Q_R \lambda_R Q_R^T"
    )

    @property
    def text(self) -> str:
        """The equation as configured."""
        sums = "L + g gᵀ, R = R + gᵀ g" if self.beta == 1.0 else "β L + (1-β) g gᵀ, R = β R + (1-β) gᵀ g"
        return f"v' = Q_Lᵀ v Q_R, eigenvectors of L = {sums}, every {self.every}"

    def initial(self, name: str) -> Any:
        """L = R = ε I."""
        return self.eps if name in ("L", "R") else 1.0

    def coefficients(self, t: Any) -> dict[str, Any]:
        """Weight of the newest gradient."""
        return {"add": where(self.beta == 1.0, 1.0, 1 - self.beta)}

    def update(self, x: Flow, *, L: Tensor, R: Tensor, **old: Tensor) -> dict[str, Tensor]:
        """Both factors, and what they decompose into."""
        # L ← β L + (1-β) g gᵀ,  R ← β R + (1-β) gᵀ g
        g = x.g.to(L.dtype)
        L, R = self.beta * L + x.c.add * (g @ g.mT), self.beta * R + x.c.add * (g.mT @ g)
        return self.decomposed(x, L, R, old)


@block
class DelayedKronecker(Kronecker):
    """v' = Q_Lᵀ v Q_R of the factors before this step, Q decomposed after steps 1, k, 2k, …   (Frans et al. 2025, SPlus).

    Factors and numbers as in `Kronecker`; the first step is made in standard coordinates.  Nothing is divided by an eigenvalue,
    so matrices have the precision of the step.
    """

    before = False
    exact = False

    def due(self, t: Any) -> Any:
        """At t = 1, k, 2k, …"""
        return where(t == 1, 1.0, where(t % self.every == 0, 1.0, 0.0))


@block
class KroneckerFactors(Eigenbasis):
    """v' = Q_Lᵀ v Q_R of L = b L + (1-b) G, R = b R + (1-b) A, b = min(1-1/t, β)   (K-FAC).

    Martens & Grosse 2015.  G = E[h hᵀ] of gradients h after a layer, A = E[a aᵀ] of what goes into it, for linear layers and
    convolutions; biases are updated by the recipe for vectors.  Both are inputs of a step, which `sandbox.Optimizer` makes
    at each step(closure).
    labels: "sampled" from the model, by a second call of the closure (G is then the Gauss-Newton matrix's, in expectation), or
    "given", those of the batch (the empirical Fisher matrix's).
    beta: β in [0, 1).  eps: ε ≥ 0, the least eigenvalue.  every: k ≥ 1, steps between two decompositions.  limit: as elsewhere.
    """

    beta: Number = number(default=0.95, range="[0, 1)")
    eps: Number = number(default=0.0, range="[0, inf)")
    every: int = 1
    limit: int = 10_000
    labels: str = "sampled"
    needs = ("G", "A")
    state = {"L": LEFT, "R": RIGHT, "QL": LEFT, "QR": RIGHT, "a": ROWS, "b": COLUMNS}
    latex = (
        r"v' = Q_L^T v\, Q_R,\quad L \leftarrow b L + (1-b)\, G = Q_L \lambda_L Q_L^T,\; "
        r"R \leftarrow b R + (1-b)\, A = Q_R \lambda_R Q_R^T,\; b = \min(1-1/t, \beta)"
    )

    def check(self) -> None:
        """Known labels."""
        super().check()
        if self.labels not in ("sampled", "given"):
            raise ValueError(f"KroneckerFactors: {suggest.unknown('kind of labels', str(self.labels), ('sampled', 'given'))}")

    @property
    def factors(self) -> str | None:
        """At which labels."""
        return self.labels

    def coefficients(self, t: Any) -> dict[str, Any]:
        """b."""
        # b = min(1 - 1/t, β)
        return {"keep": where(1 - 1 / t < self.beta, 1 - 1 / t, self.beta)}

    def update(self, x: Flow, *, L: Tensor, R: Tensor, **old: Tensor) -> dict[str, Tensor]:
        """Both factors, and what they decompose into."""
        # L ← b L + (1-b) G,  R ← b R + (1-b) A
        L, R = x.c.keep * L + (1 - x.c.keep) * x.G, x.c.keep * R + (1 - x.c.keep) * x.A
        return self.decomposed(x, L, R, old)


@block
class SOAPBasis(TwoSided):
    """v' = Q_Lᵀ v Q_R, Q = qr(L Q) each k steps, L = β L + (1-β) g gᵀ, R = β R + (1-β) gᵀ g   (Vyas et al. 2024, SOAP).

    The first step decomposes L and R and moves nothing; each step uses the Q that the one before has left, so that no gradient
    is seen in a basis of its own.  Before a step of the iteration, eigenvectors are put in order of falling eigenvalues, and
    the states inside with one number per coordinate are reordered with them.  Matrices have the precision of the step, and
    decompositions float64: nothing is divided by an eigenvalue.
    beta: β in [0, 1).  every: k ≥ 1.  limit: a tensor with a longer side is updated by the recipe for vectors.
    """

    beta: Number = number(default=0.95, range="[0, 1)")
    every: int = 10
    limit: int = 10_000
    state = {"L": LEFT, "R": RIGHT, "QL": LEFT, "QR": RIGHT}
    exact = False
    latex = (
        r"v' = Q_L^T v\, Q_R,\quad L \leftarrow \beta L + (1-\beta)\, g g^T,\; R \leftarrow \beta R + (1-\beta)\, g^T g,\quad "
        r"Q \leftarrow \mathrm{qr}(L Q) \text{ every } k \text{ steps}"
    )

    @property
    def text(self) -> str:
        """The equation as configured."""
        return f"v' = Q_Lᵀ v Q_R, Q = qr(L Q) every {self.every}, L = β L + (1-β) g gᵀ, R = β R + (1-β) gᵀ g"

    def count(self, t: Any) -> Any:
        """The slots inside do not count the first step."""
        return where(t > 1, t - 1, 1.0)

    def coefficients(self, t: Any) -> dict[str, Any]:
        """Whether the step moves anything."""
        return {"moving": where(t > 1, 1.0, 0.0)}

    def due(self, t: Any) -> Any:
        """2: a decomposition; 1: a step of the iteration; 0: nothing."""
        return where(t == 1, 2.0, where((t - 1) % self.every == 0, 1.0, 0.0))

    def advance(self, x: Flow, *, L: Tensor, R: Tensor, QL: Tensor, QR: Tensor) -> tuple[dict[str, Tensor], Any]:
        """Both factors and their bases, and the order of rows and columns."""
        # L ← β L + (1-β) g gᵀ,  R ← β R + (1-β) gᵀ g
        g = x.g.to(L.dtype)
        L, R = self.beta * L + (1 - self.beta) * (g @ g.mT), self.beta * R + (1 - self.beta) * (g.mT @ g)
        (QL, rows), (QR, columns) = self._next(x.due, L, QL), self._next(x.due, R, QR)
        order = None if rows is None or columns is None else (rows, columns)
        return {"L": L, "R": R, "QL": QL, "QR": QR}, order

    def _next(self, due: Any, L: Tensor, Q: Tensor) -> tuple[Tensor, Tensor | None]:
        """The next Q, and the order in which it takes the coordinates of this one."""
        if not isinstance(due, Tensor):
            return _eigenvectors(L) if due == 2 else _iterate(L, Q) if due == 1 else (Q, None)
        (first, same), (later, order) = _eigenvectors(L), _iterate(L, Q)
        return torch.where(due == 2, first, torch.where(due == 1, later, Q)), torch.where(due == 1, order, same)

    def carry(self, v: Tensor, order: Any) -> Tensor:
        """v in the order of the next Q."""
        return v if order is None else v.index_select(0, order[0]).index_select(1, order[1])


def _eigenvectors(L: Tensor) -> Pair:
    """By falling eigenvalue; what is kept of coordinates before has no order yet."""
    # L = Q λ Qᵀ
    return eigh(L)[1].flip(1).to(L.dtype), torch.ones_like(L.diagonal()).cumsum(0).long() - 1


def _iterate(L: Tensor, Q: Tensor) -> Pair:
    """One step of orthogonal iteration from Q, its columns by falling qᵀ L q."""
    # order = argsort(-diag(Qᵀ L Q));  Q ← qr(L Q[:, order])
    LQ = L @ Q
    order = (Q * LQ).sum(0).argsort(descending=True)
    return qr(LQ.index_select(1, order)).to(L.dtype), order


def when(due: Any, fresh: Callable[[], dict[str, Tensor]], old: dict[str, Tensor]) -> dict[str, Tensor]:
    """`fresh()` where due, else `old`: not computed where that is known on the host."""
    if not isinstance(due, Tensor):
        return fresh() if due else old
    return {name: torch.where(due > 0, value, old[name]) for name, value in fresh().items()}

"""Computes the ends of the spectrum by implicitly restarted Lanczos (ARPACK), and its density by Lanczos quadrature.

Sources: Lehoucq, Sorensen & Yang, "ARPACK users' guide", 1998; Papyan, "Traces of class/cross-class structure pervade deep
learning spectra", JMLR 21, 2020, algorithms 2 and 3.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sandbox.curvature.mean_loss import Loss
from sandbox.curvature.product import Hessian
from sandbox.utils import memory as budget
from sandbox.utils import suggest

ENDS = {"largest": "LA", "smallest": "SA", "both": "BE"}


@dataclasses.dataclass(frozen=True)
class Eigenvalues:
    """Some eigenvalues, in ascending order.

    values: λ_i, [k], float64 on the CPU.  residuals: ‖H v_i - λ_i v_i‖₂ with ‖v_i‖₂ = 1, [k]: some eigenvalue of H lies
    within that of λ_i.  vectors: v_i, a tree of [k, *shape] as the parameters, or None.
    """

    values: Tensor
    residuals: Tensor
    vectors: Any | None


@dataclasses.dataclass(frozen=True)
class Density:
    """p(λ) ≈ 1/n Σ_i δ(λ - λ_i), each peak spread to a Gaussian.

    grid: λ, [points], ascending.  density: p(λ), [points], in units of 1/λ; it integrates to about 1.
    """

    grid: Tensor
    density: Tensor


def ends(H: Hessian, k: int, which: str, tol: float, seed: int, iterations: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Returns k eigenvalues, ascending, at the end(s) `which`, and vectors [n, k]; from the dense matrix where n is small."""
    from scipy.sparse.linalg import ArpackNoConvergence, eigsh

    if H.function.n <= max(20, 2 * k + 1):  # ARPACK's basis would be the whole space
        dense = H.dense().cpu().double().numpy()
        values, vectors = np.linalg.eigh((dense + dense.T) / 2)
        last = {"largest": k, "smallest": 0, "both": k - k // 2}[which]
        chosen = [*range(k - last), *range(len(values) - last, len(values))]
        return values[chosen], vectors[:, chosen]
    start = np.random.default_rng(seed).standard_normal(H.function.n)
    try:
        values, vectors = eigsh(H.scipy(), k=k, which=ENDS[which], tol=tol, v0=start, maxiter=iterations)
    except ArpackNoConvergence as error:
        raise RuntimeError(
            f"{len(error.eigenvalues)} of {k} eigenvalues found to tol={tol:g}; take a larger tol, iterations or k"
        ) from error
    order = np.argsort(values)
    return values[order], vectors[:, order]


def extreme_eigenvalues(
    loss: Loss,
    model: Any,
    batch: Any,
    k: int = 1,
    which: str = "largest",
    *,
    parameters: Iterable[Tensor] | None = None,
    vectors: bool = False,
    tol: float | None = None,
    iterations: int | None = None,
    seed: int = 0,
) -> Eigenvalues:
    """Computes the k algebraically "largest" or "smallest" eigenvalues of the (mean) loss's Hessian, or k of each ("both").

    loss, model, batch, parameters: as for `Hessian`.
    tol: relative accuracy; default 1e-10 in float64 and 1e-4 in float32, whose products carry about 1e-7.
    iterations: restarts at most; default scipy's, 10 n.  seed: of the first Lanczos vector.
    A repeated eigenvalue may be found fewer times than it occurs: Lanczos from one vector sees it by rounding alone.
    Raises ValueError, naming the argument, for one out of its range; RuntimeError where ARPACK does not converge; what
    `Hessian` raises.
    """
    if which not in ENDS:
        raise ValueError(suggest.unknown("end of the spectrum", which, ENDS))
    H = Hessian(loss, model, batch, parameters=parameters)
    count = budget.whole("k", k) * (2 if which == "both" else 1)
    if count > H.function.n:
        raise ValueError(f"k must give at most n = {H.function.n} eigenvalues, got {count}")
    if tol is None:
        tol = 1e-10 if H.dtype == torch.float64 else 1e-4
    elif not 0 <= tol < 1:
        raise ValueError(f"tol must lie in [0, 1), got {tol}")
    if iterations is not None:
        budget.whole("iterations", iterations)
    eigenvalues, columns = ends(H, count, which, tol, seed, iterations)
    values, V = torch.as_tensor(eigenvalues.copy()).double(), torch.as_tensor(columns.T.copy()).to(H.device, H.dtype)
    residuals = torch.linalg.vector_norm(H.rows(V).cpu().double() - values[:, None] * V.cpu().double(), dim=1)
    return Eigenvalues(values, residuals, H.function.unflatten(V) if vectors else None)


def spectral_density(
    loss: Loss,
    model: Any,
    batch: Any,
    *,
    parameters: Iterable[Tensor] | None = None,
    nodes: int = 64,
    repeats: int = 10,
    points: int = 1024,
    kappa: float = 3.0,
    margin: float = 0.05,
    seed: int = 0,
) -> Density:
    """Computes the spectral density of the Hessian of the (mean) loss, through curvlinops.

    loss, model, batch, parameters: as for `Hessian`.
    nodes: Lanczos vectors, 2 to n - 1; more resolve finer.  repeats: quadratures averaged.  points: of the grid, which is the
    spectrum's range widened by `margin` of its width on both sides.  kappa: > 1, the width of a peak: neighbouring nodes
    2/(nodes - 1) apart on [-1, 1] meet at 1/kappa of the height.
    Raises ValueError, naming the argument, for one out of its range; ImportError without the extra `curvature`.
    """
    from sandbox.curvature import through_curvlinops

    H = Hessian(loss, model, batch, parameters=parameters)
    if budget.whole("nodes", nodes, 2) >= H.function.n:
        raise ValueError(f"nodes must be less than n = {H.function.n}, got {nodes}")
    budget.whole("repeats", repeats)
    budget.whole("points", points, 2)
    if not 1 < kappa < float("inf"):
        raise ValueError(f"kappa must be greater than 1, got {kappa}")
    if not 0 <= margin < float("inf"):
        raise ValueError(f"margin must be at least 0, got {margin}")
    low, high = (float(x) for x in ends(H, 2, "both", 1e-2, seed, None)[0])
    rounding = 100 * torch.finfo(H.function.dtype).eps * max(abs(low), abs(high))
    if high - low <= rounding:
        raise ValueError(f"the Hessian is {low:g} times the identity: its density is one peak")
    numbers: dict[str, Any] = {"nodes": nodes, "repeats": repeats, "points": points, "kappa": kappa, "margin": margin}
    return Density(*through_curvlinops.density(H, (low, high), seed=seed, **numbers))

"""Computes diag H by any method, as a tree of the parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from torch import Tensor

from sandbox.curvature.exact import exact
from sandbox.curvature.mean_loss import Loss
from sandbox.curvature.product import Hessian
from sandbox.curvature.stochastic import hutchinson
from sandbox.utils import memory as budget
from sandbox.utils import suggest

METHODS = ("exact", "hutchinson", "curvlinops-hutchinson", "curvlinops-xdiag")


@dataclasses.dataclass(frozen=True)
class Diagonal:
    """diag H, a tree of tensors as the parameters.

    values: H_jj, or an unbiased estimate of it, in units of loss per squared unit of the parameter.
    standard_error: one standard deviation of each estimate, itself estimated from the spread of the samples, a tree as
    values; None where nothing is estimated.  method: one of METHODS.  num_vectors: random vectors drawn, 0 for the exact one.
    """

    values: Any
    standard_error: Any | None
    method: str
    num_vectors: int


def diagonal(
    loss: Loss,
    model: Any,
    batch: Any,
    method: str = "exact",
    *,
    parameters: Iterable[Tensor] | None = None,
    num_vectors: int = 100,
    distribution: str = "rademacher",
    repeats: int = 10,
    seed: int = 0,
    memory: int | None = None,
    chunk: int | None = None,
    progress: bool = True,
) -> Diagonal:
    """Computes the diagonal of the Hessian of the (mean) loss.

    loss, model, batch, parameters: as for `Hessian`.
    method: "exact", a product for every parameter; "hutchinson", the mean of z ⊙ H z over `num_vectors` random z of a
    `distribution` ("rademacher" or "gaussian"); "curvlinops-hutchinson" and "curvlinops-xdiag", the estimators of the extra
    `curvature`, with their error from `repeats` independent estimates that share the products evenly (for "xdiag", which
    spends half of them on random z and half on a basis that these span, `num_vectors` counts products, as all do).
    memory: bytes for tensors at once, which sets how many vectors go at a time, default 64 MiB or what one product takes;
    chunk: that number itself; for the first two methods.  progress: a bar, on a terminal.
    Raises ValueError, naming the argument, for one out of its range; what `Hessian` raises; ImportError without the extra.
    """
    if method not in METHODS:
        raise ValueError(suggest.unknown("method", method, METHODS))
    if chunk is not None:
        budget.whole("chunk", chunk)
    H = Hessian(loss, model, batch, parameters=parameters)
    error: Tensor | None = None
    if method == "exact":
        values = exact(H, memory=memory, chunk=chunk, progress=progress)
    elif method == "hutchinson":
        values, error = hutchinson(
            H, num_vectors, distribution=distribution, seed=seed, memory=memory, chunk=chunk, progress=progress
        )
    else:
        from sandbox.curvature import through_curvlinops

        estimator = method.removeprefix("curvlinops-")
        values, error = through_curvlinops.diagonal(
            H, estimator, num_vectors, repeats=repeats, distribution=distribution, seed=seed
        )
    spread = None if error is None else H.function.unflatten(error)
    return Diagonal(H.function.unflatten(values), spread, method, 0 if method == "exact" else num_vectors)

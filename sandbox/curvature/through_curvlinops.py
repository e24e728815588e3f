"""The one file that imports curvlinops (the extra `curvature`): its Hessian, estimators of a diagonal and spectral density.

Its Hessian shares no code with `sandbox.curvature.product`, so each checks the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from sandbox.curvature.mean_loss import MeanLoss
from sandbox.curvature.product import Hessian
from sandbox.utils import memory as budget
from sandbox.utils import suggest

ESTIMATORS = ("hutchinson", "xdiag")


def load() -> Any:
    """Imports the module curvlinops.  Raises ImportError, naming the extra, where it is not installed."""
    try:
        import curvlinops
    except ImportError as error:
        raise ImportError(f"this needs curvlinops ({error}): pip install 'apollo-sandbox[curvature]'") from error
    return curvlinops


class _Forward(nn.Module):
    """A module whose output for a batch is w_b times the loss: the form that curvlinops takes."""

    def __init__(self, function: MeanLoss) -> None:
        super().__init__()
        self.function, self.leaves = function, nn.ParameterList(nn.Parameter(x) for x in function.leaves)

    def forward(self, X: dict[str, Any]) -> Tensor:
        return X["weight"] * self.function.at(list(self.leaves), X["batch"])


class _Output(nn.Module):
    """A criterion that returns the output itself; batches add up, weighted as they are."""

    reduction = "sum"

    def forward(self, prediction: Tensor, y: Tensor) -> Tensor:
        return prediction


def operator(H: Hessian) -> Any:
    """Returns curvlinops' own HessianLinearOperator of the same loss, parameters and batches; vectors in the same order."""
    module, none = _Forward(H.function), torch.zeros((), device=H.device)
    data = [({"weight": weight, "batch": batch}, none) for weight, batch in H.function.batches]
    # MeanLoss has checked that the loss is the same twice
    options: dict[str, Any] = {"check_deterministic": False, "num_data": 1, "batch_size_fn": lambda X: 1}
    return load().HessianLinearOperator(module, _Output(), list(module.leaves), data, **options)


@contextmanager
def _seed_globally(seed: int) -> Iterator[None]:
    """Seeds torch's global generator, from which curvlinops draws, and restores it afterwards."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


def diagonal(
    H: Hessian, estimator: str, num_vectors: int, *, repeats: int, distribution: str, seed: int
) -> tuple[Tensor, Tensor]:
    """Returns the mean of `repeats` independent estimates of num_vectors/repeats products each and its standard error, [n].

    estimator: "hutchinson", or "xdiag" (Epperly, Tropp & Webber, "XTrace: making the most of every sample in stochastic trace
    estimation", SIAM J. Matrix Anal. Appl. 45, 2024).
    Raises ValueError for an unknown one, or where num_vectors/repeats is not a whole (for xdiag an even) number below n.
    """
    if estimator not in ESTIMATORS:
        raise ValueError(suggest.unknown("estimator", estimator, ESTIMATORS))
    if distribution not in ("rademacher", "gaussian") or (estimator == "xdiag" and distribution != "rademacher"):
        raise ValueError(f'distribution must be "rademacher" or, for hutchinson, "gaussian", got {distribution!r}')
    each, rest = divmod(budget.whole("num_vectors", num_vectors, 2), budget.whole("repeats", repeats, 2))
    step = 2 if estimator == "xdiag" else 1
    if rest or not each or each % step or each >= H.function.n:
        what = "an even" if step == 2 else "a whole"
        raise ValueError(
            f"num_vectors must be `repeats` = {repeats} times {what} number below n = {H.function.n}, got {num_vectors}"
        )
    curvlinops, A = load(), operator(H)
    theirs = {"rademacher": "rademacher", "gaussian": "normal"}[distribution]
    with _seed_globally(seed):
        if estimator == "xdiag":
            estimates = torch.stack([curvlinops.xdiag(A, each) for _ in range(repeats)])
        else:
            estimates = torch.stack([curvlinops.hutchinson_diag(A, each, theirs) for _ in range(repeats)])
    return estimates.mean(0), estimates.std(0) / repeats**0.5


def density(
    H: Hessian,
    boundaries: tuple[float, float],
    *,
    nodes: int,
    repeats: int,
    points: int,
    kappa: float,
    margin: float,
    seed: int,
) -> tuple[Tensor, Tensor]:
    """Returns a grid and the spectral density on it, [points] each, by `lanczos_approximate_spectrum`.

    boundaries: the least and the largest eigenvalue.  Raises ValueError where the Lanczos vectors ran out before `nodes`.
    """
    numbers: dict[str, Any] = {"num_points": points, "num_repeats": repeats, "kappa": kappa, "margin": margin}
    curvlinops, A = load(), operator(H)
    with _seed_globally(seed):
        grid, heights = curvlinops.lanczos_approximate_spectrum(A, nodes, boundaries=boundaries, **numbers)
    if not torch.isfinite(heights).all():
        raise ValueError(f"nodes must be at most the number of distinct eigenvalues of the Hessian, got {nodes}")
    return grid, heights

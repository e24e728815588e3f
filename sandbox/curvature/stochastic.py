"""Estimates diag H by random vectors: E[z ⊙ H z] = diag H for z with independent entries of mean 0 and variance 1.

Per vector and coordinate the variance is

    Σ_{k≠j} H_jk²               for z = ±1 (Rademacher), the least that independent entries can have
    Σ_{k≠j} H_jk² + 2 H_jj²     for z ~ N(0, 1)

Source: Hutchinson, "A stochastic estimator of the trace of the influence matrix", 1989; Bekas, Kokiopoulou & Saad, "An
estimator for the diagonal of a matrix", Applied Numerical Mathematics 57, 2007.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from sandbox.curvature.exact import basis
from sandbox.curvature.hessian import rademacher
from sandbox.curvature.mean_loss import Loss
from sandbox.curvature.product import Hessian
from sandbox.utils import memory as budget
from sandbox.utils import suggest
from sandbox.utils.progress import bar


def gaussian(like: Tensor, generator: torch.Generator) -> Tensor:
    """Returns standard normal entries, of the shape and dtype of `like`."""
    return torch.randn(like.shape, generator=generator, dtype=like.dtype).to(like.device)


_DRAW: dict[str, Callable[[Tensor, torch.Generator], Tensor]] = {"rademacher": rademacher, "gaussian": gaussian}
DISTRIBUTIONS = tuple(_DRAW)


def _check(distribution: str) -> None:
    if distribution not in _DRAW:
        raise ValueError(suggest.unknown("distribution", distribution, _DRAW))


def hutchinson(
    H: Hessian,
    num_vectors: int,
    *,
    distribution: str = "rademacher",
    seed: int = 0,
    memory: int | None = None,
    chunk: int | None = None,
    progress: bool = False,
) -> tuple[Tensor, Tensor]:
    """Returns the mean of z ⊙ H z over k = num_vectors draws and its standard error √(s²/k), s² the sample variance; both [n].

    Vectors come one by one from a generator on the CPU, so that neither chunks nor the device change them.
    Raises ValueError for fewer than 2 vectors, an unknown distribution, or a memory or chunk that is not positive.
    """
    _check(distribution)
    budget.whole("num_vectors", num_vectors, 2)
    generator, like = torch.Generator().manual_seed(seed), torch.empty(H.function.n, dtype=H.dtype, device=H.device)

    def sample(count: int, draws: torch.Generator) -> Tensor:
        Z = torch.stack([_DRAW[distribution](like, draws) for _ in range(count)])
        return Z.mul_(H.rows(Z))

    row = budget.bytes_of(H.function.n, H.dtype)
    k = chunk or budget.chunk(lambda k: sample(k, torch.Generator()), memory, num_vectors, row)
    mean, squares, done = torch.zeros_like(like), torch.zeros_like(like), 0
    with bar("Hutchinson's diagonal", num_vectors, progress) as advance:
        while done < num_vectors:
            S = sample(min(k, num_vectors - done), generator)
            # mean and Σ (s - mean)² of both parts together (Chan, Golub & LeVeque 1983)
            shift, count = S.mean(0) - mean, len(S)
            squares += (S - S.mean(0)).square().sum(0) + shift.square() * (done * count / (done + count))
            mean += shift * (count / (done + count))
            done += count
            advance(count)
    return mean, (squares / (num_vectors - 1) / num_vectors).sqrt()


def hutchinson_variance(
    loss: Loss,
    model: Any,
    batch: Any,
    *,
    parameters: Iterable[Tensor] | None = None,
    distribution: str = "rademacher",
    memory: int | None = None,
) -> Any:
    """Computes the variance of z_j (H z)_j for one z, a tree of the parameters; divided by `num_vectors` it is the squared
    standard error of their mean.

    loss, model, batch, parameters: as for `Hessian`.
    Computes all of H, `memory` bytes at a time: n products, for small n.  Raises ValueError for an unknown distribution.
    """
    _check(distribution)
    H = Hessian(loss, model, batch, parameters=parameters)
    like, n, variances = H.function.leaves[0], H.function.n, []
    k = budget.chunk(lambda k: H.rows(basis(0, k, n, like)), memory, n, budget.bytes_of(n, H.dtype))
    for start in range(0, n, k):
        rows = H.rows(basis(start, min(k, n - start), n, like)).square()
        diagonal = rows[:, start : start + len(rows)].diagonal().clone()
        rows[:, start : start + len(rows)].fill_diagonal_(0.0)
        variances.append(rows.sum(1) + (2 * diagonal if distribution == "gaussian" else 0))
    return H.function.unflatten(torch.cat(variances))

"""diag H by probes: E[z ⊙ H z] = diag H for z with independent entries of mean 0 and variance 1.

Per probe and coordinate the variance is

    Σ_{k≠j} H_jk²               for z = ±1 (Rademacher), the least that independent entries can have
    Σ_{k≠j} H_jk² + 2 H_jj²     for z ~ N(0, 1)

Source: Hutchinson, "A stochastic estimator of the trace of the influence matrix", 1989; Bekas, Kokiopoulou & Saad, "An
estimator for the diagonal of a matrix", Applied Numerical Mathematics 57, 2007.
"""

from __future__ import annotations

from collections.abc import Callable
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
    """Standard normal entries, of the shape and dtype of `like`."""
    return torch.randn(like.shape, generator=generator, dtype=like.dtype).to(like.device)


_DRAW: dict[str, Callable[[Tensor, torch.Generator], Tensor]] = {"rademacher": rademacher, "gaussian": gaussian}
DISTRIBUTIONS = tuple(_DRAW)


def _known(distribution: str) -> None:
    if distribution not in _DRAW:
        raise ValueError(suggest.unknown("distribution", distribution, _DRAW))


def hutchinson(
    H: Hessian,
    *,
    probes: int,
    distribution: str = "rademacher",
    seed: int = 0,
    memory: int | None = None,
    chunk: int | None = None,
    progress: bool = False,
) -> tuple[Tensor, Tensor]:
    """Mean of z ⊙ H z over the probes and its standard error √(s²/probes), s² the sample variance; both [n].

    Probes come one by one from a generator on the CPU, so that neither chunks nor the device change them.
    Raises ValueError for fewer than 2 probes, an unknown distribution, or a memory or chunk that is not positive.
    """
    _known(distribution)
    budget.whole("probes", probes, 2)
    generator, like = torch.Generator().manual_seed(seed), torch.empty(H.of.n, dtype=H.dtype, device=H.device)

    def sample(count: int, draws: torch.Generator) -> Tensor:
        Z = torch.stack([_DRAW[distribution](like, draws) for _ in range(count)])
        return Z.mul_(H.rows(Z))

    row = budget.bytes_of(H.of.n, H.dtype)
    k = chunk or budget.chunk(lambda k: sample(k, torch.Generator()), memory, probes, row)
    mean, squares, done = torch.zeros_like(like), torch.zeros_like(like), 0
    with bar("Hutchinson's diagonal", probes, progress) as advance:
        while done < probes:
            S = sample(min(k, probes - done), generator)
            # mean and Σ (s - mean)² of both parts together (Chan, Golub & LeVeque 1983)
            shift, count = S.mean(0) - mean, len(S)
            squares += (S - S.mean(0)).square().sum(0) + shift.square() * (done * count / (done + count))
            mean += shift * (count / (done + count))
            done += count
            advance(count)
    return mean, (squares / (probes - 1) / probes).sqrt()


def hutchinson_variance(
    loss: Loss, params: Any, batch: Any, *, distribution: str = "rademacher", memory: int | None = None
) -> Any:
    """The variance of z_j (H z)_j for one probe z, a tree as params: what `probes` divides to give the squared standard error.

    Computes all of H, `memory` bytes at a time: n products, for small n.  Raises ValueError for an unknown distribution.
    """
    _known(distribution)
    H = Hessian(loss, params, batch)
    like, n, found = H.of.leaves[0], H.of.n, []
    k = budget.chunk(lambda k: H.rows(basis(0, k, n, like)), memory, n, budget.bytes_of(n, H.dtype))
    for start in range(0, n, k):
        rows = H.rows(basis(start, min(k, n - start), n, like)).square()
        own = rows[:, start : start + len(rows)].diagonal().clone()
        rows[:, start : start + len(rows)].fill_diagonal_(0.0)
        found.append(rows.sum(1) + (2 * own if distribution == "gaussian" else 0))
    return H.of.unflatten(torch.cat(found))

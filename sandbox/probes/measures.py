"""The probes that come with the package: functions of a `View`, of one tensor or of all, that give a number or None.

A user's probe is such a function, named after it:

    def step_length(v):
        return (v.theta_new - v.theta).norm()

All of these work under torch.func.vmap.  `needs("truth")` and `needs("D_old")` mark the ones for which that must be there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from sandbox.probes.view import View

Probe = Callable[[View], Any]
P = TypeVar("P", bound=Probe)


def needs(*names: str) -> Callable[[P], P]:
    """Marks a probe that looks at fields which are not there by themselves: "truth", "D_old"."""

    def mark(probe: P) -> P:
        probe.needs = names  # type: ignore[attr-defined]
        return probe

    return mark


def floor_occupancy(v: View) -> Tensor | None:
    """Returns the share of the coordinates whose D is the floor and not the curvature."""
    return None if v.floor is None else v.floor.to(v.theta.dtype).mean()


def secant_residual(v: View) -> Tensor | None:
    """|dᵀB d + dᵀy| / (|dᵀB d| + |dᵀy|) of the new B and the old d: 0 where the weak secant equation holds.

    With ε > 0 or damping it does not hold exactly.  Over all tensors: the largest.
    """
    return v.residual


def curvature_sign(v: View) -> Tensor | None:
    """Returns the sign of dᵀB d of the new B and the old d: -1 where by the estimate the last step went along a maximum."""
    return None if v.d_old is None or v.B is None else (v.B * v.d_old * v.d_old).sum().sign()


def direction_norm(v: View) -> Tensor:
    """Returns ‖d‖₂ of this step."""
    return v.d.norm()


@needs("D_old")
def path_length(v: View) -> Tensor | None:
    """‖p_t - p_{t-1}‖₁ with p = η/D: what Theorem 3's constants add up."""
    return None if v.D_old is None else (v.lr / v.D - v.lr_before / v.D_old).abs().sum()


@needs("D_old")
def condition_failures(v: View) -> Tensor | None:
    """Returns the share of the coordinates where D_t/η_t is smaller than D_{t-1}/η_{t-1}: Theorem 2's repair needs 0."""
    return None if v.D_old is None else _failing(v).to(v.theta.dtype).mean()


@needs("D_old")
def first_failure(v: View) -> Tensor | None:
    """Returns the first such coordinate, counted through the tensor (all tensors) in order; -1 where there is none."""
    if v.D_old is None:
        return None
    failing = _failing(v)
    return torch.where(failing.any(), failing.to(torch.int64).argmax(), -1).to(v.theta.dtype)


def _failing(v: View) -> Tensor:
    # D_t/η_t < D_{t-1}/η_{t-1}, beyond rounding
    now, before = v.D / v.lr, v.D_old / v.lr_before
    return now < before * (1 - 8 * torch.finfo(v.theta.dtype).eps)


@needs("truth")
def correlation(v: View) -> Tensor | None:
    """Pearson's r of |estimate| and |truth|."""
    return None if v.estimate is None or v.truth is None else _pearson(v.estimate.abs(), v.truth.abs())


@needs("truth")
def rank_correlation(v: View) -> Tensor | None:
    """Spearman's rank correlation of |estimate| and |truth|; equal values share their mean rank."""
    if v.estimate is None or v.truth is None:
        return None
    return _pearson(_ranks(v.estimate.abs()), _ranks(v.truth.abs()))


@needs("truth")
def relative_error(v: View) -> Tensor | None:
    """‖|estimate| - |truth|‖₂ / ‖truth‖₂."""
    if v.estimate is None or v.truth is None:
        return None
    return (v.estimate.abs() - v.truth.abs()).norm() / v.truth.norm()


@needs("truth")
def sign_agreement(v: View) -> Tensor | None:
    """Returns the share of the coordinates where estimate and truth have the same sign."""
    if v.estimate is None or v.truth is None:
        return None
    return (v.estimate.sign() == v.truth.sign()).to(v.theta.dtype).mean()


@needs("truth")
def newton_cosine(v: View) -> Tensor | None:
    """Cosine of d and the diagonal Newton direction u/|h|, |h| at least a millionth of its largest entry."""
    if v.truth is None or v.u is None:
        return None
    h = v.truth.abs()
    return _cosine(v.d, v.u / torch.maximum(h, 1e-6 * h.amax()))


def _cosine(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum() / (a.norm() * b.norm())


def _pearson(a: Tensor, b: Tensor) -> Tensor:
    a, b = a.to(torch.float64), b.to(torch.float64)
    return _cosine(a - a.mean(), b - b.mean())


def _ranks(x: Tensor) -> Tensor:
    """Mean ranks from 0, ties shared: half of what is below plus what is not above."""
    order = x.sort().values
    low, high = torch.searchsorted(order, x), torch.searchsorted(order, x, right=True)
    return (low + high - 1) / 2


ALL: dict[str, Probe] = {
    probe.__name__: probe
    for probe in (
        *(floor_occupancy, secant_residual, curvature_sign, direction_norm, path_length, condition_failures, first_failure),
        *(correlation, rank_correlation, relative_error, sign_agreement, newton_cosine),
    )
}

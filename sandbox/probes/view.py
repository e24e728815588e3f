"""What one step computed, as a probe sees it: vectors by the paper's names."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sandbox.blocks import Flow, Standard
from sandbox.blocks.base import spread
from sandbox.recipe.kernel import block_state

if TYPE_CHECKING:
    from sandbox.recipe import Recipe


@dataclasses.dataclass(frozen=True)
class View:
    """One step of one tensor, or of all tensors end to end: vectors of n entries, None where a recipe has no such thing.

    t, lr, lr_old: the step's number from 1, η_t and η_{t-1}.  theta, theta_new: before and after.  g: the gradient as the
    method sees it.  m_old, m, y: averages and their difference.  u: numerator of the direction.  d_old, d: previous and new
    direction.  B: curvature; averaged: the averaging block's output; D, D_old: its rectified form now and one step
    before (where the probe needs it).  floor: mask of the coordinates on the rectifier's floor.  estimate: of the
    Hessian's diagonal, from `averaged` (B/η for Apollo).  residual: of the secant equation, 0-d.  truth: the diagonal to
    compare with.  In another basis than Standard B, averaged, D and floor are of its coordinates.  Parameters and state are not
    copied: a probe that keeps a vector keeps a clone.
    """

    recipe: Recipe
    t: Any
    lr: Any
    lr_old: Any
    theta: Tensor
    theta_new: Tensor
    g: Tensor
    d: Tensor
    D: Tensor
    m_old: Tensor | None = None
    m: Tensor | None = None
    y: Tensor | None = None
    u: Tensor | None = None
    d_old: Tensor | None = None
    B: Tensor | None = None
    averaged: Tensor | None = None
    D_old: Tensor | None = None
    lr_before: Any = None  # η of the step that computed D_old
    floor: Tensor | None = None
    estimate: Tensor | None = None
    residual: Tensor | None = None
    truth: Tensor | None = None


_VECTORS = (
    *("theta", "theta_new", "g", "m_old", "m", "y", "u", "d_old", "d", "B", "averaged", "D", "D_old", "floor", "estimate"),
    "truth",
)


def from_flow(recipe: Recipe, x: Flow) -> View:
    """Returns the view of a finished step."""
    n = x.theta.numel()

    def vector(value: Any) -> Tensor | None:
        if value is None:
            return None
        value = torch.as_tensor(value, device=x.theta.device)
        return value.expand(x.theta.shape).reshape(n)

    rectifier = spread(recipe.rectifier, block_state("rectifier", recipe.rectifier, x.after), x)
    fields = {
        **{name: getattr(x, name) for name in ("theta", "theta_new", "B", "averaged", "D", "d")},
        **{name: x.outside[name] for name in ("g", "m_old", "m", "y", "u", "d_old")},
        "floor": recipe.rectifier.on_floor(x.averaged, **rectifier),
        # in another basis B says nothing of the diagonal in this one
        "estimate": recipe.curvature.estimate(x.averaged, x) if isinstance(recipe.basis, Standard) else None,
    }
    residual = recipe.curvature.residual(x)
    vectors: dict[str, Any] = {name: vector(value) for name, value in fields.items()}
    return View(recipe=recipe, t=x.t, lr=x.lr, lr_old=x.lr_old, residual=residual, **vectors)


def split(view: View, sizes: Sequence[int]) -> list[View]:
    """Splits the view of tensors that stepped together into one view per tensor."""
    parts = {name: value.split(list(sizes)) for name in _VECTORS if (value := getattr(view, name)) is not None}
    return [dataclasses.replace(view, **{name: part[i] for name, part in parts.items()}) for i in range(len(sizes))]


def join(views: Sequence[View]) -> View:
    """Joins the views of several tensors end to end; a field that one of them lacks is None.  The residual is their largest."""
    joined: dict[str, Any] = {}
    for name in _VECTORS:
        values = [getattr(view, name) for view in views]
        joined[name] = None if any(v is None for v in values) else torch.cat(values)
    residuals = [view.residual for view in views if view.residual is not None]
    return dataclasses.replace(views[0], residual=torch.stack(residuals).amax() if residuals else None, **joined)

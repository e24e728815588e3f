"""What an online convex problem is, and how to make one: from linear losses, from any losses, from a task."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from scipy import optimize
from torch import Tensor

from sandbox.utils.private_torch import pytree


@dataclasses.dataclass(frozen=True)
class Comparator:
    """θ* = argmin Σ_{t≤T} f_t over the feasible set: where, by which method, and a residual that is 0 at an optimum."""

    theta: Tensor
    method: str
    residual: float  # ‖∇‖ of the mean loss, or the violation of the KKT conditions


@dataclasses.dataclass(frozen=True)
class Problem:
    """An online convex problem in float64.

    gradient(t, θ) and loss(t, θ) for t = 1, 2, …; start: θ_1; comparator(T, iterates): the best fixed point.
    box: (low, high) of every coordinate, or None.  minimise(T, from): the comparator as a local method finds it from there, and
    its mean loss; None where the comparator is exact whatever the start.
    """

    name: str
    about: str
    start: Tensor
    loss: Callable[[int, Tensor], Tensor]
    gradient: Callable[[int, Tensor], Tensor]
    comparator: Callable[[int, Tensor], Comparator]
    box: tuple[float, float] | None = None
    minimise: Callable[[int, Tensor], tuple[Comparator, float]] | None = None


def linear(name: str, about: str, gradients: Callable[[int], Tensor], box: tuple[float, float], start: Tensor) -> Problem:
    """f_t(θ) = g_t·θ on a box; the comparator is linprog's."""

    def comparator(T: int, iterates: Tensor) -> Comparator:
        total = sum(gradients(t) for t in range(1, T + 1)).numpy()  # type: ignore[union-attr]
        found = optimize.linprog(total, bounds=[box] * len(total))
        # at a minimum the slope points outward: 0 in the interior, ≥ 0 at the lower end, ≤ 0 at the upper
        inside = (found.x > box[0]) & (found.x < box[1])
        wrong = np.where(inside, np.abs(total), np.where(found.x <= box[0], -total, total)).clip(min=0)
        return Comparator(torch.tensor(found.x), "linprog", float(wrong.max()) / max(float(np.abs(total).max()), 1e-300))

    return Problem(name, about, start, lambda t, x: gradients(t) @ x, lambda t, x: gradients(t), comparator, box)


def periodic(name: str, about: str, gradients: Callable[[int], Tensor], star: Sequence[float]) -> Problem:
    """f_t(θ) = g_t·θ, θ_1 = 0, no projection; the feasible set is the hull of the iterates and the comparator `star`."""
    theta = torch.tensor(star, dtype=torch.float64)

    def comparator(T: int, iterates: Tensor) -> Comparator:
        total = sum(gradients(t) for t in range(1, T + 1))
        # a linear function is least at a vertex: no iterate may lie below θ*
        below = float((total @ theta - iterates @ total).clamp(min=0).max())  # type: ignore[operator]
        size = float(torch.linalg.vector_norm(total))
        return Comparator(theta, "given; a vertex of the hull of iterates and itself", below / max(size, 1e-300))

    return Problem(name, about, torch.zeros_like(theta), lambda t, x: gradients(t) @ x, lambda t, x: gradients(t), comparator)


def from_losses(
    loss: Callable[[int, Tensor], Tensor],
    start: Any,
    *,
    box: tuple[float, float] | None = None,
    name: str = "own",
    about: str = "losses of a user",
    mean: Callable[[int, Tensor], Tensor] | None = None,
) -> Problem:
    """A problem from loss(t, θ): 0-d, convex and differentiable in θ of shape (d,), float64, for t = 1, 2, …, and always the
    same for the same t.

    start: θ_1.  box: (low, high) of the feasible set in every coordinate.  The comparator is L-BFGS-B's.  mean(T, θ): the mean
    of the first T losses, where there is a faster way than one by one.
    Raises ValueError for a start that is no vector or lies outside of the box.
    """
    start = torch.as_tensor(start, dtype=torch.float64).detach().clone()
    if start.ndim != 1 or not len(start):
        raise ValueError(f"start must have shape (d,) with d ≥ 1, got {tuple(start.shape)}")
    if box is not None and not box[0] <= float(start.min()) <= float(start.max()) <= box[1]:
        raise ValueError(f"start must lie in the box [{box[0]:g}, {box[1]:g}], got {start.tolist()}")

    def gradient(t: int, x: Tensor) -> Tensor:
        with torch.enable_grad():
            v = x.detach().requires_grad_()
            return torch.autograd.grad(loss(t, v), v)[0]

    def one_by_one(T: int, v: Tensor) -> Tensor:
        return torch.stack([loss(t, v) for t in range(1, T + 1)]).mean()

    total = mean or one_by_one

    def minimise(T: int, at: Tensor) -> tuple[Comparator, float]:
        def value_and_slope(x: np.ndarray) -> tuple[float, np.ndarray]:
            v = torch.tensor(x, requires_grad=True)
            value = total(T, v)
            return float(value.detach()), torch.autograd.grad(value, v)[0].numpy()

        options = {"maxiter": 5000, "gtol": 1e-10, "ftol": 1e-16}
        bounds = None if box is None else [box] * len(start)
        found = optimize.minimize(value_and_slope, at.numpy(), jac=True, method="L-BFGS-B", bounds=bounds, options=options)
        # 0 where θ - ∇ is projected onto θ
        ahead = found.x - found.jac if box is None else np.clip(found.x - found.jac, *box)
        where = "" if box is None else " in the box"
        best = Comparator(torch.tensor(found.x), f"L-BFGS-B{where}", float(np.linalg.norm(ahead - found.x)))
        return best, float(found.fun)

    def comparator(T: int, iterates: Tensor) -> Comparator:
        return minimise(T, start)[0]

    return Problem(name, about, start, loss, gradient, comparator, box, minimise)


def smooth(name: str, about: str, start: Tensor, loss: Callable[[Any, Tensor], Tensor], draw: Callable[[], Any]) -> Problem:
    """A differentiable convex loss(data, θ) a step; draw: the data of the next step, drawn in order and kept."""
    kept: list[Any] = []

    def data(t: int) -> Any:
        while len(kept) < t:
            kept.append(draw())
        return kept[t - 1]

    @functools.lru_cache(maxsize=1)
    def together(T: int) -> Any:
        """The data of T steps as one batch of them; None where their sizes differ."""
        data(T)
        leaves = [pytree.tree_leaves(drawn) for drawn in kept[:T]]
        if len({tuple(leaf.shape for leaf in row) for row in leaves}) > 1:
            return None
        return pytree.tree_map(lambda *parts: torch.stack(parts), *kept[:T])

    def mean(T: int, x: Tensor) -> Tensor:
        rows = together(T)
        if rows is None:
            return torch.stack([loss(drawn, x) for drawn in kept[:T]]).mean()
        return torch.func.vmap(loss, (0, None))(rows, x).mean()

    return from_losses(lambda t, x: loss(data(t), x), start, name=name, about=about, mean=mean)


def from_task(task: Any, seed: int = 0) -> Problem:
    """A convex task, batch by batch, as an online sequence in float64; θ is all of its parameters as one vector.

    task: a `sandbox.tasks.Task`.  Whether its loss is convex is tested by the checks and not asked here.
    """
    params = {name: p.to(torch.float64) for name, p in task.init(seed).items()}
    shapes, sizes = [p.shape for p in params.values()], [p.numel() for p in params.values()]

    def wide(batch: Any) -> Any:
        return pytree.tree_map_only(Tensor, lambda x: x.to(torch.float64) if x.is_floating_point() else x, batch)

    def loss(batch: Any, x: Tensor) -> Tensor:
        parts = zip(x.split(sizes), shapes, strict=True)
        named = dict(zip(params, (part.reshape(shape) for part, shape in parts), strict=True))
        # a task of a module is applied to it with these parameters in their places
        return task.apply(task.loss, named, batch) if hasattr(task, "apply") else task.loss(named, batch)

    stream: Iterator[Any] = itertools.chain.from_iterable(task.batches(seed) for _ in itertools.count())
    start = torch.zeros(sum(sizes), dtype=torch.float64)
    return smooth(task.name, task.about, start, loss, lambda: wide(next(stream)))

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
from theory_checks.comparators import Comparator, Search

UNNAMED = "own"  # the name of a problem that was given none


@dataclasses.dataclass(frozen=True)
class Problem:
    """An online convex problem in float64.

    gradient(t, θ) and loss(t, θ) for t = 1, 2, …; start: θ_1; comparator(T, iterates): the best fixed point.
    box: (low, high) of every coordinate, or None.  search(T, iterates): the comparator after a search from several starts; None
    where `comparator` is exact.
    """

    name: str
    about: str
    start: Tensor
    loss: Callable[[int, Tensor], Tensor]
    gradient: Callable[[int, Tensor], Tensor]
    comparator: Callable[[int, Tensor], Comparator]
    box: tuple[float, float] | None = None
    search: Callable[[int, Tensor], Comparator] | None = None

    def best(self, T: int, iterates: Tensor) -> Comparator:
        """Returns the comparator as surely as it can be found."""
        return (self.search or self.comparator)(T, iterates)


def repeats(call: str, value: float, again: float) -> None:
    """Raises ValueError where a loss gave `value` and then, called in the same way, another number."""
    if abs(again - value) > 1e-9 * (abs(again) + abs(value)):
        raise ValueError(
            f"{call} gave {value:.9g} and then {again:.9g} at the same θ: it draws, or remembers earlier calls. A loss must be "
            "one function of θ for each t: turn dropout off, and seed a generator by t"
        )


def linear(name: str, about: str, gradients: Callable[[int], Tensor], box: tuple[float, float], start: Tensor) -> Problem:
    """f_t(θ) = g_t·θ on a box; the comparator is linprog's."""

    def comparator(T: int, iterates: Tensor) -> Comparator:
        total = sum(gradients(t) for t in range(1, T + 1)).numpy()  # type: ignore[union-attr]
        star = optimize.linprog(total, bounds=[box] * len(total)).x
        # Σ_j g_j θ_j is least where each g_j θ_j is
        above = float(total @ star - np.minimum(total * box[0], total * box[1]).sum())
        size = float(np.abs(total).sum()) * (box[1] - box[0])
        return Comparator(torch.tensor(star), "linprog", above / T, 1e-6 - above / max(size, 1e-300))

    return Problem(name, about, start, lambda t, x: gradients(t) @ x, lambda t, x: gradients(t), comparator, box)


def periodic(name: str, about: str, gradients: Callable[[int], Tensor], star: Sequence[float]) -> Problem:
    """f_t(θ) = g_t·θ, θ_1 = 0, no projection; the feasible set is the hull of the iterates and the comparator `star`."""
    theta = torch.tensor(star, dtype=torch.float64)

    def comparator(T: int, iterates: Tensor) -> Comparator:
        total = sum(gradients(t) for t in range(1, T + 1))
        # a linear function is least at a vertex: no iterate may lie below θ*
        below = float((total @ theta - iterates @ total).clamp(min=0).max())  # type: ignore[operator]
        size = float(torch.linalg.vector_norm(total))
        margin = 1e-6 - below / max(size, 1e-300)
        return Comparator(theta, "given; a vertex of the hull of iterates and itself", below / T, margin)

    return Problem(name, about, torch.zeros_like(theta), lambda t, x: gradients(t) @ x, lambda t, x: gradients(t), comparator)


def from_losses(
    loss: Callable[[int, Tensor], Tensor],
    start: Any,
    *,
    box: tuple[float, float] | None = None,
    name: str = UNNAMED,
    about: str = "losses of a user",
    mean: Callable[[int, Tensor], Tensor] | None = None,
) -> Problem:
    """Returns a problem from loss(t, θ): 0-d, convex and differentiable in θ of shape (d,), float64, for t = 1, 2, …, and
    always the same for the same t.

    start: θ_1.  box: (low, high) of the feasible set in every coordinate.  mean(T, θ): the mean of the first T losses, where
    there is a faster way than one by one.
    Raises ValueError for a start that is no vector or lies outside of the box; later, TypeError or ValueError for a loss that
    returns anything but a 0-d float64 tensor, or fails.
    """
    start = torch.as_tensor(start, dtype=torch.float64).detach().clone()
    if start.ndim != 1 or not len(start):
        raise ValueError(f"start must have shape (d,) with d ≥ 1, got {tuple(start.shape)}")
    if box is not None and not box[0] <= float(start.min()) <= float(start.max()) <= box[1]:
        raise ValueError(f"start must lie in the box [{box[0]:g}, {box[1]:g}], got {start.tolist()}")

    def checked(t: int, x: Tensor) -> Tensor:
        return _evaluate(loss, t, x)

    def gradient(t: int, x: Tensor) -> Tensor:
        with torch.enable_grad():
            v = x.detach().requires_grad_()
            value = checked(t, v)
            if not value.requires_grad:
                raise ValueError(
                    f"loss({t}, θ) has no gradient: it must be computed from θ by torch operations (not by numpy, .item() or "
                    ".detach()); a constant c is 0 * θ.sum() + c"
                )
            return torch.autograd.grad(value, v)[0]

    def one_by_one(T: int, v: Tensor) -> Tensor:
        return torch.stack([checked(t, v) for t in range(1, T + 1)]).mean()

    def searching(T: int) -> Search:
        return Search(functools.partial(mean or one_by_one, T), box)

    def comparator(T: int, iterates: Tensor) -> Comparator:
        return searching(T).comparator(start.numpy())

    def search(T: int, iterates: Tensor) -> Comparator:
        return searching(T).global_comparator(start.numpy(), iterates.numpy())

    return Problem(name, about, start, checked, gradient, comparator, box, search)


def _evaluate(loss: Callable[[int, Tensor], Tensor], t: int, x: Tensor) -> Tensor:
    """loss(t, x).  Raises TypeError or ValueError, naming the argument, for what is not a 0-d float64 tensor."""
    try:
        value = loss(t, x)
    except RuntimeError as error:
        raise ValueError(f"loss({t}, θ) failed for θ of shape {tuple(x.shape)}, float64: {error}") from error
    if not isinstance(value, Tensor):
        raise TypeError(f"loss(t, θ) must return a 0-d float64 tensor, and loss({t}, θ) is a {type(value).__name__}")
    if value.ndim != 0 or value.dtype != torch.float64:
        kind = f"{str(value.dtype).removeprefix('torch.')} tensor of shape {tuple(value.shape)}"
        hint = "" if value.dtype == torch.float64 else ": θ is float64, and so must be the data"
        raise ValueError(f"loss(t, θ) must return a 0-d float64 tensor, and loss({t}, θ) is a {kind}{hint}")
    return value


def smooth(name: str, about: str, start: Tensor, loss: Callable[[Any, Tensor], Tensor], draw: Callable[[], Any]) -> Problem:
    """A differentiable convex loss(data, θ) a step; draw: the data of the next step, drawn in order and drawn_data."""
    drawn_data: list[Any] = []

    def data(t: int) -> Any:
        while len(drawn_data) < t:
            drawn_data.append(draw())
        return drawn_data[t - 1]

    @functools.lru_cache(maxsize=1)
    def together(T: int) -> Any:
        """The data of T steps as one batch of them; None where their sizes differ."""
        data(T)
        leaves = [pytree.tree_leaves(drawn) for drawn in drawn_data[:T]]
        if len({tuple(leaf.shape for leaf in row) for row in leaves}) > 1:
            return None
        return pytree.tree_map(lambda *parts: torch.stack(parts), *drawn_data[:T])

    def mean(T: int, x: Tensor) -> Tensor:
        rows = together(T)
        if rows is None:
            return torch.stack([loss(drawn, x) for drawn in drawn_data[:T]]).mean()
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

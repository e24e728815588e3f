"""Online problems: a loss a step, a start, a feasible set, and the best fixed point, its optimality checked."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from scipy import optimize, sparse
from torch import Tensor
from torch.utils._pytree import tree_map

from sandbox import suggest, tasks


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
    box: (low, high) of every coordinate, or None.
    """

    name: str
    about: str
    start: Tensor
    loss: Callable[[int, Tensor], Tensor]
    gradient: Callable[[int, Tensor], Tensor]
    comparator: Callable[[int, Tensor], Comparator]
    box: tuple[float, float] | None = None


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


# -- the sequence on which Theorem 2 fails ----------------------------------------------------------------------------

CYCLE_FIRST = (-0.5937, -0.2317)
CYCLE = (
    (-2.4388, -0.8393),
    (0.5856, -0.8816),
    (0.9306, 0.0),
    (0.0217, 1.1115),
    (-0.5265, 2.2583),
    (-1.0281, 0.1134),
)
CYCLE_COMPARATOR = (0.97, -0.24)


def cycle_gradient(t: int) -> Tensor:
    """g_1, then the cycle of six for ever."""
    return torch.tensor(CYCLE_FIRST if t == 1 else CYCLE[(t - 2) % 6], dtype=torch.float64)


def cycle() -> Problem:
    """CE1: linear losses in R², θ_1 = 0, no projection; the feasible set is the hull of the iterates and θ* = (.97, -.24)."""
    return periodic("cycle", "CE1: six linear losses in R², repeated", cycle_gradient, CYCLE_COMPARATOR)


def cycle_box() -> Problem:
    """CE1's losses under the box projection onto [-1, 1]²."""
    zero = torch.zeros(2, dtype=torch.float64)
    return linear("cycle-box", "CE1's losses on the box [-1, 1]²", cycle_gradient, (-1.0, 1.0), zero)


def three_periodic(C: float = 3.0) -> Problem:
    """f_t(x) = Cx when t mod 3 = 1, else -x, on [-1, 1] (Reddi, Kale & Kumar 2018, Theorem 1).

    For C > 2 the best point is -1; Adam with β₁ = 0, β₂ = 1/(1+C²), ε = 0 and η_t = η/√t goes to +1, the worst.  With other
    numbers, its usual ones among them, that need not be.
    """

    def gradients(t: int) -> Tensor:
        return torch.tensor([C if t % 3 == 1 else -1.0], dtype=torch.float64)

    start = torch.zeros(1, dtype=torch.float64)
    return linear("three-periodic", f"f_t = {C:g}x every third step, else -x, on [-1, 1]", gradients, (-1.0, 1.0), start)


def random_linear(seed: int = 0, d: int = 3) -> Problem:
    """g_t ~ N(0, I) plus a drift, on [-1, 1]^d."""
    rng = np.random.default_rng(seed)
    drift = 0.3 * rng.standard_normal(d)
    rows: list[Tensor] = []

    def gradients(t: int) -> Tensor:
        while len(rows) < t:
            rows.append(torch.tensor(drift + rng.standard_normal(d)))
        return rows[t - 1]

    return linear(
        "random-linear", f"random linear losses on [-1, 1]^{d}", gradients, (-1.0, 1.0), torch.zeros(d, dtype=torch.float64)
    )


def smooth(name: str, about: str, start: Tensor, loss: Callable[[Any, Tensor], Tensor], draw: Callable[[], Any]) -> Problem:
    """A differentiable convex loss(data, θ) a step, no projection; the comparator is L-BFGS-B's.

    draw: the data of the next step; drawn in order and kept, outside of any transformation of torch.func.
    """
    kept: list[Any] = []

    def data(t: int) -> Any:
        while len(kept) < t:
            kept.append(draw())
        return kept[t - 1]

    def gradient(t: int, x: Tensor) -> Tensor:
        drawn = data(t)
        return torch.func.grad(lambda v: loss(drawn, v))(x)

    def comparator(T: int, iterates: Tensor) -> Comparator:
        data(T)
        rows = tree_map(lambda *parts: torch.stack(parts), *kept[:T])

        def mean(x: np.ndarray) -> tuple[float, np.ndarray]:
            v = torch.tensor(x, requires_grad=True)
            value = torch.func.vmap(loss, (0, None))(rows, v).mean()
            return float(value.detach()), torch.autograd.grad(value, v)[0].numpy()

        options = {"maxiter": 5000, "gtol": 1e-10, "ftol": 1e-16}
        found = optimize.minimize(mean, start.numpy(), jac=True, method="L-BFGS-B", options=options)
        return Comparator(torch.tensor(found.x), "L-BFGS-B", float(np.linalg.norm(found.jac)))

    return Problem(name, about, start, lambda t, x: loss(data(t), x), gradient, comparator)


def random_quadratic(seed: int = 0, d: int = 3) -> Problem:
    """f_t(θ) = ½ Σ h (θ - c_t)², c_t ~ N(0, 0.1 I)."""
    rng = np.random.default_rng(seed)
    h = torch.tensor(np.exp(rng.uniform(np.log(0.1), np.log(3), d)))

    def loss(centre: Tensor, x: Tensor) -> Tensor:
        return 0.5 * (h * (x - centre).square()).sum()

    def draw() -> Tensor:
        return torch.tensor(0.3 * rng.standard_normal(d))

    return smooth("random-quadratic", f"random quadratics in R^{d}", torch.ones(d, dtype=torch.float64), loss, draw)


def from_task(name: str, seed: int = 0) -> Problem:
    """A convex task on real data, minibatch by minibatch, as an online sequence."""
    task = tasks.get(name, dtype=torch.float64)
    shapes = {key: value.shape for key, value in task.init(seed).items()}
    sizes = [value.numel() for value in task.init(seed).values()]
    stream = task.batches(seed)

    def loss(batch: Any, x: Tensor) -> Tensor:
        parts = zip(shapes.items(), x.split(sizes), strict=True)
        return task.loss({key: part.reshape(shape) for (key, shape), part in parts}, batch)

    start = torch.zeros(sum(sizes), dtype=torch.float64)
    return smooth(name, task.about, start, loss, lambda: next(stream))


def smoothness(problem: Problem, T: int, at: Tensor) -> float:
    """The largest curvature of the mean loss at a point, by scipy.sparse.linalg.eigsh on Hessian-vector products."""
    problem.loss(T, at)  # draws the data, outside of the transformations below

    def mean(v: Tensor) -> Tensor:
        return torch.stack([problem.loss(t, v) for t in range(1, T + 1)]).mean()

    def product(v: np.ndarray) -> np.ndarray:
        return torch.func.jvp(torch.func.grad(mean), (at,), (torch.tensor(np.asarray(v).reshape(-1)),))[1].numpy()

    n = len(at)
    if n < 3:  # eigsh needs more dimensions than eigenvalues
        return float(np.linalg.eigvalsh(np.stack([product(e) for e in np.eye(n)]))[-1])
    operator = sparse.linalg.LinearOperator((n, n), matvec=product, dtype=float)
    return float(sparse.linalg.eigsh(operator, k=1, which="LA", return_eigenvectors=False)[0])


_PROBLEMS: dict[str, Callable[..., Problem]] = {
    "cycle": cycle,
    "cycle-box": cycle_box,
    "three-periodic": three_periodic,
    "random-linear": random_linear,
    "random-quadratic": random_quadratic,
    "logistic-breast-cancer": lambda **k: from_task("logistic-breast-cancer", **k),
    "ridge-diabetes": lambda **k: from_task("ridge-diabetes", **k),
}


def names() -> list[str]:
    """Every problem's name."""
    return list(_PROBLEMS)


def get(name: str | Problem, **options: Any) -> Problem:
    """The problem called `name`.  Raises ValueError, with the nearest name, for one that does not exist."""
    if isinstance(name, Problem):
        return name
    if name not in _PROBLEMS:
        raise ValueError(suggest.unknown("problem", str(name), _PROBLEMS))
    return _PROBLEMS[name](**options)

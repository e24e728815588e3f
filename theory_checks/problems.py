"""Online problems by name: the sequence on which Theorem 2 fails, problems of the literature, random ones, real data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from sandbox import tasks
from sandbox.utils import suggest
from theory_checks.comparators import Comparator
from theory_checks.online import UNNAMED, Problem, from_losses, from_task, linear, periodic, smooth

__all__ = [
    "CYCLE",
    "CYCLE_COMPARATOR",
    "CYCLE_FIRST",
    "UNNAMED",
    "Comparator",
    "Problem",
    "from_losses",
    "from_task",
    "get",
    "linear",
    "names",
    "periodic",
    "smooth",
    "smoothness",
]

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


def random_quadratic(seed: int = 0, d: int = 3) -> Problem:
    """f_t(θ) = ½ Σ h (θ - c_t)², c_t ~ N(0, 0.1 I)."""
    rng = np.random.default_rng(seed)
    h = torch.tensor(np.exp(rng.uniform(np.log(0.1), np.log(3), d)))

    def loss(centre: Tensor, x: Tensor) -> Tensor:
        return 0.5 * (h * (x - centre).square()).sum()

    def draw() -> Tensor:
        return torch.tensor(0.3 * rng.standard_normal(d))

    return smooth("random-quadratic", f"random quadratics in R^{d}", torch.ones(d, dtype=torch.float64), loss, draw)


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


def _real(name: str, seed: int = 0) -> Problem:
    return from_task(tasks.get(name, dtype=torch.float64), seed)


_PROBLEMS: dict[str, Callable[..., Problem]] = {
    "cycle": cycle,
    "cycle-box": cycle_box,
    "three-periodic": three_periodic,
    "random-linear": random_linear,
    "random-quadratic": random_quadratic,
    "logistic-breast-cancer": lambda **k: _real("logistic-breast-cancer", **k),
    "ridge-diabetes": lambda **k: _real("ridge-diabetes", **k),
}


def names() -> list[str]:
    """Every problem's name."""
    return list(_PROBLEMS)


def get(what: Any, **options: Any) -> Problem:
    """The problem meant by `what`: a Problem, a convex task, a function without arguments that returns one, or a name.

    Raises ValueError, with the nearest name, for a name that does not exist; TypeError for anything else.
    """
    if isinstance(what, str):
        if what not in _PROBLEMS:
            raise ValueError(suggest.unknown("problem", what, _PROBLEMS))
        return _PROBLEMS[what](**options)
    if callable(what) and not isinstance(what, Problem):
        what = what()
    if isinstance(what, Problem):
        return what
    if isinstance(what, tasks.Task):
        return from_task(what, **options)
    raise TypeError(f"a problem is a theory_checks Problem, a sandbox Task, or a function returning one, got {what!r}")

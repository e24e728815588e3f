"""scipy's differential evolution, as the adversary's attacks use it: a whole population at a time, no polish of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import optimize


def differential(
    value: Callable[..., np.ndarray],
    low: np.ndarray,
    high: np.ndarray,
    start: np.ndarray,
    generations: int,
    rng: np.random.Generator,
    args: tuple[Any, ...] = (),
) -> Any:
    """Minimises value: (genes, n) -> (n,) over low ≤ x ≤ high from the population start: (members, genes); scipy's result."""
    return optimize.differential_evolution(
        value,
        list(zip(low, high, strict=True)),
        args=args,
        init=start,
        vectorized=True,
        updating="deferred",
        maxiter=generations,
        mutation=(0.3, 0.9),
        tol=0,
        polish=False,
        rng=rng,
    )

"""Scale invariance (paper, section 3.3): with the floor σ‖g_t - g_{t-1}‖_∞, multiplying every loss leaves θ_t unchanged.

Holds for any ε, and with decoupled or no decay; bitwise where the factor is a power of two.  Not with L2 decay, nor for
`belief` with ε > 0.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from sandbox.blocks import Decoupled, NoDecay, ScaleInvariantFloor, WeakSecant
from sandbox.forms import lookup
from sandbox.recipe import Recipe
from theory_checks import problems
from theory_checks.problems import Problem
from theory_checks.record import record
from theory_checks.report import Report, everywhere


def is_promised(recipe: Recipe) -> bool:
    """Whether the paper's section 3.3 says that the recipe is scale invariant."""
    curved = isinstance(recipe.rectifier, ScaleInvariantFloor) and isinstance(recipe.curvature, WeakSecant)
    return curved and isinstance(recipe.decay, NoDecay | Decoupled) and not recipe.gradient


def check(recipe: str | Recipe, problem: str | Problem, T: int, *, lr: Callable[[Any], Any], factor: float = 1024.0) -> Report:
    """The run and the run with every loss multiplied by `factor`, side by side."""
    base, problem = lookup.recipe(recipe), problems.get(problem)
    scaled = dataclasses.replace(
        problem,
        loss=lambda t, x: factor * problem.loss(t, x),
        gradient=lambda t, x: factor * problem.gradient(t, x),
    )
    one, two = record(base, problem, T, lr=lr), record(base, scaled, T, lr=lr)
    apart = np.abs(one.theta - two.theta).max(axis=1)
    tolerance = 0.0 if np.log2(factor) % 1 == 0 else 1e-9
    return Report(
        title=f"scale invariance of {base.name} on {problem.name}, loss × {factor:g}",
        facts={"T": T},
        quantity="largest |θ_t - θ_t'|",
        measured=float(apart.max()),
        assumptions=[everywhere("θ_t the same on both sides", tolerance - apart)],
        bounds=[],
    )

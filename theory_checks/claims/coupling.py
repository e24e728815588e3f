"""Theorem 1 (coupling): (η, σ, ε) and (cη, cσ, ε/c) give the same θ_t, and B multiplied by c.

Decoupled decay needs γ/c; L2 and stable decay need γ unchanged; every rate of a schedule is multiplied by c.  As stated, with
the same ε (or the same decoupled γ) on both sides, it is false once |B| > σ somewhere: case CE3 of `counterexamples`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sandbox.blocks import Decoupled, Stable
from sandbox.forms import lookup
from sandbox.recipe import Recipe
from theory_checks import problems
from theory_checks.problems import Problem
from theory_checks.record import record
from theory_checks.report import Report, everywhere


def coupled(recipe: str | Recipe, c: float, *, as_stated: bool = False) -> Recipe:
    """The recipe with cσ, and ε/c and decoupled γ/c unless `as_stated` (which leaves both).

    Raises ValueError for a recipe without a constant floor or with a direction that is not m/D, which the theorem is not about.
    """
    recipe = lookup.recipe(recipe)
    numbers = recipe.hyperparameters()
    floors = [name for name in ("rectifier.sigma", "rectifier.inner.sigma") if name in numbers]
    if not floors or "curvature.eps" not in numbers or recipe.rectifier.state.get("floor"):
        raise ValueError(f"recipe {recipe.name!r} has no weak secant rule with a constant floor σ; Theorem 1 is about those")
    if recipe.solve != Recipe().solve:
        raise ValueError(f"recipe {recipe.name!r} has a direction of {type(recipe.solve).__name__}; Theorem 1 is about d = m/D")
    changes: dict[str, Any] = {name: c * numbers[name] for name in floors}
    if "rectifier.ceiling" in numbers:
        changes["rectifier.ceiling"] = c * numbers["rectifier.ceiling"]
    if not as_stated:
        changes["curvature.eps"] = numbers["curvature.eps"] / c
        if isinstance(recipe.decay, Decoupled) and not isinstance(recipe.decay, Stable):
            changes["decay.weight_decay"] = numbers["decay.weight_decay"] / c
    return recipe.with_hyperparameters(changes)


def check(
    recipe: str | Recipe,
    problem: str | Problem,
    T: int,
    *,
    lr: Callable[[Any], Any],
    c: float = 4.0,
    as_stated: bool = False,
) -> Report:
    """Both runs side by side.  Bitwise for c a power of two; the tolerance is 1e-9 otherwise.

    lr: η_t as a function of t, multiplied by c on the other side.
    """
    base, problem = lookup.recipe(recipe), problems.get(problem)
    one = record(base, problem, T, lr=lr)
    two = record(coupled(base, c, as_stated=as_stated), problem, T, lr=lambda t: c * lr(t))
    with np.errstate(invalid="ignore"):  # a run that diverged
        apart = np.abs(one.theta - two.theta).max(axis=1) / np.maximum(1.0, np.abs(one.theta).max(axis=1))
        curvature = np.abs(c * one.B - two.B) / np.maximum(np.abs(two.B), 1e-300)
    sigma = base.hyperparameters().get("rectifier.sigma", base.hyperparameters().get("rectifier.inner.sigma"))
    tolerance = 0.0 if np.log2(c) % 1 == 0 else 1e-9
    return Report(
        title=f"coupling of {base.name} on {problem.name}, c = {c:g}{', ε and γ as stated' if as_stated else ''}",
        facts={"T": T, "share of |B| > σ": float((np.abs(one.B) > sigma).mean())},
        quantity="largest |θ_t - θ_t'|",
        measured=float(apart.max()),
        assumptions=[
            everywhere("θ_t the same on both sides", tolerance - apart, first_t=1),
            everywhere("B_t multiplied by c", tolerance - curvature),
            everywhere(
                "|B| > σ somewhere, so that the secant rule counts", np.array([float((np.abs(one.B) > sigma).any()) - 1])
            ),
        ],
        bounds=[],
    )

"""A run with its whole history: what every check starts from."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sandbox.blocks import Box, Flow, NoProjection, scope
from sandbox.forms import lookup
from sandbox.recipe import Recipe, kernel
from theory_checks import problems
from theory_checks.online import repeats
from theory_checks.problems import Problem

Array = np.ndarray


@dataclasses.dataclass(frozen=True)
class Run:
    """T steps of a recipe on an online problem, in float64.  Row t-1 of an array belongs to step t.

    theta: (T+1, d), θ_1 … θ_{T+1}.  g, m, B, D: (T, d), the gradient at θ_t, and what the step made of it.  lr, beta: (T,),
    η_t and β_t (the share of the past in m_t).  loss: (T,), f_t(θ_t).
    """

    recipe: Recipe
    problem: Problem
    theta: Array
    g: Array
    m: Array
    B: Array
    D: Array
    lr: Array
    beta: Array
    loss: Array

    @property
    def T(self) -> int:
        """Steps made."""
        return len(self.g)


def observe(
    recipe: Recipe, state: Any, theta: Tensor, g: Tensor, t: int, lr: Any
) -> tuple[dict[str, Tensor], Tensor, dict[str, Any]]:
    """Step t of the pure update on one tensor: its new state, the new θ, and what it made: m, B, D, lr, and beta, the share
    of the past in m.  Works under torch.func.vmap."""
    seen: dict[str, Any] = {}

    def observe(x: Flow) -> None:
        seen.update(m=x.u, B=x.B, D=x.D, lr=x.lr, beta=1 - x.a)

    p = kernel.evaluate(recipe, t, lr, state).to(torch.float64, theta.device)
    norm = torch.linalg.vector_norm(g)
    new, theta = kernel.advance(p, state, theta, g, scope.OneTensor(), scope.of_tensor(recipe.scope), norm, observe=observe)
    return {**new, **p.applied}, theta, seen


def record(recipe: str | Recipe, problem: str | Problem, T: int, lr: Any = None) -> Run:
    """Runs the pure update of a recipe for T steps on a problem.

    A problem on a box is run with the projection onto it, unless the recipe has a projection of its own; θ* is the problem's
    all the same, and `regret` says whether it lies in the recipe's set.
    lr: η_t as a number or function of t; default the recipe's.
    Raises ValueError for T < 1, for a loss that gives another number when it is called again, for a recipe that takes more
    than one gradient per step, and for one that takes tensors as matrices (θ is a vector, on which it is another recipe).
    """
    recipe, problem = lookup.recipe(recipe), problems.get(problem)
    if T < 1:
        raise ValueError(f"T must be at least 1, got {T}")
    if recipe.analysis.evaluations > 1:
        raise ValueError(f"recipe {recipe.name!r} takes more than the gradient; the checks replay first-order recipes")
    if recipe.analysis.matrix:
        raise ValueError(
            f"recipe {recipe.name!r} takes tensors as matrices, and θ of the problems is a vector; on vectors it is "
            f"{recipe.for_vectors.name!r}, which can be checked: its `for_vectors`"
        )
    if problem.box is not None and isinstance(recipe.projection, NoProjection):
        recipe = recipe.replace(projection=Box(low=problem.box[0], high=problem.box[1]), name=recipe.name)
    theta = problem.start.clone()
    state = recipe.init(theta)
    rows: dict[str, list[Any]] = {name: [] for name in ("theta", "g", "m", "B", "D", "lr", "beta", "loss")}

    for t in range(1, T + 1):
        g = problem.gradient(t, theta)
        rows["theta"].append(theta.numpy())
        rows["g"].append(g.numpy())
        rows["loss"].append(float(problem.loss(t, theta)))
        repeats(f"problem {problem.name!r}: loss({t}, θ)", rows["loss"][-1], float(problem.loss(t, theta)))
        state, theta, seen = observe(recipe, state, theta, g, t, lr)
        for name in ("m", "B", "D"):
            rows[name].append(np.broadcast_to(np.asarray(seen[name]), problem.start.shape))
        rows["beta"].append(float(seen["beta"]))
        rows["lr"].append(float(seen["lr"]))
    rows["theta"].append(theta.numpy())
    return Run(recipe, problem, **{name: np.array(values) for name, values in rows.items()})

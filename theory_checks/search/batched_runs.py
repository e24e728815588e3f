"""Many runs on linear losses at once: the recipe's pure update under vmap, and measured/bound for each.

Without a projection, θ_t of a linear loss is η θ_t(1): neither the gradients nor D depend on η.  So a run is made once, with
η = 1, and serves every η and every θ*.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import torch

from sandbox import ensemble
from sandbox.recipe import Recipe
from theory_checks.claims import premises, regret_bounds
from theory_checks.record import observe

DIRECTIONS = 45  # a diameter is the largest width over these: at most 0.061 % too small


@dataclasses.dataclass(frozen=True)
class History:
    """N runs of T steps with η = 1.  theta: (N, T+1, 2) from 0.  g, D: (N, T, 2).  beta: (N,)."""

    theta: np.ndarray
    g: np.ndarray
    D: np.ndarray
    beta: np.ndarray

    @property
    def T(self) -> int:
        """Steps made."""
        return self.g.shape[1]

    def repeat(self, row: int, n: int) -> History:
        """n views of one run."""
        parts = (np.broadcast_to(x[row], (n, *x.shape[1:])) for x in (self.theta, self.g, self.D, self.beta))
        return History(*parts)


def replay(recipe: Recipe, g: np.ndarray, beta: np.ndarray, tick: Callable[[], None] = lambda: None) -> History:
    """N runs with η_t = 1/√t on the gradients g: (N, T, 2), each with its own β: (N,).

    recipe: one whose moment is an EMA without bias correction and which has no projection.  tick: called at every step; may
    raise to stop.
    """
    N, T, _ = g.shape
    gradients = torch.as_tensor(np.array(g))
    batch, axes = ensemble.stacked(recipe, {"moment.beta": np.array(beta)})
    theta = torch.zeros(N, 2, dtype=torch.float64)
    state = torch.func.vmap(recipe.init)(theta)
    path, diagonal = [theta], []
    for t in range(1, T + 1):
        tick()

        def step(recipe: Recipe, state: dict, theta: torch.Tensor, g: torch.Tensor, t: int = t) -> tuple:
            state, theta, seen = observe(recipe, state, theta, g, t, t**-0.5)
            return state, theta, seen["D"]

        state, theta, D = torch.func.vmap(step, in_dims=(axes, 0, 0, 0))(batch, state, theta, gradients[:, t - 1])
        path.append(theta)
        diagonal.append(D)
    return History(torch.stack(path, dim=1).numpy(), np.asarray(g), torch.stack(diagonal, dim=1).numpy(), np.asarray(beta))


def table(first: np.ndarray, cycle: np.ndarray, T: int) -> np.ndarray:
    """first: (N, 2), cycle: (N, P, 2) -> the gradients of T steps, (N, T, 2): g_1, then the cycle for ever."""
    P = cycle.shape[1]
    return np.concatenate([first[:, None], cycle[:, np.arange(T - 1) % P]], axis=1)


def ratios(
    h: History, eta: np.ndarray, star: np.ndarray, bounds: Sequence[str], coordinatewise: bool, Ts: np.ndarray
) -> np.ndarray:
    """Regret over the smallest of `bounds` after T steps, for T in Ts: eta (N,), star (N, 2) -> (N, len(Ts)).

    A T counts only while every assumption has held: ‖D_t‖₁/η_t non-decreasing, or D_t/η_t in each coordinate; D_t ≥ 1 where
    Theorem 2 as stated is among the bounds; θ* best in the hull of θ_1 … θ_T and itself.  Where one fails: -inf.
    """
    at, t = np.asarray(Ts) - 1, np.arange(1, h.T + 1)
    theta, lr = h.theta[:, :-1] * eta[:, None, None], eta[:, None] / np.sqrt(t)
    a = theta - star[:, None]
    grown = premises.growth(h.D, lr)
    grown = grown if coordinatewise else grown.sum(-1, keepdims=True)
    # the first step has nothing to grow from
    holds = np.concatenate([np.ones((len(eta), 1), dtype=bool), grown.min(-1) >= 0], axis=1)
    if regret_bounds.STATED in bounds:
        holds &= h.D.min(-1) >= 1
    holds = np.logical_and.accumulate(holds, axis=1)[:, at]
    total = h.g.cumsum(axis=1)[:, at]
    for k, T in enumerate(Ts):
        # Σ g·(θ_s - θ*) ≥ 0 for every s ≤ T
        inside = np.einsum("nd,nsd->ns", total[:, k], a[:, :T]).min(axis=1)
        holds[:, k] &= inside >= -1e-7 * np.linalg.norm(total[:, k], axis=1)
    beta = h.beta[:, None]
    values = regret_bounds.terms(
        T=np.asarray(Ts),
        trace=h.D[:, at].sum(-1),
        G=_so_far(np.linalg.norm(h.g, axis=-1))[:, at],
        diameter=diameter(theta, star)[:, at],
        radius=_so_far(np.linalg.norm(a, axis=-1))[:, at],
        sigma=-_so_far(-h.D.min(-1))[:, at],
        eta=eta[:, None],
        beta=beta,
        betas=beta * np.asarray(Ts),
        squares=beta**2 * np.cumsum(1 / lr, axis=1)[:, at],
    )
    smallest = np.min([sum(values[name].values()) for name in bounds], axis=0)
    return np.where(holds, (h.g * a).sum(-1).cumsum(axis=1)[:, at] / smallest, -np.inf)


def _so_far(x: np.ndarray) -> np.ndarray:
    return np.maximum.accumulate(x, axis=1)


def diameter(theta: np.ndarray, star: np.ndarray) -> np.ndarray:
    """(N, T): the diameter of θ_1 … θ_T and θ*, as the largest width over `DIRECTIONS` directions."""
    widest = np.zeros(theta.shape[:2])
    for angle in np.arange(DIRECTIONS) * np.pi / DIRECTIONS:
        toward = np.array([np.cos(angle), np.sin(angle)])
        along, end = theta @ toward, (star @ toward)[:, None]
        widest = np.maximum(widest, np.maximum(_so_far(along), end) + np.maximum(_so_far(-along), -end))
    return widest

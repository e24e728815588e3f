"""Cycles of linear losses on which Apollo stands still while a fixed point gains: where Theorem 2 fails.

For linear losses, β → 0, ε = 0 and σ = 1, B_t and D_t depend on the gradients alone.  Wanted is a cycle g_1 … g_P whose D
has constant trace τ (so that ‖D_t‖₁/η_t grows) and Σ_k g_k/D_k = 0 (so that the iterates come back).  Regret is then linear
in T, the bound grows with √T, and with the best η they cross at T* ≈ 1/ρ²,

    ρ = ‖Σ_k g_k‖ / (2 P G √τ).

Two conditions hold by construction.  Σ_j max(|B_j - α d_j²|, 1) is convex in α, so a trace that is τ at α = 0 is τ at one
other α at most: a step either stays (α = 0) or jumps to that one.  And the secant rule read backwards,
d·g' = d·(D - B)d + α‖d‖₄⁴, gives the length of the next gradient from its angle.  So a cycle is B_1, P angles and a word of
P letters, stay or jump.

What is left are equations: after P steps B and g are back, and Σ_k g_k/D_k = 0.  `close` solves them for a whole population.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from theory_checks.proofs import counterexamples
from theory_checks.search.differential_evolution import differential

CLOSED = 1e-12  # Σ of squared residuals of a closed cycle
STABLE = 0.95  # the largest spectral radius of a cycle that attracts: rounding must not drive the run off it
SIGNS = torch.tensor(list(itertools.product((-1.0, 0.0, 1.0), repeat=2)), dtype=torch.float64)


@dataclasses.dataclass(frozen=True)
class Cycles:
    """A population of N cycles.  genes: (N, 2 + 2P), see `cycles`.  g, B, D: (N, P, 2), the longest g_k of norm 1.

    rho, radius, residual: (N,), ρ, the spectral radius of B's return map (< 1: it attracts), Σ of squared residuals.
    """

    genes: Tensor
    g: Tensor
    B: Tensor
    D: Tensor
    rho: Tensor
    radius: Tensor
    residual: Tensor

    @property
    def good(self) -> Tensor:
        """(N,): which are closed and attract."""
        return (self.residual < CLOSED) & (self.radius < STABLE)


def rectify(B: Tensor) -> Tensor:
    """D = max(|B|, 1), by the recipe's own rectifier."""
    return counterexamples.theory_apollo().rectifier.read(B)


def jump(B: Tensor, d: Tensor, tau: Tensor) -> Tensor:
    """The α ≠ 0 at which Σ_j max(|B_j - α d_j²|, 1) is τ again; B, d: (2,)."""
    # max(|b|, 1) = max(b, -b, 1), so the trace is the largest of nine lines a - α b; it is ≤ τ on an interval that has α = 0 at
    # one end (unless D = (1, 1)), and the sum of both ends is the other
    a, b = (SIGNS * B).sum(-1) + (SIGNS == 0).sum(-1), (SIGNS * d * d).sum(-1)
    meets = (a - tau) / torch.where(b == 0, 1.0, b)
    return torch.where(b > 0, meets, -torch.inf).amax() + torch.where(b < 0, meets, torch.inf).amin()


def unroll(x: Tensor, word: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x = (B_1, angles) of shape (2 + P,), word (P,), 1 for a jump -> g, B, D of shape (P, 2), and (B_{P+1}, g_{P+1})."""
    B, angles = x[:2], x[2:]
    P, tau = len(angles), rectify(x[:2]).sum()
    toward = torch.stack([angles.cos(), angles.sin()], dim=-1)
    g, rows = toward[0], []
    for k in range(P):
        D = rectify(B)
        d = g / D
        rows.append((g, B, D))
        alpha = torch.where(word[k] > 0, jump(B, d, tau), 0.0)
        # d·g' = d·(D - B)d + α‖d‖₄⁴
        along, ahead = (d * (D - B) * d).sum() + alpha * d.pow(4).sum(), toward[(k + 1) % P]
        B, g = B - alpha * d * d, along / (d * ahead).sum() * ahead
    return *(torch.stack(column) for column in zip(*rows, strict=True)), torch.cat([B, g])  # type: ignore[return-value]


def equations(x: Tensor, word: Tensor) -> Tensor:
    """(6,), 0 for a cycle: B_{P+1} - B_1, (g_{P+1} - g_1)/G, Σ g_k/D_k / G."""
    g, B, D, back = unroll(x, word)
    G = g.norm(dim=-1).amax()
    return torch.cat([back[:2] - B[0], (back[2:] - g[0]) / G, (g / D).sum(0) / G])


def _twice(x: Tensor, word: Tensor) -> tuple[Tensor, Tensor]:
    residuals = equations(x, word)
    return residuals, residuals


_linearised = torch.func.vmap(torch.func.jacrev(_twice, has_aux=True))


def close(x: Tensor, word: Tensor, steps: int, tick: Callable[[], None]) -> tuple[Tensor, Tensor]:
    """Levenberg-Marquardt on `equations` for N rows at once: x of shape (N, 2 + P) -> x and the residuals (N,).

    tick: called at every iteration; may raise to stop.
    """

    def at(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        J, r = _linearised(x, word)
        return J.nan_to_num(0, 0, 0), r.nan_to_num(0, 0, 0), r.square().sum(-1).nan_to_num(torch.inf)

    damping = torch.full((len(x),), 1e-2, dtype=x.dtype)
    J, r, size = at(x)
    for _ in range(steps):
        tick()
        # δ = -Jᵀ (JJᵀ + λI)⁻¹ r, no longer than ½
        A = J @ J.mT + damping[:, None, None] * torch.eye(r.shape[1], dtype=x.dtype)
        move = -(J.mT @ torch.linalg.solve_ex(A, r[..., None])[0])[..., 0].nan_to_num(0, 0, 0)
        move = move * (0.5 / move.norm(dim=-1, keepdim=True).clamp(min=0.5))
        J_new, r_new, size_new = at(x + move)
        better = size_new < size
        x = torch.where(better[:, None], x + move, x)
        J, r = torch.where(better[:, None, None], J_new, J), torch.where(better[:, None], r_new, r)
        size, damping = torch.where(better, size_new, size), torch.where(better, damping / 8, damping * 4).clamp(1e-11, 1e8)
    return x, size


def enter(B: np.ndarray, g: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Ways into a cycle: (g_1, the cycle from some k on) after which B_2 is B_k, of shape (2,) and (P, 2).  B, g: (P, 2).

    From B_1 = 0, B_2 = -α g_1² has one sign; so a way in leads to each k at which B_k has.
    """
    for k, sign in itertools.product(range(len(g)), (1.0, -1.0)):
        if B[k].prod() > 0:
            v = np.sqrt(np.abs(B[k])) * (1.0, sign)
            # g_1 = s v with α s² = -sign(B_k):  s (‖v‖² - sign(B_k) ‖v‖₄⁴) = v·g_k
            size = (v @ v) - np.sign(B[k, 0]) * (v**4).sum()
            if abs(size) > 1e-6:
                yield (v @ g[k]) / size * v, np.roll(g, -k, axis=0)


def back_to(B: Tensor, g: Tensor) -> Tensor:
    """B_{P+1} after the gradients g_2, …, g_P, g_1 from B_1 and m = g_1, by the recipe's update; B: (2,), g: (P, 2)."""
    recipe = counterexamples.theory_apollo()
    theta = torch.zeros_like(B)
    state = {**recipe.init(theta), "moment.m": g[0], "curvature.B": B}
    for row in g.roll(-1, 0):
        state, theta = recipe.update(state, theta, row, lr=1.0)
    return state["curvature.B"]


_slope = torch.func.vmap(torch.func.jacfwd(back_to))


def cycles(genes: np.ndarray, tick: Callable[[], None], steps: int = 15) -> Cycles:
    """The cycles near genes of shape (N, 2 + 2P): B_1, P angles, P letters (above ½: a jump); steps: of `close`."""
    P = (genes.shape[1] - 2) // 2
    word = torch.as_tensor(genes[:, 2 + P :] > 0.5, dtype=torch.float64)
    x, residual = close(torch.as_tensor(genes[:, : 2 + P]), word, steps, tick)
    closed = torch.cat([x[:, :2], x[:, 2:] % (2 * math.pi), word], dim=1)
    g, B, D, _ = torch.func.vmap(unroll)(x, word)
    # |largest eigenvalue| of ∂B_{P+1}/∂B_1 at fixed gradients
    radius = torch.linalg.eigvals(_slope(B[:, 0], g).nan_to_num(1e9, 1e9, -1e9)).abs().amax(-1)
    G = g.norm(dim=-1).amax(-1)
    rho = g.sum(1).norm(dim=-1) / (2 * P * G * D[:, 0].sum(-1).sqrt())
    return Cycles(closed, g / G[:, None, None], B, D, rho, radius, residual)


def fitness(population: Cycles) -> np.ndarray:
    """(N,), lower is better: -ρ for what is closed and attracts; above 0 what only is closed; above 1 what is not."""
    unstable = 0.5 + population.radius.clamp(max=1e6).log() / 20 - population.rho
    value = torch.where(population.residual < CLOSED, unstable, 2 - 1 / (1 + population.residual))
    value = torch.where(population.good, -population.rho, value)
    return value.nan_to_num(9.0).numpy()


def draw(rng: np.random.Generator, n: int, P: int) -> np.ndarray:
    """Random genes: one coordinate of B_1 outside the floor, the other about it."""
    far, near = rng.uniform(1, 5, (n, 1)) * rng.choice((-1, 1), (n, 1)), rng.uniform(-1.5, 1.5, (n, 1))
    return np.hstack([far, near, rng.uniform(0, 2 * math.pi, (n, P)), rng.uniform(0, 1, (n, P))])


def around(rng: np.random.Generator, genes: np.ndarray, n: int) -> np.ndarray:
    """n copies of the rows of genes in turn, B_1 and angles jittered by up to a half; the first copies are exact."""
    size = np.where(np.arange(n) < len(genes), 0.0, rng.uniform(0, 0.5, n))[:, None]
    copies, P = genes[np.arange(n) % len(genes)].copy(), (genes.shape[1] - 2) // 2
    copies[:, : 2 + P] += size * rng.standard_normal((n, 2 + P))
    return copies


def evolve(
    rng: np.random.Generator, genes: np.ndarray, generations: int, tick: Callable[[], None], members: int = 96
) -> Cycles:
    """The good cycles, largest ρ first, of differential evolution on `fitness` around the rows of genes."""
    P = (genes.shape[1] - 2) // 2
    low = np.array([-8.0, -8.0] + P * [-math.pi] + P * [0.0])
    high = np.array([8.0, 8.0] + P * [3 * math.pi] + P * [1.0])
    start = around(rng, genes, members).clip(low, high)
    result = differential(lambda x: fitness(cycles(x.T, tick)), low, high, start, generations, rng)
    return rank([cycles(result.population, tick, steps=25)])


def rank(parts: list[Cycles]) -> Cycles:
    """The good ones of several populations, the largest ρ first."""
    names = [f.name for f in dataclasses.fields(Cycles)]
    joined = Cycles(*(torch.cat([getattr(part, name) for part in parts]) for name in names))
    order = joined.rho.masked_fill(~joined.good, -1.0).argsort(descending=True)[: int(joined.good.sum())]
    return Cycles(*(getattr(joined, name)[order] for name in names))

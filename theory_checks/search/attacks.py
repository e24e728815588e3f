"""Two attacks on a statement, each for as long as the session's clock allows: on ρ, and on regret/bound itself."""

from __future__ import annotations

import math

import numpy as np
from scipy import optimize

from theory_checks.search import batched_runs, stationary_cycles
from theory_checks.search.differential_evolution import differential
from theory_checks.search.session import Candidate, Session

SMALL_BETA = 1e-9  # the theorem asks for β_t > 0
SHORT = 192  # the longest T of `evolve`


# -- on ρ ------------------------------------------------------------------------------------------------------------


def stand_still(session: Session, starts: int = 5, rounds: int = 4, elite: int = 8) -> None:
    """Random cycles closed, evolved, entered from B = 0, and given the best η and θ*; again and again."""
    champion = np.empty((0, 2 + 2 * session.period))
    while True:
        drawn = [stationary_cycles.draw(session.rng, 1024, session.period) for _ in range(starts)]
        cycles = stationary_cycles.rank([stationary_cycles.cycles(genes, session.tick, steps=25) for genes in drawn])
        choose_rate_and_comparator(session, cycles)
        for _ in range(rounds):
            genes = np.vstack([cycles.genes[:elite].numpy(), champion])
            if not len(genes):
                break
            cycles = stationary_cycles.evolve(session.rng, genes, 30, session.tick)
            choose_rate_and_comparator(session, cycles)
        champion = np.vstack([cycles.genes[:1].numpy(), champion])[:2]


def entries(cycles: stationary_cycles.Cycles, most: int) -> tuple[np.ndarray, np.ndarray]:
    """The ways into the best cycles: g_1 (n, 2) and cycles (n, P, 2), n ≤ most."""
    rows = [way for B, g in zip(cycles.B.numpy(), cycles.g.numpy(), strict=True) for way in stationary_cycles.enter(B, g)][
        :most
    ]
    P = cycles.g.shape[1]
    return np.array([r[0] for r in rows]).reshape(-1, 2), np.array([r[1] for r in rows]).reshape(-1, P, 2)


def choose_rate_and_comparator(session: Session, cycles: stationary_cycles.Cycles, most: int = 12) -> None:
    """The best η and direction of θ* for the ways into the best cycles: a grid, then Nelder-Mead on the most promising."""
    first, cycle = entries(cycles, most)
    if not len(first):
        return
    h = batched_runs.replay(
        session.target.recipe, batched_runs.table(first, cycle, session.T), np.full(len(first), SMALL_BETA), session.tick
    )
    turns, log_etas = (x.ravel() for x in np.meshgrid(np.linspace(-0.6, 0.6, 7), np.log(np.geomspace(0.15, 3.0, 11))))

    def value(row: int, turn: np.ndarray, log_eta: np.ndarray) -> np.ndarray:
        """Regret/bound at T, (n,) from (n,); the best is offered."""
        star, eta = comparator(np.repeat(cycle[row : row + 1], len(turn), axis=0), turn), np.exp(log_eta)
        ratio = session.measure(h.repeat(row, len(turn)), eta, star, np.array([session.T]))[:, 0]
        i = ratio.argmax()
        if ratio[i] > session.ratio:
            session.offer(Candidate(first[row], cycle[row], star[i], float(eta[i]), SMALL_BETA, session.T, float(ratio[i])))
        return ratio

    grid = []
    for row in range(len(first)):
        session.tick()
        grid.append(value(row, turns, log_etas))
    for row in np.argsort([-values.max() for values in grid])[:3]:
        session.tick()
        at = int(grid[row].argmax())
        if not grid[row][at] > 0.8 * session.ratio:
            break
        start = np.array([turns[at], log_etas[at]])
        optimize.minimize(
            lambda x, row=row: -float(value(row, x[:1], x[1:])[0].clip(min=-9)),
            start,
            method="Nelder-Mead",
            options={"maxfev": 120, "initial_simplex": start + 0.05 * np.array([[0, 0], [1, 0], [0, 1]])},
        )


def comparator(cycle: np.ndarray, turn: np.ndarray) -> np.ndarray:
    """θ* (n, 2) at distance 1 from θ_1, turned by `turn` from the direction in which the cycle's sum falls."""
    total = cycle.sum(axis=1)
    angle = np.arctan2(-total[:, 1], -total[:, 0]) + turn
    return np.stack([np.cos(angle), np.sin(angle)], axis=1)


# -- on regret/bound -------------------------------------------------------------------------------------------------


def evolve(session: Session, members: int = 96, generations: int = 120) -> None:
    """Differential evolution on regret/bound over (g_1, cycle, log η, turn of θ*, β), then Nelder-Mead; again and again.

    The rounds ask in turn for T ≥ 1, 10 and 100.  A few of a first population are cycles of `stationary_cycles`, since they
    refute what Theorem 2 claims.
    """
    P, longest = session.period, min(SHORT, session.T)
    low = np.array([-1.0] * (2 + 2 * P) + [math.log(0.02), -math.pi, SMALL_BETA])
    high = np.array([1.0] * (2 + 2 * P) + [math.log(20.0), math.pi, 0.9])
    still = stationary_cycles.rank([stationary_cycles.cycles(stationary_cycles.draw(session.rng, 1024, P), session.tick, 25)])
    first, cycle = entries(still, members // 6)
    prepared = np.hstack([first, cycle.reshape(-1, 2 * P)])
    prepared /= np.abs(prepared).max(axis=1, keepdims=True)

    def value(x: np.ndarray, Ts: np.ndarray) -> np.ndarray:
        """(n,) from n columns of genes: minus the largest ratio over Ts."""
        return -run_genes(session, x.T.clip(low, high), Ts).max(axis=1)

    while True:
        for least in (1, 10, 100):
            Ts = np.unique(np.geomspace(min(least, longest), longest, 12).astype(int))
            start = session.rng.uniform(low, high, (members, len(low)))
            start[: len(prepared), : 2 + 2 * P] = prepared
            result = differential(value, low, high, start, generations, session.rng, args=(Ts,))
            T = Ts[[run_genes(session, result.x[None], Ts)[0].argmax()]]
            optimize.minimize(
                lambda x, T=T: float(value(x[:, None], T)[0]), result.x, method="Nelder-Mead", options={"maxfev": 300}
            )


def run_genes(session: Session, genes: np.ndarray, Ts: np.ndarray) -> np.ndarray:
    """Regret/bound (n, len(Ts)) for genes (n, 2 + 2P + 3), -1 where an assumption fails; the best is offered to the session."""
    first, cycle = genes[:, :2], genes[:, 2:-3].reshape(len(genes), -1, 2)
    eta, star, beta = np.exp(genes[:, -3]), comparator(cycle, genes[:, -2]), genes[:, -1]
    h = batched_runs.replay(session.target.recipe, batched_runs.table(first, cycle, int(Ts[-1])), beta, session.tick)
    ratios = np.nan_to_num(session.measure(h, eta, star, Ts), nan=-1.0, neginf=-1.0)
    i, at = np.unravel_index(ratios.argmax(), ratios.shape)
    if ratios[i, at] > session.ratio:
        ratio, T = float(ratios[i, at]), int(Ts[at])
        session.offer(Candidate(first[i], cycle[i], star[i], float(eta[i]), float(beta[i]), T, ratio))
    return ratios

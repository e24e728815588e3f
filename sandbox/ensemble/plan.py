"""How a grid is run: in chunks that keep to the memory budget."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sandbox.ensemble import grid
from sandbox.ensemble.arguments import allowed
from sandbox.ensemble.lockstep import Lockstep
from sandbox.ensemble.members import Group
from sandbox.probes.watch import need
from sandbox.schedules import evenly
from sandbox.tasks import Task
from sandbox.utils import memory
from sandbox.utils.private_torch import pytree

# at an evaluation: (step, name -> values of the members, whether each has been finite so far)
Told = Callable[[int, dict[str, np.ndarray], np.ndarray], None]


@dataclasses.dataclass
class Piece:
    """What a chunk gave: arrays (seeds · configurations, …); of a probe also whether it said anything."""

    loss: np.ndarray
    finite: np.ndarray
    evaluations: dict[str, np.ndarray]
    probes: dict[str, np.ndarray]
    said: dict[str, np.ndarray]
    params: Any


@dataclasses.dataclass(frozen=True)
class Plan:
    """What all members have in common, and how many of them run together."""

    task: Task
    seeds: list[int]
    steps: int
    factors: list[float]
    evaluations: int | Sequence[int]  # how many, or after which steps
    probes: dict[str, Any]
    every: int
    compiled: bool
    memory: int

    @property
    def at(self) -> list[int]:
        """The steps after which members are evaluated."""
        if isinstance(self.evaluations, int):
            return [0, *evenly(self.steps, self.evaluations)] if self.evaluations else []
        return [0, *self.evaluations]

    @property
    def probed(self) -> list[int]:
        """The steps that probes see."""
        return [t for t in range(1, self.steps + 1) if t % self.every == 0] if self.probes else []

    # -- how many together -------------------------------------------------------------------------------------------

    def chunks(self, group: Group) -> tuple[list[tuple[Group, list[int]]], str | None]:
        """(configurations, seeds) to run together, and why they cannot be batched, if so."""
        seeds, configs = len(self.seeds), len(group.configs)
        memory.whole("memory (in bytes)", self.memory)
        try:
            one = self._bytes(group, 1)
            # what members share is counted in `one`, so this many times `one` is more than they need
            more = one if one * seeds * configs <= self.memory else self._bytes(group, 2)
        except grid.Unbatchable as error:
            return [(group.part(i, i + 1), [seed]) for i in range(configs) for seed in self.seeds], str(error)
        if one > self.memory:
            raise ValueError(f"memory must be at least {one:,} bytes, what one member takes here, got {self.memory:,}")
        together = 1 + int((self.memory - one) // max(more - one, 1))
        # all seeds of some configurations, or some seeds of one; chunks of equal size, so that a graph serves them all
        if together >= seeds:
            size = _even(configs, together // seeds)
            parts = [group.part(i, i + size) for i in range(0, configs, size)]
            return [(part, self.seeds) for part in parts], None
        size = _even(seeds, together)
        some = [self.seeds[i : i + size] for i in range(0, seeds, size)]
        return [(group.part(i, i + 1), s) for i in range(configs) for s in some], None

    def refusal(self, group: Group) -> str | None:
        """Why its members cannot be batched; None where they can."""
        grids = self._first(group, 1)
        try:
            grids.look_ahead(grids.batch())
        except grid.Unbatchable as error:
            return str(error)
        return None

    def _first(self, group: Group, members: int) -> Lockstep:
        """`members` copies of the first configuration."""
        numbers = [v[:1].repeat(members) for v in group.varied]
        return Lockstep(self, dataclasses.replace(group, configs=group.configs[:1] * members, varied=numbers), self.seeds[:1])

    def _bytes(self, group: Group, members: int) -> int:
        """What `members` copies of the first configuration take at once: in a step and in an evaluation."""
        grids = self._first(group, members)
        given = sum(x.numel() * x.element_size() for x in pytree.tree_leaves((grids.state, grids.params)))
        batch = grids.batch()
        step = memory.peak(lambda: grids.look_ahead(batch))
        evaluation = memory.peak(lambda: grids.evaluate(0)) if self.evaluations else 0
        return given + max(step, evaluation)

    # -- running -----------------------------------------------------------------------------------------------------

    def together(self, group: Group, seeds: list[int], advance: Callable[[int], None], told: Told, *, batched: bool) -> Piece:
        """All members of a chunk."""
        members = len(group.configs) * len(seeds)
        chunk = Lockstep(self, group, seeds, batched=batched)
        losses, finite = np.empty((self.steps, members)), np.empty((self.steps, members), dtype=bool)
        evaluations, stops = [], set(self.at)
        sampled = {t: k for k, t in enumerate(self.probed)}
        probes = {name: np.full((members, len(sampled)), np.nan) for name in self.probes}
        said = {name: np.zeros((members, len(sampled)), dtype=bool) for name in self.probes}
        before = need(self.probes, "D_old")
        if 0 in stops:
            evaluations.append(chunk.evaluate(0))
            told(0, evaluations[-1], np.ones(members, dtype=bool))
        for t in range(1, self.steps + 1):
            look = t in sampled or (before and t + 1 in sampled)
            value, ok, measured = chunk.step(t, look)
            losses[t - 1], finite[t - 1] = value.reshape(-1).cpu().numpy(), ok.reshape(-1).cpu().numpy()
            if t in sampled:
                for name, v in measured.items():
                    probes[name][:, sampled[t]], said[name][:, sampled[t]] = v.reshape(-1).cpu().numpy(), True
            if t in stops:
                evaluations.append(chunk.evaluate(t))
                told(t, evaluations[-1], np.all(finite[:t], axis=0))
            advance(members)
        # a member whose rate its decay does not allow never runs
        top = max(self.factors)
        fits = [allowed(c.recipe, top * max(c.rate(1), c.rate(self.steps))) for c in group.configs]
        lost = np.tile(~np.array(fits), len(seeds))
        losses[:, lost], finite[:, lost] = np.inf, False
        params = pytree.tree_map(lambda p: p.detach().flatten(0, 1), chunk.params)
        columns = {name: np.stack([row[name] for row in evaluations], axis=1) for name in (evaluations or [{}])[0]}
        return Piece(losses.T, finite.T, columns, probes, said, params)


def _even(count: int, most: int) -> int:
    """The size of the fewest parts of at most `most`, as equal as can be."""
    parts = -(-count // min(count, most))
    return -(-count // parts)

"""How a group's members run: in chunks that keep to the memory budget."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from sandbox.ensemble.arguments import allows
from sandbox.ensemble.grid import Unbatchable
from sandbox.ensemble.lockstep import Lockstep
from sandbox.ensemble.members import Group
from sandbox.ensemble.settings import Settings
from sandbox.probes.watch import need
from sandbox.utils import memory
from sandbox.utils.private_torch import pytree

# called at an evaluation with (step, name -> values of the members, whether each has been finite so far)
Report = Callable[[int, dict[str, np.ndarray], np.ndarray], None]
Chunk = tuple[Group, list[int]]  # configurations and seeds


@dataclasses.dataclass
class Results:
    """What a chunk gave: arrays (seeds · configurations, …); of each probe also where it gave a value."""

    loss: np.ndarray
    finite: np.ndarray
    evaluations: dict[str, np.ndarray]
    probes: dict[str, np.ndarray]
    measured: dict[str, np.ndarray]
    params: Any


def split(settings: Settings, group: Group) -> list[Chunk]:
    """Returns what to run together.  Raises Unbatchable, and ValueError where the budget is too small for one member."""
    seeds, configs = len(settings.seeds), len(group.configs)
    memory.whole("memory (in bytes)", settings.memory)
    one = _bytes(settings, group, 1)
    # what members share is counted in `one`, so this many times `one` is more than they need
    two = one if one * seeds * configs <= settings.memory else _bytes(settings, group, 2)
    if one > settings.memory:
        raise ValueError(f"memory must be at least {one:,} bytes, what one member takes here, got {settings.memory:,}")
    together = 1 + int((settings.memory - one) // max(two - one, 1))
    # all seeds of some configurations, or some seeds of one; chunks of equal size, so that a graph serves them all
    if together >= seeds:
        size = _even_size(configs, together // seeds)
        return [(group.part(i, i + size), settings.seeds) for i in range(0, configs, size)]
    size = _even_size(seeds, together)
    some = [settings.seeds[i : i + size] for i in range(0, seeds, size)]
    return [(group.part(i, i + 1), s) for i in range(configs) for s in some]


def singles(settings: Settings, group: Group) -> list[Chunk]:
    """Returns one chunk per member."""
    return [(group.part(i, i + 1), [seed]) for i in range(len(group.configs)) for seed in settings.seeds]


def refusal(settings: Settings, group: Group) -> str | None:
    """Returns why members cannot be batched, tried on two copies of the first configuration; None where they can."""
    try:
        _first(settings, group, 2, settings.seeds).step(1, bool(settings.probes))
    except Unbatchable as error:
        return str(error)
    return None


def _first(settings: Settings, group: Group, members: int, seeds: list[int]) -> Lockstep:
    """Returns `members` copies of the first configuration."""
    numbers = [v[:1].repeat(members) for v in group.varied]
    return Lockstep(settings, dataclasses.replace(group, configs=group.configs[:1] * members, varied=numbers), seeds)


def _bytes(settings: Settings, group: Group, members: int) -> int:
    """Returns what `members` copies of the first configuration take at once: in a step and in an evaluation."""
    grids = _first(settings, group, members, settings.seeds[:1])
    given = sum(x.numel() * x.element_size() for x in pytree.tree_leaves((grids.state, grids.params)))
    batch = grids.batch()
    step = memory.peak(lambda: grids.look_ahead(batch))
    evaluation = memory.peak(lambda: grids.evaluate(0)) if settings.evaluations else 0
    return given + max(step, evaluation)


def train(
    settings: Settings, group: Group, seeds: list[int], advance: Callable[[int], None], report: Report, *, batched: bool
) -> Results:
    """Trains all members of a chunk; of one member alone where not `batched`.  Raises Unbatchable."""
    members = len(group.configs) * len(seeds)
    grids = Lockstep(settings, group, seeds, batched=batched)
    losses, finite = np.empty((settings.steps, members)), np.empty((settings.steps, members), dtype=bool)
    evaluations, stops = [], set(settings.at)
    sampled = {t: k for k, t in enumerate(settings.probed)}
    probes = {name: np.full((members, len(sampled)), np.nan) for name in settings.probes}
    measured = {name: np.zeros((members, len(sampled)), dtype=bool) for name in settings.probes}
    before = need(settings.probes, "D_old")
    if 0 in stops:
        evaluations.append(grids.evaluate(0))
        report(0, evaluations[-1], np.ones(members, dtype=bool))
    for t in range(1, settings.steps + 1):
        value, ok, numbers = grids.step(t, t in sampled or (before and t + 1 in sampled))
        losses[t - 1], finite[t - 1] = value.reshape(-1).cpu().numpy(), ok.reshape(-1).cpu().numpy()
        if t in sampled:
            for name, v in numbers.items():
                probes[name][:, sampled[t]], measured[name][:, sampled[t]] = v.reshape(-1).cpu().numpy(), True
        if t in stops:
            evaluations.append(grids.evaluate(t))
            report(t, evaluations[-1], np.all(finite[:t], axis=0))
        advance(members)
    # a member whose rate its decay does not allow never runs
    top = max(settings.factors)
    fits = [allows(c.recipe, top * max(c.rate(1), c.rate(settings.steps))) for c in group.configs]
    lost = np.tile(~np.array(fits), len(seeds))
    losses[:, lost], finite[:, lost] = np.inf, False
    params = pytree.tree_map(lambda p: p.detach().flatten(0, 1), grids.params)
    columns = {name: np.stack([row[name] for row in evaluations], axis=1) for name in (evaluations or [{}])[0]}
    return Results(losses.T, finite.T, columns, probes, measured, params)


def _even_size(count: int, most: int) -> int:
    """Returns the size of the fewest parts of at most `most`, as equal as can be."""
    parts = -(-count // min(count, most))
    return -(-count // parts)

"""Many runs of one recipe at once, by `sandbox.ensemble`: the rows that each would have alone, to rounding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from sandbox import ensemble
from sandbox.probes import EVERYTHING, Watch
from sandbox.recipe import Recipe
from sandbox.study import run
from sandbox.tasks import Task

Found = tuple[list[dict[str, Any]], list[dict[str, Any]]]  # rows of a run, and what its probes measured

TOGETHER = "vmap"  # the backend that a run's settings name


def train(
    task: Task, recipe: Recipe, settings: Sequence[run.Settings], probes: Sequence[Any] = (), every: int = 1
) -> list[Found]:
    """Runs that differ in rate, seed and role, in the order given: together where their backend says so, else one by one."""
    if settings[0].backend != TOGETHER:
        found = []
        for each in settings:
            watch = Watch(probes, every=every, tensors=False) if probes else None
            found.append((run.train(task, recipe, each, watch), watch.rows if watch else []))
        return found
    by_place: dict[int, Found] = {}
    with run.one_thread():
        for places in _products(settings):
            some = [settings[i] for i in places]
            by_place |= dict(zip(places, _together(task, recipe, some, probes, every), strict=True))
    return [by_place[i] for i in range(len(settings))]


def _products(settings: Sequence[run.Settings]) -> list[list[int]]:
    """Places of runs that are all rates × all seeds of a set, in that order."""
    seeds: dict[tuple[str, float], dict[int, int]] = {}
    for place, s in enumerate(settings):
        seeds.setdefault((s.role, s.lr), {})[s.seed] = place
    alike: dict[Any, list[int]] = {}
    for (role, _), places in seeds.items():
        alike.setdefault((role, tuple(sorted(places))), []).extend(places[seed] for seed in sorted(places))
    return list(alike.values())


def _together(task: Task, recipe: Recipe, settings: list[run.Settings], probes: Sequence[Any], every: int) -> list[Found]:
    first = settings[0]
    rates, seeds = list(dict.fromkeys(s.lr for s in settings)), sorted({s.seed for s in settings})
    found = ensemble.run(
        recipe, task, lr=rates, seeds=seeds, steps=first.steps, warmup=first.warmup, schedule=first.schedule,
        evaluations=first.evaluations, probes=probes, every=every,
    )  # fmt: skip
    seconds = found.seconds / len(settings) / first.steps
    return [(_rows(task, recipe, s, found, i, seconds), _measured(found, i)) for i, s in enumerate(settings)]


def _rows(
    task: Task, recipe: Recipe, settings: run.Settings, found: ensemble.Ensemble, i: int, seconds: float
) -> list[dict[str, Any]]:
    if not run.allowed(recipe, settings.lr):
        return run.never(settings)
    rows, lost, diverged = [], int(found.diverged[i]), bool(found.diverged[i])
    for k, step in enumerate(found.at):
        values = {name: float(column[i, k]) for name, column in found.evaluations.items()}
        if step and ((lost and step >= lost) or not math.isfinite(values["train_loss"])):
            diverged = True
            break
        floor = values.pop("floor_occupancy")
        rows.append(run.row(step, **values, floor_occupancy=None if math.isnan(floor) else floor))
    params = {name: p[i] for name, p in found.params.items()}
    return run.finished(rows, settings, diverged, seconds, lambda: task.evaluate(params, "test"))


def _measured(found: ensemble.Ensemble, i: int) -> list[dict[str, Any]]:
    """What probes saw of a member, in the form of `Watch.rows`; nothing from its first that was not finite on."""
    last = found.diverged[i] or math.inf
    return [
        {"step": step, "tensor": EVERYTHING, "probe": name, "value": float(column[i, k])}
        for k, step in enumerate(found.probed)
        for name, column in found.probes.items()
        if step < last and found.said[name][i, k]
    ]

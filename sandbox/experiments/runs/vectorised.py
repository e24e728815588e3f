"""Many runs of one recipe at once, by `sandbox.ensemble`: the rows that each would have alone, to rounding."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch import nn

from sandbox import ensemble, schedules
from sandbox.ensemble.arguments import allows
from sandbox.ensemble.run import refusal
from sandbox.experiments.runs import run as single
from sandbox.experiments.runs.methods import Method, Ours
from sandbox.experiments.runs.run import Row
from sandbox.experiments.runs.settings import Options, Run
from sandbox.probes import EVERYTHING
from sandbox.recipe import Recipe
from sandbox.tasks import Task

TOGETHER = "vmap"  # the way that such a run names
Tell = Callable[[int, int, Row | None], None]  # a run's place, updates since the last call, an evaluation if there is one


def why_not(task: Task, method: Method, schedule: Any, options: Options) -> str | None:
    """Why runs of a method are made one by one, in a few words; None where they can be made together."""
    if not isinstance(method, Ours):
        return "it is no recipe"
    if method.moving:
        return "its rate is a function of t"
    if not isinstance(schedule, str):
        return "the schedule is a function"
    if changed := options.needs_a_loop():
        return f"{changed} set"
    return network(task) or refusal(method.recipe, task)


def network(task: Task) -> str | None:
    """What in a task's network keeps it from being a function of its parameters alone; None where nothing does."""
    start = task.start(0)
    if not isinstance(start, nn.Module):
        return None
    if any(True for _ in start.buffers()):
        return "the network has buffers"
    if any(not p.requires_grad for p in start.parameters()):
        return "the network has frozen parameters"
    if any(isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0 for m in start.modules()):
        return "the network has dropout"
    if any(set(group) - {"params"} for group in task.groups(start)):
        return "the task has parameter groups"
    return None


def company(runs: Sequence[Run]) -> str:
    """Digits of the set of runs that are made together: rounding depends on who else is there."""
    text = repr(sorted((r.role, r.lr, r.seed, r.numbers) for r in runs))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def train(
    task: Task, method: Ours, runs: Sequence[Run], probes: Sequence[Any], every: int, tell: Tell
) -> list[tuple[list[Row], list[Row]]]:
    """Runs of one recipe that differ in rate, seed and role, in the order given: their rows, and what probes measured.

    tell: hears of updates and rows as they come: (place of the run, updates, row).
    """
    found: dict[int, tuple[list[Row], list[Row]]] = {}
    with single.threads(runs[0].options.threads):
        for places in _products(runs):
            some = [runs[i] for i in places]

            def told(place: int, n: int, row: Row | None, places: Sequence[int] = places) -> None:
                tell(places[place], n, row)

            found |= dict(zip(places, _together(task, method.recipe, some, probes, every, told), strict=True))
    return [found[i] for i in range(len(runs))]


def _products(runs: Sequence[Run]) -> list[list[int]]:
    """Places of runs that are all rates × all seeds of a set, in that order."""
    seeds: dict[tuple[str, float], dict[int, int]] = {}
    for place, each in enumerate(runs):
        seeds.setdefault((each.role, each.lr), {})[each.seed] = place
    alike: dict[Any, list[int]] = {}
    for (role, _), places in seeds.items():
        alike.setdefault((role, tuple(sorted(places))), []).extend(places[seed] for seed in sorted(places))
    return list(alike.values())


def _together(
    task: Task, recipe: Recipe, runs: list[Run], probes: Sequence[Any], every: int, tell: Tell
) -> list[tuple[list[Row], list[Row]]]:
    first, told = runs[0], 0
    top = max(schedules.factors(first.steps, first.warmup, first.schedule))
    fits = [allows(recipe, top * run.lr) for run in runs]  # the recipe's decay, every rate of the run

    def advance(done: int, total: int) -> None:
        nonlocal told
        tell(0, done - told, None)
        told = done

    def evaluated(step: int, places: Sequence[int], values: dict[str, np.ndarray], finite: np.ndarray) -> None:
        for k, place in enumerate(places):
            if step < first.steps and fits[place] and finite[k] and math.isfinite(values["train_loss"][k]):
                found = _row(task, recipe, step, {name: float(column[k]) for name, column in values.items()})
                tell(place, 0, single.running(found))

    rates, seeds = list(dict.fromkeys(r.lr for r in runs)), sorted({r.seed for r in runs})
    found = ensemble.run(
        recipe, task, lr=rates, seeds=seeds, steps=first.steps, warmup=first.warmup, schedule=first.schedule,
        evaluations=first.at, probes=probes, every=every, progress=advance, evaluated=evaluated,
    )  # fmt: skip
    seconds = found.seconds / len(runs) / first.steps
    rows = [_rows(task, recipe, r, found, i, seconds) if fits[i] else single.never(r) for i, r in enumerate(runs)]
    return [(some, _measured(found, i)) for i, some in enumerate(rows)]


def _rows(task: Task, recipe: Recipe, run: Run, found: ensemble.Ensemble, i: int, seconds: float) -> list[Row]:
    rows, first, diverged = list[Row](), int(found.diverged[i]), bool(found.diverged[i])
    params = {name: p[i] for name, p in found.params.items()}
    words = recipe.words(p.shape for p in params.values())
    for k, step in enumerate(found.at):
        values = {name: float(column[i, k]) for name, column in found.evaluations.items()}
        if step and ((first and step >= first) or not math.isfinite(values["train_loss"])):
            diverged = True
            break
        rows.append({**_row(task, recipe, step, values), "state_words": words})
    return single.finished(rows, run, diverged, seconds, functools.partial(_test, task, params))


def _row(task: Task, recipe: Recipe, step: int, values: dict[str, float]) -> Row:
    floor, train_loss = values.pop("floor_occupancy"), values.pop("train_loss")
    gradients = step * recipe.evaluations
    return single.row(task, step, train_loss, list(values.values()), None if math.isnan(floor) else floor, gradients)


def _test(task: Task, params: dict[str, Any]) -> tuple[float, ...]:
    full = task.full("test")
    functions = [task.loss, *task.scores().values()]
    return tuple(float(task.apply(f, params, full, training=False)) for f in functions)


def _measured(found: ensemble.Ensemble, i: int) -> list[Row]:
    """What probes saw of a member, in the form of `Watch.rows`; nothing from its first that was not finite on."""
    last = found.diverged[i] or math.inf
    return [
        {"step": step, "tensor": EVERYTHING, "probe": name, "value": float(column[i, k])}
        for k, step in enumerate(found.probed)
        for name, column in found.probes.items()
        if step < last and found.measured[name][i, k]
    ]

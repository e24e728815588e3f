"""Many runs of one recipe at once, by `sandbox.ensemble`; their rows equal those of single runs to rounding."""

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
from sandbox.experiments.runs import training
from sandbox.experiments.runs.methods import Method, RecipeMethod
from sandbox.experiments.runs.run import Run
from sandbox.experiments.runs.training import Row
from sandbox.experiments.settings import Options
from sandbox.probes import EVERYTHING
from sandbox.recipe import Recipe, analysis
from sandbox.tasks import Task

DROPOUTS = nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout

TOGETHER = "vmap"  # the `way` of such runs
Tell = Callable[[int, int, Row | None], None]  # a run's place, updates since the last call, an evaluation if there is one


def why_not(task: Task, method: Method, schedule: Any, options: Options) -> str | None:
    """Returns why runs of a method are made one by one, in a few words; None where they can be made together."""
    if not isinstance(method, RecipeMethod):
        return "it is no recipe"
    if method.moving:
        return "its rate is a function of t"
    if not isinstance(schedule, str):
        return "the schedule is a function"
    if changed := options.needs_a_loop():
        return f"{changed} set"
    return network(task) or refusal(method.recipe, task)


def network(task: Task) -> str | None:
    """Returns what keeps a task's network from being a function of its parameters alone; None where nothing does."""
    start = task.start(0)
    if not isinstance(start, nn.Module):
        return None
    if any(True for _ in start.buffers()):
        return "the network has buffers"
    if any(not p.requires_grad for p in start.parameters()):
        return "the network has frozen parameters"
    if any(isinstance(m, DROPOUTS) and m.p > 0 for m in start.modules()):
        return "the network has dropout"
    if any(set(group) - {"params"} for group in task.groups(start)):
        return "the task has parameter groups"
    return None


def batch_id(runs: Sequence[Run]) -> str:
    """Returns digits of the set of runs that train together: rounding depends on which they are."""
    text = repr(sorted((r.role, r.lr, r.seed, r.numbers) for r in runs))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def train(
    task: Task, method: RecipeMethod, runs: Sequence[Run], probes: Sequence[Any], every: int, tell: Tell
) -> list[tuple[list[Row], list[Row]]]:
    """Trains runs of one recipe that differ in rate, seed and role; returns rows and measurements in their order.

    tell: called with (place of the run, updates, row) as updates and rows come.
    """
    outcomes: dict[int, tuple[list[Row], list[Row]]] = {}
    with training.threads(runs[0].options.threads):
        for places in _products(runs):
            some = [runs[i] for i in places]

            def report(place: int, n: int, row: Row | None, places: Sequence[int] = places) -> None:
                tell(places[place], n, row)

            outcomes |= dict(zip(places, _together(task, method.recipe, some, probes, every, report), strict=True))
    return [outcomes[i] for i in range(len(runs))]


def _products(runs: Sequence[Run]) -> list[list[int]]:
    """Returns the places of runs that are all rates × all seeds of a set, in that order."""
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
    first, reported = runs[0], 0
    top = max(schedules.factors(first.steps, first.warmup, first.schedule))
    fits = [allows(recipe, top * run.lr) for run in runs]  # the recipe's decay, every rate of the run

    def advance(done: int, total: int) -> None:
        nonlocal reported
        tell(0, done - reported, None)
        reported = done

    def evaluated(step: int, places: Sequence[int], values: dict[str, np.ndarray], finite: np.ndarray) -> None:
        for k, place in enumerate(places):
            if step < first.steps and fits[place] and finite[k] and math.isfinite(values["train_loss"][k]):
                row = _row(task, recipe, step, {name: float(column[k]) for name, column in values.items()})
                tell(place, 0, training.running(row))

    rates, seeds = list(dict.fromkeys(r.lr for r in runs)), sorted({r.seed for r in runs})
    members = ensemble.run(
        recipe, task, lr=rates, seeds=seeds, steps=first.steps, warmup=first.warmup, schedule=first.schedule,
        evaluations=first.at, full_at=first.full_at, probes=probes, every=every, progress=advance, evaluated=evaluated,
    )  # fmt: skip
    seconds = members.seconds / len(runs) / first.steps
    rows = [_rows(task, recipe, r, members, i, seconds) if fits[i] else training.never(r) for i, r in enumerate(runs)]
    return [(some, _measured(members, i)) for i, some in enumerate(rows)]


def _rows(task: Task, recipe: Recipe, run: Run, members: ensemble.Ensemble, i: int, seconds: float) -> list[Row]:
    rows, first, diverged = list[Row](), int(members.diverged[i]), bool(members.diverged[i])
    params = {name: p[i] for name, p in members.params.items()}
    found = task.parameter_roles() if recipe.roles else {}
    roles = [found[name].role for name in params] if found else None
    words = analysis.state_elements(recipe, [p.shape for p in params.values()], roles)
    for k, step in enumerate(members.at):
        values = {name: float(column[i, k]) for name, column in members.evaluations.items()}
        if step and ((first and step >= first) or not math.isfinite(values["train_loss"])):
            diverged = True
            break
        rows.append({**_row(task, recipe, step, values), "state_words": words})
    return training.finished(rows, run, diverged, seconds, functools.partial(_test, task, params))


def _row(task: Task, recipe: Recipe, step: int, values: dict[str, float]) -> Row:
    floor, train_loss, sample_loss = values.pop("floor_occupancy"), values.pop("train_loss"), values.pop("sample_loss", None)
    gradients = step * recipe.analysis.evaluations
    measured = None if math.isnan(floor) else floor
    return training.row(task, step, train_loss, list(values.values()), measured, gradients, sample_loss)


def _test(task: Task, params: dict[str, Any]) -> tuple[float, ...]:
    return tuple(float(value) for value in task.apply(task.measure, params, task.full("test"), training=False))


def _measured(members: ensemble.Ensemble, i: int) -> list[Row]:
    """Returns a member's measurements in the form of `Watch.rows`, up to its first step that was not finite."""
    last = members.diverged[i] or math.inf
    return [
        {"step": step, "tensor": EVERYTHING, "probe": name, "value": float(column[i, k])}
        for k, step in enumerate(members.probed)
        for name, column in members.probes.items()
        if step < last and members.measured[name][i, k]
    ]

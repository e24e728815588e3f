"""What a step costs each variant, in the units of a comparison's budget."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from sandbox import backends
from sandbox.experiments.runs.methods import Method, RecipeMethod
from sandbox.experiments.runs.run import TUNING_SEEDS_FROM, Run
from sandbox.experiments.runs.training import Row, train
from sandbox.experiments.settings import ComparisonSettings
from sandbox.tasks import Task

PILOT = 12  # updates of the run that measures a step


def of_steps(methods: Sequence[Method], task: Task, settings: ComparisonSettings, facts: Mapping[str, Any]) -> dict[str, float]:
    """Returns variant -> cost of a step: 1, gradient evaluations, or seconds divided by those of the first variant.

    Gradient evaluations of a recipe are known; those of a torch optimizer, and all seconds, are measured in a short run.
    facts: of a manifest, whose seconds are taken where variant, task and options are the same: runs then are too.
    Raises ValueError where a short run diverges.
    """
    if settings.budget == "steps":
        return dict.fromkeys((m.name for m in methods), 1.0)
    if settings.budget == "gradients":
        return {m.name: _gradients(m, task, settings) for m in methods}
    same = all(facts.get(name) == value for name, value in _conditions(task, settings).items())
    stored = {name: facts["costs"][name] for name, text in facts.get("recipes", {}).items() if same and name in facts["costs"]}
    first, *_ = methods
    known = {
        m.name: stored[m.name]
        for m in methods
        if m.name in stored and facts["recipes"][m.name] == m.text() and stored.get(first.name) == 1.0
    }
    if len(known) == len(methods):
        return known
    seconds = {m.name: _pilot(m, task, settings)["seconds_a_step"] for m in methods}
    return {name: value / seconds[first.name] for name, value in seconds.items()}


def _conditions(task: Task, settings: ComparisonSettings) -> dict[str, Any]:
    """Returns what a manifest must say for its seconds to hold."""
    return {
        "budget": settings.budget, "task": task.name, "backend": str(settings.backend),
        "options": dataclasses.asdict(settings.options),
    }  # fmt: skip


def _gradients(method: Method, task: Task, settings: ComparisonSettings) -> float:
    if isinstance(method, RecipeMethod):
        return float(method.recipe.analysis.evaluations)
    row = _pilot(method, task, settings)
    return float(row["gradients"]) / row["step"] / settings.accumulate


def _pilot(method: Method, task: Task, settings: ComparisonSettings) -> Row:
    """Returns the last row of a short run with the method's own rate."""
    options = dataclasses.replace(settings.options, ranks=1)
    run = Run(
        task=task.name, method=method.fingerprint(), lr=method.lr, seed=TUNING_SEEDS_FROM, role="tuning", steps=PILOT,
        at=(PILOT,), full_at=(), way=backends.get(settings.backend).name, options=options,
    )  # fmt: skip
    row = train(task, method, run)[-1]
    if row["diverged"]:
        raise ValueError(
            f"budget={settings.budget!r}: {method.name} diverges at its own rate {method.lr:g} within {PILOT} updates, so that "
            "its steps cannot be measured; give it a lower one"
        )
    return row

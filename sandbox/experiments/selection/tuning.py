"""The tuning of methods: which numbers each method's final runs take."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from sandbox.experiments.runs.methods import Method
from sandbox.experiments.runs.run import Run
from sandbox.experiments.selection.search import Axis, Chosen, Trial, Tuner
from sandbox.experiments.work import Work


class Tunable(Protocol):
    """What is tuned: methods with the axes of their numbers, the kind of tuner, and the runs that judge a trial."""

    @property
    def methods(self) -> Sequence[Method]: ...  # noqa: D102
    @property
    def tuner(self) -> str: ...  # noqa: D102
    @property
    def trials(self) -> int: ...  # noqa: D102
    def axes(self, method: Method) -> dict[str, Axis]: ...  # noqa: D102
    def tuning(self, method: Method, numbers: Mapping[str, Any]) -> list[Run]: ...  # noqa: D102


def tune(plan: Tunable, work: Work, what: str) -> dict[str, Tuner]:
    """Tries the trials of every method; returns a tuner per method's name, with the mean validation loss of each trial."""
    tuners = {m.name: Tuner(plan.axes(m), plan.tuner, plan.trials, i) for i, m in enumerate(plan.methods)}
    while True:
        proposals = {name: tuner.ask() for name, tuner in tuners.items()}
        if not any(proposals.values()):
            return tuners
        done = work.run(
            [(m, run) for m in plan.methods for n in proposals[m.name] for run in plan.tuning(m, {"lr": m.lr, **n})], what
        )
        for name, numbers in proposals.items():
            losses = work.losses([run for method, run in done if method.name == name])
            each = len(losses) // max(len(numbers), 1)
            means = [float(np.mean(losses[i * each : (i + 1) * each])) if losses else math.inf for i in range(len(numbers))]
            tuners[name].tell([Trial(n, loss) for n, loss in zip(numbers, means, strict=True)])


def choose(method: Method, tuner: Tuner, *, relative: bool) -> Chosen:
    """Returns the numbers with the lowest mean validation loss; of equal ones, those with the rate nearest to the default."""

    def distance(trial: Trial) -> float:
        return abs(math.log(trial.numbers.get("lr", method.lr) / method.lr))

    best = min(tuner.trials, key=lambda t: (t.loss, distance(t)))
    survived = math.isfinite(best.loss)
    numbers = {"lr": method.lr, **best.numbers}
    grid = [t.numbers["lr"] for t in tuner.trials] if relative else []
    edge = numbers["lr"] in (min(grid), max(grid)) if grid else any(a.on_edge(numbers[n]) for n, a in tuner.axes.items())
    return Chosen(numbers, survived and edge, survived, tuner.trials)

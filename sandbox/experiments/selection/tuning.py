"""The tuning of methods: which numbers each method's final runs take."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from sandbox.experiments.runs.methods import Method
from sandbox.experiments.runs.run import Run
from sandbox.experiments.selection.axes import Trial
from sandbox.experiments.selection.search import Chosen, Tuner
from sandbox.experiments.work import Work


class Tunable(Protocol):
    """What is tuned: methods, the tuner of each one's numbers, and the runs that judge a trial."""

    @property
    def methods(self) -> Sequence[Method]: ...  # noqa: D102
    def new_tuner(self, method: Method, seed: int) -> Tuner: ...  # noqa: D102
    def tuning(self, method: Method, numbers: Mapping[str, Any]) -> list[Run]: ...  # noqa: D102


def tune(plan: Tunable, work: Work, what: str) -> dict[str, Tuner]:
    """Tries the trials of every method; returns a tuner per method's name, with the validation losses of each trial."""
    tuners = {m.name: plan.new_tuner(m, i) for i, m in enumerate(plan.methods)}
    while True:
        proposals = {m.name: tuners[m.name].ask() for m in plan.methods if m.name not in work.failed}
        if not any(proposals.values()):
            return tuners
        wanted = []
        for m in plan.methods:
            trials = [plan.tuning(m, {"lr": m.lr, **n}) for n in proposals.get(m.name, ())]
            left = max(tuners[m.name].budget - len(tuners[m.name].trials), 0)
            work.total += sum(map(len, trials[left:]))  # beyond the budget
            wanted += [(m, run) for runs in trials for run in runs]
        done = work.run(wanted, what)
        for name, numbers in proposals.items():
            losses = work.losses([run for method, run in done if method.name == name])
            each = len(losses) // max(len(numbers), 1)
            tuners[name].tell([Trial(n, tuple(losses[i * each : (i + 1) * each])) for i, n in enumerate(numbers)])


def choose(method: Method, tuner: Tuner) -> Chosen:
    """Returns the numbers that a search has found best; the method's own rate where no trial survived."""
    survived = any(math.isfinite(trial.loss) for trial in tuner.trials)
    numbers, on_edge = tuner.best(method.lr)
    return Chosen({"lr": method.lr, **numbers}, survived and on_edge, survived, tuner.trials)

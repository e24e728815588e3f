"""What a comparison is asked for, in one form; which runs that means."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from sandbox import backends, schedules, tasks
from sandbox.experiments.runs import identity, shares, vectorised
from sandbox.experiments.runs.methods import Method, Ours, methods
from sandbox.experiments.runs.settings import Options, Run
from sandbox.experiments.selection import search as searching
from sandbox.probes import ALL
from sandbox.probes.watch import Watch, find
from sandbox.tasks import Task
from sandbox.utils import suggest

TUNING_SEEDS_FROM = 10_000  # tuning seeds are 10000, 10001, …; final ones 0, 1, …


@dataclasses.dataclass(frozen=True)
class Plan:
    """What `compare` is asked for; see there."""

    methods: list[Method]
    task: Task
    seeds: int
    tuning_seeds: int
    rates: int
    spacing: float
    search: dict[str, Any]
    tuner: str
    trials: int
    steps: int
    warmup: int
    schedule: Any
    at: tuple[int, ...]
    backend: Any
    vectorised: bool
    options: Options
    probes: tuple[Any, ...]
    every: int
    reuse: bool

    @property
    def names(self) -> list[str]:
        """Of the variants."""
        return [method.name for method in self.methods]

    @functools.cached_property
    def refusals(self) -> dict[str, str]:
        """Variant -> why its runs are made one by one, where they are not made together."""
        if not self.vectorised or self.backend != "eager":
            return dict.fromkeys(self.names, "")
        reasons = {m.name: vectorised.why_not(self.task, m, self.schedule, self.options) for m in self.methods}
        return {name: reason for name, reason in reasons.items() if reason is not None}

    @property
    def tuned(self) -> bool:
        """Whether anything is chosen."""
        return bool(self.search) or self.rates > 1

    def axes(self, method: Method) -> dict[str, searching.Axis]:
        """What is varied of a method."""
        if self.search:
            return searching.axes_of(self.search, method)
        return {"lr": searching.Axis(choices=tuple(self.grid(method)))}

    def grid(self, method: Any) -> list[float]:
        """Learning rates around the method's default, lowest first."""
        return [float(f"{method.lr * self.spacing ** (k - (self.rates - 1) / 2):.6g}") for k in range(self.rates)]

    def runs(self, method: Method, numbers: Mapping[str, Any], seeds: Sequence[int], role: str) -> list[Run]:
        """The runs of some numbers, a seed each; those of a search are evaluated at their end alone."""
        rest = tuple(sorted((name, value) for name, value in numbers.items() if name != "lr"))
        at = self.at if role == "final" else (self.steps,)
        together = method.name not in self.refusals
        return [
            Run(
                task=self.task.name, method=method.replaced(dict(rest)).fingerprint(), lr=float(numbers["lr"]), seed=seed,
                role=role, steps=self.steps, at=at, warmup=self.warmup, schedule=self.schedule, numbers=rest,
                way=vectorised.TOGETHER if together else backends.get(self.backend).name, options=self.options,
                probes=self._watched, code=self._codes[method.name],
            )
            for seed in seeds
        ]  # fmt: skip

    def tuning(self, method: Method, numbers: Mapping[str, Any]) -> list[Run]:
        """The runs that judge some numbers."""
        return self.runs(method, numbers, range(TUNING_SEEDS_FROM, TUNING_SEEDS_FROM + self.tuning_seeds), "tuning")

    def final(self, method: Method, numbers: Mapping[str, Any]) -> list[Run]:
        """The runs that are reported."""
        return self.runs(method, numbers, range(self.seeds), "final")

    @functools.cached_property
    def _codes(self) -> dict[str, str]:
        """Variant -> digits of all code and data that its runs depend on."""
        schedule = None if isinstance(self.schedule, str) else self.schedule
        held = self.task, schedule, [p for name, p in find(self.probes).items() if ALL.get(name) is not p]
        return {m.name: identity.of([identity.package(), m.parts(), held], self.reuse) for m in self.methods}

    @functools.cached_property
    def _watched(self) -> str:
        names = " ".join(find(self.probes))
        return f"{names} every {self.every}" if names else ""


def joined(runs: Sequence[tuple[Method, Run]]) -> list[tuple[Method, Run]]:
    """The same, with the company of those that are made together."""
    together: dict[Any, list[Run]] = {}
    for method, run in runs:
        if run.way == vectorised.TOGETHER:
            together.setdefault((method.name, run.numbers), []).append(run)
    digits = {key: vectorised.company(some) for key, some in together.items()}
    return [
        (m, dataclasses.replace(r, company=digits[m.name, r.numbers]) if r.way == vectorised.TOGETHER else r) for m, r in runs
    ]


def plan(
    recipes: Sequence[Any],
    task: str | Task,
    *,
    seeds: int,
    tuning_seeds: int,
    rates: int,
    spacing: float,
    search: Mapping[str, Any] | None,
    tuner: str,
    trials: int | None,
    steps: int | None,
    warmup: int | None,
    schedule: Any,
    evaluations: int,
    evaluate_every: int | str | None,
    backend: Any,
    vectorised: bool,
    options: Options,
    probes: Sequence[Any],
    every: int,
    reuse: bool,
) -> Plan:
    """The plan.  Raises ValueError or TypeError for what cannot be."""
    found = methods(recipes, "compare")
    for method in found:
        if not method.lr > 0:
            raise ValueError(f"{method.name}: compare tunes a rate around the recipe's own, which must be a number above 0")
        if isinstance(method, Ours) and method.moving and ((warmup or 0) > 0 or schedule != "constant"):
            raise ValueError(f"{method.name}: its rate is a function of t; with it, warmup must be 0 and schedule 'constant'")
    made = tasks.get(task)
    steps = made.steps if steps is None else steps
    trials = rates if trials is None else trials
    moving = any(isinstance(m, Ours) and m.moving for m in found)
    warmup = (0 if moving else steps // 10) if warmup is None else warmup
    least = {"seeds": (seeds, 2), "tuning_seeds": (tuning_seeds, 1), "rates": (rates, 1), "steps": (steps, 1)}
    least |= {"evaluations": (evaluations, 1), "warmup": (warmup, 0), "trials": (trials, 1)}
    for name, (value, low) in least.items():
        whole(name, value, low)
    if warmup > steps:
        raise ValueError(f"warmup must lie in [0, {steps}], the number of steps, got {warmup}")
    if not 1 < spacing <= 1000:
        raise ValueError(f"spacing must lie in (1, 1000], got {spacing}")
    backends.get(backend)
    schedules.checked(schedule)
    every = Watch((), every=every).every
    at = _at(made, steps, evaluations, evaluate_every)
    if options.device != "cpu" and made.pure:
        raise ValueError(f"device: task {made.name!r} is a function of parameters and runs on the CPU")
    result = Plan(
        found, made, seeds, tuning_seeds, rates, spacing, dict(search or {}), tuner, trials, steps, warmup, schedule, at,
        backend, vectorised, options, tuple(find(probes).values()), every, reuse,
    )  # fmt: skip
    _check_search(result)
    if options.ranks > 1:
        own = [m.name for m in found if isinstance(m, Ours) and m.recipe.sees_rows]
        if own:
            raise ValueError(f"ranks={options.ranks}: {own[0]} draws labels or takes factors of layers, on each share its own")
        shares.check(made, options.ranks)
    return result


def _check_search(plan: Plan) -> None:
    if plan.tuner not in searching.TUNERS:
        raise ValueError(suggest.unknown("tuner", plan.tuner, searching.TUNERS))
    if plan.search:
        searching.check(plan.search, plan.methods)
        for method in plan.methods:
            plan.axes(method)
        return
    if plan.tuner != "grid":
        raise ValueError(f"tuner={plan.tuner!r} needs search=, the numbers and their ranges")
    for method in plan.methods:
        grid = plan.grid(method)
        if len(set(grid)) < plan.rates or not all(0 < lr < math.inf for lr in grid):
            raise ValueError(f"spacing {plan.spacing} gives {method.name} no grid of {plan.rates} different rates: {grid}")


def _at(task: Task, steps: int, evaluations: int, every: int | str | None) -> tuple[int, ...]:
    """The steps after which a run is evaluated, the last one included."""
    if every is None:
        return tuple(schedules.evenly(steps, evaluations))
    if every == "epoch":
        if task.epoch is None:
            raise ValueError(f'evaluate_every="epoch": task {task.name!r} has no epochs of known length')
        every = task.epoch
    whole("evaluate_every", every, 1)
    return (*range(int(every), steps, int(every)), steps)


def whole(name: str, value: Any, low: int) -> None:
    """Raises TypeError for what is no whole number, ValueError for one that is too low."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    if value < low:
        raise ValueError(f"{name} must be at least {low}, got {value}")

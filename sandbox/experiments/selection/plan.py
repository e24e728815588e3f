"""A comparison's plan: its settings with all that follows from methods and task, and the runs that this means."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from sandbox import backends, schedules, tasks
from sandbox.experiments.runs import identity, shares, vectorised
from sandbox.experiments.runs.methods import Method, RecipeMethod, methods
from sandbox.experiments.runs.run import TUNING_SEEDS_FROM, Run
from sandbox.experiments.runs.trained import Portion, portions
from sandbox.experiments.selection import costs
from sandbox.experiments.selection import search as searching
from sandbox.experiments.selection.axes import Axis
from sandbox.experiments.selection.contenders import SEEDS as CONTENDER_SEEDS
from sandbox.experiments.settings import ComparisonSettings, Options, whole
from sandbox.forms import lookup
from sandbox.probes import ALL
from sandbox.probes.watch import Watch, find
from sandbox.tasks import Task
from sandbox.utils import suggest

POINTS = 20  # of a curve, at most, if their number is not given


@dataclasses.dataclass(frozen=True)
class ComparisonPlan:
    """What `compare` does: the settings, and the numbers that they leave to task and methods.

    steps, warmup, at: updates, those of the warm-up and the evaluated ones of a variant with the whole budget.
    trials, limit: of a variant's search, and at most.
    costs: variant -> what a step costs of the budget, in units of what one of these steps does; 1 each where steps count.
    """

    settings: ComparisonSettings
    methods: list[Method]
    task: Task
    steps: int
    warmup: int
    trials: int
    limit: int
    at: tuple[int, ...]
    probes: tuple[Any, ...]
    costs: Mapping[str, float]

    @property
    def seeds(self) -> int:
        """Final runs per variant."""
        return self.settings.seeds

    @property
    def total(self) -> int:
        """Runs in all, as long as no search goes on beyond its budget and no choice has contenders."""
        tuning = self.trials * self.settings.tuning_seeds * self.tuned
        return len(self.methods) * (tuning + self.seeds)

    @property
    def names(self) -> list[str]:
        """The names of the variants."""
        return [method.name for method in self.methods]

    @functools.cached_property
    def refusals(self) -> dict[str, str]:
        """Variant -> why its runs are made one by one, where they do not train together."""
        if not self.settings.vectorised or self.settings.backend != "eager":
            return dict.fromkeys(self.names, "")
        if self.settings.budget == "seconds":
            return dict.fromkeys(self.names, "seconds are the budget")
        options = self.settings.options
        reasons = {m.name: vectorised.why_not(self.task, m, self.schedule(m), options) for m in self.methods}
        return {name: reason for name, reason in reasons.items() if reason is not None}

    @property
    def tested_apart(self) -> bool:
        """Whether results are on other data than numbers were chosen on."""
        return self.task.has_test_split

    @functools.cached_property
    def sources(self) -> dict[str, str]:
        """Variant -> where its numbers come from, if they are a packaged recipe's or a torch optimizer's own; "" if not."""
        return {m.name: _source(m) for m in self.methods}

    @functools.cached_property
    def lengths(self) -> dict[str, int]:
        """Variant -> updates of a run: as many as the budget pays for, at least one."""
        return {name: max(int(self.steps / self.costs[name] + 1e-9), 1) for name in self.names}

    @property
    def sampled(self) -> bool:
        """Whether training losses before the end are those of a sample."""
        return self.task.training_sample is not None

    def schedule(self, method: Method) -> Any:
        """Returns the schedule of a method's rate: a name or a function; constant where it must not follow one."""
        schedule = self.settings.schedule
        if isinstance(schedule, Mapping):
            schedule = schedule.get(method.name, "constant")
        return "constant" if method.steady else schedules.checked(schedule)

    @property
    def schedules(self) -> str:
        """What rates do after the warm-up, in words: what most variants have, and who has something else."""
        by_name = {m.name: "its own rate without warm-up" if m.moving else _named(self.schedule(m)) for m in self.methods}
        usual = max(dict.fromkeys(by_name.values()), key=list(by_name.values()).count)
        others = [f"{name}: {schedule}" for name, schedule in by_name.items() if schedule != usual]
        return ", ".join([usual, *others])

    @property
    def tuned(self) -> bool:
        """Whether anything is chosen."""
        return self.settings.tuned

    def axes(self, method: Method) -> dict[str, Axis]:
        """Returns what is varied of a method."""
        if self.settings.search or self.settings.tuner == "coordinate":
            return searching.axes_of(self.settings.search or {"lr": None}, method)
        return {"lr": Axis(choices=tuple(self.grid(method)))}

    def new_tuner(self, method: Method, seed: int) -> searching.Tuner:
        """Returns a tuner of a method's numbers."""
        return searching.new_tuner(self.axes(method), self.settings, self.settings.tuner, seed)

    def grid(self, method: Any) -> list[float]:
        """Returns learning rates around the method's default, lowest first: a grid, or the first round of a search."""
        rates, spacing = self.settings.rates, self.settings.spacing
        return [float(f"{method.lr * spacing ** (k - (rates - 1) / 2):.6g}") for k in range(rates)]

    def runs(self, method: Method, numbers: Mapping[str, Any], seeds: Sequence[int], role: str) -> list[Run]:
        """Returns the runs of some numbers, one per seed; those of a search are evaluated only at their end."""
        rest = tuple(sorted((name, value) for name, value in numbers.items() if name != "lr"))
        together, steps = method.name not in self.refusals, self.lengths[method.name]
        at = self.at if steps == self.steps else _evaluated_steps(self.task, steps, self.settings)
        run = Run(
            task=self.task.name, method=method.replaced(dict(rest)).fingerprint(), lr=float(numbers["lr"]), seed=0, role=role,
            steps=steps, at=at if role == "final" else (steps,),
            full_at=() if role == "tuning" else (steps,), warmup=0 if method.moving else self.warmup * steps // self.steps,
            schedule=self.schedule(method), numbers=rest, options=self.settings.options, probes=self._probes_text,
            way=vectorised.TOGETHER if together else backends.get(self.settings.backend).name, code=self._codes[method.name],
        )  # fmt: skip
        return [dataclasses.replace(run, seed=seed) for seed in seeds]

    def tuning(self, method: Method, numbers: Mapping[str, Any]) -> list[Run]:
        """Returns the runs that judge some numbers."""
        seeds = range(TUNING_SEEDS_FROM, TUNING_SEEDS_FROM + self.settings.tuning_seeds)
        return self.runs(method, numbers, seeds, "tuning")

    def final(self, method: Method, numbers: Mapping[str, Any]) -> list[Run]:
        """Returns the runs that are reported."""
        return self.runs(method, numbers, range(self.seeds), "final")

    def contending(self, method: Method, chosen: searching.Chosen) -> list[Run]:
        """Returns the runs of the numbers that other tuning seeds might have chosen."""
        seeds = range(min(self.seeds, CONTENDER_SEEDS))
        return [run for t in chosen.contenders for run in self.runs(method, {"lr": method.lr, **t.numbers}, seeds, "contender")]

    @functools.cached_property
    def _codes(self) -> dict[str, str]:
        """Variant -> fingerprint of all code and data that its runs depend on."""
        own, reuse = [p for name, p in find(self.probes).items() if ALL.get(name) is not p], self.settings.reuse

        def fingerprint(m: Method) -> str:
            schedule = None if isinstance(self.schedule(m), str) else self.schedule(m)
            return identity.fingerprint([identity.package(), m.parts(), (self.task, schedule, own)], reuse)

        return {m.name: fingerprint(m) for m in self.methods}

    @functools.cached_property
    def _probes_text(self) -> str:
        names = " ".join(find(self.probes))
        return f"{names} every {self.settings.every}" if names else ""

    @functools.cached_property
    def evaluated_share(self) -> float:
        """Rows evaluated per row trained, over all runs that are planned; NaN where the task has no rows."""
        s, task = self.settings, self.task
        tuning = s.tuning_seeds * self.trials if self.tuned else 0
        train, validation = task.split_size("train"), task.split_size("validation")
        point = validation + (validation if self.sampled else train)
        evaluated = tuning * 2 * point + s.seeds * evaluated_rows(task, len(self.at))
        steps = sum(self.lengths.values()) / len(self.lengths)
        return evaluated / ((tuning + s.seeds) * trained_rows(task, steps, s.options))

    @functools.cached_property
    def trained(self) -> dict[str, list[Portion]]:
        """Variant -> who trains what, for variants of several optimizers."""
        found = {method.name: portions(self.task, method) for method in self.methods}
        return {name: some for name, some in found.items() if some}

    def facts(self) -> dict[str, Any]:
        """Returns what the manifest of a comparison says."""
        s = self.settings
        tuning = list(range(TUNING_SEEDS_FROM, TUNING_SEEDS_FROM + s.tuning_seeds))
        return {
            "task": self.task.name,
            "metric": self.task.metric,
            "higher_is_better": self.task.higher_is_better,
            "seeds": {"final": list(range(self.seeds)), "tuning": tuning},
            **{name: getattr(s, name) for name in ("tuning_seeds", "rates", "spacing", "tuner")},
            **{name: getattr(self, name) for name in ("trials", "limit", "steps", "warmup")},
            **{name: getattr(s, name) for name in ("vectorised", "every", "budget", "target")},
            "lengths": self.lengths,
            "tested_apart": self.tested_apart,
            "sources": self.sources,
            "costs": dict(self.costs),
            "schedule": self.schedules,
            "evaluated_at": list(self.at),
            "evaluated_share": self.evaluated_share,
            "sampled": self.sampled,
            "search": {name: repr(space) for name, space in (s.search or {}).items()},
            "backend": str(s.backend),
            "options": dataclasses.asdict(s.options),
            "probes": [getattr(p, "__name__", repr(p)) for p in self.probes],
            "one by one": self.refusals,
            "trained": self.trained,
            "defaults": {m.name: m.lr for m in self.methods},
            "weight_decay": {m.name: untuned_decay(m, s.search) for m in self.methods},
            "grids": {m.name: self.grid(m) for m in self.methods},
            "recipes": {m.name: m.text() for m in self.methods},
        }


def _named(schedule: Any) -> str:
    return schedule if isinstance(schedule, str) else getattr(schedule, "__name__", "a function")


def _source(method: Method) -> str:
    if not isinstance(method, RecipeMethod):
        return "" if method.options or method.only else f"{method.path}, its own defaults"
    variants = lookup.package("variants")
    if method.name not in variants.names() or method.fingerprint() != RecipeMethod(variants.get(method.name)).fingerprint():
        return ""
    return str(variants.about(method.name)).splitlines()[0]


def untuned_decay(method: Any, search: Mapping[str, Any] | None) -> float:
    """Returns the largest weight decay of a method that is not searched, 0 where there is none."""
    fixed = [v for name, v in method.hyperparameters().items() if name not in (search or {}) and name.endswith("weight_decay")]
    return max((float(v) for v in fixed if not callable(v)), default=0.0)


def plan(
    recipes: Sequence[Any], task: str | Task, settings: ComparisonSettings, facts: Mapping[str, Any] | None = None
) -> ComparisonPlan:
    """Returns the plan.  Raises ValueError or TypeError for settings that methods or task do not allow.

    facts: of an earlier plan, whose measured seconds hold for variants that have not changed.
    """
    resolved, resolved_task, warmup = methods(recipes, "compare"), tasks.get(task), settings.warmup
    for method in resolved:
        if not method.lr > 0:
            raise ValueError(f"{method.name}: compare tunes a rate around the recipe's own, which must be a number above 0")
    steps = resolved_task.steps if settings.steps is None else settings.steps
    if not isinstance(steps, int):
        raise TypeError(f"the plan of one comparison has one number of steps, got {steps!r}")
    if warmup is None:
        warmup = 0 if all(method.moving for method in resolved) else steps // 10
    if warmup > steps:
        raise ValueError(f"warmup must lie in [0, {steps}], the number of steps, got {warmup}")
    backends.get(settings.backend)
    for name, schedule in settings.schedule.items() if isinstance(settings.schedule, Mapping) else [("", settings.schedule)]:
        schedules.checked(schedule)
        if name and name not in (names := [m.name for m in resolved]):
            raise ValueError(f"schedule: {suggest.unknown('variant', name, names)}")
    Watch((), every=settings.every)
    options = settings.options
    if options.device != "cpu" and resolved_task.pure:
        raise ValueError(f"device: task {resolved_task.name!r} is a function of parameters and runs on the CPU")
    at, probes = _evaluated_steps(resolved_task, steps, settings), tuple(find(settings.probes).values())
    trials, limit = searching.budget(settings, settings.tuner)
    spent = costs.of_steps(resolved, resolved_task, settings, facts or {})
    result = ComparisonPlan(settings, resolved, resolved_task, steps, warmup, trials, limit, at, probes, spent)
    _check_search(result)
    if options.ranks > 1:
        per_row = [m.name for m in resolved if isinstance(m, RecipeMethod) and m.recipe.analysis.needs_rows]
        if per_row:
            raise ValueError(
                f"ranks={options.ranks}: {per_row[0]} draws labels or takes factors of layers, on each share its own"
            )
        shares.check(resolved_task, options.ranks)
    return result


def _check_search(plan: ComparisonPlan) -> None:
    settings = plan.settings
    if settings.tuner not in searching.TUNERS:
        raise ValueError(suggest.unknown("tuner", settings.tuner, searching.TUNERS))
    if settings.search:
        searching.check(settings.search, plan.methods)
        endless = [n for m in plan.methods for n, axis in plan.axes(m).items() if not axis.choices and math.isinf(axis.length)]
        if endless and settings.tuner != "coordinate":
            raise ValueError(f"tuner={settings.tuner!r} needs a range for {endless[0]!r}, got None")
        return
    if settings.tuner not in ("coordinate", "grid"):
        raise ValueError(f"tuner={settings.tuner!r} needs search=, the numbers and their ranges")
    for method in plan.methods:
        grid = plan.grid(method)
        if len(set(grid)) < settings.rates or not all(0 < lr < math.inf for lr in grid):
            raise ValueError(
                f"spacing {settings.spacing} gives {method.name} no grid of {settings.rates} different rates: {grid}"
            )


def _evaluated_steps(task: Task, steps: int, settings: ComparisonSettings) -> tuple[int, ...]:
    """Returns the steps after which a run is evaluated, the last one included."""
    every = settings.evaluate_every
    if every is None:
        count = _affordable(task, steps, settings) if settings.evaluations is None else settings.evaluations
        return tuple(schedules.evenly(steps, count))
    if every == "epoch":
        if task.epoch is None:
            raise ValueError(f'evaluate_every="epoch": task {task.name!r} has no epochs of known length')
        every = task.epoch
    whole("evaluate_every", every, 1)
    return (*range(int(every), steps, int(every)), steps)


def evaluated_rows(task: Task, points: int) -> float:
    """Returns the rows that a final run evaluates: at its start and `points` times, the last time on whole splits.

    NaN where the task has no rows.
    """
    train, validation, test = (task.split_size(split) for split in ("train", "validation", "test"))
    sample = train if task.training_sample is None else validation
    rows = points * (sample + validation) + train + validation + test
    return rows if math.isfinite(rows) else math.nan


def trained_rows(task: Task, steps: float, options: Options) -> float:
    """Returns the rows that a run trains on."""
    return steps * task.update_size() * options.accumulate


def _affordable(task: Task, steps: int, settings: ComparisonSettings) -> int:
    """Returns the most points of a curve, up to `POINTS`, at which a run evaluates half as many rows as it trains on."""
    budget = trained_rows(task, steps, settings.options) / 2
    dear = (count for count in range(2, POINTS + 1) if evaluated_rows(task, count) > budget)
    return next(dear, POINTS + 1) - 1

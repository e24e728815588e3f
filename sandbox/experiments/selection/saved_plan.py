"""A comparison's plan as its manifest tells it: enough for every table, page and picture, without the code that was run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class SavedMethod:
    """Name, default rate and text of a variant, and the weight decay that it has without being searched."""

    name: str
    lr: float
    description: str
    weight_decay: float

    def text(self) -> str:
        """Returns the variant as its report shows it."""
        return self.description

    def hyperparameters(self) -> dict[str, float]:
        """Returns the rate and the weight decay."""
        return {"lr": self.lr, "weight_decay": self.weight_decay}

    def words(self) -> None:
        """Returns nothing: what was measured is in the rows."""


@dataclasses.dataclass(frozen=True)
class SavedTask:
    """Name and metric of a task."""

    name: str
    metric: str
    higher_is_better: bool


@dataclasses.dataclass(frozen=True)
class SavedSettings:
    """Those settings of `ComparisonSettings` that reports show."""

    search: Mapping[str, Any]
    rates: int
    tuner: str
    tuning_seeds: int
    budget: str
    target: Any
    time_limit: float | None


@dataclasses.dataclass(frozen=True)
class SavedPlan:
    """What `sandbox.experiments.selection.plan.ComparisonPlan` says to reports."""

    settings: SavedSettings
    methods: list[SavedMethod]
    task: SavedTask
    steps: int
    warmup: int
    trials: int
    seeds: int
    refusals: dict[str, str]
    schedules: str
    at: tuple[int, ...]
    sampled: bool
    lengths: dict[str, int]
    tested_apart: bool
    sources: dict[str, str]
    evaluated_share: float
    trained: dict[str, list[Any]]

    @property
    def names(self) -> list[str]:
        """The names of the variants."""
        return [method.name for method in self.methods]

    @property
    def tuned(self) -> bool:
        """Whether anything was chosen."""
        return bool(self.settings.search) or self.settings.rates > 1


def from_facts(facts: Mapping[str, Any]) -> SavedPlan:
    """Returns the plan that a manifest tells.  Raises KeyError where it is of a version that did not say enough."""
    defaults, decays = facts["defaults"], facts["weight_decay"]
    methods = [SavedMethod(name, defaults[name], text, decays[name]) for name, text in facts["recipes"].items()]
    return SavedPlan(
        settings=SavedSettings(
            **{name: facts[name] for name in ("search", "rates", "tuner", "tuning_seeds")},
            budget=facts.get("budget", "steps"),
            target=facts.get("target"),
            time_limit=facts["options"]["time_limit"],
        ),
        methods=methods,
        task=SavedTask(facts["task"], facts["metric"], facts["higher_is_better"]),
        **{name: facts[name] for name in ("steps", "warmup", "trials")},
        seeds=len(facts["seeds"]["final"]),
        refusals=facts["one by one"],
        schedules=facts["schedule"],
        at=tuple(facts["evaluated_at"]),
        sampled=facts["sampled"],
        tested_apart=facts.get("tested_apart", True),
        sources=facts.get("sources", {}),
        lengths=facts.get("lengths", dict.fromkeys(facts["recipes"], facts["steps"])),
        evaluated_share=facts["evaluated_share"],
        trained=facts.get("trained", {}),
    )

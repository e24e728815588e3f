"""A study as data: arms (methods with all their numbers), parts (arms on a task), tiers (parts of a size).

Nothing here trains; `sandbox.studies.run` makes the runs and `sandbox.studies.report` reads them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sandbox.blocks import AdamWDecay, ClipGlobalNorm, ClipParameterNorm, Decoupled, L2Decay, WeakSecant, Zero
from sandbox.experiments.runs.methods import Method, RecipeMethod, TorchOptimizer
from sandbox.recipe import Recipe
from sandbox.studies.rates import RateSchedule

TIERS = ("smoke", "cpu", "gpu", "paper")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arm:
    """A method with every number that it runs with.

    method: a variant's name, or "module:Class" of a torch optimizer, whose arguments are then `numbers`.
    lr: η.  weight_decay: γ, in the form of `decay`: "l2" or "decoupled".
    clip: ("global", norm), ("parameter", norm) or None.  numbers: slots and numbers that replace the recipe's, by dotted name.
    warmup: updates of linear warm-up.  rate: the schedule after it, where it is not the part's.
    rate_of: the arm of the same part whose searched factor multiplies this one's η, where it has no search of its own.
    """

    name: str
    method: str
    lr: float
    weight_decay: float = 0.0
    decay: str = "l2"
    clip: tuple[str, float] | None = None
    numbers: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    warmup: int = 0
    rate: RateSchedule | None = None
    rate_of: str = ""

    def __post_init__(self) -> None:
        if self.decay not in ("l2", "decoupled"):
            raise ValueError(f'decay must be "l2" or "decoupled", got {self.decay!r}')
        if self.clip is not None and self.clip[0] not in ("global", "parameter"):
            raise ValueError(f'clip must be ("global", norm) or ("parameter", norm), got {self.clip!r}')
        if ":" in self.method and (self.weight_decay or self.clip):
            raise ValueError(f"arm {self.name!r}: decay and clipping are a recipe's, and {self.method} is none")

    def recipe(self) -> Recipe:
        """Returns the recipe, under the arm's name."""
        import variants

        base = variants.get(self.method)
        gradient: list[Any] = []
        if self.clip is not None:
            gradient.append({"global": ClipGlobalNorm, "parameter": ClipParameterNorm}[self.clip[0]](max_norm=self.clip[1]))
        slots: dict[str, Any] = {}
        if self.weight_decay and self.decay == "l2":
            gradient.append(L2Decay(weight_decay=self.weight_decay))
        elif self.weight_decay:
            kind = Decoupled if isinstance(base.curvature, WeakSecant | Zero) else AdamWDecay
            slots["decay"] = kind(weight_decay=self.weight_decay)
        if gradient:
            slots["gradient"] = tuple(gradient)
        return base.replace(name=self.name, lr=self.lr, **slots).replace(name=self.name, **self.numbers)

    def build(self) -> Method:
        """Returns the recipe or the torch optimizer as a method of an experiment."""
        if ":" in self.method:
            return TorchOptimizer(self.method, lr=self.lr, name=self.name, **self.numbers)
        return RecipeMethod(self.recipe())

    def but(self, **changes: Any) -> Arm:
        """Returns the arm with other fields."""
        return dataclasses.replace(self, **changes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Search:
    """Rates that every arm is tried at before its final runs, `seeds` runs of `steps` updates each.

    factors: a grid of factors of the arm's own rate.  Without them the rate is searched: `points` rates √10 apart, then towards
    an optimum at an end and around one that is bracketed, `trials` in all, at most `limit`.
    The rate with the lowest mean validation loss is chosen.
    """

    steps: int
    factors: tuple[float, ...] = ()
    seeds: int = 1
    points: int = 5
    trials: int = 9
    limit: int = 15


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """Arms on a task; the first one is what the others are compared with.

    options: of the task.  seeds: paired: seed i has one initialisation and one order of batches in every arm.
    steps: updates, default the task's.  rate: the schedule.  evaluations: points of a curve.  search: of rates.
    timed: each run trains by itself and has its own time; otherwise many may train together and share one.
    measure: (recipe, task, seed, steps) -> numbers by name, further columns of each final run.
    """

    name: str
    task: str
    arms: tuple[Arm, ...]
    seeds: int
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    steps: int | None = None
    rate: RateSchedule = dataclasses.field(default_factory=RateSchedule)
    evaluations: int = 10
    search: Search | None = None
    timed: bool = False
    measure: Callable[[Recipe, Any, int, int], dict[str, float]] | None = None

    def __post_init__(self) -> None:
        names = [arm.name for arm in self.arms]
        if len(set(names)) < len(names):
            raise ValueError(f"part {self.name!r} has two arms of one name: {names}")
        searched = {arm.name for arm in self.arms if not arm.rate_of}
        if unknown := {arm.rate_of for arm in self.arms if arm.rate_of} - searched:
            raise ValueError(f"part {self.name!r}: rate_of must be an arm with a search of its own, got {sorted(unknown)[0]!r}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Study:
    """A question, and the runs that answer it in each tier.

    key: "F1" to "F15".  note: differences from the paper, and what cannot be decided.
    """

    key: str
    name: str
    question: str
    note: str
    tiers: Mapping[str, Sequence[Part]]

    def parts(self, tier: str) -> Sequence[Part]:
        """Returns the parts of a tier.  Raises ValueError for an unknown tier, or one that this study lacks."""
        if tier not in TIERS:
            raise ValueError(f"tier must be one of {', '.join(TIERS)}, got {tier!r}")
        if tier not in self.tiers:
            raise ValueError(f"study {self.key} has no {tier} tier; it has {', '.join(self.tiers)}")
        return self.tiers[tier]

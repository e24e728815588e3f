"""How numbers are chosen: coordinate descent, a grid, random draws, or Optuna's TPE; as many trials for every variant.

    search={"lr": (1e-4, 1, "log"), "rectifier.sigma": (1e-3, 1, "log"), "moment": [EMA(beta=0.9), NoMoment()]}

A range is (low, high), (low, high, "log"), or (low, high, "log", "relative") for factors of the variant's own value; None is
all numbers above 0, from that value on; a list is a choice, also of blocks for a slot.  A name that a variant lacks is not
varied there.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from sandbox.experiments.runs.methods import Method
from sandbox.experiments.selection.axes import Axis, Numbers, Trial
from sandbox.experiments.selection.contenders import contending
from sandbox.experiments.selection.coordinates import Descent
from sandbox.experiments.settings import SearchSettings
from sandbox.utils import suggest

TUNERS = ("coordinate", "grid", "random", "tpe")
REFINED, WIDENED = 4, 6  # further trials of a search: between those of the first round, and beyond them where it must go on
STARTUP = 10  # trials of TPE that are drawn at random, all at once


@dataclasses.dataclass(frozen=True)
class Chosen:
    """The numbers of a variant: whether they lie on the edge of their range, whether some trial survived, and all trials."""

    numbers: Numbers
    on_edge: bool
    tuned: bool
    trials: list[Trial]

    @property
    def contenders(self) -> list[Trial]:
        """The trials that other tuning seeds might have chosen."""
        return contending(self.trials, self.numbers) if self.tuned else []


def axes_of(search: Mapping[str, Any], method: Method) -> dict[str, Axis]:
    """Returns the axes of a variant.  Raises ValueError or TypeError for a malformed range."""
    values, axes = method.hyperparameters(), {}
    for name, given in search.items():
        how = (
            f"search: {name!r} must be (low, high), (low, high, 'log'[, 'relative']), None or a list of choices, got {given!r}"
        )
        if given is None:
            own = values.get(name, 1.0)
            if not (isinstance(own, int | float) and 0 < own < math.inf):
                raise ValueError(f"search: {name!r} of {method.name} is {own!r}, no number above 0 to start from; give a range")
            axis = Axis(log=True, start=float(own))
        elif isinstance(given, list):
            if len(given) < 2:
                raise ValueError(how)
            axis = Axis(choices=tuple(given))
        elif isinstance(given, tuple) and 2 <= len(given) <= 4 and set(given[2:]) <= {"log", "linear", "relative"}:
            low, high = float(given[0]), float(given[1])
            if not low < high < math.inf or ("log" in given and low <= 0):
                raise ValueError(how)
            own = values.get(name)
            start = float(own) if isinstance(own, int | float) else None
            factor = (start or 1.0) if "relative" in given else 1.0
            axis = Axis(low * factor, high * factor, "log" in given, start=start)
        else:
            raise TypeError(how)
        if name in values:
            axes[name] = axis
    return axes


def check(search: Mapping[str, Any], methods: Sequence[Method]) -> None:
    """Raises ValueError for a name that no variant has."""
    names = {name for method in methods for name in method.hyperparameters()}
    for name in search:
        if name not in names:
            raise ValueError(suggest.unknown("number to search", name, names))


def budget(settings: SearchSettings, tuner: str = "coordinate") -> tuple[int, int]:
    """Returns the trials of a search and the most that it may make.  Raises ValueError for too few."""
    trials, limit = settings.trials, settings.limit
    if trials is None:
        lines = len(settings.search) if settings.search else 1
        lines += lines > 1  # the first number is searched twice
        trials = lines * (settings.rates + REFINED) if tuner == "coordinate" else settings.rates
    limit = trials + WIDENED if limit is None else limit
    if tuner == "coordinate" and settings.rates > 1 and not settings.rates <= trials <= limit:
        raise ValueError(f"needed: rates <= trials <= limit, got {settings.rates}, {trials} and {limit}")
    return trials, limit


def new_tuner(axes: Mapping[str, Axis], settings: SearchSettings, tuner: str = "coordinate", seed: int = 0) -> Tuner:
    """Returns a tuner with the budget of the settings."""
    trials, limit = budget(settings, tuner)
    descent = Descent(axes, settings.rates, settings.spacing, trials, limit) if tuner == "coordinate" else None
    return Tuner(axes, tuner, trials, seed, descent)


class Tuner:
    """Proposes trials, in as few rounds as its method allows, and records their losses.

    trials: in all.  descent: how coordinates are searched, for the tuner of that name.
    """

    def __init__(
        self, axes: Mapping[str, Axis], tuner: str, trials: int, seed: int = 0, descent: Descent | None = None
    ) -> None:
        self.axes, self.kind, self.budget, self.left, self.descent = dict(axes), tuner, trials, trials, descent
        self.trials: list[Trial] = []
        self._open: list[Any] = []
        if tuner in ("random", "tpe"):
            self._study, self._spaces = _study(tuner, seed), _spaces(self.axes)

    def ask(self) -> list[Numbers]:
        """Returns the next numbers to try; none when the search is over."""
        if self.descent is not None:
            return self.descent.step(self.trials)[0]
        if not self.left:
            return []
        if self.kind == "grid":
            wanted, self.left = self._grid(), 0
            return wanted
        count = self.left if self.kind == "random" else min(self.left, STARTUP if not self.trials else 1)
        self.left -= count
        self._open = [self._study.ask(self._spaces) for _ in range(count)]
        return [self._numbers(trial.params) for trial in self._open]

    def tell(self, trials: Sequence[Trial]) -> None:
        """Records the losses of the last numbers."""
        self.trials += trials
        for opened, trial in zip(self._open, trials, strict=False):
            self._study.tell(opened, trial.loss if math.isfinite(trial.loss) else 1e300)

    def best(self, default: float) -> tuple[Numbers, bool]:
        """Returns the numbers of the lowest loss, and whether they lie on an edge of what was searched.

        default: a rate; of equal losses in a grid, the nearest to it is taken.
        """
        if self.descent is not None:
            return self.descent.step(self.trials)[1:]
        best = min(self.trials, key=lambda t: (t.loss, abs(math.log(t.numbers.get("lr", default) / default))))
        rates = [t.numbers["lr"] for t in self.trials if set(self.axes) == {"lr"} and self.axes["lr"].choices]
        if rates:
            return best.numbers, best.numbers["lr"] in (min(rates), max(rates))
        return best.numbers, any(axis.on_edge(best.numbers[name]) for name, axis in self.axes.items())

    def _grid(self) -> list[Numbers]:
        ranges = [axis for axis in self.axes.values() if not axis.choices]
        fixed = math.prod(len(axis.choices) for axis in self.axes.values() if axis.choices)
        each = 1
        while ranges and fixed * (each + 1) ** len(ranges) <= self.left:
            each += 1
        if each < 2 and ranges:
            raise ValueError(f"a grid over {', '.join(self.axes)} needs more trials than {self.left}")
        return [
            dict(zip(self.axes, row, strict=True)) for row in itertools.product(*(a.points(each) for a in self.axes.values()))
        ]

    def _numbers(self, params: Mapping[str, Any]) -> Numbers:
        return {name: axis.choices[params[name]] if axis.choices else params[name] for name, axis in self.axes.items()}


def _study(tuner: str, seed: int) -> Any:
    try:
        import optuna
    except ImportError as error:
        raise ValueError(f"tuner={tuner!r} needs Optuna: pip install 'apollo-sandbox[search]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if tuner == "random":
        return optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    return optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=STARTUP, multivariate=False))


def _spaces(axes: Mapping[str, Axis]) -> dict[str, Any]:
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    return {
        name: CategoricalDistribution(list(range(len(a.choices)))) if a.choices else FloatDistribution(a.low, a.high, log=a.log)
        for name, a in axes.items()
    }


def parse_range(text: str) -> tuple[str, tuple[Any, ...] | None]:
    """Returns name and range from "lr=1e-4:1:log", None in its place from "lr".  Raises ValueError for anything else."""
    name, sign, values = text.partition("=")
    if not sign and name.strip():
        return name.strip(), None
    low, _, rest = values.partition(":")
    high, *scale = rest.split(":")
    try:
        if not sign or not name.strip() or not set(scale) <= {"log", "linear", "relative"}:
            raise ValueError
        return name.strip(), (float(low), float(high), *scale)
    except ValueError:
        raise ValueError(f"write --search NAME or --search NAME=LOW:HIGH[:log[:relative]], got {text!r}") from None


# -- what a search shows ----------------------------------------------------------------------------------------------


def expected_best(trials: Sequence[Trial]) -> list[float]:
    """Returns the expected lowest loss of k of the trials drawn without replacement, for k = 1 … n.

    A diverged trial counts as the worst of those that did not; the list is empty where all diverged.

    E = Σ_i l_(i) C(n-i, k-1)/C(n, k), with the losses l_(1) ≤ … ≤ l_(n).
    """
    finite = [t.loss for t in trials if math.isfinite(t.loss)]
    if not finite:
        return []
    losses = sorted(t.loss if math.isfinite(t.loss) else max(finite) for t in trials)
    n = len(losses)
    return [
        sum(loss * math.comb(n - i, k - 1) for i, loss in enumerate(losses, start=1)) / math.comb(n, k) for k in range(1, n + 1)
    ]


def flatness(trials: Sequence[Trial], within: float = 0.01) -> float | None:
    """Returns the decades of the rate whose loss is at most (1 + within) times the best.

    Between neighbouring rates the loss is interpolated linearly in log η.  None where something else than the rate was varied
    too, or all diverged.
    """
    if not trials or any(set(t.numbers) != {"lr"} for t in trials):
        return None
    rows = sorted((math.log10(t.numbers["lr"]), t.loss) for t in trials)
    best = min(loss for _, loss in rows)
    if not math.isfinite(best):
        return None
    top, total = best + within * abs(best), 0.0
    for (x0, y0), (x1, y1) in itertools.pairwise(rows):
        inside = [y <= top for y in (y0, y1)]
        if all(inside):
            total += x1 - x0
        elif any(inside):
            low, high = sorted((y0, y1))
            total += (x1 - x0) * ((top - low) / (high - low) if math.isfinite(high) and high > low else 0.0)
    return total

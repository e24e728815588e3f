"""What an experiment can be asked for: keyword arguments, options of the command line and their help, in one place.

A settings class per function: `ComparisonSettings`, `SweepSettings`, `InspectionSettings`.  Its fields are the keyword
arguments of the function (by `takes`) and the options of its command; one object, checked when it is built, goes from there to
the runs.  Only the standard library is imported here, so that `--help` is fast.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

Progress = Callable[[float, int, str], None]  # (runs done, with the shares of those begun; runs in all; what is done)
Callback = Callable[[dict[str, Any]], None]
BUDGETS = ("steps", "gradients", "seconds")


def option(default: Any, text: str, *, least: int | None = None, command: bool = True) -> Any:
    """Returns a field with default, help text and smallest whole number.  command: whether the command line offers it."""
    return dataclasses.field(default=default, metadata={"help": text, "least": least, "command": command})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """How updates are made, beside the method."""

    accumulate: int = option(1, "Batches whose mean gradient makes an update.")
    autocast: str | None = option(None, "None, or bfloat16: losses and metrics in mixed precision.")
    state_dtype: str | None = option(None, "None, or bfloat16: a recipe's state in half the bytes, rounded at random.")
    device: str = option("cpu", "Where a network trains; a run starts from the same numbers on every device.")
    compile_model: bool = option(False, "torch.compile the network.")
    threads: int = option(1, "CPU threads per run; sums depend on their number.")
    ranks: int = option(
        1, "Processes that make a run together, each on its share of every batch: the same numbers to rounding."
    )
    time_limit: float | None = option(None, "Seconds after which a run ends, as it then stands.")

    def __post_init__(self) -> None:
        for name in ("accumulate", "threads", "ranks"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
        for name in ("autocast", "state_dtype"):
            if (dtype := getattr(self, name)) not in (None, "bfloat16"):
                raise ValueError(f'{name} must be None or "bfloat16", got {dtype!r}')
        if self.time_limit is not None and not 0 < self.time_limit < math.inf:
            raise ValueError(f"time_limit must be a number of seconds above 0, got {self.time_limit!r}")
        if self.ranks > 1 and self.device != "cpu":
            raise ValueError(f"ranks={self.ranks} train on the CPU, got device={self.device!r}")
        if self.device != "cpu":
            import torch

            try:
                torch.device(self.device)
            except RuntimeError as error:
                raise ValueError(f"device: {str(error).splitlines()[0]}") from error

    def needs_a_loop(self) -> str | None:
        """Returns the names of the options that a vectorised run does not support, or None."""
        changed = [f.name for f in dataclasses.fields(self) if getattr(self, f.name) != f.default]
        return ", ".join(changed) or None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What every experiment can be asked for."""

    steps: int | None = option(None, "Updates per run (the task's own number).", least=1)
    out: str | Path | None = option(None, "Folder for results; runs that are there already are not repeated.", command=False)
    reuse: bool = option(False, "Accept stored runs of code from `__main__` or a notebook as equal too.", command=False)
    progress: Progress | None = option(None, "Called during the runs with (done, in all, what).", command=False)

    def __post_init__(self) -> None:
        for f in dataclasses.fields(self):
            value, low = getattr(self, f.name), f.metadata["least"]
            if low is not None and (value, f.default) != (None, None):
                whole(f.name, value, low)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExecutionSettings(Settings):
    """Which backend makes the steps of single runs, where the runs are executed, and what is measured in them."""

    backend: str = option("eager", "How a step runs.")
    probes: Sequence[Any] = option((), "Measurements inside steps; see `sandbox.probes`.", command=False)
    jobs: int = option(1, "Processes side by side.", least=1)
    executor: Any = option(
        None, "Any `concurrent.futures.Executor`, dask's or submitit's, in place of jobs: docs/cluster.md.", command=False
    )
    callbacks: Sequence[Callback] = option((), "Called with every row as it comes, in this process.", command=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchSettings(Settings):
    """How numbers are searched; see `sandbox.experiments.selection.search`."""

    rates: int = option(5, "Learning rates of a search's first round, around the variant's default; 1: untuned.", least=1)
    spacing: float = option(10**0.5, "Factor between neighbouring rates of the first round.")
    search: Mapping[str, Any] | None = option(
        None,
        "Numbers to choose: name -> range, or None for one that is widened from the variant's own; see "
        "`sandbox.experiments.selection.search`.",
        command=False,
    )
    trials: int | None = option(None, "Trials per variant (rates + 4 for each number; of other tuners, rates).", least=1)
    limit: int | None = option(None, "Trials at most, while the best lies at an end of what was tried (trials + 6).", least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 < self.spacing <= 1000:
            raise ValueError(f"spacing must lie in (1, 1000], got {self.spacing}")

    @property
    def tuned(self) -> bool:
        """Whether anything is chosen."""
        return bool(self.search) or self.rates > 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class ComparisonSettings(ExecutionSettings, SearchSettings, Options):
    """The keyword arguments of `compare`."""

    steps: int | Sequence[int] | None = option(  # type: ignore[assignment]
        None, "Updates per run (the task's own number); several: a comparison at each length."
    )
    target: float | str | Mapping[str, Any] | None = option(
        None,
        "A value of the task's metric on the validation split: how soon runs reach it is shown. Or a variant's name, for the "
        "median over its seeds of the best value that it reaches; or task -> either. Of several tasks, by default what the "
        "first variant reaches.",
        command=False,
    )
    seeds: int = option(10, "Final runs per variant; exploratory below 6 for two variants, 8 for five.", least=2)
    tuning_seeds: int = option(
        3, "Tuning runs per learning rate; with two or more, intervals include the choice of rates.", least=1
    )
    tuner: str = option(
        "coordinate",
        "How numbers are chosen: coordinate (widened until the best one lies inside, then refined), grid, random or tpe.",
    )
    budget: str = option(
        "steps",
        "What every variant gets the same number of: steps; gradients (a variant that evaluates two per step makes half of the "
        "steps); or seconds, those of the first variant's steps, by the speeds of short runs.",
    )
    warmup: int | None = option(None, "Updates of linear warm-up (a tenth of the steps).", least=0)
    schedule: Any = option(
        "constant",
        "After the warm-up: constant, cosine, linear, inverse-sqrt, wsd (constant, then linear to 0 in the last fifth), "
        "wsd-sqrt (there as 1 - √), or module:function. From Python also variant -> schedule, the others constant. "
        "Schedule-free recipes and rates that are functions of t stay constant.",
    )
    evaluations: int | None = option(
        None, "Points of a curve (at most 20, and as many as make a run evaluate half as many rows as it trains on).", least=1
    )
    evaluate_every: int | str | None = option(
        None, 'Updates between two points of a curve, or "epoch", in place of evaluations.'
    )
    vectorised: bool = option(
        True,
        "Make the runs of a variant together (backend eager): same numbers to rounding, several times faster for small "
        "networks. Networks of LeNet's size and larger train as fast or faster one run at a time.",
    )
    every: int = option(10, "Steps from one measurement to the next.")
    jobs: int = option(1, "Processes side by side; the ranks of a run count.", least=1)

    def __post_init__(self) -> None:
        Options.__post_init__(self)
        super().__post_init__()
        if isinstance(self.steps, Sequence) and (not self.steps or len(set(self.steps)) < len(self.steps)):
            raise ValueError(f"steps must be different numbers, at least one, got {self.steps!r}")
        for each in self.steps if isinstance(self.steps, Sequence) else [self.steps] if self.steps is not None else []:
            whole("steps", each, 1)
        if self.budget not in BUDGETS:
            raise ValueError(f"budget must be one of {', '.join(BUDGETS)}, got {self.budget!r}")

    @property
    def options(self) -> Options:
        """How updates are made."""
        return Options(**{f.name: getattr(self, f.name) for f in dataclasses.fields(Options)})


@dataclasses.dataclass(frozen=True, kw_only=True)
class InspectionSettings(ExecutionSettings, SearchSettings):
    """The keyword arguments of `inspect`."""

    samples: int = option(5, "How often the true diagonal is computed.", least=1)
    lr: float | None = option(None, "The rate of all variants (each its own default, or that of a search).")
    rates: int = option(1, "Learning rates of a search's first round, as compare's; 1: untuned.", least=1)
    tuning_seeds: int = option(3, "Tuning runs per trial of a search.", least=1)
    seeds: int = option(5, "Runs per variant; the table gives means and 95 % intervals.", least=1)
    seed: int = option(0, "The first one: of the start, the batches and random vectors.", least=0)
    method: str = option("exact", "How the true diagonal is computed: exact or hutchinson.")
    num_vectors: int = option(200, "Random vectors per diagonal, for hutchinson.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lr is not None and not 0 < self.lr < math.inf:
            raise ValueError(f"lr must be a number above 0, got {self.lr}")
        if self.lr is not None and self.tuned:
            raise ValueError(f"lr={self.lr:g} leaves nothing to search: give lr, or rates or search")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepSettings(SearchSettings):
    """The keyword arguments of `sweep`."""

    seeds: int = option(1, "Runs per combination; the picture shows their median.")
    warmup: int = option(0, "Updates of linear warm-up.")
    schedule: str = option("constant", "After the warm-up: constant, cosine or inverse-sqrt.")
    compiled: bool = option(False, "Compile the vectorised step: pays from some hundred thousand member steps on.")
    memory: int = option(1 << 30, "Bytes that the members which run together may take.", command=False)
    progress: Callable[[int, int], None] | None = option(None, "Called with (member steps done, in all).", command=False)  # type: ignore[assignment]


def whole(name: str, value: Any, low: int) -> None:
    """Raises TypeError for what is not a whole number, ValueError for one that is too low."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    if value < low:
        raise ValueError(f"{name} must be at least {low}, got {value}")


def fields(settings: type) -> list[dataclasses.Field]:
    """Returns the fields of a settings class, those that it declares itself before those of its bases."""
    declared = {f.name: f for f in dataclasses.fields(settings)}
    order = dict.fromkeys(name for base in settings.__mro__ for name in vars(base).get("__annotations__", {}))
    return [declared[name] for name in order if name in declared]


P = ParamSpec("P")
S = TypeVar("S")
R = TypeVar("R")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")


class takes(Generic[P, S]):
    """Gives a function, whose last parameter is a settings object, the fields of that class as keyword arguments."""

    def __init__(self, settings: Callable[P, S]) -> None:
        self.settings: Any = settings

    @overload
    def __call__(self, function: Callable[[A, B, S], R]) -> Callable[Concatenate[A, B, P], R]: ...
    @overload
    def __call__(self, function: Callable[[A, B, C, S], R]) -> Callable[Concatenate[A, B, C, P], R]: ...

    def __call__(self, function: Any) -> Any:
        """Returns the function with the fields as keyword arguments, listed with their help in its docstring."""
        own, options = inspect.signature(function), fields(self.settings)
        *leading, _ = own.parameters.values()
        keywords = [
            inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=f.type) for f in options
        ]
        signature = own.replace(parameters=[*leading, *keywords])

        @functools.wraps(function)
        def call(*arguments: Any, **given: Any) -> Any:
            bound = signature.bind(*arguments, **given).arguments
            return function(*(bound.pop(p.name) for p in leading), self.settings(**bound))

        texts = "".join(f"\n    {f.name}: {f.metadata['help']}" for f in options)
        call.__signature__ = signature  # type: ignore[attr-defined]
        call.__doc__ = f"{(function.__doc__ or '').rstrip()}\n\n    Keyword arguments:\n{texts}\n    "
        return call

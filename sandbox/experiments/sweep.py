"""A grid over any numbers of a recipe: `sandbox.ensemble` runs it, a heat map shows it, Parquet keeps it.

    result = sandbox.sweep("apollo", "logistic-breast-cancer",
                           {"lr": numpy.geomspace(1e-4, 1, 64), "rectifier.sigma": numpy.geomspace(1e-4, 1, 64)})
    result.frame               # one row per member
    result.plot()

Numbers in `search` have no grid: at every combination of the others they are searched until the best value lies inside, as
`compare` searches them.

    sandbox.sweep("apollo", "digits-mlp", {"moment.beta": [0, 0.5, 0.9, 0.99]}, search={"lr": None})   # each at its best rate
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from sandbox import ensemble, tasks
from sandbox.experiments.reports import manifest
from sandbox.experiments.reports.sweep_result import MEASURES, Sweep
from sandbox.experiments.runs import identity
from sandbox.experiments.runs.recipe_method import RecipeMethod
from sandbox.experiments.runs.store import atomically, locked
from sandbox.experiments.runs.training import threads
from sandbox.experiments.selection import search as searching
from sandbox.experiments.selection.axes import Axis, Trial
from sandbox.experiments.selection.search import Chosen
from sandbox.experiments.settings import SweepSettings, takes
from sandbox.forms import lookup, toml
from sandbox.recipe import Recipe
from sandbox.tasks import Task
from sandbox.utils import suggest
from sandbox.utils.memory import whole

BLOCK = 1024  # members between two writes to disk


def parse_values(text: str) -> tuple[str, list[float]]:
    """Returns name and values from "lr=1e-4:1:64:log", "moment.beta=0:0.9:10" or "rectifier.sigma=0.1,1,10".

    Raises ValueError for anything else, for a logarithmic grid that is not positive, and for fewer than two values.
    """
    name, sign, values = text.partition("=")
    how = f"write --vary NAME=FROM:TO:COUNT[:log] or NAME=VALUE,VALUE,…, got {text!r}"
    if not sign or not name.strip():
        raise ValueError(how)
    try:
        if ":" not in values:
            numbers = [float(v) for v in values.split(",")]
        else:
            start, stop, count, *scale = values.split(":")
            if scale not in ([], ["log"], ["linear"]):
                raise ValueError
            low, high = float(start), float(stop)
            if scale == ["log"] and not (low > 0 and high > 0):
                raise ValueError(f"a logarithmic grid needs positive ends, got {text!r}")
            numbers = [float(v) for v in (np.geomspace if scale == ["log"] else np.linspace)(low, high, int(count))]
    except ValueError as error:
        raise ValueError(str(error) if "logarithmic" in str(error) else how) from error
    if len(set(numbers)) < 2 or not all(math.isfinite(v) for v in numbers):
        raise ValueError(f"--vary needs at least two different finite values, got {text!r}")
    return name.strip(), numbers


@takes(SweepSettings)
def sweep(recipe: str | Recipe, task: str | Task, vary: Mapping[str, Sequence[float]], settings: SweepSettings) -> Sweep:
    """Trains the recipe with every combination of the varied numbers.

    vary: "lr" or the dotted name of any number of any slot -> its values.  Empty where numbers are only searched.

    search, as of `compare`, chooses on the mean validation loss over the seeds, at each combination of the varied numbers.

    `out` is a folder for sweep.parquet, manifest.json and, for one or two numbers, sweep.png.  Members that are there already,
    from the same settings and code, are not run again, so an interrupted sweep continues where it was.

    Raises ValueError for unknown names, for numbers out of their range, and for a folder with a sweep of other settings or the
    results of `sandbox.compare`.
    """
    base, resolved = lookup.recipe(recipe), tasks.get(task)
    numbers = {name: [float(v) for v in values] for name, values in vary.items()}
    searched, varied = dict(settings.search or {}), base.hyperparameters()
    for name in (*numbers, *searched):
        if name not in varied:
            raise ValueError(suggest.unknown("number to vary", name, list(varied)))
    if not (numbers or searched) or not all(numbers.values()):
        raise ValueError("vary must name at least one number, with its values")
    if both := next((name for name in searched if name in numbers), None):
        raise ValueError(f"{both!r} is both in vary and in search")
    if choices := next((name for name, space in searched.items() if isinstance(space, list)), None):
        raise ValueError(
            f"search: {choices!r} must be a range or None in a sweep; put values into vary, got {searched[choices]!r}"
        )
    combinations = [dict(zip(numbers, values, strict=True)) for values in itertools.product(*numbers.values())]
    seeds, steps = whole("seeds", settings.seeds), resolved.steps if settings.steps is None else settings.steps
    code = identity.fingerprint([identity.package(), RecipeMethod(base).parts(), resolved], settings.reuse)
    facts = {
        "recipe": toml.dumps(base), "task": resolved.name, "vary": numbers, "seeds": seeds, "steps": steps,
        "warmup": settings.warmup, "schedule": settings.schedule, "code": code,
    }  # fmt: skip
    trials, limit = searching.budget(settings) if searched else (1, 1)
    if searched:
        facts |= {"search": {name: repr(space) for name, space in searched.items()}, "trials": trials, "limit": limit}
        facts |= {"rates": settings.rates, "spacing": settings.spacing}
    stored = _Stored(Path(settings.out), facts) if settings.out is not None else None
    members = _Members(base, resolved, [*numbers, *searched], seeds, steps, settings, stored)
    members.total = len(combinations) * trials
    searches = [
        _Search(fixed, searching.axes_of(searched, RecipeMethod(_recipe(base, fixed))), settings) for fixed in combinations
    ]
    while wanted := [(each, trial) for each in searches for trial in each.ask()]:
        ends = members.run([{**each.fixed, **trial} for each, trial in wanted])
        for (each, trial), losses in zip(wanted, ends, strict=True):
            each.tell(trial, losses)
    chosen = [each.chosen() for each in searches] if searched else []
    frame = members.frame()
    if searched:
        best = {(*each.fixed.values(), *found.numbers.values()) for each, found in zip(searches, chosen, strict=True)}
        frame = frame.with_columns(chosen=pl.Series([row in best for row in frame.select(*numbers, *searched).rows()]))
    result = Sweep(base, resolved, numbers, steps, frame, stored.folder if stored else None, tuple(searched), chosen)
    if stored:
        stored.write([frame])
        result.save_picture(stored.folder)
    return result


def _recipe(base: Recipe, numbers: Mapping[str, float]) -> Recipe:
    return dataclasses.replace(base.with_hyperparameters(dict(numbers)), name=base.name)


class _Search:
    """The trials at one combination of the varied numbers: a single one where nothing is searched."""

    def __init__(self, fixed: dict[str, float], axes: Mapping[str, Axis], settings: SweepSettings) -> None:
        self.fixed, self.trials = fixed, list[Trial]()
        self.tuner = searching.new_tuner(axes, settings) if axes else None

    def ask(self) -> list[dict[str, float]]:
        """Returns the searched numbers to try next; none when the search is over."""
        if self.tuner is None:
            return [] if self.trials else [{}]
        return self.tuner.ask()

    def tell(self, numbers: dict[str, float], losses: tuple[float, ...]) -> None:
        """Records the validation losses of a trial's seeds."""
        self.trials.append(Trial(numbers, losses))
        if self.tuner is not None:
            self.tuner.tell(self.trials[-1:])

    def chosen(self) -> Chosen:
        """Returns the best numbers."""
        assert self.tuner is not None
        survived = any(math.isfinite(trial.loss) for trial in self.trials)
        numbers, on_edge = self.tuner.best(1.0)
        return Chosen(numbers, survived and on_edge, survived, self.trials)


class _Members:
    """The members of a sweep in the order in which they are asked for; those on disk are not run again.

    total: combinations that there will be.
    """

    def __init__(
        self,
        base: Recipe,
        task: Task,
        names: list[str],
        seeds: int,
        steps: int,
        settings: SweepSettings,
        stored: _Stored | None,
    ) -> None:
        self.base, self.task, self.names, self.seeds, self.steps = base, task, names, seeds, steps
        self.settings, self.stored, self.total, self.used = settings, stored, 0, 0
        self.frames = stored.frames() if stored else []

    def run(self, wanted: Sequence[dict[str, float]]) -> list[tuple[float, ...]]:
        """Returns the validation losses of the seeds of each combination; infinite where a member diverged."""
        first, size = self.used, max(1, BLOCK // self.seeds)
        self.used += len(wanted)
        self.total = max(self.total, self.used)
        done = sum(map(len, self.frames)) // self.seeds
        for start in range(max(done, first), self.used, size):
            self._train(wanted[start - first :][:size])
        rows = self.frame()[first * self.seeds : self.used * self.seeds]
        lost = (rows["diverged"] > 0) | ~rows["validation_loss"].is_finite()
        losses = np.where(lost.to_numpy(), np.inf, rows["validation_loss"].to_numpy()).reshape(-1, self.seeds)
        return [tuple(map(float, row)) for row in losses]

    def frame(self) -> pl.DataFrame:
        """Returns all rows."""
        return pl.concat(self.frames)

    def _train(self, block: Sequence[dict[str, float]]) -> None:
        settings, before = self.settings, sum(map(len, self.frames)) * self.steps

        def advance(now: int, _: int) -> None:
            if settings.progress:
                settings.progress(before + now, self.total * self.seeds * self.steps)

        with threads():
            members = ensemble.run(
                [_recipe(self.base, numbers) for numbers in block], self.task, seeds=self.seeds, steps=self.steps,
                warmup=settings.warmup, schedule=settings.schedule, evaluations=1, compiled=settings.compiled,
                memory=settings.memory, progress=advance,
            )  # fmt: skip
        columns = {name: np.repeat([numbers[name] for numbers in block], self.seeds) for name in self.names}
        last = {name: members.evaluations[name][:, -1] for name in MEASURES}
        lost = np.where((members.diverged == 0) & ~np.isfinite(last["train_loss"]), self.steps, members.diverged)
        self.frames.append(pl.DataFrame({**columns, "seed": members.members["seed"], **last, "diverged": lost}))
        if self.stored:
            self.stored.write(self.frames)


class _Stored:
    """The finished blocks of a sweep on disk; a folder holds at most one sweep."""

    def __init__(self, folder: Path, facts: dict[str, Any]) -> None:
        self.folder, self.facts, self.rows = folder, json.loads(json.dumps(facts)), folder / "sweep.parquet"
        folder.mkdir(parents=True, exist_ok=True)
        self._check()

    def _check(self) -> None:
        """Raises ValueError where the folder has members of other settings: they would be lost."""
        stored = manifest.read(self.folder, "sweep")
        if not self.rows.exists():
            return
        other = ["it has no manifest.json"] if stored is None else _differences(stored, self.facts)
        if other:
            how = "choose another folder (--out), or delete this one"
            raise ValueError(f"{self.folder} holds a sweep of other settings ({'; '.join(other)}); {how}")

    def frames(self) -> list[pl.DataFrame]:
        """Returns the members on disk."""
        try:
            return [pl.read_parquet(self.rows).drop("chosen", strict=False)] if self.rows.exists() else []
        except Exception as error:
            raise ValueError(
                f"{self.rows} cannot be read ({error}); choose another folder (--out), or delete this one"
            ) from error

    def write(self, frames: list[pl.DataFrame]) -> None:
        """Writes all members so far."""
        with locked(self.folder):
            self._check()  # another sweep may have begun here
            manifest.write(self.folder, self.facts)  # first: there are never rows without it
            with atomically(self.rows) as temporary:
                pl.concat(frames).write_parquet(temporary)


def _differences(there: dict[str, Any], here: dict[str, Any]) -> list[str]:
    """Returns where two manifests differ, in a few words each."""

    def text(value: Any) -> str:
        return ", ".join(value) if isinstance(value, dict) else str(value)

    differences = []
    for name in here:
        if there.get(name) != here[name]:
            old, new = text(there.get(name)), text(here[name])
            long = old == new or "\n" in old + new
            differences.append(f"another {name}" if long else f"{name}: {old} there, {new} here")
    return differences

"""A grid over any numbers of a recipe: `sandbox.ensemble` runs it, a heat map shows it, Parquet keeps it.

result = sandbox.sweep("apollo", "logistic-breast-cancer",
                            {"lr": numpy.geomspace(1e-4, 1, 64), "rectifier.sigma": numpy.geomspace(1e-4, 1, 64)})
result.frame               # one row per member
result.plot()
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

    vary: "lr" or the dotted name of any number of any slot -> its values.

    `out` is a folder for sweep.parquet, manifest.json and, for one or two numbers, sweep.png.  Members that are there already,
    from the same settings and code, are not run again, so an interrupted sweep continues where it was.

    Raises ValueError for unknown names, for numbers out of their range, and for a folder with a sweep of other settings or the
    results of `sandbox.compare`.
    """
    base, resolved = lookup.recipe(recipe), tasks.get(task)
    numbers = {name: [float(v) for v in values] for name, values in vary.items()}
    varied = base.hyperparameters()
    for name in numbers:
        if name not in varied:
            raise ValueError(suggest.unknown("number to vary", name, list(varied)))
    if not numbers or not all(numbers.values()):
        raise ValueError("vary must name at least one number, with its values")
    combinations = [dict(zip(numbers, values, strict=True)) for values in itertools.product(*numbers.values())]
    seeds, steps = whole("seeds", settings.seeds), resolved.steps if settings.steps is None else settings.steps
    code = identity.fingerprint([identity.package(), RecipeMethod(base).parts(), resolved], settings.reuse)
    facts = {
        "recipe": toml.dumps(base), "task": resolved.name, "vary": numbers, "seeds": seeds, "steps": steps,
        "warmup": settings.warmup, "schedule": settings.schedule, "code": code,
    }  # fmt: skip
    recipes = [dataclasses.replace(base.with_hyperparameters(c), name=base.name) for c in combinations]
    stored = _Stored(Path(settings.out), facts) if settings.out is not None else None
    frames = stored.frames() if stored else []
    done = sum(len(f) for f in frames)
    total = len(combinations) * seeds
    size = max(1, BLOCK // seeds)
    for start in range(done // seeds, len(combinations), size):
        block = combinations[start : start + size]
        before = done * steps

        def advance(now: int, _: int, before: int = before) -> None:
            if settings.progress:
                settings.progress(before + now, total * steps)

        with threads():
            members = ensemble.run(
                recipes[start : start + size], resolved, seeds=seeds, steps=steps, warmup=settings.warmup,
                schedule=settings.schedule, evaluations=1, compiled=settings.compiled, memory=settings.memory, progress=advance,
            )  # fmt: skip
        columns = {name: np.repeat([c[name] for c in block], seeds) for name in numbers}
        last = {name: members.evaluations[name][:, -1] for name in MEASURES}
        lost = np.where((members.diverged == 0) & ~np.isfinite(last["train_loss"]), steps, members.diverged)
        frames.append(pl.DataFrame({**columns, "seed": members.members["seed"], **last, "diverged": lost}))
        done += len(frames[-1])
        if stored:
            stored.write(frames)
    result = Sweep(base, resolved, numbers, steps, pl.concat(frames), stored.folder if stored else None)
    if stored:
        result.save_picture(stored.folder)
    return result


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
            return [pl.read_parquet(self.rows)] if self.rows.exists() else []
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

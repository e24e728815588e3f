"""A grid over any numbers of a recipe: `sandbox.ensemble` runs it, a heat map shows it, Parquet keeps it.

found = sandbox.sweep("apollo", "logistic-breast-cancer",
                            {"lr": numpy.geomspace(1e-4, 1, 64), "rectifier.sigma": numpy.geomspace(1e-4, 1, 64)})
found.frame                # a row a member
found.plot()
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from sandbox import ensemble, tasks
from sandbox.experiments.reports import manifest, sweep_picture, tables
from sandbox.experiments.reports.figures import figure
from sandbox.experiments.runs import identity
from sandbox.experiments.runs.methods import Ours
from sandbox.experiments.runs.run import threads
from sandbox.experiments.runs.store import atomically, locked
from sandbox.forms import lookup, toml
from sandbox.recipe import Recipe
from sandbox.tasks import Task
from sandbox.utils import suggest
from sandbox.utils.memory import whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLOCK = 1024  # members between two writes to disk
MEASURES = ("train_loss", "validation_loss", "validation_metric", "floor_occupancy")


@dataclasses.dataclass(frozen=True, repr=False)
class Sweep(tables.Shown):
    """The outcome.  frame: a row a member: the varied numbers, seed, MEASURES at the end, "diverged" (the first step at which
    loss or gradient was not finite, the last where only train_loss after it is not, 0 where none).
    folder: where it lies on disk, or None.
    """

    recipe: Recipe
    task: Task
    vary: dict[str, list[float]]
    steps: int
    frame: pl.DataFrame
    folder: Path | None

    def grid(self, measure: str = "train_loss") -> np.ndarray:
        """Median over the seeds, an axis a varied number; what diverged counts as infinite, a metric as NaN."""
        if measure not in MEASURES:
            raise ValueError(suggest.unknown("measure", measure, MEASURES))
        lost = math.nan if measure in ("validation_metric", "floor_occupancy") else math.inf
        values = self.frame[measure].to_numpy().copy()
        values[(self.frame["diverged"].to_numpy() > 0) | ~np.isfinite(values)] = lost
        return np.median(values.reshape(*map(len, self.vary.values()), -1), axis=-1)

    def best(self) -> dict[str, Any]:
        """The varied numbers with the lowest median training loss, and that loss."""
        values = self.grid()
        place = np.unravel_index(int(np.argmin(values)), values.shape)
        numbers = {name: row[i] for (name, row), i in zip(self.vary.items(), place, strict=True)}
        return {**numbers, "train_loss": float(values[place])}

    def plot(self, measure: str = "train_loss") -> Figure:
        """A curve for one varied number, a heat map for two.  Raises ValueError for more."""
        made = figure(6.4, 4.8)
        self.draw(made.subplots(), measure)
        return made

    def save(self, folder: str | Path) -> None:
        """sweep.parquet, and sweep.png for one or two numbers, in another folder."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        with atomically(Path(folder) / "sweep.parquet") as path:
            self.frame.write_parquet(path)
        if len(self.vary) <= 2:
            _save(self, Path(folder))

    def table(self) -> tables.Table:
        """The best numbers, as heads and rows."""
        rows = [[name, f"{value:.6g}"] for name, value in self.best().items()]
        rows += [["members", str(len(self.frame))], ["diverged", str(int((self.frame["diverged"] > 0).sum()))]]
        return ["best", f"of {self.recipe.name} on {self.task.name}, {self.steps} steps"], rows

    def shown(self) -> tuple[list[tables.Table], list[str]]:
        """The best numbers."""
        return [self.table()], []

    def draw(self, axes: Any, measure: str = "train_loss") -> None:
        """The same on given axes."""
        sweep_picture.draw(self, axes, measure)


def values_of(text: str) -> tuple[str, list[float]]:
    """ "lr=1e-4:1:64:log", "moment.beta=0:0.9:10" or "rectifier.sigma=0.1,1,10" as name and values.

    Raises ValueError for anything else, for a logarithmic grid that is not positive, and for fewer than two values.
    """
    name, sign, values = text.partition("=")
    how = f"write --vary NAME=FROM:TO:COUNT[:log] or NAME=VALUE,VALUE,…, got {text!r}"
    if not sign or not name.strip():
        raise ValueError(how)
    try:
        if ":" not in values:
            found = [float(v) for v in values.split(",")]
        else:
            start, stop, count, *scale = values.split(":")
            if scale not in ([], ["log"], ["linear"]):
                raise ValueError
            low, high = float(start), float(stop)
            if scale == ["log"] and not (low > 0 and high > 0):
                raise ValueError(f"a logarithmic grid needs positive ends, got {text!r}")
            found = [float(v) for v in (np.geomspace if scale == ["log"] else np.linspace)(low, high, int(count))]
    except ValueError as error:
        raise ValueError(str(error) if "logarithmic" in str(error) else how) from error
    if len(set(found)) < 2 or not all(math.isfinite(v) for v in found):
        raise ValueError(f"--vary needs at least two different finite values, got {text!r}")
    return name.strip(), found


def sweep(
    recipe: str | Recipe,
    task: str | Task,
    vary: Mapping[str, Sequence[float]],
    *,
    seeds: int = 1,
    steps: int | None = None,
    warmup: int = 0,
    schedule: str = "constant",
    compiled: bool = False,
    memory: int = 1 << 30,
    out: str | Path | None = None,
    reuse: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Sweep:
    """Trains the recipe with every combination of the varied numbers.

    vary: "lr" or the dotted name of any number of any slot -> its values.  out: a folder for sweep.parquet, manifest.json and,
    for one or two numbers, sweep.png; members that are there already, from the same settings and code, are not run again, so an
    interrupted sweep goes on where it was.  The rest as for `sandbox.ensemble.run`.
    Raises ValueError for unknown names, for numbers out of their range, and for a folder with a sweep of other settings or the
    results of `sandbox.compare`.
    """
    base, made = lookup.recipe(recipe), tasks.get(task)
    numbers = {name: [float(v) for v in values] for name, values in vary.items()}
    known = base.hyperparameters()
    for name in numbers:
        if name not in known:
            raise ValueError(suggest.unknown("number to vary", name, list(known)))
    if not numbers or not all(numbers.values()):
        raise ValueError("vary must name at least one number, with its values")
    combinations = [dict(zip(numbers, values, strict=True)) for values in itertools.product(*numbers.values())]
    whole("seeds", seeds)
    steps = made.steps if steps is None else steps
    facts = {
        "recipe": toml.dumps(base), "task": made.name, "vary": numbers, "seeds": seeds, "steps": steps, "warmup": warmup,
        "schedule": schedule, "code": identity.of([identity.package(), Ours(base).parts(), made], reuse),
    }  # fmt: skip
    recipes = [dataclasses.replace(base.with_hyperparameters(c), name=base.name) for c in combinations]
    kept = _Kept(Path(out), facts) if out is not None else None
    frames = kept.frames() if kept else []
    done = sum(len(f) for f in frames)
    total = len(combinations) * seeds
    size = max(1, BLOCK // seeds)
    for start in range(done // seeds, len(combinations), size):
        some = combinations[start : start + size]
        before = done * steps

        def advance(now: int, _: int, before: int = before) -> None:
            if progress:
                progress(before + now, total * steps)

        with threads():
            found = ensemble.run(
                recipes[start : start + size], made, seeds=seeds, steps=steps, warmup=warmup, schedule=schedule, evaluations=1,
                compiled=compiled, memory=memory, progress=advance,
            )  # fmt: skip
        columns = {name: np.repeat([c[name] for c in some], seeds) for name in numbers}
        last = {name: found.evaluations[name][:, -1] for name in MEASURES}
        lost = np.where((found.diverged == 0) & ~np.isfinite(last["train_loss"]), steps, found.diverged)
        frames.append(pl.DataFrame({**columns, "seed": found.members["seed"], **last, "diverged": lost}))
        done += len(frames[-1])
        if kept:
            kept.write(frames)
    result = Sweep(base, made, numbers, steps, pl.concat(frames), kept.folder if kept else None)
    if kept and len(numbers) <= 2:
        _save(result, kept.folder)
    return result


class _Kept:
    """A sweep on disk, whole blocks of it; a folder holds one, and one only."""

    def __init__(self, folder: Path, facts: dict[str, Any]) -> None:
        self.folder, self.facts, self.rows = folder, json.loads(json.dumps(facts)), folder / "sweep.parquet"
        folder.mkdir(parents=True, exist_ok=True)
        self._check()

    def _check(self) -> None:
        """Raises ValueError where there are members of other settings: they would be lost."""
        there = manifest.read(self.folder, "sweep")
        if not self.rows.exists():
            return
        other = ["it has no manifest.json"] if there is None else _differences(there, self.facts)
        if other:
            how = "choose another folder (--out), or delete this one"
            raise ValueError(f"{self.folder} holds a sweep of other settings ({'; '.join(other)}); {how}")

    def frames(self) -> list[pl.DataFrame]:
        """What is there."""
        try:
            return [pl.read_parquet(self.rows)] if self.rows.exists() else []
        except Exception as error:
            raise ValueError(
                f"{self.rows} cannot be read ({error}); choose another folder (--out), or delete this one"
            ) from error

    def write(self, frames: list[pl.DataFrame]) -> None:
        """All members so far."""
        with locked(self.folder):
            self._check()  # another sweep may have begun here
            manifest.write(self.folder, self.facts)  # first: there are never rows without it
            with atomically(self.rows) as temporary:
                pl.concat(frames).write_parquet(temporary)


def _differences(there: dict[str, Any], here: dict[str, Any]) -> list[str]:
    """What a manifest says otherwise than `here`, a few words each."""

    def text(value: Any) -> str:
        return ", ".join(value) if isinstance(value, dict) else str(value)

    found = []
    for name in here:
        if there.get(name) != here[name]:
            old, new = text(there.get(name)), text(here[name])
            long = old == new or "\n" in old + new
            found.append(f"another {name}" if long else f"{name}: {old} there, {new} here")
    return found


def _save(found: Sweep, folder: Path) -> None:
    drawn = figure(6.4, 4.8)
    found.draw(drawn.subplots())
    with atomically(folder / "sweep.png") as path:
        drawn.savefig(path, format="png")

"""Runs are made, kept and told of: what `compare` and `inspect` have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from sandbox.experiments.reports import report
from sandbox.experiments.runs import executors
from sandbox.experiments.runs.methods import Method
from sandbox.experiments.runs.run import Row
from sandbox.experiments.runs.settings import Run
from sandbox.experiments.runs.store import Store
from sandbox.experiments.runs.unit import Failure, Found, Look, Unit, units
from sandbox.experiments.selection.plan import joined
from sandbox.tasks import Task

Progress = Callable[[float, int, str], None]  # (runs done, with the shares of those begun; runs in all; what)
Callback = Callable[[Row], None]


class Work:
    """The runs of one call in one folder.  failures: what errors ended.  total: how many runs there will be."""

    def __init__(
        self,
        task: Task,
        folder: Path,
        total: int,
        *,
        look: Look,
        executor: Any = None,
        callbacks: Sequence[Callback] = (),
        progress: Progress | None = None,
    ) -> None:
        self.task, self.store, self.total, self.look, self.executor = task, Store(folder), total, look, executor
        self.callbacks, self.progress = list(callbacks), progress
        self.failures: list[Failure] = []
        self.names: dict[tuple[str, str], None] = {}  # (key of a run, variant), in order
        self.done = 0.0

    def make(self, wanted: Sequence[tuple[Method, Run]], what: str) -> list[tuple[Method, Run]]:
        """Makes those that are missing; gives all as they are called on disk, without those of variants that failed."""
        lost = {failure.variant for failure in self.failures}
        wanted = joined([(m, r) for m, r in wanted if m.name not in lost])
        self.names |= {(run.key(), method.name): None for method, run in wanted}
        todo = units(wanted, self.store)
        shares, told = dict[int, float](), set[tuple[str, int]]()
        self.done += len({r.key() for _, r in wanted}) - sum(len(u.runs) for u in todo)
        self._say(what)

        def tell(unit: Unit, place: int, updates: int, row: Row | None) -> None:
            share = 0.99 * updates / max(unit.runs[0].steps, 1)  # a run counts as done when it is kept
            shares[id(unit)] = shares.get(id(unit), 0.0) + share
            self.done += share
            if row is not None:
                self._call(unit, unit.runs[place], [row], told)
            self._say(what)

        def ended(unit: Unit, found: list[Found] | Failure) -> None:
            self.done += len(unit.runs) - shares.get(id(unit), 0.0)
            if isinstance(found, Failure):
                self.failures.append(found)
            else:
                for run, (rows, seen) in zip(unit.runs, found, strict=False):
                    if self.store.missing([run.key()]):
                        self.store.add(run.key(), run.facts(), rows, seen)
                    self._call(unit, run, rows, told)
            self._say(what)

        executors.execute(
            todo, self.task, self.store, ended, look=self.look, executor=self.executor, tell=tell,
            lost=lambda unit: any(failure.variant == unit.method.name for failure in self.failures),
        )  # fmt: skip
        return wanted

    def _call(self, unit: Unit, run: Run, rows: list[Row], told: set[tuple[str, int]]) -> None:
        """Tells of each row once, also where a killed worker's runs were made again."""
        if self.callbacks:
            key = run.key()
            for row in rows:
                if (key, row["step"]) not in told:
                    told.add((key, row["step"]))
                    for callback in self.callbacks:
                        callback({**run.facts(), **row, "run": key, "variant": unit.method.name})

    def _say(self, what: str) -> None:
        if self.progress:
            self.progress(min(round(self.done, 6), self.total), self.total, what)

    def frames(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        """All rows, and what was measured inside steps."""
        return self.store.frame(self.names), self.store.probes(self.names)

    def save(self) -> None:
        """The tables on disk, of whatever is finished; processes are ended."""
        if isinstance(self.executor, executors.Processes):
            self.executor.close()
        rows, seen = self.frames()
        if len(rows):
            report.tables_to_disk(self.store.folder, rows, seen if len(seen) or self.look.probes else None)

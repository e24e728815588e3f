"""Executes runs, stores their rows and reports progress; shared by `compare`, `inspect` and the studies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from sandbox.experiments.runs import executors
from sandbox.experiments.runs.batch import Failed, Failure, Outcome, Probing, RunBatch, missing, with_batch_ids
from sandbox.experiments.runs.methods import Method
from sandbox.experiments.runs.run import Run
from sandbox.experiments.runs.store import Store, write_frames
from sandbox.experiments.runs.training import Row
from sandbox.experiments.settings import ExecutionSettings, Progress
from sandbox.tasks import Task


class Work:
    """The runs of one call in one folder; a context, whose end stops the workers and writes the tables of finished runs.

    failures: the errors that ended runs.  total: how many runs there will be.  tables: whether to write them.
    """

    def __init__(
        self,
        task: Task,
        folder: Path,
        total: int,
        settings: ExecutionSettings,
        probing: Probing = Probing(),
        tables: bool = True,
    ) -> None:
        self.task, self.store, self.total, self.probing, self.settings = task, Store(folder), total, probing, settings
        self.tables = tables
        self.failures: list[Failure] = []
        self.names: dict[tuple[str, str], None] = {}  # (key of a run, variant), in order
        self.done = 0.0
        self.watch: Progress | None = None  # is told of progress too

    def __enter__(self) -> Work:
        self._workers = executors.workers(self.settings.jobs, self.settings.executor)
        self.executor = self._workers.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._workers.__exit__(None, None, None)
        rows, measured = self.frames()
        if self.tables and len(rows):
            write_frames(self.store.folder, rows, measured if len(measured) or self.probing.probes else None)

    def run(self, wanted: Sequence[tuple[Method, Run]], what: str) -> list[tuple[Method, Run]]:
        """Makes the runs that are missing; returns all with their batch ids, without those of variants that failed before."""
        wanted = with_batch_ids([(m, r) for m, r in wanted if m.name not in self.failed])
        self.names |= {(run.key(), method.name): None for method, run in wanted}
        todo = missing(wanted, self.store)
        shares, reported = dict[int, float](), set[tuple[str, int]]()
        self.done += len({r.key() for _, r in wanted}) - sum(len(batch.runs) for batch in todo)
        self._report(what)

        def advance(batch: RunBatch, place: int, updates: int, row: Row | None) -> None:
            share = 0.99 * updates / max(batch.runs[0].steps, 1)  # a run counts as done when it is stored
            shares[id(batch)] = shares.get(id(batch), 0.0) + share
            self.done += share
            if row is not None:
                self._call(batch, batch.runs[place], [row], reported)
            self._report(what)

        def finish(batch: RunBatch, outcomes: list[Outcome] | Failure) -> None:
            self.done += len(batch.runs) - shares.get(id(batch), 0.0)
            if isinstance(outcomes, Failure):
                self.failures.append(outcomes)
            else:
                for run, (rows, measured) in zip(batch.runs, outcomes, strict=False):
                    if self.store.missing([run.key()]):
                        self.store.add(run.key(), run.facts(), rows, measured)
                    self._call(batch, run, rows, reported)
            self._report(what)

        executors.execute(
            todo, self.task, self.store, finish, probing=self.probing, executor=self.executor, tell=advance,
            skipped=lambda batch: batch.method.name in self.failed,
        )  # fmt: skip
        return wanted

    @property
    def failed(self) -> set[str]:
        """The names of the variants with an error."""
        return {failure.variant for failure in self.failures}

    def survivors(self, methods: Sequence[Method]) -> list[Any]:
        """Returns the methods without an error.  Raises Failed where there are none."""
        if all(method.name in self.failed for method in methods):
            raise Failed(self.failures)
        return [method for method in methods if method.name not in self.failed]

    def losses(self, runs: Sequence[Run]) -> list[float]:
        """Returns the validation loss at the end of each run; an empty list where one is missing."""
        stored = [self.store.get(run.key()) for run in runs]
        return [] if None in stored else [run["rows"][-1]["validation_loss"] for run in stored if run is not None]

    def _call(self, batch: RunBatch, run: Run, rows: list[Row], reported: set[tuple[str, int]]) -> None:
        """Passes each row to the callbacks once, even if a worker died and its runs were repeated."""
        if self.settings.callbacks:
            key = run.key()
            for row in rows:
                if (key, row["step"]) not in reported:
                    reported.add((key, row["step"]))
                    for callback in self.settings.callbacks:
                        callback({**run.facts(), **row, "run": key, "variant": batch.method.name})

    def _report(self, what: str) -> None:
        for report in (self.settings.progress, self.watch):
            if report:
                report(min(round(self.done, 6), self.total), self.total, what)

    def frames(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Returns all rows, and all measurements inside steps."""
        return self.store.frame(self.names), self.store.probes(self.names)

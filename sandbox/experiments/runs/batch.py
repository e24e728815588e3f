"""A run batch: one method with the runs that are made in one go, and how any process makes them."""

from __future__ import annotations

import dataclasses
import functools
import traceback
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor
from pathlib import Path
from typing import Any

from torch.distributed import ProcessGroup

from sandbox.distributed import launch
from sandbox.distributed.ranks import Lost
from sandbox.experiments.runs import identity, vectorised
from sandbox.experiments.runs.methods import Method
from sandbox.experiments.runs.run import Run
from sandbox.experiments.runs.store import Store
from sandbox.experiments.runs.training import Row, train
from sandbox.probes import Watch
from sandbox.tasks import Task
from sandbox.utils import imports, suggest

Outcome = tuple[list[Row], list[Row]]  # a run's evaluations, and what was measured inside its steps


@dataclasses.dataclass(frozen=True)
class Probing:
    """What is measured inside the steps of a run: probes at every `every`-th step, for all tensors together."""

    probes: tuple[Any, ...] = ()
    every: int = 1

    def watch(self, task: Task, run: Run) -> Watch | None:
        """Returns what measures in a single run, or None without probes."""
        return Watch(self.probes, every=self.every, tensors=False) if self.probes else None


@dataclasses.dataclass(frozen=True)
class Failure:
    """A run that ended with an error, mostly of the user's code.  where: its file and line there, "" for one elsewhere."""

    variant: str
    what: str
    error: str
    where: str
    trace: str

    def __str__(self) -> str:
        at = f" at {self.where}" if self.where else ""
        return f"{self.variant}: {self.error}{at} (in its run at {self.what})"


class Failed(RuntimeError):
    """Raised when every variant failed; `failures` lists the errors."""

    def __init__(self, failures: list[Failure]) -> None:
        self.failures = failures
        super().__init__("; ".join(map(str, failures)))


@dataclasses.dataclass(frozen=True)
class RunBatch:
    """Runs of one method that are made in one go: a single run, or all that train together."""

    method: Method
    runs: list[Run]

    @property
    def name(self) -> str:
        """The name of its lock: of the single run, or of the method where runs train together, whichever they are."""
        first = self.runs[0]
        single = len(self.runs) == 1 and first.way != vectorised.TOGETHER
        return first.key() if single else dataclasses.replace(first, lr=0.0, seed=0, batch_id="").key()

    def parts(self) -> Any:
        """Returns the objects on whose code its runs depend, beside the task."""
        return [self.method.parts(), [run.schedule for run in self.runs[:1] if not isinstance(run.schedule, str)]]


def missing(wanted: Sequence[tuple[Method, Run]], store: Store) -> list[RunBatch]:
    """Returns the batches still to run.  Runs that train together are all repeated if any of them is missing."""
    unique = {run.key(): (method, run) for method, run in wanted}
    absent = store.missing(unique)
    single: list[RunBatch] = []
    joint: dict[tuple[str, str], RunBatch] = {}
    for key, (method, run) in unique.items():
        if run.way == vectorised.TOGETHER:
            group = method.name, run.batch_id
            if group not in joint:
                joint[group] = RunBatch(method.replaced(dict(run.numbers)), [])
            joint[group].runs.append(run)
        elif key in absent:
            single.append(RunBatch(method.replaced(dict(run.numbers)), [run]))
    return [batch for batch in joint.values() if any(run.key() in absent for run in batch.runs)] + single


def with_batch_ids(wanted: Sequence[tuple[Method, Run]]) -> list[tuple[Method, Run]]:
    """Returns the same runs; those that train together carry the digits of their batch."""
    together: dict[Any, list[Run]] = {}
    for method, run in wanted:
        if run.way == vectorised.TOGETHER:
            together.setdefault((method.name, run.numbers), []).append(run)
    digits = {key: vectorised.batch_id(runs) for key, runs in together.items()}
    return [
        (m, dataclasses.replace(r, batch_id=digits[m.name, r.numbers]) if r.way == vectorised.TOGETHER else r)
        for m, r in wanted
    ]


class _ListenerError(BaseException):
    """Carries an exception of a listener through `run_batch`: it is not a failure of a run."""


def run_batch(
    task: Task,
    batch: RunBatch,
    probing: Probing,
    tell: vectorised.Tell = lambda place, n, row: None,
    group: ProcessGroup | None = None,
) -> list[Outcome] | Failure:
    """Makes the runs of a batch.  An error in them becomes a Failure; one of `tell` is raised.

    group: the ranks that make the runs together, of which this process is one.  Without it, they are started where the runs ask
    for ranks; BrokenExecutor is raised if one of them dies.
    """
    first = batch.runs[0]

    def report(place: int, n: int, row: Row | None) -> None:
        try:
            tell(place, n, row)
        except Exception as error:
            raise _ListenerError from error

    try:
        if first.way == vectorised.TOGETHER:
            return vectorised.train(task, batch.method, batch.runs, probing.probes, probing.every, report)  # type: ignore[arg-type]
        if first.options.ranks > 1 and group is None:
            return _by_ranks(task, batch, probing, report)
        outcomes = []
        for place, run in enumerate(batch.runs):
            watch = probing.watch(task, run)
            rows = train(task, batch.method, run, watch, functools.partial(report, place), group)
            outcomes.append((rows, watch.rows if watch else []))
        return outcomes
    except (MemoryError, OSError, BrokenExecutor, Lost):
        raise
    except _ListenerError as error:
        raise error.__cause__ or error from None
    except Exception as error:
        what, trace = f"lr {first.lr:.6g}, seed {first.seed}", "".join(traceback.format_exception(error))
        return Failure(batch.method.name, what, suggest.short(error), _place_in_user_code(error), trace)


def _by_ranks(task: Task, batch: RunBatch, probing: Probing, tell: vectorised.Tell) -> list[Outcome] | Failure:
    """Returns the outcomes of rank 0.  Raises RuntimeError where another rank has other rows: then they were no replicas."""
    ranks = batch.runs[0].options.ranks
    results = launch.together(
        ranks, run_batch, task, batch, probing, tell=tell, failed=lambda result: isinstance(result, Failure)
    )
    if isinstance(results[0], Failure):
        return results[0]
    numbers = [[[{**row, "seconds_a_step": None} for row in rows] for rows, _ in each] for each in results]
    if any(repr(each) != repr(numbers[0]) for each in numbers):
        raise RuntimeError("the ranks of a run have come to different rows: something in its task is not drawn from the seed")
    return results[0]


def _place_in_user_code(error: BaseException) -> str:
    """Returns the last file and line of the user's code in an error's traceback, or in that of the error behind it."""
    cause = error.__cause__
    frames = [*traceback.extract_tb(error.__traceback__), *(traceback.extract_tb(cause.__traceback__) if cause else ())]
    for frame in reversed(frames):
        path = Path(frame.filename)
        ours = path.is_relative_to(imports.PACKAGE)
        if path.exists() and not ours and not any(path.is_relative_to(home) for home in identity.installed()):
            return f"{path}:{frame.lineno}"
    return ""

"""A unit: a method with runs that are made in one go, by whoever makes it."""

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
from sandbox.experiments.runs.run import Row, train
from sandbox.experiments.runs.settings import Run
from sandbox.experiments.runs.store import Store
from sandbox.probes import Watch
from sandbox.tasks import Task
from sandbox.utils import imports, suggest

Found = tuple[list[Row], list[Row]]  # of a run: its evaluations, and what was measured inside its steps


@dataclasses.dataclass(frozen=True)
class Look:
    """What is measured inside the steps of a run: probes every so many, for all tensors together."""

    probes: tuple[Any, ...] = ()
    every: int = 1

    def watch(self, task: Task, run: Run) -> Watch | None:
        """Who measures in a run that is made alone."""
        return Watch(self.probes, every=self.every, tensors=False) if self.probes else None


@dataclasses.dataclass(frozen=True)
class Failure:
    """A run that an error ended: of the user's code, mostly.  where: file and line in it, "" where it was not in theirs."""

    variant: str
    what: str
    error: str
    where: str
    trace: str

    def __str__(self) -> str:
        at = f" at {self.where}" if self.where else ""
        return f"{self.variant}: {self.error}{at} (in its run at {self.what})"


class Failed(RuntimeError):
    """Every variant failed; `failures` says how."""

    def __init__(self, failures: list[Failure]) -> None:
        self.failures = failures
        super().__init__("; ".join(map(str, failures)))


@dataclasses.dataclass(frozen=True)
class Unit:
    """Runs of one method that are made in one go."""

    method: Method
    runs: list[Run]

    @property
    def name(self) -> str:
        """For its lock: of all that are made together, whoever they are, or of the one run."""
        first = self.runs[0]
        alone = len(self.runs) == 1 and first.way != vectorised.TOGETHER
        return first.key() if alone else dataclasses.replace(first, lr=0.0, seed=0, company="").key()

    def parts(self) -> Any:
        """The objects on whose code its runs depend, beside the task."""
        return [self.method.parts(), [run.schedule for run in self.runs[:1] if not isinstance(run.schedule, str)]]


def units(wanted: Sequence[tuple[Method, Run]], store: Store) -> list[Unit]:
    """What must be made, of those that are wanted; of those that are made together, all where one is missing."""
    unique = {run.key(): (method, run) for method, run in wanted}
    missing = store.missing(unique)
    found: list[Unit] = []
    joint: dict[tuple[str, str], Unit] = {}
    for key, (method, run) in unique.items():
        if run.way == vectorised.TOGETHER:
            group = method.name, run.company
            if group not in joint:
                joint[group] = Unit(method.replaced(dict(run.numbers)), [])
            joint[group].runs.append(run)
        elif key in missing:
            found.append(Unit(method.replaced(dict(run.numbers)), [run]))
    return [u for u in joint.values() if any(r.key() in missing for r in u.runs)] + found


class _OfListener(BaseException):
    """Carries what a listener raised through `made`: it is no failure of a run."""


def made(
    task: Task,
    unit: Unit,
    look: Look,
    tell: vectorised.Tell = lambda place, n, row: None,
    group: ProcessGroup | None = None,
) -> list[Found] | Failure:
    """Makes a unit.  An error of whatever it runs becomes a Failure; one of `tell` is raised.

    group: the ranks that make it together, of which this process is one.  Without one, they are started where runs ask for
    ranks; BrokenExecutor is raised where one of them dies.
    """
    run = unit.runs[0]

    def told(place: int, n: int, row: Row | None) -> None:
        try:
            tell(place, n, row)
        except Exception as error:
            raise _OfListener from error

    try:
        if run.way == vectorised.TOGETHER:
            return vectorised.train(task, unit.method, unit.runs, look.probes, look.every, told)  # type: ignore[arg-type]
        if run.options.ranks > 1 and group is None:
            return _by_ranks(task, unit, look, told)
        found = []
        for place, run in enumerate(unit.runs):
            watch = look.watch(task, run)
            rows = train(task, unit.method, run, watch, functools.partial(told, place), group)
            found.append((rows, watch.rows if watch else []))
        return found
    except (MemoryError, OSError, BrokenExecutor, Lost):
        raise
    except _OfListener as error:
        raise error.__cause__ or error from None
    except Exception as error:
        what = f"lr {run.lr:.6g}, seed {run.seed}"
        return Failure(unit.method.name, what, suggest.short(error), _theirs(error), "".join(traceback.format_exception(error)))


def _by_ranks(task: Task, unit: Unit, look: Look, tell: vectorised.Tell) -> list[Found] | Failure:
    """What rank 0 gives.  Raises RuntimeError where another one gives something else: then they were no replicas."""
    found = launch.together(
        unit.runs[0].options.ranks, made, task, unit, look, tell=tell, failed=lambda result: isinstance(result, Failure)
    )
    if isinstance(found[0], Failure):
        return found[0]
    numbers = [[[{**row, "seconds_a_step": None} for row in rows] for rows, _ in each] for each in found]
    if any(repr(each) != repr(numbers[0]) for each in numbers):
        raise RuntimeError("the ranks of a run have come to different rows: something in its task is not drawn from the seed")
    return found[0]


def _theirs(error: BaseException) -> str:
    """The last file and line of the user's code that an error went through."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        ours = path.is_relative_to(imports.PACKAGE)
        if path.exists() and not ours and not any(path.is_relative_to(home) for home in identity.installed()):
            return f"{path}:{frame.lineno}"
    return ""

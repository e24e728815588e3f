"""Who makes the runs: this process, processes of this machine, or any `concurrent.futures.Executor`.

A unit is a method with runs that are made in one go.  Whoever makes it gives the same rows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import queue
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any

import cloudpickle

from sandbox import suggest
from sandbox.experiments import identity, vectorised
from sandbox.experiments.methods import Method
from sandbox.experiments.run import Row, train
from sandbox.experiments.settings import Run
from sandbox.experiments.store import Claims, Store
from sandbox.probes import Watch
from sandbox.tasks import Task

TRIES = 3  # how often in a row a pool may die without finishing anything


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


class Failed(RuntimeError):
    """Every variant failed; `failures` says how."""

    def __init__(self, failures: list[Failure]) -> None:
        self.failures = failures
        super().__init__("; ".join(map(str, failures)))


Found = tuple[list[Row], list[Row]]
Tick = Callable[[int], None]


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


def work(task: Task, unit: Unit, probes: Sequence[Any], every: int, tick: Tick = lambda n: None) -> list[Found] | Failure:
    """Makes a unit.  An error of whatever it runs becomes a Failure."""
    run = unit.runs[0]
    try:
        if run.way == vectorised.TOGETHER:
            return vectorised.train(task, unit.method, unit.runs, probes, every, tick)  # type: ignore[arg-type]
        found = []
        for run in unit.runs:
            watch = Watch(probes, every=every, tensors=False) if probes else None
            found.append((train(task, unit.method, run, watch, tick), watch.rows if watch else []))
        return found
    except (MemoryError, OSError):
        raise
    except Exception as error:
        what = f"lr {run.lr:.6g}, seed {run.seed}"
        return Failure(unit.method.name, what, suggest.short(error), _theirs(error), "".join(traceback.format_exception(error)))


def _theirs(error: BaseException) -> str:
    """The last file and line of the user's code that an error went through."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        ours = path.is_relative_to(Path(__file__).parent.parent)
        if path.exists() and not ours and not any(path.is_relative_to(home) for home in identity.installed()):
            return f"{path}:{frame.lineno}"
    return ""


def execute(
    todo: list[Unit],
    task: Task,
    store: Store,
    done: Callable[[Unit, list[Found] | Failure], None],
    *,
    probes: Sequence[Any] = (),
    every: int = 1,
    jobs: int = 1,
    executor: Executor | None = None,
    tick: Callable[[Unit, int], None] = lambda unit, n: None,
    lost: Callable[[Unit], bool] = lambda unit: False,
) -> None:
    """Makes all units but those that are `lost` by then; `done` is called in this process with each as it ends.

    Another process at work in the same folder shares them: what it holds is waited for, and taken from the store.
    Raises BrokenExecutor where workers keep dying, with what is finished kept.
    """
    claims = Claims(store.folder)
    try:
        while todo := [unit for unit in todo if not lost(unit)]:
            mine, others = list[Unit](), list[Unit]()
            serial = executor is None and (jobs <= 1 or len(todo) <= 1)
            for unit in [todo[0]] if serial else todo:
                (mine if claims.take(unit.name) else others).append(unit)
            others += todo[1:] if serial else []
            mine = [unit for unit in mine if not _there(unit, store, claims, done)]  # made while this process waited
            if serial:
                for unit in mine:
                    done(unit, work(task, unit, probes, every, functools.partial(tick, unit)))
                    claims.drop(unit.name)
            elif mine:
                for unit, found in _spread(mine, task, probes, every, jobs, executor, tick):
                    done(unit, found)
                    claims.drop(unit.name)
            if todo == others or (serial and not mine and others):
                time.sleep(0.05)  # another process is at work on these
                others = others[1:] + others[:1]
            todo = others
    finally:
        claims.close()


def _there(unit: Unit, store: Store, claims: Claims, done: Callable[[Unit, list[Found] | Failure], None]) -> bool:
    if store.missing(run.key() for run in unit.runs):
        return False
    claims.drop(unit.name)
    done(unit, [])
    return True


def _spread(
    todo: list[Unit],
    task: Task,
    probes: Sequence[Any],
    every: int,
    jobs: int,
    executor: Executor | None,
    tick: Callable[[Unit, int], None],
) -> Iterator[tuple[Unit, list[Found] | Failure]]:
    """Units in other processes.  Processes of our own that die are replaced, and what they had in hand is made again."""
    shared = cloudpickle.dumps((task, list(probes), every, identity.package()))
    if executor is not None:
        yield from _gather({executor.submit(_remote, shared, cloudpickle.dumps(u)): u for u in todo}, lambda: None)
        return
    left, tries = list(todo), 0
    while left:
        with _own_pool(min(jobs, len(left))) as (pool, told):
            with _interrupts_ignored():  # by the workers, which inherit it: Ctrl-C is for the parent
                futures = {pool.submit(_remote, shared, cloudpickle.dumps(unit), i): unit for i, unit in enumerate(left)}
            now = list(left)
            try:
                for unit, found in _gather(futures, functools.partial(_tell, told, now, tick)):
                    left.remove(unit)
                    tries = 0
                    yield unit, found
            except BrokenExecutor as error:
                tries += 1
                if tries == TRIES:
                    names = ", ".join(dict.fromkeys(u.method.name for u in left))
                    raise BrokenExecutor(
                        f"worker processes died {TRIES} times in a row (out of memory?); not finished: {names}. "
                        "Finished runs are kept"
                    ) from error


def _gather(futures: dict[Future, Unit], look: Callable[[], None]) -> Iterator[tuple[Unit, list[Found] | Failure]]:
    waiting, broken = set(futures), None
    while waiting:
        ended, waiting = wait(waiting, timeout=0.1, return_when="FIRST_COMPLETED")
        look()
        for future in ended:
            try:
                found = cloudpickle.loads(future.result())
            except BrokenExecutor as error:
                broken = error
                continue
            yield futures[future], found
    if broken is not None:
        raise broken


def _tell(told: Any, todo: list[Unit], tick: Callable[[Unit, int], None]) -> None:
    with contextlib.suppress(queue.Empty, OSError, EOFError):
        while True:
            place, n = told.get_nowait()
            tick(todo[place], n)


@contextlib.contextmanager
def _own_pool(jobs: int) -> Iterator[tuple[ProcessPoolExecutor, Any]]:
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])  # torch is imported once for all workers there will be
    told = context.Queue()
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_listen, initargs=(told, dict(os.environ)))
    try:
        yield pool, told
    finally:
        workers = list((getattr(pool, "_processes", None) or {}).values())
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in workers:  # what they have in hand is lost; waiting for it would not save it
            worker.terminate()
        told.cancel_join_thread()
        told.close()


_TOLD: Any = None  # in a worker: where it says how far it is


def _listen(told: Any, environment: dict[str, str]) -> None:
    """The start of a worker, which is forked from a server that may be older than this pool."""
    global _TOLD
    _TOLD = told
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    os.environ.clear()
    os.environ.update(environment)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """No worker goes on after its parent has been killed."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _remote(shared: bytes, unit: bytes, place: int | None = None) -> bytes:
    """In a worker.  Bytes, since torch would hand tensors over through shared memory and a thread that outlives its worker."""
    task, probes, every, package = _loaded(shared)
    if package != identity.package():
        raise RuntimeError("a worker has another version of apollo-sandbox, or of torch, than the process that asks")

    def tick(n: int) -> None:
        if _TOLD is not None and place is not None:
            _TOLD.put((place, n))

    return cloudpickle.dumps(work(task, cloudpickle.loads(unit), probes, every, tick))


@functools.lru_cache(maxsize=1)
def _loaded(shared: bytes) -> Any:
    return cloudpickle.loads(shared)


@contextlib.contextmanager
def _interrupts_ignored() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # one that comes now is heard afterwards
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

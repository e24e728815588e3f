"""Who makes the runs: this process, processes of this machine, or a cluster.  Whoever makes them gives the same rows.

`executor=` is anything whose `submit(function, *arguments)` gives something with `done()`, `result()` and `cancel()`: a
`concurrent.futures.Executor`, `dask.distributed.Client(…).get_executor(pure=False)`, a `submitit.AutoExecutor`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context
from typing import Any, NamedTuple

import cloudpickle

from sandbox.distributed import launch
from sandbox.experiments.runs import identity
from sandbox.experiments.runs.run import Row
from sandbox.experiments.runs.store import Claims, Store
from sandbox.experiments.runs.unit import Failure, Found, Look, Unit, made
from sandbox.tasks import Task
from sandbox.utils import interrupts

TRIES = 3  # how often in a row workers may die without finishing anything

Done = Callable[[Unit, list[Found] | Failure], None]
Told = Callable[[Unit, int, int, Row | None], None]  # a unit, then as `vectorised.Tell`


class OtherSource(RuntimeError):
    """A worker would run other code, or on other data, than the process that asks."""


def execute(
    todo: list[Unit],
    task: Task,
    store: Store,
    done: Done,
    *,
    look: Look = Look(),
    executor: Any = None,
    tell: Told = lambda unit, place, n, row: None,
    lost: Callable[[Unit], bool] = lambda unit: False,
) -> None:
    """Makes all units but those that are `lost` by then; `done` is called in this process with each as it ends.

    executor: whose `submit` makes them, `Processes` or another; None for this process.
    tell: called with updates and rows as they come; from an executor of the user's nothing comes before a unit's end.
    Another process at work in the same folder shares them: what it holds is waited for, and taken from the store.
    Raises BrokenExecutor where workers keep dying, with what is finished kept, and OtherSource.
    """
    claims = Claims(store.folder)
    try:
        while todo := [unit for unit in todo if not lost(unit)]:
            mine, others = list[Unit](), list[Unit]()
            serial = executor is None or (isinstance(executor, Processes) and len(todo) == 1)
            for unit in [todo[0]] if serial else todo:
                (mine if claims.take(unit.name) else others).append(unit)
            others += todo[1:] if serial else []
            mine = [unit for unit in mine if not _there(unit, store, claims, done)]  # made while this process waited
            if serial:
                for unit in mine:
                    done(unit, made(task, unit, look, functools.partial(tell, unit)))
                    claims.drop(unit.name)
            elif mine:
                for unit, found in _spread(mine, task, look, executor, tell):
                    done(unit, found)
                    claims.drop(unit.name)
            if todo == others or (serial and not mine and others):
                time.sleep(0.05)  # another process is at work on these
                others = others[1:] + others[:1]
            todo = others
    finally:
        claims.close()
        launch.close()


@contextlib.contextmanager
def workers(jobs: int, executor: Any = None) -> Iterator[Any]:
    """The executor that is given, or so many processes of this machine for the length of the block, or None for this one."""
    if isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 1:
        raise (ValueError if isinstance(jobs, int) else TypeError)(f"jobs must be at least 1, got {jobs!r}")
    if executor is not None or jobs == 1:
        yield executor
        return
    own = Processes(jobs)
    try:
        yield own
    finally:
        own.close()


def _there(unit: Unit, store: Store, claims: Claims, done: Done) -> bool:
    if store.missing(run.key() for run in unit.runs):
        return False
    claims.drop(unit.name)
    done(unit, [])
    return True


def _spread(
    todo: list[Unit], task: Task, look: Look, executor: Any, tell: Told
) -> Iterator[tuple[Unit, list[Found] | Failure]]:
    """Units in other processes.  What a process that died had in hand is made again."""
    shared = cloudpickle.dumps((task, look, identity.package(), identity.told([task, look])))
    left, tries = {unit.name: unit for unit in todo}, 0

    def hear() -> None:
        for name, *rest in executor.heard() if isinstance(executor, Processes) else ():
            if name in left:
                tell(left[name], *rest)

    while left:
        futures = dict[Any, Unit]()
        try:
            for name, unit in left.items():
                futures[executor.submit(_remote, shared, _packed(unit), name)] = unit
            for unit, found in _gather(futures, hear):
                del left[unit.name]
                tries = 0
                yield unit, found
        except BrokenExecutor as error:
            if isinstance(executor, Processes):
                executor.close()
            tries += 1
            if tries == TRIES:
                names = ", ".join(dict.fromkeys(u.method.name for u in left.values()))
                raise BrokenExecutor(
                    f"worker processes died {TRIES} times in a row (out of memory?); not finished: {names}. "
                    "Finished runs are kept"
                ) from error
        finally:
            if not isinstance(executor, Processes):  # those are ended by `close`
                for future in futures:  # where this is ended early
                    future.cancel()


def _packed(unit: Unit) -> bytes:
    """A unit, and the digits of what its runs depend on beside the task."""
    return cloudpickle.dumps((unit, identity.told(unit.parts())))


def _gather(futures: dict[Any, Unit], hear: Callable[[], None]) -> Iterator[tuple[Unit, list[Found] | Failure]]:
    waiting, broken = set(futures), None
    while waiting:
        with interrupts.postponed():
            ended = {future: _outcome(future) for future in _ended(waiting)}
        waiting -= set(ended)
        hear()
        for future, found in ended.items():
            if isinstance(found, _Broken):
                broken = found.error
                continue
            if isinstance(found, Exception):
                raise found
            yield futures[future], found
    if broken is not None:
        raise broken if isinstance(broken, BrokenExecutor) else BrokenExecutor(str(broken)) from broken


class _Broken(NamedTuple):
    """What a worker, or who sent it, has raised; what a run raises comes as a value."""

    error: Exception


def _outcome(future: Any) -> Any:
    try:
        return cloudpickle.loads(future.result())
    except Exception as error:
        return _Broken(error)


def _ended(waiting: set[Any]) -> set[Any]:
    if all(isinstance(future, Future) for future in waiting):
        return wait(waiting, timeout=0.1, return_when="FIRST_COMPLETED").done
    time.sleep(0.1)
    return {future for future in waiting if future.done()}


class Processes:
    """Processes of this machine, as an executor: begun when they are needed, anew where some have died, ended by `close`."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self._pool: ProcessPoolExecutor | None = None
        self._told: Any = None

    def submit(self, *arguments: Any) -> Future:
        """As every executor's."""
        with interrupts.postponed(), _blocked():  # for the workers, which inherit it: Ctrl-C is for the parent
            if self._pool is None:
                context = get_context("forkserver")
                context.set_forkserver_preload([__name__])  # torch is imported once for all workers there will be
                self._told = context.Queue()
                told = self._told, dict(os.environ)
                self._pool = ProcessPoolExecutor(self.jobs, mp_context=context, initializer=_listen, initargs=told)
            return self._pool.submit(*arguments)

    def heard(self) -> list[Any]:
        """What the processes have told since the last call."""
        found = list[Any]()
        with interrupts.postponed(), contextlib.suppress(queue.Empty, OSError, EOFError):
            while True:
                found.append(self._told.get_nowait())
        return found

    def close(self) -> None:
        """Ends them; what they have in hand is lost: waiting for it would not save it."""
        pool, self._pool = self._pool, None
        if pool is not None:
            with interrupts.postponed():
                workers = list((getattr(pool, "_processes", None) or {}).values())
                if (calls := getattr(pool, "_call_queue", None)) is not None:
                    calls.cancel_join_thread()  # else the exit may wait for ever for a thread that sends to dead workers
                pool.shutdown(wait=False, cancel_futures=True)
                for worker in workers:
                    worker.terminate()
                self._told.cancel_join_thread()
                self._told.close()


_TOLD: Any = None  # in a worker of ours: where it says how far it is


def _listen(told: Any, environment: dict[str, str]) -> None:
    """The start of a worker, which is forked from a server that may be older than this pool."""
    global _TOLD
    _TOLD = told
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    os.environ.clear()
    os.environ.update(environment)
    threading.Thread(target=launch.end_with_parent, daemon=True).start()


def _remote(shared: bytes, packed: bytes, name: str) -> bytes:
    """In a worker.  Bytes, since torch would hand tensors over through shared memory and a thread that outlives its worker."""

    def tell(*rest: Any) -> None:
        if _TOLD is not None:
            _TOLD.put((name, *rest))

    try:
        task, look = _loaded(shared)
        unit, code = cloudpickle.loads(packed)
        _same(code, unit.parts())
        return cloudpickle.dumps(made(task, unit, look, tell))
    except (MemoryError, OSError, OtherSource) as error:
        return cloudpickle.dumps(error)


@functools.lru_cache(maxsize=1)
def _loaded(shared: bytes) -> tuple[Task, Look]:
    task, look, package, code = cloudpickle.loads(shared)
    if package != identity.package():
        raise OtherSource("a worker has another version of apollo-sandbox, or of torch, than the process that asks")
    _same(code, [task, look])
    return task, look


def _same(code: str | None, value: Any) -> None:
    """Raises OtherSource where a worker finds other digits of a value than the process that sent it."""
    if code is not None and identity.told(value) not in (code, None):
        raise OtherSource("a worker has other source or data of the task or a recipe than the process that asks")


@contextlib.contextmanager
def _blocked() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

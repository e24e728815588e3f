"""Where runs are made: in this process, in processes of this machine, or on a cluster; the rows are the same.

`executor=` is any object whose `submit(function, *arguments)` returns an object with `done()`, `result()` and `cancel()`: a
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
from typing import Any, NamedTuple

import cloudpickle

from sandbox.distributed import launch
from sandbox.experiments.runs import identity
from sandbox.experiments.runs.batch import Failure, Outcome, Probing, RunBatch, run_batch
from sandbox.experiments.runs.store import Claims, Store
from sandbox.experiments.runs.training import Row
from sandbox.tasks import Task
from sandbox.utils import interrupts, processes

TRIES = 3  # how often in a row workers may die without finishing anything

Done = Callable[[RunBatch, list[Outcome] | Failure], None]
Report = Callable[[RunBatch, int, int, Row | None], None]  # a batch, then the arguments of `vectorised.Tell`


class OtherSource(RuntimeError):
    """Raised where a worker would run other code, or on other data, than the calling process."""


def execute(
    todo: list[RunBatch],
    task: Task,
    store: Store,
    done: Done,
    *,
    probing: Probing,
    executor: Any,
    tell: Report,
    skipped: Callable[[RunBatch], bool],
) -> None:
    """Makes all batches but those `skipped` when their turn comes; calls `done` in this process with each as it ends.

    executor: `Processes` or another one; None for this process.
    tell: called with updates and rows as they come; an executor of the user's reports nothing before a batch has ended.
    Another process at work in the same folder shares them: its batches are waited for, and taken from the store.
    Raises BrokenExecutor where workers keep dying, with finished runs kept, and OtherSource.
    """
    claims = Claims(store.folder)
    try:
        while todo := [batch for batch in todo if not skipped(batch)]:
            mine, others = list[RunBatch](), list[RunBatch]()
            serial = executor is None or (isinstance(executor, Processes) and len(todo) == 1)
            for batch in [todo[0]] if serial else todo:
                (mine if claims.take(batch.name) else others).append(batch)
            others += todo[1:] if serial else []
            mine = [batch for batch in mine if not _is_stored(batch, store, claims, done)]  # made while this process waited
            if serial:
                for batch in mine:
                    done(batch, run_batch(task, batch, probing, functools.partial(tell, batch)))
                    claims.drop(batch.name)
            elif mine:
                for batch, outcomes in _distribute(mine, task, probing, executor, tell):
                    done(batch, outcomes)
                    claims.drop(batch.name)
            if todo == others or (serial and not mine and others):
                time.sleep(0.05)  # another process is at work on these
                others = others[1:] + others[:1]
            todo = others
    finally:
        claims.close()
        launch.close()


@contextlib.contextmanager
def workers(jobs: int, executor: Any = None) -> Iterator[Any]:
    """Yields the executor that is given, or a pool of `jobs` processes for the length of the block, or None for one."""
    if executor is not None or jobs == 1:
        yield executor
        return
    pool = Processes(jobs)
    try:
        yield pool
    finally:
        pool.close()


def _is_stored(batch: RunBatch, store: Store, claims: Claims, done: Done) -> bool:
    if store.missing(run.key() for run in batch.runs):
        return False
    claims.drop(batch.name)
    done(batch, [])
    return True


def _distribute(
    todo: list[RunBatch], task: Task, probing: Probing, executor: Any, tell: Report
) -> Iterator[tuple[RunBatch, list[Outcome] | Failure]]:
    """Makes batches in other processes.  Those of a process that died are repeated."""
    shared = cloudpickle.dumps((task, probing, identity.package(), identity.fingerprint_or_none([task, probing])))
    left, tries = {batch.name: batch for batch in todo}, 0

    def relay() -> None:
        for name, *rest in executor.messages() if isinstance(executor, Processes) else ():
            if name in left:
                tell(left[name], *rest)

    while left:
        futures = dict[Any, RunBatch]()
        try:
            for name, batch in left.items():
                futures[executor.submit(_run_remotely, shared, _pack(batch), name)] = batch
            for batch, outcomes in _gather(futures, relay):
                del left[batch.name]
                tries = 0
                yield batch, outcomes
        except BrokenExecutor as error:
            if isinstance(executor, Processes):
                executor.close()
            tries += 1
            if tries == TRIES:
                names = ", ".join(dict.fromkeys(batch.method.name for batch in left.values()))
                raise BrokenExecutor(
                    f"worker processes died {TRIES} times in a row (out of memory?); not finished: {names}. "
                    "Finished runs are kept"
                ) from error
        finally:
            if not isinstance(executor, Processes):  # those are stopped by `close`
                for future in futures:  # where this generator is closed early
                    future.cancel()


def _pack(batch: RunBatch) -> bytes:
    """Returns a batch with the fingerprint of the code that its runs depend on beside the task."""
    return cloudpickle.dumps((batch, identity.fingerprint_or_none(batch.parts())))


def _gather(futures: dict[Any, RunBatch], relay: Callable[[], None]) -> Iterator[tuple[RunBatch, list[Outcome] | Failure]]:
    waiting, broken = set(futures), None
    while waiting:
        with interrupts.postponed():
            ended = {future: _outcome(future) for future in _ended(waiting)}
        waiting -= set(ended)
        relay()
        for future, result in ended.items():
            if isinstance(result, _Broken):
                broken = result.error
                continue
            if isinstance(result, Exception):
                raise result
            yield futures[future], result
    if broken is not None:
        raise broken if isinstance(broken, BrokenExecutor) else BrokenExecutor(str(broken)) from broken


class _Broken(NamedTuple):
    """An error of a worker or of its transport; errors of a run are returned as values."""

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
    """A process-pool executor.  Starts workers on demand, replaces those that die, and stops them in `close`."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self._pool: ProcessPoolExecutor | None = None
        self._messages: Any = None

    def submit(self, *arguments: Any) -> Future:
        """Submits a call, as every executor does."""
        with interrupts.postponed(), _blocked():  # for the workers, which inherit it: Ctrl-C is for the parent
            if self._pool is None:
                context = processes.context(preload=__name__)  # torch is imported once for all workers there will be
                self._messages = context.Queue()
                initial = self._messages, dict(os.environ)
                self._pool = ProcessPoolExecutor(self.jobs, mp_context=context, initializer=_start_worker, initargs=initial)
            return self._pool.submit(*arguments)

    def messages(self) -> list[Any]:
        """Returns the messages of the workers since the last call."""
        received = list[Any]()
        with interrupts.postponed(), contextlib.suppress(queue.Empty, OSError, EOFError):
            while True:
                received.append(self._messages.get_nowait())
        return received

    def close(self) -> None:
        """Stops the workers; their unfinished runs are lost."""
        pool, self._pool = self._pool, None
        if pool is not None:
            with interrupts.postponed():
                workers = list((getattr(pool, "_processes", None) or {}).values())
                if (calls := getattr(pool, "_call_queue", None)) is not None:
                    calls.cancel_join_thread()  # else the exit may wait for ever for a thread that sends to dead workers
                pool.shutdown(wait=False, cancel_futures=True)
                for worker in workers:
                    worker.terminate()
                self._messages.cancel_join_thread()
                self._messages.close()


_MESSAGES: Any = None  # in a worker of `Processes`: the queue for its progress


def _start_worker(messages: Any, environment: dict[str, str]) -> None:
    """Initialises a worker, which is forked from a server that may be older than this pool."""
    global _MESSAGES
    _MESSAGES = messages
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    os.environ.clear()
    os.environ.update(environment)
    threading.Thread(target=launch.end_with_parent, daemon=True).start()


def _run_remotely(shared: bytes, packed: bytes, name: str) -> bytes:
    """Makes a batch in a worker.

    Returns bytes, since torch would pass tensors through shared memory and a thread that outlives its worker.
    """

    def tell(*rest: Any) -> None:
        if _MESSAGES is not None:
            _MESSAGES.put((name, *rest))

    try:
        task, probing = _load(shared)
        batch, code = cloudpickle.loads(packed)
        _check_source(code, batch.parts())
        return cloudpickle.dumps(run_batch(task, batch, probing, tell))
    except (MemoryError, OSError, OtherSource) as error:
        return cloudpickle.dumps(error)


@functools.lru_cache(maxsize=1)
def _load(shared: bytes) -> tuple[Task, Probing]:
    task, probing, package, code = cloudpickle.loads(shared)
    if package != identity.package():
        raise OtherSource("a worker has another version of apollo-sandbox, or of torch, than the process that asks")
    _check_source(code, [task, probing])
    return task, probing


def _check_source(code: str | None, value: Any) -> None:
    """Raises OtherSource where a value has another fingerprint in this worker than in the process that sent it."""
    if code is not None and identity.fingerprint_or_none(value) not in (code, None):
        raise OtherSource("a worker has other source or data of the task or a recipe than the process that asks")


@contextlib.contextmanager
def _blocked() -> Iterator[None]:
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

"""Processes of this machine that run a function together, in a process group of their own: gloo, on the CPU."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import BrokenExecutor
from multiprocessing import connection, parent_process
from pathlib import Path
from typing import Any

import cloudpickle
import torch.distributed as dist

from sandbox.distributed.ranks import Lost
from sandbox.utils import processes

_RESULT, _RAISED, _LOST, _PROGRESS = "result", "raised", "lost", "progress"


class Team:
    """A number of ranks that wait for a function to run.  An error in one may leave others waiting, so it ends the team."""

    def __init__(self, size: int, preload: str) -> None:
        self.size, self.parent = size, os.getpid()
        self._folder = tempfile.TemporaryDirectory()
        self._pipes: list[Any] = []
        self._processes: list[Any] = []
        context = processes.context(preload)
        try:
            for rank in range(size):
                here, there = context.Pipe()
                self._pipes.append(here)
                start = (rank, size, self._folder.name, there, dict(os.environ))
                self._processes.append(context.Process(target=_rank, args=start, daemon=True))
                self._processes[-1].start()
                there.close()
        except BaseException:
            self.close()
            raise

    def run(self, packed: bytes, tell: Callable[..., None], failed: Callable[[Any], bool]) -> list[Any]:
        """See `together`."""
        running, results, lost = dict(zip(self._pipes, range(self.size), strict=True)), dict[int, Any](), ""
        for rank, pipe in enumerate(self._pipes):
            try:
                pipe.send_bytes(packed)
            except OSError:
                raise self._died(rank) from None
        while running:
            ready: list[Any] = connection.wait(list(running))
            for pipe in ready:
                try:
                    kind, value = pipe.recv()
                except (EOFError, OSError):
                    raise self._died(running[pipe]) from None
                if kind == _PROGRESS:
                    tell(*value)
                    continue
                rank, value = running.pop(pipe), cloudpickle.loads(value)
                if kind == _RAISED:
                    raise value
                if kind == _LOST:
                    lost = value  # since another rank has ended, which its own pipe will report
                elif failed(value):
                    return [value]
                else:
                    results[rank] = value
        if lost:
            raise BrokenExecutor(lost)
        return [results[rank] for rank in range(self.size)]

    def _died(self, rank: int) -> BrokenExecutor:
        process = self._processes[rank]
        process.join()
        return BrokenExecutor(f"rank {rank} of {self.size} died (exit code {process.exitcode})")

    def close(self) -> None:
        """Ends the ranks; what they are working on is lost."""
        for process in self._processes:
            if process.pid is not None:
                process.kill()
                process.join()
        for pipe in self._pipes:
            pipe.close()
        self._folder.cleanup()


_FREE: list[Team] = []
_LOCK = threading.Lock()


def together(
    size: int, function: Callable[..., Any], *arguments: Any, tell: Callable[..., None], failed: Callable[[Any], bool]
) -> list[Any]:
    """Returns function(*arguments, tell, group) of each of `size` processes, by rank.

    tell: is called in this process with what rank 0 passes to its own.  failed: whether a result ends the others; it is then
    the only one.
    The processes stay for the next call, until `close`.  Raises what the function raises, and BrokenExecutor, naming the rank,
    where a process dies.
    """
    with _LOCK:
        team = next((t for t in _FREE if t.size == size and t.parent == os.getpid()), None)
        if team is not None:
            _FREE.remove(team)
    team = team or Team(size, function.__module__)
    results: list[Any] = []
    try:
        results = team.run(cloudpickle.dumps((function, arguments)), tell, failed)
    finally:
        if len(results) == size:
            _FREE.append(team)
        else:
            team.close()
    return results


def close() -> None:
    """Ends the processes that wait for another call."""
    while _FREE:
        _FREE.pop().close()


def _rank(rank: int, size: int, folder: str, pipe: Any, environment: dict[str, str]) -> None:
    """Runs a rank until its parent ends it, since others may still be waiting for it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # Ctrl-C is for the parent
    os.environ.clear()
    os.environ.update(environment)
    threading.Thread(target=end_with_parent, daemon=True).start()
    dist.init_process_group("gloo", store=dist.FileStore(str(Path(folder, "store")), size), rank=rank, world_size=size)

    def tell(*rest: Any) -> None:
        if rank == 0:
            pipe.send((_PROGRESS, rest))

    while True:
        try:
            function, arguments = cloudpickle.loads(pipe.recv_bytes())
            kind, value = _RESULT, function(*arguments, tell, dist.group.WORLD)
        except Lost as error:
            kind, value = _LOST, str(error)
        except Exception as error:
            kind, value = _RAISED, error
        pipe.send((kind, cloudpickle.dumps(value)))


def end_with_parent() -> None:
    """Ends this process when its parent has ended, for whatever reason."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)

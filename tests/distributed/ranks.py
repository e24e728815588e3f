"""Several processes that train together, on one machine: gloo, one thread each, a file as their store."""

from __future__ import annotations

import datetime
import importlib
import os
import sys
import tempfile
import traceback
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def run(world: int, function: str, *args, seconds: float = 300, group_seconds: float = 60, folder: str | None = None) -> list:
    """What "module:function" of tests.distributed returns on each of `world` ranks, called with (rank, world, *args).

    All ranks are killed where one fails, or after `seconds`.  None for a rank that did not live to return.
    """
    with tempfile.TemporaryDirectory() as own:
        folder = folder or own
        context = mp.start_processes(
            _rank, args=(world, folder, function, args, group_seconds), nprocs=world, join=False, start_method="spawn"
        )
        try:
            if not context.join(timeout=seconds, grace_period=5) and not _ended(context, seconds):
                raise TimeoutError(f"{function} on {world} ranks took more than {seconds} s")
        finally:
            for process in context.processes:
                if process.is_alive():
                    process.kill()
        return [
            torch.load(path, weights_only=False) if (path := Path(folder, f"{r}.pt")).exists() else None for r in range(world)
        ]


def _ended(context, seconds: float) -> bool:
    """join() returns False whenever one of several processes has ended."""
    return any(context.join(timeout=seconds, grace_period=5) for _ in context.processes)


def _rank(rank: int, world: int, folder: str, function: str, args, seconds: float) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
    limit = datetime.timedelta(seconds=seconds)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world, timeout=limit)
    module, _, name = function.partition(":")
    result = getattr(importlib.import_module(f"tests.distributed.{module}"), name)(rank, world, *args)
    torch.save(result, Path(folder, f"{rank}.pt"))
    sys.stdout.flush()
    dist.destroy_process_group()


def outcome(function, *args):
    """What a call gives, or the text of the error that it raises, so that one case does not end the others of its process."""
    try:
        return function(*args)
    except Exception:
        return traceback.format_exc()

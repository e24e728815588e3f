"""Several processes that train together, on one machine: gloo, one thread each, a file as their store."""

from __future__ import annotations

import datetime
import importlib
import os
import tempfile
import time
import traceback
from pathlib import Path

import torch
import torch.distributed as dist

from sandbox.utils import processes


def run(world: int, function: str, *args, seconds: float = 300, group_seconds: float = 60) -> list:
    """What "module:function" (of tests.distributed, or elsewhere) gives on each of `world` ranks, called with (rank, world, *args).

    The text of its error where it raises; None for a rank that was killed, or had not come back after `seconds`.
    """
    with tempfile.TemporaryDirectory() as folder:
        context = processes.context(preload="tests.distributed.core")  # its imports, once for all ranks
        start = [(rank, world, folder, function, args, group_seconds) for rank in range(world)]
        ranks = [context.Process(target=_rank, args=each, daemon=True) for each in start]
        for process in ranks:
            process.start()
        end = time.monotonic() + seconds
        for process in ranks:
            process.join(max(end - time.monotonic(), 0))
            process.kill()
        paths = [Path(folder, f"{rank}.pt") for rank in range(world)]
        return [torch.load(path, weights_only=False) if path.exists() else None for path in paths]


def _rank(rank: int, world: int, folder: str, function: str, args, seconds: float) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
    limit = datetime.timedelta(seconds=seconds)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world, timeout=limit)
    module, _, name = function.partition(":")
    result = outcome(
        getattr(importlib.import_module(module if "." in module else f"tests.distributed.{module}"), name), rank, world, *args
    )
    torch.save(result, Path(folder, f"{rank}.pt"))
    dist.destroy_process_group()


def outcome(function, *args):
    """What a call gives, or the text of the error that it raises, so that one case does not end the others of its process."""
    try:
        return function(*args)
    except Exception:
        return traceback.format_exc()

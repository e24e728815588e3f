"""How further processes are started, on every system."""

from __future__ import annotations

import multiprocessing
from typing import Any


def context(preload: str) -> Any:
    """Returns a context of `multiprocessing`: a server that imports the module `preload` once for all of its processes.

    Where the system has no such server (Windows), each process starts anew and imports what it needs.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload([preload])
    return server

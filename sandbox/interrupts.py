"""Ctrl-C at a moment that can bear it."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def postponed() -> Iterator[None]:
    """Postpones an interrupt to the end of the block.

    For what must not be broken off half way: an import leaves modules that fail later, or turns the interrupt into an
    ImportError; a wait for another process leaves a lock taken for ever.
    """
    heard = threading.current_thread() is threading.main_thread() and callable(signal.getsignal(signal.SIGINT))
    if not heard:  # by this thread, or by this process (a shell's background job)
        yield
        return
    pending: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: pending.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pending:
        raise KeyboardInterrupt

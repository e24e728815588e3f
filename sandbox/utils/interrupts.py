"""Postpones Ctrl-C over work that must not be broken off."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def postponed() -> Iterator[None]:
    """Postpones an interrupt to the end of the block, where the former handler receives it (another such block, too).

    For work that must not be broken off half way: an import leaves modules that fail later, or turns the interrupt into an
    ImportError; a wait for another process leaves a lock taken forever; torch.func leaves transformations on its stack.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield  # not heard by this thread, or by this process (a shell's background job)
        return
    pending: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: pending.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pending:
        before(pending[0], None)

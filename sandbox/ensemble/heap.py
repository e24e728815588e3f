"""What the C library does with freed memory."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator
from typing import Any

# mallopt's names: how much free memory at the end of the heap goes back to the system, and which requests bypass the heap
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
KEEP, DEFAULT = 1 << 30, 32 << 20  # DEFAULT: where glibc's own adjustment ends


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Inside, glibc keeps what is freed, up to a GiB, for the next tensor, as torch does on a GPU.

    By itself it gives freed memory back from some 64 MB on, and the system clears every page of it that the next step asks for.
    Afterwards what is free goes back.  With another C library nothing happens.
    """
    libc: Any = ctypes.CDLL(None) if sys.platform == "linux" else None
    if not hasattr(libc, "mallopt") or not hasattr(libc, "malloc_trim"):
        yield
        return
    # older versions refuse a threshold above DEFAULT
    if not libc.mallopt(MMAP_THRESHOLD, KEEP):
        libc.mallopt(MMAP_THRESHOLD, DEFAULT)
    libc.mallopt(TRIM_THRESHOLD, KEEP)
    try:
        yield
    finally:
        libc.mallopt(MMAP_THRESHOLD, DEFAULT)
        libc.mallopt(TRIM_THRESHOLD, 2 * DEFAULT)
        libc.malloc_trim(0)

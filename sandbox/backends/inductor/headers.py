"""The header of Inductor's C++ kernels, compiled while the graph that needs it is still being traced.

Left to itself, Inductor compiles it once for each user of a machine, when the first kernel has been generated: some seconds.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from sandbox.backends.inductor import instructions


@contextlib.contextmanager
def ahead() -> Iterator[None]:
    """Inside, a thread has it compiled, as Inductor would; at the end it is there."""
    # imported here and not by the thread: of modules that import each other, two threads may see unfinished ones
    from torch._inductor import codecache

    with instructions.of_torch():
        thread = threading.Thread(target=_compile, args=(codecache,), name="header of kernels")
        thread.start()
        try:
            yield
        finally:
            thread.join()


def _compile(codecache: Any) -> None:
    # what fails here fails again where the header is needed, and raises there
    with contextlib.suppress(Exception):
        # compiles the header, writes the source, and returns a function that would compile the source
        codecache.CppPythonBindingsCodeCache.load_async("// no kernel")

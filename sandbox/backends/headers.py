"""The header of Inductor's C++ kernels, compiled while the graph is traced that will need it.

Inductor compiles it once in a cache, in some seconds of g++, before the first kernel and after all else.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from sandbox.backends import instructions


@contextlib.contextmanager
def ahead() -> Iterator[None]:
    """Inside, a thread has it compiled, as Inductor would; at the end it is there."""

    with instructions.of_torch():
        thread = threading.Thread(target=_compile, name="header of kernels")
        thread.start()
        try:
            yield
        finally:
            thread.join()


def _compile() -> None:
    # whatever fails here fails again where the header is needed, and is told there
    with contextlib.suppress(Exception):
        from torch._inductor.codecache import CppPythonBindingsCodeCache

        # compiles the header, writes the source, and gives a function that would compile the source
        CppPythonBindingsCodeCache.load_async("// no kernel")

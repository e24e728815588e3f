"""The vector instructions of this processor, as Inductor asks for them.

In each new cache Inductor compiles and loads ten small programs, one after another, to see which instructions processor and
compiler have: 17 of the 27 seconds that a first step took on two busy cores.  Here it gets those of torch's own kernels at
once; a compiler that knows the C++ of Inductor's headers knows these.  Instructions that only products of matrices of
small numbers use (VNNI, AMX) are left out.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch


@contextlib.contextmanager
def of_torch() -> Iterator[None]:
    """Inside, Inductor takes them without trying."""
    from torch._inductor import cpu_vec_isa

    inductor: Any = cpu_vec_isa

    asked = {"_is_avx512_supported": cpu_vec_isa.VecAVX512, "_is_avx2_supported": cpu_vec_isa.VecAVX2}
    found = [_sure(kind) for name, kind in asked.items() if getattr(torch.cpu, name, lambda: False)()]
    tries = inductor.valid_vec_isa_list
    if found:
        inductor.valid_vec_isa_list = lambda: found
    try:
        yield
    finally:
        inductor.valid_vec_isa_list = tries


@functools.cache  # one object for each: by it Inductor knows the headers that it has compiled
def _sure(kind: Any) -> Any:
    return type(kind.__name__, (kind,), {"__bool__": lambda self: True, "__hash__": kind.__hash__})()

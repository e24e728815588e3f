"""How a step is run: "eager", "reference", "compiled" or "scripted", or a `Backend` that the user defines."""

from __future__ import annotations

import torch

from sandbox.backends.base import Backend, Cohort, Observer, Step, all_finite, needs_sums, totals
from sandbox.recipe import rounding
from sandbox.utils import lazy, suggest

__all__ = ["NAMES", "Backend", "Cohort", "Observer", "Step", "all_finite", "get", "needs_sums", "totals"]

__getattr__ = lazy.attach(__name__, modules=())

NAMES = ("eager", "reference", "compiled", "scripted")


def get(backend: str | Backend, *, flat: bool = False, state_dtype: torch.dtype | None = None) -> Backend:
    """Returns the backend called `backend`, or checks one that the user has made.

    flat: see `sandbox.backends.inductor.compiled`; state_dtype: see `sandbox.recipe.rounding`.
    Raises ValueError for an unknown name, and for `flat` or a dtype that the backend does not know.
    """
    rounding.check(state_dtype)
    chosen = _choose(backend, flat)
    if state_dtype is not None and not getattr(chosen, "rounds", False):
        raise ValueError(
            f"backend {chosen.name!r} keeps states as it computes them; state_dtype needs 'eager', 'compiled' or 'reference'"
        )
    return chosen


def _choose(backend: str | Backend, flat: bool) -> Backend:
    if isinstance(backend, str) and backend not in NAMES:
        raise ValueError(suggest.unknown("backend", backend, NAMES))
    if flat and backend != "compiled":
        raise ValueError(f"flat=True needs backend='compiled', got {backend!r}")
    if backend == "compiled":
        from sandbox.backends.inductor.compiled import Compiled

        return Compiled(flat=flat)
    if backend == "scripted":
        from sandbox.backends.torchscript.scripted import Scripted

        return Scripted()
    if backend == "eager":
        from sandbox.backends.recorded.eager import Eager

        return Eager()
    if backend == "reference":
        from sandbox.backends.reference import Reference

        return Reference()
    if isinstance(backend, str) or not hasattr(backend, "step") or not hasattr(backend, "load"):
        raise TypeError(f"a backend is one of {', '.join(NAMES)} or an object with load and step, got {backend!r}")
    return backend

"""How a step is run: "eager", "reference", "compiled" or "scripted", or a `Backend` of one's own."""

from __future__ import annotations

from sandbox import suggest
from sandbox.backends.base import Backend, Cohort, Step, all_finite, needs_sums, totals

__all__ = ["NAMES", "Backend", "Cohort", "Step", "all_finite", "get", "needs_sums", "totals"]

NAMES = ("eager", "reference", "compiled", "scripted")


def get(backend: str | Backend, *, flat: bool = False) -> Backend:
    """The backend called `backend`, or one made by hand.

    flat: see `sandbox.backends.compiled`.  Raises ValueError for an unknown name, or for `flat` with another backend.
    """
    if isinstance(backend, str) and backend not in NAMES:
        raise ValueError(suggest.unknown("backend", backend, NAMES))
    if flat and backend != "compiled":
        raise ValueError(f"flat=True needs backend='compiled', got {backend!r}")
    if backend == "compiled":
        from sandbox.backends.compiled import Compiled

        return Compiled(flat=flat)
    if backend == "scripted":
        from sandbox.backends.scripted import Scripted

        return Scripted()
    if backend == "eager":
        from sandbox.backends.eager import Eager

        return Eager()
    if backend == "reference":
        from sandbox.backends.reference import Reference

        return Reference()
    if isinstance(backend, str) or not hasattr(backend, "step") or not hasattr(backend, "load"):
        raise TypeError(f"a backend is one of {', '.join(NAMES)} or an object with load and step, got {backend!r}")
    return backend

"""Messages for unknown names: the given one, the nearest accepted one, and all of them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """Returns the message for a `name` that is not among the `known` ones."""
    known = sorted(known)
    name = str(name)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    return f"unknown {what} {name!r}{hint} Known: {', '.join(known) or 'none'}"


def short(error: Exception) -> str:
    """Returns an error's type and the first line of its text."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__

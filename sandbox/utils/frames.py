"""Tables as attributes."""

from __future__ import annotations

import polars as pl


class Frame(pl.DataFrame):
    """A polars DataFrame that may also be called: `result.frame` was the method `result.frame()` in version 0.1."""

    def __call__(self) -> Frame:
        """Returns the table itself."""
        return self

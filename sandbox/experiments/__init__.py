"""Experiments: compare variants, sweep numbers, inspect curvature; these choose runs and summarise rows, nothing else.

`compare`, `sweep` and `inspect` are the functions of the modules of these names.  `runs` trains (task and methods ->
settings -> rows, by an executor, into the store), `selection` chooses (plan, search, statistics), `reports` shows.
"""

from __future__ import annotations

from sandbox.utils import lazy

__getattr__ = lazy.attach(
    __name__, modules=("calibrate", "callbacks", "compare", "inspect", "reports", "runs", "selection", "sweep")
)

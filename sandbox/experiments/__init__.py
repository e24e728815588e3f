"""Experiments: compare variants, sweep numbers, inspect curvature; these choose runs and summarise rows, nothing else.

`compare`, `sweep` and `inspect` are the functions of the modules of these names; `settings` holds their keyword arguments.
`work` executes runs.  `runs` trains (a method on a task -> rows, by an executor, into the store), `selection` chooses (plan,
search, tuning, statistics), `reports` holds the results and shows them.
"""

from __future__ import annotations

from sandbox.utils import lazy

__getattr__ = lazy.attach(
    __name__, modules=("calibrate", "callbacks", "compare", "inspect", "reports", "runs", "selection", "settings", "sweep")
)

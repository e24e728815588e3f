"""Who trains what: the parameters of a task by the optimizer that a method gives them to."""

from __future__ import annotations

import math
from typing import Any

from sandbox.experiments.runs.methods import Method
from sandbox.tasks import Task

Portion = tuple[str, str, int, int]  # who trains, what (roles, or tensors by their axes), tensors, parameters


def portions(task: Task, method: Method) -> list[Portion]:
    """Returns a portion per trainer, none for a method that trains all parameters itself; the method's own comes first."""
    model: Any = task.start(0)
    counted: dict[str, tuple[dict[str, None], list[int]]] = {}
    for by, what, p in method.trained(task.groups(model), task.parameter_roles):
        kinds, sizes = counted.setdefault(by, ({}, []))
        kinds[what] = None
        sizes.append(math.prod(p.shape))
    rows = [(by, ", ".join(kinds), len(sizes), sum(sizes)) for by, (kinds, sizes) in counted.items()]
    return [] if list(counted) == [method.name] else sorted(rows, key=lambda row: row[0] != method.name)

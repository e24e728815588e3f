"""Tasks: convex problems, small networks and those of the paper's experiments, on real data; two classical test functions.

task = tasks.get("digits-mlp")
params, batches = task.init(seed=0), task.batches(seed=0)
loss = task.loss(params, next(batches))
task.evaluate(params, "validation")        # (loss, metric)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sandbox.tasks.base import DataTask, Params, PureTask
from sandbox.tasks.convex import LogisticBreastCancer, Quadratic, RidgeDiabetes, SoftmaxDigits
from sandbox.tasks.imagenet import ResNeXt50ImageNet
from sandbox.tasks.images import LeNetFashion, ResNet8Fashion, ResNet20Fashion, ResNet110Cifar10, TutorialCifar10
from sandbox.tasks.language import LSTMBillion, LSTMSpeeches
from sandbox.tasks.network import no_decay
from sandbox.tasks.nonconvex import DigitsCNN, DigitsMLP, Rosenbrock
from sandbox.tasks.scaled import ScaledDigitsMLP
from sandbox.tasks.task import Task
from sandbox.tasks.translation import TransformerVerses, TransformerWMT14
from sandbox.utils import imports, suggest

__all__ = ["DataTask", "Params", "PureTask", "Task", "about", "get", "get_all", "names", "no_decay"]

_TASKS: dict[str, type[Task]] = {
    task.name: task
    for task in (
        LogisticBreastCancer,
        SoftmaxDigits,
        RidgeDiabetes,
        Quadratic,
        DigitsMLP,
        DigitsCNN,
        ScaledDigitsMLP,
        Rosenbrock,
        LeNetFashion,
        ResNet8Fashion,
        ResNet20Fashion,
        ResNet110Cifar10,
        TutorialCifar10,
        ResNeXt50ImageNet,
        LSTMSpeeches,
        LSTMBillion,
        TransformerVerses,
        TransformerWMT14,
    )
}

# tasks that are compared together, by name; the data of all of them come with the packages
SUITES: dict[str, tuple[str, ...]] = {
    "suite:small": (
        *("logistic-breast-cancer", "softmax-digits", "ridge-diabetes", "quadratic", "rosenbrock"),
        *("digits-mlp", "digits-cnn", "digits-mlp-scaled"),
    )
}


def names() -> list[str]:
    """Returns the names of all tasks."""
    return list(_TASKS)


def get(name: str | Task, **options: Any) -> Task:
    """Returns the task that `name` stands for; `options` go to its constructor (dtype, noise, …).

    A Task is itself.  A text with a colon is "module:attribute" or "file.py:attribute": a Task, or a class or function that
    makes one.  Everything else is a name.
    Raises ValueError for an unknown name and what is no task, FileNotFoundError for a missing file.
    """
    if isinstance(name, Task):
        return name
    if not isinstance(name, str):
        raise TypeError(f"a task is a Task, a name, 'module:attribute' or 'file.py:attribute', got {name!r}")
    if ":" in name:
        attribute = imports.attribute(name)
        task = attribute(**options) if callable(attribute) and not isinstance(attribute, Task) else attribute
        if not isinstance(task, Task):
            raise ValueError(f"{name!r} is a {type(task).__name__}, not a Task")
        return task
    return about(name)(**options)


def about(name: str) -> type[Task]:
    """Returns the class of a task, for its facts without its data.  Raises ValueError for an unknown name."""
    if name not in _TASKS:
        raise ValueError(suggest.unknown("task", name, _TASKS))
    return _TASKS[name]


def get_all(what: str | Task | Sequence[str | Task]) -> list[Task]:
    """Returns the tasks that a name or a list stands for; "suite:small" stands for those of `SUITES`.

    Raises ValueError for an unknown name, an empty list, and two tasks of one name.
    """
    given = [what] if isinstance(what, str | Task) else list(what)
    found = []
    for each in given:
        suite = isinstance(each, str) and each.startswith("suite:")
        if suite and each not in SUITES:
            raise ValueError(suggest.unknown("suite of tasks", str(each), SUITES))
        found += [get(name) for name in (SUITES[str(each)] if suite else [each])]
    labels = [task.name for task in found]
    if not found or len(set(labels)) < len(labels):
        twice = next((label for label in labels if labels.count(label) > 1), None)
        raise ValueError("a list of tasks must not be empty" if twice is None else f"two tasks are called {twice!r}")
    return found

"""The paper's experiments as data, in sizes that a test, this machine, a GPU and a cluster can run.

studies.names()                                   # F1 to F15
studies.get("language").parts("cpu")              # the same as studies.get("F6")
run.run(studies.get("F6"), "cpu", "notebooks/studies")
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
import re

from sandbox import suggest
from sandbox.studies.study import TIERS, Arm, Part, Search, Study

__all__ = ["TIERS", "Arm", "Part", "Search", "Study", "all_studies", "get", "names"]


@functools.cache
def all_studies() -> list[Study]:
    """F1 to F15: the modules of this folder that are called so."""
    modules = [m.name for m in pkgutil.iter_modules(__path__) if re.match(r"f\d\d_", m.name)]
    return [importlib.import_module(f"{__name__}.{name}").STUDY for name in sorted(modules)]


def names() -> list[str]:
    """Every study's name."""
    return [study.name for study in all_studies()]


def get(name: str) -> Study:
    """The study of a name or key ("language" or "F6").  Raises ValueError for an unknown one."""
    found = {key: study for study in all_studies() for key in (study.name, study.key, study.key.lower())}
    if name not in found:
        raise ValueError(suggest.unknown("study", name, names()))
    return found[name]

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

from sandbox.studies.study import TIERS, Arm, Part, Search, Study
from sandbox.utils import suggest

__all__ = ["TIERS", "Arm", "Part", "Search", "Study", "all_studies", "get", "names"]


@functools.cache
def all_studies() -> list[Study]:
    """Returns the studies F1 to F15, one per module of this folder named so."""
    modules = [m.name for m in pkgutil.iter_modules(__path__) if re.match(r"f\d\d_", m.name)]
    return [importlib.import_module(f"{__name__}.{name}").STUDY for name in sorted(modules)]


def names() -> list[str]:
    """Returns every study's name."""
    return [study.name for study in all_studies()]


def get(name: str) -> Study:
    """Returns the study of a name or key ("language" or "F6").  Raises ValueError for an unknown one."""
    by_name = {key: study for study in all_studies() for key in (study.name, study.key, study.key.lower())}
    if name not in by_name:
        raise ValueError(suggest.unknown("study", name, names()))
    return by_name[name]

"""The paper's experiments as data, in sizes that a test, this machine, a GPU and a cluster can run.

studies.names()                                   # F1 to F13
studies.get("language").parts("cpu")              # the same as studies.get("F6")
run.run(studies.get("F6"), "cpu", "notebooks/studies")
"""

from __future__ import annotations

from sandbox import suggest
from sandbox.studies import (
    f01_toy,
    f02_images,
    f03_transfer,
    f04_rate,
    f05_decay,
    f06_language,
    f07_translation,
    f08_cost,
    f09_clipping,
    f10_coupling,
    f11_warmup,
    f12_components,
    f13_scale,
)
from sandbox.studies.study import TIERS, Arm, Part, Search, Study

__all__ = ["TIERS", "Arm", "Part", "Search", "Study", "all_studies", "get", "names"]

_MODULES = (
    f01_toy,
    f02_images,
    f03_transfer,
    f04_rate,
    f05_decay,
    f06_language,
    f07_translation,
    f08_cost,
    f09_clipping,
    f10_coupling,
    f11_warmup,
    f12_components,
    f13_scale,
)


def all_studies() -> list[Study]:
    """F1 to F13."""
    return [module.STUDY for module in _MODULES]


def names() -> list[str]:
    """Every study's name."""
    return [study.name for study in all_studies()]


def get(name: str) -> Study:
    """The study of a name or key ("language" or "F6").  Raises ValueError for an unknown one."""
    found = {key: study for study in all_studies() for key in (study.name, study.key, study.key.lower())}
    if name not in found:
        raise ValueError(suggest.unknown("study", name, names()))
    return found[name]

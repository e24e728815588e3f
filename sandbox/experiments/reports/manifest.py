"""manifest.json: what a folder holds, and where and with what it was made."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sandbox.experiments.runs.store import atomically
from sandbox.utils import imports

if TYPE_CHECKING:
    from sandbox.experiments.selection.plan import Plan

# what only this command's manifest names
MARKS = {"compare": "grids", "sweep": "vary", "inspect": "samples"}


def of_plan(plan: Plan) -> dict[str, Any]:
    """A comparison's."""
    from sandbox.experiments.selection.plan import TUNING_SEEDS_FROM

    tuning = list(range(TUNING_SEEDS_FROM, TUNING_SEEDS_FROM + plan.tuning_seeds))
    names = ("tuning_seeds", "rates", "spacing", "tuner", "trials", "steps", "warmup", "vectorised", "every")
    schedule = plan.schedule if isinstance(plan.schedule, str) else repr(plan.schedule)
    return {
        "task": plan.task.name,
        "seeds": {"final": list(range(plan.seeds)), "tuning": tuning},
        **{name: getattr(plan, name) for name in names},
        "schedule": schedule,
        "evaluated_at": list(plan.at),
        "search": {name: repr(space) for name, space in plan.search.items()},
        "backend": str(plan.backend),
        "options": dataclasses.asdict(plan.options),
        "probes": [getattr(p, "__name__", repr(p)) for p in plan.probes],
        "one by one": plan.refusals,
        "grids": {m.name: plan.grid(m) for m in plan.methods},
        "recipes": {m.name: m.text() for m in plan.methods},
    }


def read(folder: Path, command: str) -> dict[str, Any] | None:
    """What the command's manifest in a folder says; None where there is none.

    Raises ValueError where manifest.json is another's: its results would lose theirs.
    """
    path = folder / "manifest.json"
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text())
    except ValueError:
        found = None
    named = found if isinstance(found, dict) else {}
    if MARKS[command] not in named:
        of = next((f"of {other}" for other, mark in MARKS.items() if mark in named), f"not of {command}")
        raise ValueError(f"{folder} holds results {of} ({path.name}); choose another folder (--out) for {command}")
    return named


def write(folder: Path, facts: dict[str, Any]) -> None:
    """`facts` and where and with what they were found, as JSON."""
    with atomically(folder / "manifest.json") as temporary:
        temporary.write_text(json.dumps({**facts, "environment": environment()}, indent=2, ensure_ascii=False) + "\n")


def environment() -> dict[str, Any]:
    """Versions, git revision and machine."""
    versions = {name: metadata.version(name) for name in ("torch", "numpy", "scipy", "scikit-learn", "polars")}
    return {
        "python": platform.python_version(),
        "versions": versions,
        "git_revision": _revision(),
        "machine": {"system": platform.platform(), "processor": processor(), "cores": os.cpu_count()},
        "command": [Path(*sys.argv[:1]).name, *sys.argv[1:]],  # where the program lies says nothing about a run
    }


def processor() -> str:
    """The processor's name, as far as the system tells."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _revision() -> str | None:
    """The revision of this package's repository, with "+changes" where files differ from it."""
    home = imports.PACKAGE
    try:
        head, status = (
            subprocess.run(["git", *args], cwd=home, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
            for args in (["rev-parse", "HEAD"], ["status", "--porcelain"])
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return head + ("+changes" if status else "")

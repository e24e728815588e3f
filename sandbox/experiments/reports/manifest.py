"""manifest.json: what a folder holds, and on which machine and with which versions it was made."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from sandbox.experiments.runs.store import atomically
from sandbox.utils import imports

# a key that only this command's manifest has
MARKS = {"compare": "grids", "comparisons": "comparisons", "sweep": "vary", "inspect": "samples"}


def read(folder: Path, command: str) -> dict[str, Any] | None:
    """Returns the command's manifest in a folder, or None where there is none.

    Raises ValueError where manifest.json is another command's: its results would lose it.
    """
    path = folder / "manifest.json"
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text())
    except ValueError:
        content = None
    facts = content if isinstance(content, dict) else {}
    if MARKS[command] not in facts:
        owner = next((f"of {other}" for other, mark in MARKS.items() if mark in facts), f"not of {command}")
        raise ValueError(f"{folder} holds results {owner} ({path.name}); choose another folder (--out) for {command}")
    return facts


def holds(folder: Path, command: str) -> bool:
    """Whether the manifest in a folder is this command's."""
    try:
        return MARKS[command] in json.loads((folder / "manifest.json").read_text())
    except (FileNotFoundError, ValueError, TypeError):
        return False


def write(folder: Path, facts: dict[str, Any]) -> None:
    """Writes `facts` and the environment as JSON."""
    with atomically(folder / "manifest.json") as temporary:
        temporary.write_text(json.dumps({**facts, "environment": environment()}, indent=2, ensure_ascii=False) + "\n")


def environment() -> dict[str, Any]:
    """Returns versions, git revision and machine."""
    versions = {name: metadata.version(name) for name in ("torch", "numpy", "scipy", "scikit-learn", "polars")}
    return {
        "python": platform.python_version(),
        "versions": versions,
        "git_revision": _revision(),
        "machine": {"system": platform.platform(), "processor": processor(), "cores": os.cpu_count()},
        "command": [Path(*sys.argv[:1]).name, *sys.argv[1:]],  # where the program lies says nothing about a run
    }


def processor() -> str:
    """Returns the processor's name, where the system has it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _revision() -> str | None:
    """Returns the revision of this package's repository, with "+changes" where files differ from it."""
    home = imports.PACKAGE
    try:
        head, status = (
            subprocess.run(["git", *args], cwd=home, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
            for args in (["rev-parse", "HEAD"], ["status", "--porcelain"])
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return head + ("+changes" if status else "")

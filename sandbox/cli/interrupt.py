"""Ctrl-C: whenever it comes, the command says which results remain and ends with exit code 130."""

from __future__ import annotations

from pathlib import Path

EXIT_CODE = 130


class Command:
    """A command: its fields are its options, its docstring is its help."""

    def main(self) -> int:
        """Does the work; returns the exit code."""
        raise NotImplementedError

    def interrupted(self) -> str:
        """Returns what to say when Ctrl-C has ended `main`: which results remain."""
        return "Interrupted."


def resumable(folder: Path, results: str, *, what: str) -> str:
    """Returns the message of a command that continues where it stopped.  results: the pattern of its files."""
    if any(folder.glob(results)):
        return f"Interrupted. Finished {what} are kept in {folder}/; the same command continues from there."
    return f"Interrupted before any {what} were finished; nothing is kept."


def not_resumable(folder: Path) -> str:
    """Returns the message of a command that writes its results at the end."""
    if folder.is_dir() and any(folder.iterdir()):
        return f"Interrupted. Whatever was written to {folder}/ is kept."
    return "Interrupted before anything was written."

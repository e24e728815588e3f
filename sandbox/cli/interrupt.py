"""Ctrl-C: whenever it comes, the command says what is kept and ends with exit code 130."""

from __future__ import annotations

from pathlib import Path

EXIT_CODE = 130


class Command:
    """A command: its fields are its options, its docstring is its help."""

    def main(self) -> int:
        """Does the work; returns the exit code."""
        raise NotImplementedError

    def interrupted(self) -> str:
        """What to say when Ctrl-C has ended `main`: what of the work is kept."""
        return "Interrupted."


def kept(folder: Path, results: str, *, what: str) -> str:
    """What a command that continues where it stopped says: whether a file of the pattern `results` is in the folder yet."""
    if any(folder.glob(results)):
        return f"Interrupted. Finished {what} are kept in {folder}/; the same command continues from there."
    return f"Interrupted before any {what} were finished; nothing is kept."


def written(folder: Path) -> str:
    """What a command that writes its results at the end says."""
    if folder.is_dir() and any(folder.iterdir()):
        return f"Interrupted. Whatever was written to {folder}/ is kept."
    return "Interrupted before anything was written."

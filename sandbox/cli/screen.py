"""Output of the commands to the terminal: tables, and progress of long work."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from sandbox.experiments.reports.tables import Shown


def number(text: str) -> float | str:
    """Returns a number, or the text that is none."""
    try:
        return float(text)
    except ValueError:
        return text


FOLDED = 60  # characters to which a last column may be folded


def folder(out: Path) -> None:
    """Creates the folder for results before the work begins.  Raises ValueError where a file is in the way."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise ValueError(f"out must be a folder, {out} is a file or lies in one") from error


def console() -> Console:
    """Returns a terminal; a wide one where the output is a file."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 160)


def table(console: Console, head: list[str], rows: list[list[str]]) -> None:
    """Prints a table, its last column folded where it must be; on a narrow terminal one block per row."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    widths = [max(len(line[i]) for line in [head, *rows]) for i in range(len(head))]
    widths[-1] = min(widths[-1], FOLDED)
    if sum(widths) + 3 * len(widths) > console.width and len(head) > 4:
        # too narrow for one line per row
        for row in rows:
            console.print(f"\n{row[0]}", style="bold", highlight=False, markup=False)
            for name, value in zip(head[1:], row[1:], strict=True):
                say(console, f"  {name}: {value}")
        return
    table = Table(box=box.SIMPLE)
    for name in head:
        table.add_column(Text(name), overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))  # brackets in names are no markup
    console.print(table)


def show(console: Console, result: Shown) -> None:
    """Prints the tables and notes of a result."""
    tables, notes = result.shown()
    for head, rows in tables:
        table(console, head, rows)
    for line in notes:
        say(console, line)


def say(console: Console, line: str) -> None:
    """Prints a line literally: names in it are data."""
    console.print(line, highlight=False, markup=False)


@contextlib.contextmanager
def progress(console: Console, unit: str = "runs") -> Iterator[Callable[[float, int, str], None]]:
    """Yields a progress callback: a bar on a terminal, elsewhere one line per tenth of the work."""
    if not sys.stdout.isatty():
        yield _lines(unit)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    what = TextColumn("{task.description}", markup=False)
    columns = (what, BarColumn(), MofNCompleteColumn(), TextColumn(unit), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=None)
        yield lambda done, total, what: bar.update(task, completed=done, total=total, description=what)


def _lines(unit: str) -> Callable[[float, int, str], None]:
    shown: set[int] = set()
    first = last = began = 0.0

    def say(done: float, total: int, what: str) -> None:
        nonlocal first, last, began
        if not shown or done < last:  # the start, or the start of another part
            shown.clear()
            first, began = done, time.monotonic()
        last, tenth = done, int(10 * done // max(total, 1))
        if tenth not in shown:
            shown.add(tenth)
            spent, advanced = time.monotonic() - began, done - first
            left = f", about {spent * (total - done) / advanced:.0f} s left" if advanced and done < total else ""
            sys.stderr.write(f"{what}: {int(done)} of {total} {unit}{left}\n")
            sys.stderr.flush()

    return say

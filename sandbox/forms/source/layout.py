"""Lines of a file as a formatter leaves them: calls, assignments, range checks and docstrings within its width."""

from __future__ import annotations

import re
import textwrap

from sandbox.recipe import Recipe, describe

WIDTH = 120


def checks(interval: str, names: list[str]) -> list[str]:
    """Range checks of numbers that lie in the same interval: one of its own, or a loop over several."""
    if not _within(interval, "value"):
        return []
    if len(names) == 1:
        return [f"        if not {_within(interval, names[0])}:", f"            raise ValueError({_message(interval, *names)})"]
    value = "defaults[name]"
    return [
        f"        for name in ({quote(names)}):",
        f"            if not {_within(interval, value)}:",
        f"                raise ValueError({_message(interval, '{name}', value)})",
    ]


def _message(interval: str, name: str, value: str = "") -> str:
    return f'f"{name} must lie in {interval}, got {{{value or name}}}"'


def quote(names: list[str]) -> str:
    """The names as texts, one after another."""
    return ", ".join(f'"{name}"' for name in names)


def _within(interval: str, name: str) -> str:
    """The condition that a number lies in an interval; "" where it always does."""
    if not interval:
        return ""
    low, high = (part.strip() for part in interval[1:-1].split(","))
    if high == "inf" and interval[-1] == "]":
        return "" if low == "-inf" else f"{name} {'>=' if interval[0] == '[' else '>'} {low}"
    left = "" if low == "-inf" else f"{low} {'<=' if interval[0] == '[' else '<'} "
    bound = 'float("inf")' if high == "inf" else high
    return f"{left}{name} {'<=' if interval[-1] == ']' else '<'} {bound}"


def printed(recipe: Recipe) -> list[str]:
    """The printed algorithm; where its columns are too wide, a block's numbers stand below its equation."""
    lines = describe.text(recipe).splitlines()
    if max(map(len, lines)) <= WIDTH - 4:
        return lines
    lines = [*textwrap.wrap(lines[0], WIDTH - 4, subsequent_indent="    "), *lines[1:]]
    rows = [re.fullmatch(r"(.{14}.*?)(?: {3,}(.*))?", line) for line in lines]
    both = [(row[1], row[2] or "") for row in rows if row]
    return [part for left, right in both for part in _beside(left, right)]


def _beside(left: str, right: str) -> list[str]:
    one = f"{left}   {right}".rstrip()
    if len(one) <= WIDTH - 4:
        return [one]
    if len(left) <= WIDTH - 4:
        return [left, " " * 16 + right]
    return textwrap.wrap(one, WIDTH - 4, subsequent_indent=" " * 16)


def paragraphs(lines: list[str]) -> list[list[str]]:
    """The paragraphs of a docstring, each filled anew and after a blank line; an indented one stays as it is."""
    texts = [text for text in "\n".join(lines).split("\n\n") if text.strip()]
    return [
        ["", *(t.splitlines() if t.startswith(" ") else textwrap.wrap(t, WIDTH - 4))] for t in (x.strip("\n") for x in texts)
    ]


def fit(head: str, items: list[str], tail: str) -> list[str]:
    """A call on one line, or with its arguments on the next or on lines of their own, as formatters break it."""
    if len(one := head + ", ".join(items) + tail) <= WIDTH:
        return [one]
    indent = " " * (len(head) - len(head.lstrip()) + 4)
    if len(one := indent + ", ".join(items)) <= WIDTH:
        return [head, one, indent[4:] + tail]
    return [head, *(f"{indent}{item}," for item in items), indent[4:] + tail]


def assign(indent: str, names: list[str], values: list[str]) -> list[str]:
    """Several names at once, as many to a line as fit."""
    room = WIDTH - len(indent) - 14
    pairs = chunks([f"{name}  {value}" for name, value in zip(names, values, strict=True)], room)
    split = [list(zip(*(pair.split("  ") for pair in some), strict=True)) for some in pairs]
    return [f"{indent}{', '.join(left)} = {', '.join(right)}" for left, right in split]


def chunks(items: list[str], room: int) -> list[list[str]]:
    """The items in order, so many together as have room with two characters between them."""
    chunks: list[list[str]] = [[]]
    for item in items:
        if chunks[-1] and sum(len(other) + 2 for other in chunks[-1]) + len(item) > room:
            chunks.append([])
        chunks[-1].append(item)
    return chunks

"""Statements of a step as lines; those that repeat, each time with what the time before has left, as a loop."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

_NAME = re.compile(r"[A-Za-z_]\w*")
_MARKED = re.compile(r"[«»]\d+|[A-Za-z_]\w*")
_PARAGRAPH = 13  # lines, at least, of slots that follow each other


@dataclasses.dataclass(frozen=True)
class Line:
    """A line of the step, and the block that it comes from."""

    text: str
    owner: str


@dataclasses.dataclass(frozen=True)
class Statement:
    """name = body, after its comment.  begins: whether it is the first one of its slot.  times: how often `inside` repeats."""

    name: str
    body: str
    comment: list[str]
    owner: str
    begins: bool = False
    times: int = 1
    inside: tuple[Statement, ...] = ()

    def renamed(self, names: dict[str, str]) -> Statement:
        """The statement with other names for variables."""

        def change(text: str) -> str:
            return _NAME.sub(lambda found: names.get(found[0], found[0]), text)

        return dataclasses.replace(self, name=change(self.name), body=change(self.body))


def fold_loops(statements: Sequence[Statement]) -> list[Line]:
    """The lines, with an empty one before a slot where a paragraph has grown long."""
    lines: list[Line] = []
    begun = 0
    for statement in statements:
        if statement.begins and len(lines) - begun >= _PARAGRAPH:
            lines.append(Line("", ""))
            begun = len(lines)
        lines += [Line(text, "") for text in statement.comment]
        if statement.inside:
            lines.append(Line(f"for _ in range({statement.times}):", statement.owner))
            lines += [Line(f"    {line.text}", line.owner) for line in fold_loops(statement.inside)]
        else:
            lines.append(Line(f"{statement.name} = {statement.body}", statement.owner))
    return lines


def fold_repetitions(statements: list[Statement], after: Sequence[str]) -> list[Statement]:
    """The statements, three or more that repeat as a loop over what they carry on.  after: the lines that follow."""
    for length in range(1, 6):
        for start in range(1, len(statements) - 3 * length + 1):
            blocks = [statements[i : i + length] for i in range(start, len(statements) - length + 1, length)]
            times, carried = _repeats(blocks)
            if times < 3:
                continue
            rest = statements[start + times * length :]
            named = {s.name: carried.get(j, s.name) for j, s in enumerate(blocks[0])}
            last = {s.name: named[blocks[0][j].name] for j, s in enumerate(blocks[times - 1])}
            later = " ".join([*(s.body for s in rest), *after])
            lost = {s.name for block in blocks[: times - 1] for s in block} | set(carried.values())
            if lost & set(_NAME.findall(later)) or not set(carried.values()) <= {s.name for s in statements[:start]}:
                continue
            inside = tuple(dataclasses.replace(s.renamed(named), begins=False) for s in blocks[0])
            loop = Statement("", "", [], blocks[0][0].owner, blocks[0][0].begins, times, inside)
            return [*statements[:start], loop, *fold_repetitions([s.renamed(last) for s in rest], after)]
    return statements


def _repeats(blocks: list[list[Statement]]) -> tuple[int, dict[int, str]]:
    """How many blocks, from the first on, are the same but for names; and which name the first has for what the others take
    from the block before, by its place there."""
    if len(blocks) < 3:
        return 1, {}
    shapes = [_shape(blocks[k], blocks[k - 1]) for k in range(1, len(blocks))]
    times = 1 + next((k for k, shape in enumerate(shapes) if shape != shapes[0]), len(shapes))
    first = [_NAME.findall(s.body) for s in blocks[0]]
    carried: dict[int, str] = {}
    for statement, tokens, body in zip(blocks[0], first, shapes[0], strict=True):
        marked, own = _MARKED.findall(body), {s.name: f"«{j}" for j, s in enumerate(blocks[0])}
        if len(marked) != len(tokens) or _NAME.sub("", statement.body) != _MARKED.sub("", body):
            return 1, {}
        for token, mark in zip(tokens, marked, strict=True):
            if mark[0] == "»":
                if carried.setdefault(int(mark[1:]), token) != token:
                    return 1, {}
            elif own.get(token, token) != mark:
                return 1, {}
    return (times, carried) if carried else (1, {})


def _shape(block: list[Statement], before: list[Statement]) -> list[str]:
    """The bodies of a block, its own names as places «0, those of the block before as »0."""
    names = {s.name: f"»{j}" for j, s in enumerate(before)} | {s.name: f"«{j}" for j, s in enumerate(block)}
    return [_NAME.sub(lambda found: names.get(found[0], found[0]), s.body) for s in block]

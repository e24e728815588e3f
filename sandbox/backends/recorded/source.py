"""The Python source of a phase of a recorded step: operators with `out=`, over pieces of the tensors that fit a cache.

A phase (see `tracing.cut`) is three stretches.  Before: numbers of scopes, from hyperparameters and completed sums.  For
each piece: everything with one number per coordinate, in buffers that are used again as soon as nothing reads them any more, in
place where the operator allows it.  After: sums over pieces, and states with one number per scope.  Of apollo's second phase:

    for (p7, p8, p9, p10, …, c0, c1, …) in pieces:
        torch.abs(p10, out=c0)                  # |B|
        torch.clamp(c0, v3, out=c0)             # D
        torch.div(p9, c0, out=c0)               # d = m / D
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from sandbox.backends.recorded.fusion import alike, fuse
from sandbox.backends.tracing.cut import Phase
from sandbox.backends.tracing.layout import fill_places, row_sums
from sandbox.backends.tracing.record import NotRecordable
from sandbox.utils.private_torch import schema

ATEN, OURS = torch.ops.aten, torch.ops.apollo_sandbox
FILLS = {ATEN.ones_like.default: 1, ATEN.zeros_like.default: 0}
COPIES = (ATEN._to_copy.default, OURS.hold.default)
OVER_PIECES = {ATEN.sum.default: torch.sum, ATEN.dot.default: torch.sum, ATEN.amax.default: torch.amax}  # of a piece, of all


@dataclasses.dataclass(frozen=True)
class Column:
    """What a piece has beside its share of long inputs: a buffer ("slot"), its part of what a later stretch reads ("whole"),
    its entry in a list of sums ("sum"), the rows of input `number` that are not full ("padding"), or the number of entries in
    the pieces before it ("start").

    number: which one.  shape: of a row (a slot, a whole) or of the sum.
    """

    kind: str
    number: int
    shape: tuple[int, ...] = ()
    dtype: torch.dtype | None = None


@dataclasses.dataclass(frozen=True)
class PhaseSource:
    """A phase as Python: `function(inputs, sums, pieces, wholes)`, which returns its sums.

    inputs: the long ones, by place.  pieces: for each piece a tuple of its share of them, then of what `columns` say.
    wholes: what the columns of kind "whole" and "sum" are parts of, in their order.
    """

    function: Callable[..., tuple[Tensor, ...]]
    source: str
    inputs: list[int]
    columns: list[Column]


class PhaseWriter:
    """Writes one phase.  inputs: how many the traced graph has.  length: the first size of long tensors, in both recordings."""

    def __init__(self, phase: Phase, inputs: int, length: tuple[int, int], *, cpu: bool) -> None:
        self.module, self.length, self.cpu = phase.graph, length, cpu
        fuse(phase.graph, self._is_long)
        self.nodes: list[Node] = list(phase.graph.graph.nodes)
        self.places = [n for n in self.nodes if n.op == "placeholder"]
        self.count = inputs
        self.names: dict[Node, str] = {}
        self.values: dict[str, Any] = {"torch": torch, "row_sums": row_sums, "fill_places": fill_places}
        self.before: list[str] = []
        self.each: list[str] = []
        self.after: list[str] = []
        self.columns: dict[Column, str] = {}
        self.slots: dict[Node, str] = {}  # the buffer of a long value, of ours
        self.free: dict[Any, list[str]] = {}
        self.last = self._last_reads()
        self.targets = {n.args[1]: n for n in self.nodes if n.target is ATEN.copy_.default}
        self.done: set[Node] = set()  # copies whose value is computed in place
        self.late: set[Node] = set()  # numbers of scopes that need all pieces

    def source(self) -> PhaseSource:
        """Writes the phase."""
        returned: list[str] = []
        for place, node in enumerate(self.nodes):
            if node.op == "placeholder":
                self._place(node)
            elif node.op == "get_attr":
                self.names[node] = self._value(getattr(self.module, str(node.target)))
            elif node.op == "output":
                returned = [self.names[n] for n in node.all_input_nodes]
            elif node.target is ATEN.sym_size.int:
                self.names[node] = f"{self._argument(node.args[0])}.shape[{node.args[1]}]"
            elif self._is_long(node) or (node.target is ATEN.copy_.default and self._is_long(node.args[0])):
                self._write_long(node, place)
            else:
                self._write_few(node)
        long = [i for i, n in enumerate(self.places) if self._is_long(n) and n.users]
        row = "".join(f"{name}, " for name in [*(f"p{i}" for i in long), *self.columns.values()])
        wholes = "".join(f"w{c}, " for column, c in self.columns.items() if column.kind in ("whole", "sum"))
        lines = [f"({wholes}) = wholes"] if wholes else []
        lines += self.before
        lines += [f"for ({row}) in pieces:", *(f"    {line}" for line in self.each)] if self.each else []
        lines += [*self.after, f"return ({''.join(f'{name}, ' for name in returned)})"]
        text = "def phase(inputs, sums, pieces, wholes):\n" + "".join(f"    {line}\n" for line in lines)
        exec(compile(text, "<a phase of apollo-sandbox>", "exec"), self.values)
        return PhaseSource(self.values["phase"], text, long, list(self.columns))

    # -- what a node is ----------------------------------------------------------------------------------------------

    def _is_long(self, node: Any) -> bool:
        return isinstance(node, Node) and node.meta.get("first") == self.length

    def _is_read_whole(self, node: Node) -> bool:
        """Whether a later stretch reads a long value whole."""
        return self._is_long(node) and any(
            not self._is_long(user) and user.target not in (*OVER_PIECES, ATEN.copy_.default, ATEN.sym_size.int)
            for user in node.users
        )

    def _last_reads(self) -> dict[Node, int]:
        """Returns the place where each value, or a view of it, is read for the last time."""
        last: dict[Node, int] = {}
        for place, node in enumerate(self.nodes):
            for read in node.all_input_nodes:
                if node.target is not ATEN.copy_.default or read is node.args[1]:
                    last[_base(read)] = place
        return last

    # -- statements --------------------------------------------------------------------------------------------------

    def _place(self, node: Node) -> None:
        i = self.places.index(node)
        self.names[node] = f"sums[{i - self.count}]" if i >= self.count else f"p{i}" if self._is_long(node) else f"inputs[{i}]"

    def _write_few(self, node: Node) -> None:
        """A number of scopes or of the whole: before the pieces, or after them where it needs them."""
        name = self.names[node] = f"v{len(self.names)}"
        source = node.all_input_nodes[0] if node.all_input_nodes else None
        if node.target in OVER_PIECES and self._is_long(source):
            # one of each piece, then one over all
            column = self._column("sum", tuple(node.meta["val"].shape), node.meta["val"].dtype)
            function = self._value(OVER_PIECES[node.target])
            self.each.append(f"{column}.copy_({self._call(node)})")
            self.after.append(f"{name} = {function}(w{column}, 0)")
        else:
            late = node.target is ATEN.copy_.default or any(n in self.late or self._is_long(n) for n in node.all_input_nodes)
            (self.after if late else self.before).append(f"{name} = {self._call(node, whole=late)}")
            if not late:
                return
        self.late.add(node)

    def _write_long(self, node: Node, place: int) -> None:
        if not self.late.isdisjoint(node.all_input_nodes) or (_is_view(node) and self._is_read_whole(node)):
            raise NotRecordable("some block looks over all coordinates by another way than x.scope and x.tensor")
        if node.target is ATEN.copy_.default:
            if node not in self.done:
                self.each.append(f"{self.names[node.args[0]]}.copy_({self.names[node.args[1]]})")  # type: ignore[index]
        elif _is_view(node):
            self.names[node] = name = f"v{len(self.names)}"
            self.each.append(f"{name} = {self._call(node)}")
        elif node.target is ATEN.where.self and self.cpu and _is_one(node.args[0]) and not self._is_read_whole(node):
            self._write_choice(node, place)
        else:
            out = self._destination(node, place)
            self.names[node] = out
            if node.target in COPIES:
                self.each.append(f"{out}.copy_({self._argument(node.args[0])})")
            elif node.target in FILLS:
                self.each.append(f"{out}.fill_({FILLS[node.target]})")
            elif node.target is OURS.rows.default:
                x, valid, reduce = node.args
                padding = self._column("padding", number=self.places.index(valid))  # type: ignore[arg-type]
                self.each.append(f"row_sums({self.names[x]}, {padding}, {reduce!r}, {out})")  # type: ignore[index]
            elif node.target is OURS.places.default:
                self.each.append(f"fill_places({self._column('start', number=0)}, {out})")
            elif _has_out(node):
                self.each.append(self._call(node, out=out))
            else:
                self.each.append(f"{out}.copy_({self._call(node)})")
        for read in {_base(n) for n in node.all_input_nodes}:
            if self.last.get(read) == place and (slot := self.slots.pop(read, None)):
                self._release(slot)

    def _write_choice(self, node: Node, place: int) -> None:
        """torch.where by one condition for all coordinates: no pass over them where the first choice may stay where it is."""
        condition, a, b = (self._argument(x) for x in node.args)
        first = node.args[1]
        if isinstance(first, Node) and first in self.slots and self.last[first] == place and alike(first, node):
            self.names[node] = out = a
            self.slots[node] = self.slots.pop(first)
            self.each.append(f"if not {condition}: {out}.copy_({b})")
        else:
            self.names[node] = out = self._destination(node, place)
            self.each.append(f"{out}.copy_({a} if {condition} else {b})")

    # -- where values lie --------------------------------------------------------------------------------------------

    def _destination(self, node: Node, place: int) -> str:
        """Chooses where a long value is written: what a later stretch reads; the tensor that it will replace, if nothing reads
        that any more; the buffer of an operand that nothing else reads; or any buffer."""
        if self._is_read_whole(node):
            return self._column("whole", tuple(node.meta["val"].shape[1:]), node.meta["val"].dtype)
        copied = self.targets.get(node)
        if copied is not None:
            target = copied.args[0]
            if alike(target, node) and self.last.get(target, -1) <= place and self._may_overwrite(node, target):  # type: ignore[arg-type]
                self.done.add(copied)
                return self.names[target]  # type: ignore[index]
        for operand in node.all_input_nodes:
            dying = operand in self.slots and self.last[operand] == place
            if dying and alike(operand, node) and self._may_overwrite(node, operand):
                self.slots[node] = self.slots.pop(operand)
                return self.slots[node]
        key = tuple(node.meta["val"].shape[1:]), node.meta["val"].dtype
        free = self.free.setdefault(key, [])
        self.slots[node] = free.pop() if free else self._column("slot", *key)
        return self.slots[node]

    def _may_overwrite(self, node: Node, operand: Node) -> bool:
        """Whether an operator may write over one of its operands: entry by entry, and no view of it is another operand."""
        if operand not in node.all_input_nodes:
            return all(_base(n) is not operand for n in node.all_input_nodes)
        pointwise = torch.Tag.pointwise in node.target.tags  # type: ignore[union-attr]
        return pointwise and all(n is operand or _base(n) is not operand for n in node.all_input_nodes)

    def _release(self, slot: str) -> None:
        column = next(c for c, name in self.columns.items() if name == slot)
        self.free.setdefault((column.shape, column.dtype), []).append(slot)

    def _column(
        self, kind: str, shape: tuple[int, ...] = (), dtype: torch.dtype | None = None, number: int | None = None
    ) -> str:
        column = Column(kind, len(self.columns) if number is None else number, shape, dtype)
        return self.columns.setdefault(column, f"c{len(self.columns)}")

    # -- text --------------------------------------------------------------------------------------------------------

    def _value(self, value: Any) -> str:
        name = f"k{len(self.values)}"
        self.values[name] = value
        return name

    def _argument(self, x: Any, *, whole: bool = False) -> str:
        if isinstance(x, Node):
            if whole and self._is_long(x):
                return f"inputs[{self.places.index(x)}]" if x in self.places else f"w{self.names[x]}"
            return self.names[x]
        if isinstance(x, list | tuple):
            return f"[{', '.join(self._argument(v, whole=whole) for v in x)}]"
        return repr(x) if isinstance(x, bool | int | str | None) else self._value(x)

    def _call(self, node: Node, *, out: str = "", whole: bool = False) -> str:
        target: Any = node.target
        packet = getattr(target, "overloadpacket", None)
        plain = packet is not None and target.namespace == "aten" and _has_out(node)
        function = f"torch.{packet.__name__}" if plain and hasattr(torch, packet.__name__) else self._value(target)  # type: ignore[union-attr]
        arguments = [self._argument(x, whole=whole) for x in node.args]
        arguments += [f"{key}={self._argument(x, whole=whole)}" for key, x in node.kwargs.items()]
        return f"{function}({', '.join(arguments + ([f'out={out}'] if out else []))})"


def _base(node: Node) -> Node:
    """Returns what a view is a view of."""
    while node.op == "call_function" and _is_view(node):
        node = node.all_input_nodes[0]
    return node


def _is_view(node: Node) -> bool:
    returns = getattr(schema(node.target), "returns", None)
    alias = returns[0].alias_info if returns else None
    return alias is not None and not alias.is_write


def _has_out(node: Node) -> bool:
    """Whether torch's function of this name writes to `out`."""
    packet: Any = getattr(node.target, "overloadpacket", None)
    if packet is None or not hasattr(torch, packet.__name__):
        return False
    outs = [getattr(packet, name) for name in packet.overloads() if "out" in name]
    return any(torch.Tag.generated not in out.tags for out in outs)


def _is_one(node: Any) -> bool:
    """Whether a value is a single number."""
    return isinstance(node, Node) and "val" in node.meta and node.meta["val"].numel() == 1

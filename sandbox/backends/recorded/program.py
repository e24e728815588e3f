"""A step without a compiler: its phases as plain Python, run over pieces of tensors that fit a cache.

Whole operations on a large tensor read and write memory some thirty times per step.  Here all operators of a phase run over one
piece, 512 KiB of each tensor, before the next: memory is read once per phase and written once.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sandbox.backends.recorded.source import Column, PhaseSource, PhaseWriter
from sandbox.backends.tracing import graph, selfcheck
from sandbox.backends.tracing.cut import complete, cut
from sandbox.backends.tracing.layout import padding_of
from sandbox.backends.tracing.record import NotRecordable
from sandbox.recipe import Recipe

# Bytes of a piece of one tensor.  Measured on a CPU with 2 MiB of cache per core; on a GPU only so many that memory is bounded.
PIECE = {"cpu": 2**19, "cuda": 2**26}

_PROGRAMS: dict[Any, Program | graph.NoGraph] = {}  # for the process, by signature
_BUFFERS = threading.local()  # each thread's own: two optimizers may step at once


class Program:
    """The step of one signature as Python.  steps_only: whether it writes the step in θ's place."""

    def __init__(self, recipe: Recipe, signature: graph.Signature, *, step_only: bool) -> None:
        traced = graph.recorded(recipe, signature)
        self.steps_only = step_only and graph.write_step_only(traced)
        if signature.kind == "channels":
            complete(traced, "scope")  # a piece has whole channels
        places = [n for n in traced.graph.nodes if n.op == "placeholder"]
        self.theta = signature.place_of_theta
        theta = places[self.theta].meta
        self.row = tuple(theta["val"].shape[1:])  # as recorded
        cpu = signature.device == "cpu"
        try:
            parts = cut(traced)
            self.phases = [PhaseWriter(p, len(places), theta["first"], cpu=cpu).source() for p in parts]
        except NotRecordable as error:
            raise graph.no_graph(recipe, error) from error
        self.reductions = [part.reductions for part in parts]
        selfcheck.check(recipe, signature, lambda *inputs: BoundProgram(self, 48)(inputs), self.steps_only)

    def bind(self, theta: Tensor) -> BoundProgram:
        """Returns what makes a step on a leaf like theta from the graph's inputs, a list."""
        return BoundProgram(self, PIECE.get(theta.device.type, PIECE["cuda"]))


def program_of(recipe: Recipe, signature: graph.Signature, *, step_only: bool) -> Program:
    """Returns the program of a signature, written at the first call in the process.  Raises NoGraph, each time."""
    key = signature, step_only
    with graph.LOCK:
        if key not in _PROGRAMS:
            try:
                _PROGRAMS[key] = Program(recipe, signature, step_only=step_only)
            except graph.NoGraph as error:
                _PROGRAMS[key] = error
        program = _PROGRAMS[key]
    if isinstance(program, graph.NoGraph):
        raise program
    return program


class BoundProgram:
    """A program bound to the tensors of one leaf.  size: the most bytes that a piece of θ has, but a row at least.

    Pieces are views, made when an input is another tensor than in the step before, which in most steps only gradients are.
    """

    def __init__(self, program: Program, size: int) -> None:
        self.program, self.size, self.reductions = program, size, program.reductions
        self.inputs: list[Tensor] = []
        self.buffers: Any = None
        self.shares: dict[int, Sequence[Tensor]] = {}  # an input's pieces
        self.columns: list[list[Any]] = []  # of each phase: its columns' pieces
        self.wholes: list[list[Tensor]] = []
        self.pieces: list[list[tuple[Any, ...]]] = []

    def __call__(self, inputs: Sequence[Tensor]) -> None:
        """Makes a step, which writes θ and the states."""
        self.begin(inputs)
        sums: list[Tensor] = []
        for number in range(len(self.program.phases)):
            sums += self.phase(number, sums)

    def phase(self, number: int, sums: Sequence[Tensor]) -> Sequence[Tensor]:
        """Runs one phase, with the sums of those before it; the last one writes."""
        function = self.program.phases[number].function
        return function(self.inputs, sums, self.pieces[number], self.wholes[number])

    def begin(self, inputs: Sequence[Tensor]) -> None:
        """Takes the inputs of a step."""
        theta = inputs[self.program.theta]
        buffers = _BUFFERS.__dict__.setdefault("all", {})
        if self.buffers is not buffers or self.inputs[self.program.theta].shape != theta.shape:
            self.buffers, self.shares, self.inputs = buffers, {}, [theta] * 0
        old, self.inputs = self.inputs, list(inputs)
        changed = [i for i, x in enumerate(inputs) if not old or old[i] is not x]
        if not changed:
            return
        count = -(-len(theta) // max(1, self.size // (theta.element_size() * math.prod(theta.shape[1:]))))
        each = -(-len(theta) // count)  # pieces of like size
        long = {i for phase in self.program.phases for i in phase.inputs}
        self.shares.update({i: inputs[i].split(each) for i in changed if i in long})
        if not old:
            laid = [self._columns(phase, inputs, each) for phase in self.program.phases]
            self.columns, self.wholes = [columns for columns, _ in laid], [wholes for _, wholes in laid]
        self.pieces = [
            list(zip(*(self.shares[i] for i in phase.inputs), *columns, strict=True))
            for phase, columns in zip(self.program.phases, self.columns, strict=True)
        ]

    def _columns(self, phase: PhaseSource, inputs: Sequence[Tensor], each: int) -> tuple[list[Any], list[Tensor]]:
        """Returns the pieces' own columns, and the tensors that later stretches read whole."""
        theta = inputs[self.program.theta]
        lengths = [len(piece) for piece in theta.split(each)]
        columns: list[Any] = []
        wholes: list[Tensor] = []
        used: dict[Any, int] = {}
        for column in phase.columns:
            if column.kind == "padding":
                valid = inputs[column.number]
                columns.append([padding_of(part, theta.shape[1]) for part in valid.split(each)])
                continue
            if column.kind == "start":
                columns.append([i * each * math.prod(theta.shape[1:]) for i in range(len(lengths))])
                continue
            row = tuple(theta.shape[1:]) if column.shape == self.program.row and column.kind != "sum" else column.shape
            if column.kind == "slot":
                columns.append(self._slot(column, row, lengths, theta.device, used))
                continue
            length = len(lengths) if column.kind == "sum" else len(theta)
            wholes.append(torch.empty(length, *row, dtype=column.dtype, device=theta.device))
            columns.append(wholes[-1].unbind() if column.kind == "sum" else wholes[-1].split(each))
        return columns, wholes

    def _slot(
        self, column: Column, row: tuple[int, ...], lengths: list[int], device: torch.device, used: dict[Any, int]
    ) -> list[Tensor]:
        """Returns a buffer of this thread, in each piece's shape."""
        key = column.dtype, device
        number = used[key] = used.get(key, -1) + 1
        buffers = self.buffers.setdefault(key, [])
        size = lengths[0] * math.prod(row)
        if number == len(buffers):
            buffers.append(torch.empty(0, dtype=column.dtype, device=device))
        if len(buffers[number]) < size:
            buffers[number] = torch.empty(size, dtype=column.dtype, device=device)
        shaped = {n: buffers[number][: n * math.prod(row)].view(n, *row) for n in set(lengths)}
        return [shaped[n] for n in lengths]

"""A traced step, cut at its scope sums into phases.

A step looks over whole scopes a few times (the weak secant's dᵀy, dᵀBd and ‖d‖₄⁴, a floor's maximum); all else it does
coordinate by coordinate.  A graph traced with `marked=True` (`graph.trace`) names each such sum or maximum:

    reduced(x, op, over)      x: local sums, one number per scope, over the coordinates that this graph has seen
                              op: "sum" or "max";  over: "scope" (the recipe's) or "tensor"

On one machine, with all coordinates in one graph, `reduced` is the identity.  Where coordinates lie on several machines or in
several pieces, a number stands for the whole scope only after the others' share is in it, and the step runs in phases:

    sums: list[Tensor] = []
    for phase in cut(traced):
        outputs = phase.graph(*inputs, *sums)              # writes nothing, except the last phase, which returns nothing
        for kind, x in zip(phase.reductions, outputs):     # complete them: all_reduce by kind.op, or add pieces up
            sums.append(complete(x, kind))

Contract.  Every phase takes all inputs of the traced graph in their order, then the completed sums of all phases before it.
Phase k returns the local sums whose arguments need no more than k completed sums on the way (their dependency level), so the
number of phases is the least possible and each needs one round of communication for each `op`.  What a later phase needs of an
earlier one's coordinates it computes again from the inputs.  The last phase alone writes: it is the traced graph with completed
sums in place of `reduced`.  Nodes keep their `meta`, so that each phase can be compiled as the whole graph can.
"""

from __future__ import annotations

import dataclasses

import torch
from torch.fx import Graph, GraphModule, Node

from sandbox.backends.tracing.layout import REDUCED

CHECK = "check"  # see `checking`


@dataclasses.dataclass(frozen=True)
class Reduction:
    """How a local sum becomes that of its whole scope.  op: "sum" or "max".  over: "scope", "tensor" or CHECK."""

    op: str
    over: str


@dataclasses.dataclass(frozen=True)
class Phase:
    """A part of a step between two reductions; see the module.  reductions: one for each output of the graph."""

    graph: GraphModule
    reductions: list[Reduction]


def cut(traced: GraphModule) -> list[Phase]:
    """Returns the phases of a traced graph; a single one, the graph itself, where it looks over no scope."""
    levels = _levels(traced.graph)
    marks = [node for node in traced.graph.nodes if node.target is REDUCED]
    last = max((levels[mark] for mark in marks), default=0)
    phases: list[Phase] = []
    done: list[Node] = []
    for level in range(last):
        here = [mark for mark in marks if levels[mark] == level + 1]
        graph = _part(traced, done, [mark.all_input_nodes[0] for mark in here])
        phases.append(Phase(graph, [Reduction(str(mark.args[1]), str(mark.args[2])) for mark in here]))
        done += here
    return [*phases, Phase(_part(traced, done, None), [])]


def checking(phases: list[Phase], place: int) -> list[Phase]:
    """Makes the first phase also sum up input number `place`, in less than one more pass over memory.

    The sum is finite only if all entries are.  It is the last output, over "check", and no later phase takes it.  A single
    phase stays as it is.
    """
    first, *others = phases
    if not others:
        return phases
    graph = first.graph.graph
    end = next(node for node in graph.nodes if node.op == "output")
    x = [node for node in graph.nodes if node.op == "placeholder"][place]
    with graph.inserting_before(end):
        total = graph.call_function(torch.ops.aten.sum.default, (x,))
    with x.meta["val"].fake_mode:
        total.meta["val"] = x.meta["val"].sum()
    end.args = ((*end.args[0], total),)
    first.graph.recompile()
    return [Phase(first.graph, [*first.reductions, Reduction("sum", CHECK)]), *others]


def _levels(graph: Graph) -> dict[Node, int]:
    """Returns how many reductions lie, one after another, on the way to each node, itself included."""
    levels: dict[Node, int] = {}
    for node in graph.nodes:
        before = max((levels[n] for n in node.all_input_nodes), default=0)
        levels[node] = before + (node.target is REDUCED)
    return levels


def _part(traced: GraphModule, done: list[Node], outputs: list[Node] | None) -> GraphModule:
    """Returns the part of a graph that gives `outputs` (None: what it writes), with the reductions in `done` as inputs."""
    nodes = list(traced.graph.nodes)
    needed = {n for n in nodes if n.op == "output" or _writes(n)} if outputs is None else set(outputs)
    for node in reversed(nodes):
        if node in needed and node not in done:
            needed.update(node.all_input_nodes)
    graph = Graph()
    copies: dict[Node, Node] = {}
    for node in [*(n for n in nodes if n.op == "placeholder"), *done]:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = dict(node.meta)
    for node in nodes:
        if node in needed and node not in copies:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    if outputs is not None:
        graph.output(tuple(copies[n] for n in outputs))
    return GraphModule(traced, graph)


def _writes(node: Node) -> bool:
    return node.target is torch.ops.aten.copy_.default


def complete(traced: GraphModule, over: str) -> None:
    """Removes the marks over "scope" or "tensor", where each of these is in one piece."""
    for node in list(traced.graph.nodes):
        if node.target is REDUCED and node.args[2] == over:
            node.replace_all_uses_with(node.args[0])
            traced.graph.erase_node(node)

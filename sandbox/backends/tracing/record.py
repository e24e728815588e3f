"""A function of tensors as an FX graph, recorded while it runs: no compiler, no symbolic shapes, some milliseconds.

functorch's make_fx gives the same graphs with symbols for sizes; importing what it needs takes two seconds, which a step that
is never compiled need not wait for.  Here the function runs twice, on inputs of two sets of sizes.  What differs between the
two recordings must be a size of an input, and becomes one in the graph; anything else that differs is refused, as is a
function that looks at values.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from sandbox.utils.private_torch import TorchDispatchMode, pytree


class NotRecordable(ValueError):
    """A function has no graph, or none for all sizes."""


@dataclasses.dataclass
class _Call:
    """One operator: which, its arguments (with `_Value` in place of tensors), and its values."""

    target: Any
    args: Any
    values: list[int]
    shapes: list[tuple[int, ...]]
    several: bool


@dataclasses.dataclass(frozen=True)
class _Value:
    """Stands for the tensor with this number in arguments."""

    number: int


class _Recorder(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()
        self.calls: list[_Call] = []
        self.numbers = {id(x): i for i, x in enumerate(inputs)}
        self.alive: list[Any] = list(inputs)  # so that no identity is given twice
        self.constants: dict[int, Tensor] = {}

    def number(self, x: Tensor) -> int:
        if id(x) not in self.numbers:
            self.numbers[id(x)] = len(self.numbers)
            self.alive.append(x)
        return self.numbers[id(x)]

    def value(self, x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        if id(x) not in self.numbers:
            self.constants[self.number(x)] = x
        return _Value(self.number(x))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten._local_scalar_dense.default or torch.Tag.nondeterministic_seeded in func.tags:
            raise NotRecordable(f"it calls {func}: a step must not choose by the values of tensors, nor draw random numbers")
        taken = pytree.tree_map(self.value, (args, kwargs))
        out = func(*args, **kwargs)
        if out is None:  # it only checks something
            return None
        several = isinstance(out, tuple | list)
        values = list(out) if several else [out]
        self.calls.append(_Call(func, taken, [self.number(x) for x in values], [tuple(x.shape) for x in values], several))
        return out


def record(
    function: Callable[..., Sequence[Tensor]], small: Sequence[Tensor], large: Sequence[Tensor], *, batch: int = 0
) -> GraphModule:
    """Records `function`, which returns tensors and writes to none, as a graph.

    small, large: inputs whose sizes differ wherever they are free.  batch: so many first axes of the last input are a batch's;
    multiples of their sizes may be sizes too, since operators join such axes.  A node's meta has "val", what it was in the
    first recording, and "first", its first size in both (None for a 0-d tensor).  Raises NotRecordable.
    """
    one, two = _run(function, small), _run(function, large)
    sizes = {(a, b): (i, d) for i, (x, y) in enumerate(zip(small, large, strict=True)) for d, (a, b) in _pairs(x, y) if a != b}
    graph = Graph()
    nodes: dict[int, Node] = {}

    def size(a: Any, b: Any) -> Any:
        if isinstance(a, _Value) or a is b or (type(a) is type(b) and (a == b or (a != a and b != b))):
            return nodes[a.number] if isinstance(a, _Value) else a
        if (a, b) in sizes:
            return axis(*sizes[a, b])
        for some in [[d] for d in range(batch)] + [list(range(batch))]:
            of, to = (math.prod(x[-1].shape[d] for d in some) for x in (small, large))
            if isinstance(a, int) and isinstance(b, int) and a * to == b * of and a % of == 0:
                product: Any = a // of
                for d in some:
                    product = graph.call_function(operator.mul, (product, axis(len(small) - 1, d)))
                return product
        raise NotRecordable(f"some block asks for a size, or counts entries ({a} in one layout, {b} in another)")

    def axis(i: int, d: int) -> Node:
        return graph.call_function(torch.ops.aten.sym_size.int, (nodes[i], d))

    def keep(number: int, node: Node, other: tuple[int, ...]) -> None:
        x = one[0].alive[number]
        node.meta = {"val": x, "first": (x.shape[0], other[0]) if x.ndim else None}
        nodes[number] = node

    for i, x in enumerate(large):
        keep(i, graph.placeholder(f"in{i}"), tuple(x.shape))
    root = torch.nn.Module()
    for number, constant in one[0].constants.items():
        root.register_buffer(f"constant{number}", constant)
        keep(number, graph.get_attr(f"constant{number}"), tuple(constant.shape))
    if len(one[0].calls) != len(two[0].calls):
        raise NotRecordable("a step takes another way for other sizes")
    for first, other in zip(one[0].calls, two[0].calls, strict=True):
        if first.target is not other.target or first.values != other.values:
            raise NotRecordable("a step takes another way for other sizes")
        args, kwargs = pytree.tree_map(size, first.args, other.args)
        node = graph.call_function(first.target, args, kwargs)
        if first.several:
            parts = [graph.call_function(_item, (node, k)) for k in range(len(first.values))]
        for number, value, shape in zip(first.values, parts if first.several else [node], other.shapes, strict=True):
            keep(number, value, shape)
    graph.output(tuple(nodes[number] for number in one[1]))
    graph.eliminate_dead_code()
    return GraphModule(root, graph)


def _item(values: Sequence[Tensor], place: int) -> Tensor:
    return values[place]


def _pairs(x: Tensor, y: Tensor) -> list[tuple[int, tuple[int, int]]]:
    return list(enumerate(zip(x.shape, y.shape, strict=True)))


def _run(function: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor]) -> tuple[_Recorder, list[int]]:
    with _Recorder(inputs) as recorder:
        out = torch.func.functionalize(function)(*inputs)
    return recorder, [recorder.number(x) for x in out]

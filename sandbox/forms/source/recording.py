"""Records one step of a recipe at the level at which blocks are written: each call of torch, with the line that made it.

Hyperparameters, t and rates are 0-d tensors while it runs.  What depends on them alone is a number of the whole step ("host");
what depends on a coordinate is a tensor.  No source text is rewritten: properties, inheritance and branches on a block's fields
come out right by themselves, since what is written is what ran.  A block that chooses by a value is refused.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import linecache
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from sandbox.blocks import Block, scope
from sandbox.utils.private_torch import pytree

# Files of this package that compute nothing of their own: a call is that of whoever called them.
_PLUMBING = ("scope.py", "base.py", "number.py", "parts.py", "pure.py", "recording.py", "wrapper.py")
_PACKAGE, _TORCH = Path(__file__).parents[2], Path(torch.__file__).parent

# Calls that leave a value as it is: precision, device, layout.
_SAME = {"to", "as_tensor", "tensor", "clone", "contiguous", "detach", "double", "float"}
_RESHAPING = {"expand", "expand_as", "view", "reshape"}
# Calls that make the same number everywhere.
_FILLED = {"zeros_like": 0.0, "ones_like": 1.0, "zeros": 0.0, "ones": 1.0}
_CHOOSING = {"__bool__", "__float__", "__int__", "__index__", "item", "tolist"}


class Refused(ValueError):
    """A step that cannot be written as a file; the message names the block."""


@dataclasses.dataclass(frozen=True)
class Site:
    """The statement that made a call: its file and first line, what it assigns to, the comment above it, its slot, and whose
    it is."""

    file: str
    line: int
    target: str
    comment: tuple[str, ...]
    slot: str
    owner: str

    @property
    def place(self) -> tuple[str, int]:
        """File and line."""
        return self.file, self.line


@dataclasses.dataclass(eq=False)
class Node:
    """A value of the recorded step: a leaf, a constant, or a call of torch; `value` is what it was in the recording."""

    op: str
    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    site: Site | None
    host: bool
    value: Any
    name: str | None = None

    def inputs(self) -> list[Node]:
        """The nodes among its arguments."""
        return [arg for arg in pytree.tree_leaves((self.args, self.kwargs)) if isinstance(arg, Node)]


class Recorder(TorchFunctionMode):
    """While active, notes every call of torch in `nodes`."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape  # of the tensor whose step it is
        self.nodes: list[Node] = []
        self._ones: dict[int, Tensor] = {}  # made by ones_like
        self._of: dict[int, Node] = {}
        self._alive: list[Any] = []  # so that no two tensors have the same id
        self._conditions: dict[Any, Node] = {}

    def leaf(self, value: Tensor, name: str, *, host: bool) -> Tensor:
        """Returns the tensor, known as a leaf from now on."""
        self.put(value, Node("leaf", None, (), {}, None, host, value, name))
        return value

    def put(self, value: Tensor, node: Node) -> None:
        """Lets a tensor stand for a node."""
        self._of[id(value)] = node
        self._alive.append(value)

    def node(self, value: Any) -> Node:
        """The node of a tensor or number; one that nothing computed is a constant."""
        if isinstance(value, Tensor):
            if id(value) in self._of:
                return self._of[id(value)]
            if value.ndim:
                self._refuse("holds a tensor of its own")
            value = float(value)
        return Node("constant", None, (), {}, None, True, value)

    def call(self, op: str, *args: Tensor, result: Tensor) -> Tensor:
        """Notes a call of a function that the file defines itself."""
        node = Node(op, None, tuple(map(self.node, args)), {}, _site(), False, result.clone())
        self.nodes.append(node)
        self.put(node.value, node)
        return node.value

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, op = kwargs or {}, getattr(func, "__name__", str(func))
        known = [v for v in pytree.tree_leaves((args, kwargs)) if isinstance(v, Tensor) and id(v) in self._of]
        if op in _CHOOSING and known and not _asked_by("concrete_values"):
            self._refuse("chooses by a value")
        if known and (op == "__setitem__" or kwargs.get("out") is not None or (op.endswith("_") and not op.startswith("__"))):
            self._refuse(f"writes in place ({op})")
        result = func(*args, **kwargs)
        if op.startswith(("rand", "bernoulli", "multinomial", "normal")):
            self._refuse(f"draws random numbers ({op})")
        if op == "__get__" and isinstance(result, Tensor):
            op = func.__self__.__name__
        if isinstance(result, tuple | list) and any(isinstance(v, Tensor) for v in result):
            whole = self._note(op, func, args, kwargs, result)
            for i, part in enumerate(result):
                self.put(part, Node("part", None, (whole, i), {}, whole.site, False, part))
                self.nodes.append(self._of[id(part)])
        elif isinstance(result, Tensor) and (known or not op.startswith("__")):
            self._put_result(op, func, args, kwargs, result)
        return result

    def _put_result(self, op: str, func: Any, args: Any, kwargs: Any, result: Tensor) -> None:
        first: Any = args[0] if args else None
        if op == "ones_like":
            self._ones[id(result)] = result
        if op == "sum" and id(first) in self._ones and len(args) == 1 and not kwargs:
            self.put(result, self._count(tuple(first.shape), result))
            return
        if op in _FILLED or op in ("full_like", "full"):
            value = _FILLED.get(op, args[1] if len(args) > 1 else kwargs.get("fill_value"))
            self.put(result, self.node(value))
        elif (op in _SAME and (not isinstance(first, Tensor) or first.dtype == result.dtype)) or (
            op in _RESHAPING and (result.shape == first.shape or self.node(first).host)
        ):
            self.put(result, self.node(first))
        else:
            self.put(result, self._note(op, func, args, kwargs, result))

    def _count(self, shape: tuple[int, ...], result: Tensor) -> Node:
        """How many entries a shape has, by that of the step's tensor."""
        rows, columns = (*self.shape, None, None)[:2]
        places = {(rows, 1): "theta.shape[0]", (1, columns): "theta.shape[1]", self.shape: "theta.numel()"}
        if shape not in places:
            self._refuse("counts the entries of a shape of its own")
        node = Node("count", None, (places[shape],), {}, _site(), True, result)
        self.nodes.append(node)
        return node

    def _note(self, op: str, func: Any, args: Any, kwargs: Any, result: Any) -> Node:
        given, named = pytree.tree_map(lambda v: self.node(v) if isinstance(v, Tensor) else v, (tuple(args), kwargs))
        node = Node(op, func, given, named, _site(), False, result)
        node.host = bool(node.inputs()) and all(n.host for n in node.inputs())
        # one node for a condition that is asked twice
        key = (op, *(id(v) if isinstance(v, Node) and v.op != "constant" else getattr(v, "value", v) for v in given))
        if node.host and isinstance(result, Tensor) and result.dtype == torch.bool:
            if key in self._conditions:
                return self._conditions[key]
            self._conditions[key] = node
        self.nodes.append(node)
        return node

    def _refuse(self, why: str) -> NoReturn:
        raise Refused(f"{_caller()} {why}, so one run of it does not show all that it does")


class Channels(scope.Channel):
    """The scope "channel", whose sums the file does by functions of its own: a vector's are its entries."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def sum(self, x: Tensor) -> Tensor:
        """Sum over all axes but the first."""
        return self.recorder.call("channel_sum", x, result=super().sum(x))

    def amax(self, x: Tensor) -> Tensor:
        """Maximum over all axes but the first."""
        return self.recorder.call("channel_amax", x, result=super().amax(x))

    def mean(self, x: Tensor) -> Tensor:
        """Mean over all axes but the first."""
        return self.recorder.call("channel_mean", x, result=super().mean(x))


class Apart(scope.OneTensor):
    """Each tensor's own scope, where several are one vector: a file does not take them apart."""

    def sum(self, x: Tensor) -> Tensor:
        """Refuses."""
        raise Refused(f"{_caller()} sums over each tensor, under a scope of all tensors")

    amax = mean = sum


def _frames() -> Any:
    frame = inspect.currentframe()
    while frame is not None:
        yield frame
        frame = frame.f_back


def _asked_by(function: str) -> bool:
    return any(frame.f_code.co_name == function for frame, _ in zip(_frames(), range(8), strict=False))


def _caller() -> str:
    """The block at work, or what else is."""
    for frame in _frames():
        if isinstance(owner := frame.f_locals.get("self"), Block):
            return f"block {type(owner).__name__}"
        if frame.f_code.co_name == "at_step":
            return "a function of t"
    return "the step"


def _site() -> Site | None:
    """The innermost statement that is neither torch's nor plumbing."""
    site, slot, recalled = None, "", False
    for frame in _frames():
        file = frame.f_code.co_filename
        ours = file.startswith(str(_PACKAGE))
        if site is None and not file.startswith(str(_TORCH)) and not (ours and Path(file).name in _PLUMBING):
            site = _statement(file, frame.f_lineno)
        if ours and Path(file).name == "kernel.py":
            recalled = recalled or frame.f_code.co_name == "recall"
            if frame.f_code.co_name in ("run", "evaluate"):
                slot = slot or str(frame.f_locals.get("path", "numbers"))
    return site and dataclasses.replace(site, slot="recall" if recalled else slot, owner=_caller())


@functools.cache
def _statements(file: str) -> list[ast.stmt]:
    tree = ast.parse("".join(linecache.getlines(file)))
    compound = ast.FunctionDef | ast.ClassDef | ast.If | ast.With | ast.For
    return [node for node in ast.walk(tree) if isinstance(node, ast.stmt) and not isinstance(node, compound)]


def _statement(file: str, line: int) -> Site | None:
    lines = linecache.getlines(file)
    around = [s for s in _statements(file) if s.lineno <= line <= (s.end_lineno or s.lineno)] if lines else []
    if not around:
        return None
    found, target, comment = max(around, key=lambda s: s.lineno), "", list[str]()
    if isinstance(found, ast.Assign):
        to = found.targets[0]
        if isinstance(to, ast.Subscript) and isinstance(to.slice, ast.Constant):
            target = str(to.slice.value)
        else:
            each = to.elts if isinstance(to, ast.Tuple) else [to]
            target = ", ".join(getattr(name, "id", getattr(name, "attr", "")) for name in each)
    above = found.lineno - 2
    while above >= 0 and lines[above].strip().startswith("#"):
        comment.insert(0, lines[above].strip())
        above -= 1
    return Site(file, found.lineno, target, tuple(comment), "", "")

"""Nodes of a recorded step as Python expressions: operators infix, numbers of the step by Python's own arithmetic."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sandbox.forms.source.recording import Node, Refused

# Calls -> the operator; "r" where the operands are the other way round.
_INFIX = {
    name: sign
    for sign, calls in {
        "+": "add",
        "-": "sub",
        "*": "mul",
        "/": "div truediv true_divide",
        "**": "pow",
        "@": "matmul",
        "%": "remainder mod",
        "r+": "radd",
        "r-": "rsub",
        "r*": "rmul",
        "r/": "rdiv rtruediv",
        "r**": "rpow",
        "r@": "rmatmul",
        ">": "gt",
        ">=": "ge",
        "<": "lt",
        "<=": "le",
        "==": "eq",
        "!=": "ne",
        "&": "and bitwise_and logical_and",
        "|": "or bitwise_or logical_or",
    }.items()
    for name in calls.split()
}
# How strongly an operator binds; 99 for what needs no brackets.
_RANK = {"**": 9, "*": 7, "/": 7, "@": 7, "%": 7, "+": 6, "-": 6, "&": 5, "|": 4, "and": 2, "or": 2}
_COMPARISON, _CHOICE, _NEGATIVE, _ATOM = 3, 1, 8, 99
# What Python's numbers have instead of a tensor's method.
_MATH = ("exp", "log", "cos", "sin", "tanh", "floor", "ceil", "log1p", "expm1")
_MODULES = {
    "torch": torch,
    "torch.linalg": torch.linalg,
    "torch.special": torch.special,
    "torch.nn.functional": torch.nn.functional,
}


def literal(value: Any) -> str:
    """A Python value as it is written."""
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, float):
        short = f"{value:.0f}" if value == int(value) and abs(value) < 1e6 else f"{value:g}"
        return (short if float(short) == value else repr(value)).replace("e-0", "e-")
    return repr(value)


class Writer:
    """Expressions by the names that nodes have been given.

    zero: names of leaves that are 0 for good.  theta: a tensor of the parameter's shape in the recording.
    """

    def __init__(self, zero: set[str], theta: Tensor) -> None:
        self.zero, self.theta, self.imports = zero, theta, set[str]()
        self._false: set[Node] = set()  # conditions known to be false where an expression stands

    def constant(self, value: Any) -> float | None:
        """The value of what is one number for good, None for anything else."""
        if not isinstance(value, Node):
            return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
        if value.op == "constant" or (value.op == "leaf" and value.name in self.zero):
            return _first(value.value)
        if value.host and value.op not in ("leaf", "count") and all(self.constant(n) is not None for n in value.inputs()):
            return _first(value.value)
        return None

    def simplified(self, node: Node) -> Node | None:
        """The operand that a node is equal to, since the other one is 0 or 1."""
        sign, args = _infix(node)
        if sign is None:
            if node.op == "where" and node.args[1] is node.args[2]:
                return node.args[1]
            return None
        left, right = map(self.constant, args)
        if isinstance(args[1], Node) and ((sign == "*" and left == 1) or (sign == "+" and left == 0)):
            return args[1]
        if isinstance(args[0], Node) and ((sign in "*/" and right == 1) or (sign in "+-" and right == 0)):
            return args[0]
        return None

    def text(self, value: Any, rank: int = 0) -> str:
        """An argument, in brackets where it binds less strongly than `rank`."""
        if isinstance(value, tuple | list):
            inside = ", ".join(map(self.text, value))
            return f"[{inside}]" if isinstance(value, list) else f"({inside}{',' if len(value) == 1 else ''})"
        if (number := self.constant(value)) is not None and not isinstance(value, int):
            text = literal(number)
            return f"({text})" if text.startswith("-") and rank > _NEGATIVE else text
        if isinstance(value, slice):
            return ":".join("" if v is None else self.text(v) for v in (value.start, value.stop))
        if isinstance(value, torch.device) or value is torch.float32:
            return "theta.device" if isinstance(value, torch.device) else "theta.dtype"
        if not isinstance(value, Node):
            return "..." if value is Ellipsis else repr(value)
        if value.name:
            return value.name
        body, own = self.expression(value)
        return f"({body})" if own < rank else body

    def expression(self, node: Node) -> tuple[str, int]:
        """What a node computes, and how strongly the outermost operator binds."""
        if (same := self.simplified(node)) is not None:
            return self.text(same, _ATOM), _ATOM
        sign, args = _infix(node)
        if sign is not None:
            return self._infix(sign, args, node.host)
        op, a = node.op.strip("_"), node.args
        if op in ("neg", "negative"):
            return f"-{self.text(a[0], _NEGATIVE)}", _NEGATIVE
        if op in ("invert", "bitwise_not", "logical_not"):
            return (f"not {self.text(a[0], 3)}", 2) if node.host else (f"~{self.text(a[0], _NEGATIVE)}", _NEGATIVE)
        if op == "where" and isinstance(a[0], Node) and a[0].host:
            return self._choice(node)
        if op == "getitem":
            index = a[1] if isinstance(a[1], tuple) else (a[1],)
            return f"{self.text(a[0], _ATOM)}[{', '.join(map(self.text, index))}]", _ATOM
        if op == "count":
            return a[0], _ATOM
        if op == "part":
            return f"{self.text(a[0], _ATOM)}[{a[1]}]", _ATOM
        return self._host(op, node) if node.host else self._call(op, node)

    def _infix(self, sign: str, args: tuple[Any, Any], host: bool) -> tuple[str, int]:
        if host and sign in "&|":
            sign = "and" if sign == "&" else "or"
        rank = _RANK.get(sign, _COMPARISON)
        if sign == "*" and self.constant(args[1]) is not None and self.constant(args[0]) is None:
            args = args[1], args[0]
        power = sign == "**"
        # (a + b) + c and a + (b + c) are rounded otherwise: what stands on the right keeps its brackets
        left = self.text(args[0], rank + power if sign in _RANK else rank + 1)
        right = self.text(args[1], _NEGATIVE if power else rank + 1)
        both = f"{left}{sign}{right}" if power and all(map(_simple, (left, right))) else f"{left} {sign} {right}"
        return both, rank

    def _choice(self, node: Node) -> tuple[str, int]:
        condition, yes, no = node.args
        if condition in self._false:
            return self.text(no, _ATOM), _ATOM
        chosen = self.text(yes, _CHOICE + 1)
        self._false.add(condition)
        other = self.text(no, _CHOICE + 1)
        self._false.discard(condition)
        if not node.host:
            chosen, other = self._whole(yes, node, chosen), self._whole(no, node, other)
        return f"{chosen} if {self.text(condition, _CHOICE + 1)} else {other}", _CHOICE

    def _whole(self, value: Any, node: Node, text: str) -> str:
        """A branch with the shape of the choice."""
        number = self.constant(value)
        if number is None and not (isinstance(value, Node) and value.host):
            return text
        if node.value.shape != self.theta.shape:
            return f"torch.tensor({text}, dtype=theta.dtype, device=theta.device)"
        return "torch.zeros_like(theta)" if number == 0 else f"torch.full_like(theta, {text})"

    def _host(self, op: str, node: Node) -> tuple[str, int]:
        a, bounds = node.args, {**dict(zip(("min", "max"), node.args[1:], strict=False)), **node.kwargs}
        if op in ("sqrt", "square", "rsqrt", "reciprocal"):
            power = {"sqrt": "0.5", "square": "2", "rsqrt": "-0.5", "reciprocal": "-1"}[op]
            return f"{self.text(a[0], 10)} ** {power}", 9
        if op == "abs":
            return f"abs({self.text(a[0])})", _ATOM
        if op in ("maximum", "minimum"):
            return f"{op[:3]}({self.text(a[0])}, {self.text(a[1])})", _ATOM
        if op in ("clamp", "clamp_min", "clamp_max"):
            bounds = {op[6:]: a[1]} if op[5:] else bounds
            body = self.text(a[0])
            for name, function in (("min", "max"), ("max", "min")):
                body = body if bounds.get(name) is None else f"{function}({body}, {self.text(bounds[name])})"
            return body, _ATOM
        if op in _MATH:
            self.imports.add("math")
            return f"math.{op}({self.text(a[0])})", _ATOM
        raise Refused(f"torch's {op} of a number has no counterpart in Python")

    def _call(self, op: str, node: Node) -> tuple[str, int]:
        a = list(node.args)
        if op in ("maximum", "minimum") and any(isinstance(v, Node) and v.host for v in a):
            bound, tensor = sorted(a, key=lambda v: not v.host)
            return f"{self.text(tensor, _ATOM)}.clamp({'min' if op == 'maximum' else 'max'}={self.text(bound)})", _ATOM
        if node.function is None:
            return f"{node.op}({', '.join(self.text(v) for v in a)})", _ATOM
        if not isinstance(getattr(node.function, "__self__", None), type(None)) and hasattr(node.function.__self__, "__get__"):
            return f"{self.text(a[0], _ATOM)}.{op}", _ATOM
        given = [self._tensor(v) if op not in ("where", "clamp", "pow") else self.text(v) for v in a]
        named = [f"{name}={self.text(v)}" for name, v in node.kwargs.items()]
        method = hasattr(Tensor, op) and node.function in (getattr(Tensor, op), getattr(torch, op, None))
        if method and op not in ("where", "maximum", "minimum"):
            return f"{self.text(a[0], _ATOM)}.{op}({', '.join([*given[1:], *named])})", _ATOM
        for path, module in _MODULES.items():
            op = op.removeprefix(f"{path.rpartition('.')[2]}_")
            if hasattr(module, op):
                return f"{path}.{op}({', '.join([*given, *named])})", _ATOM
        raise Refused(f"{op} is no function of torch that a file can name")

    def _tensor(self, value: Any) -> str:
        """An argument of a function of tensors: a number of the step spread over the coordinates."""
        if isinstance(value, Node) and value.host:
            return f"torch.full_like(theta, {self.text(value)})"
        return self.text(value)


def _first(value: Any) -> float:
    """A number, or the one that a tensor is filled with."""
    return float(value.reshape(-1)[0] if isinstance(value, Tensor) else value)


def _infix(node: Node) -> tuple[str | None, tuple[Any, Any]]:
    """The operator of a node, None where it has none, and its operands in order."""
    sign = _INFIX.get(node.op.strip("_"))
    if sign is None or len(node.args) != 2 or node.kwargs:
        return None, (None, None)
    return (sign[1:], (node.args[1], node.args[0])) if sign[0] == "r" else (sign, node.args[:2])


def _simple(operand: str) -> bool:
    """Whether a power of it is written without spaces, as formatters do."""
    return operand.replace(".", "").replace("_", "").isalnum()


def names_of(paths: list[str], taken: set[str]) -> Mapping[str, str]:
    """Dotted path -> a name for a file: its last part, the parts before it in front where two are alike."""
    names: dict[str, str] = {}
    for path in paths:
        slot, *places = path.split(".")
        parts = [slot, *(place for place in places if not place.isdigit())]
        short = next(
            name for k in range(1, len(parts) + 2) if (name := "_".join(parts[-k:]) + "_" * (k > len(parts))) not in taken
        )
        names[path] = short
        taken.add(short)
    return names

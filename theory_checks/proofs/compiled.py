"""Runs of a million steps in a fraction of a second: `theory_checks.proofs.recursion.Recursion` as a compiled loop.

No equation is written here.  One step of the recursion is run on symbols, which note down each operation as a line of C;
products are not fused into sums, so the numbers are those of `recursion.walk` in floats, bit for bit.
Without a C++ compiler (`$CXX`, else c++) the steps are made in Python: the same numbers, four hundred times slower.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from theory_checks.proofs.recursion import Arithmetic, Floats, Recursion, Rule, State, Vector

# (θ, numbers of this step's loss, arithmetic) -> ∇f_t(θ)
Gradient = Callable[[Vector, Vector, Any], Vector]

FEW = 10_000  # up to so many steps Python is done before a compiler is


def linear(theta: Vector, row: Vector, kind: Any) -> Vector:
    """∇f_t of f_t(θ) = g_t·θ, where the numbers of a loss are g_t."""
    return row


class Steps(NamedTuple):
    """θ_t, g_t and D_t for t = 1 … T, each (T, d), float64."""

    theta: np.ndarray
    g: np.ndarray
    D: np.ndarray


def run(rule: Rule, gradient: Gradient, data: Any, start: Sequence[float], T: int, *, eta: float) -> Steps:
    """T steps with η_t = eta/√t from θ_1 = start.

    gradient: ∇f_t from θ and the numbers of f_t, of + - * /, abs and the arithmetic's sqrt and largest.
    data: (n, k) float64, n ≥ 2, the numbers of the losses: the first row is f_1's, the others follow in turn for ever.
    Raises ValueError for other shapes of data and for T < 1.
    """
    rows = np.ascontiguousarray(data, dtype=np.float64)
    if rows.ndim != 2 or len(rows) < 2:
        raise ValueError(f"data must have shape (n, k) with n ≥ 2, got {rows.shape}")
    if T < 1:
        raise ValueError(f"T must be at least 1, got {T}")
    recursion, out = Recursion(rule, eta), np.empty((T, 3 * len(start)))

    def one(t: int, state: State) -> State:
        row = rows[0 if t == 1 else 1 + (t - 2) % (len(rows) - 1)].tolist()
        step, state = recursion.step(t, state, lambda t, theta: gradient(theta, row, Floats), first=t == 1)
        out[t - 1] = step.theta + step.g + step.D
        return state

    state = one(1, recursion.begin(start))
    wanted = T > FEW and _compiler() is not None
    loop = build(_source(rule, gradient, len(start), rows.shape[1], eta)) if wanted else None
    if loop is None:
        for t in range(2, T + 1):
            state = one(t, state)
    else:
        carried = np.array(_flat(state))
        loop(T, len(rows) - 1, *(a.ctypes.data_as(ctypes.c_void_p) for a in (carried, rows[1:], out[1:])))
    return Steps(*np.split(out, 3, axis=1))


class _Program(Arithmetic):
    """The lines that were noted down."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, expression: str) -> _Symbol:
        """A new name for the value of an expression."""
        name = f"v{len(self.lines)}"
        self.lines.append(f"const double {name} = {expression};")
        return _Symbol(self, name)

    def number(self, x: Any) -> Any:
        """A symbol, or the literal of a float."""
        return x if isinstance(x, _Symbol) else _Symbol(self, f"({float(x).hex()})")

    def sqrt(self, x: Any) -> Any:
        """√x."""
        return self.note(f"sqrt({x})")

    def largest(self, x: Any, y: Any) -> Any:
        """max(x, y), x where neither is larger, as Python's."""
        return self.note(f"{y} > {x} ? {y} : {x}")

    def quotient(self, x: Any, y: Any) -> Any:
        """x/y, and 0 where y is 0."""
        return self.note(f"{y} != 0.0 ? {x} / {y} : 0.0")


class _Symbol:
    """A number that is known when the loop runs."""

    def __init__(self, program: _Program, name: str) -> None:
        self.program, self.name = program, name

    def __str__(self) -> str:
        return self.name

    def _with(self, form: str, other: Any) -> _Symbol:
        return self.program.note(form.format(self, self.program.number(other)))

    __add__ = functools.partialmethod(_with, "{0} + {1}")
    __radd__ = functools.partialmethod(_with, "{1} + {0}")
    __sub__ = functools.partialmethod(_with, "{0} - {1}")
    __rsub__ = functools.partialmethod(_with, "{1} - {0}")
    __mul__ = functools.partialmethod(_with, "{0} * {1}")
    __rmul__ = functools.partialmethod(_with, "{1} * {0}")
    __truediv__ = functools.partialmethod(_with, "{0} / {1}")
    __rtruediv__ = functools.partialmethod(_with, "{1} / {0}")
    __pow__ = functools.partialmethod(_with, "pow({0}, {1})")

    def __abs__(self) -> _Symbol:
        return self.program.note(f"fabs({self})")

    def __neg__(self) -> _Symbol:
        return self.program.note(f"-{self}")


def _flat(state: State) -> list[Any]:
    return [x for part in state for x in (part if isinstance(part, list) else [part])]


def _source(rule: Rule, gradient: Gradient, d: int, k: int, eta: float) -> str:
    """The loop from t = 2 on: state and rows in, θ_t, g_t, D_t of each step out."""
    program = _Program()
    recursion = Recursion(rule, eta, program)
    names = iter(_Symbol(program, f"s[{i}]") for i in itertools.count())
    like = recursion.begin([0.0] * d)
    old: list[Any] = [[next(names) for _ in part] if isinstance(part, list) else next(names) for part in like]
    row = [_Symbol(program, f"row[{i}]") for i in range(k)]
    step, new = recursion.step(_Symbol(program, "t"), State(*old), lambda t, theta: gradient(theta, row, program), first=False)
    # everything is read before anything is written
    out = [program.note(str(x)) for x in (*step.theta, *step.g, *step.D)]
    after = [program.note(str(x)) for x in _flat(new)]
    body = program.lines + [f"out[{i}] = {x};" for i, x in enumerate(out)] + [f"s[{i}] = {x};" for i, x in enumerate(after)]
    return "\n".join([
        "#include <math.h>",
        'extern "C" void run(long T, long n, double *s, const double *rows, double *out) {',
        f"for (long i = 2; i <= T; ++i, out += {3 * d}) {{",
        f"const double t = i, *row = rows + (i - 2) % n * {k};",
        *body,
        "}}",
    ])  # fmt: skip


def _compiler() -> str | None:
    return shutil.which(os.environ.get("CXX", "c++"))


@functools.lru_cache(maxsize=64)
def build(source: str) -> Any:
    """The function of a source.  Raises RuntimeError with the compiler's words where it fails."""
    with tempfile.TemporaryDirectory() as folder:
        text, library = Path(folder, "run.cpp"), Path(folder, "run.so")
        text.write_text(source)
        # a product is rounded before it is added
        call = [str(_compiler()), "-O2", "-ffp-contract=off", "-shared", "-fPIC", str(text), "-o", str(library)]
        done = subprocess.run(call, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(call)} failed:\n{done.stderr}")
        loop = ctypes.CDLL(str(library)).run
    loop.argtypes, loop.restype = [ctypes.c_long] * 2 + [ctypes.c_void_p] * 3, None
    return loop

"""The cases in which two optimizers are compared: they separate what implementations get wrong."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from sandbox.equivalence import methods
from sandbox.equivalence.methods import Method

SHAPES: dict[str, tuple[int, ...]] = {
    "scalar": (), "vector": (5,), "matrix": (4, 3), "wide": (3, 5), "kernel": (2, 3, 2, 2),
}  # fmt: skip

ULP = 2.0**-52


@dataclasses.dataclass(frozen=True)
class Case:
    """How the steps of a run go.

    scale: of the loss.  rates: η_t over η, and then again from the first.  numbers: (step, name, value) of what is set before a
    step.  zeros, missing: whether some entries of the gradients are 0, some tensors' None.
    """

    name: str
    scale: float = 1.0
    rates: Sequence[float] = (1.0,)
    numbers: Sequence[tuple[int, str, float]] = ((1, "weight_decay", 0.0),)
    zeros: bool = False
    missing: bool = False


_CHANGING = (0.0, 0.25, 1.0, 3.0, 0.5, 1.0, 2.0, 0.1, 1.0, 4.0, 0.5, 1.0)

CASES = (
    Case("plain"),
    Case("gradients of 1e-6", scale=1e-6),
    Case("gradients of 1e6", scale=1e6),
    Case("a rate that changes", rates=_CHANGING),
    Case("entries without a gradient", zeros=True),
    Case("missing gradients", missing=True),
    Case("momentum that changes", numbers=((1, "weight_decay", 0.0), (4, "beta1", 0.5), (7, "beta1", 0.95))),
    Case("weight decay", numbers=((1, "weight_decay", 0.1),)),
    Case("weight decay, a rate that changes", rates=_CHANGING, numbers=((1, "weight_decay", 0.1),)),
    Case("weight decay that changes", numbers=((1, "weight_decay", 0.1), (3, "weight_decay", 0.5), (5, "weight_decay", 0.0))),
    Case("numbers as declared", numbers=()),
)


@dataclasses.dataclass
class Run:
    """The points of a run, by step and tensor; the last tensors and the optimizer.  failed: the step's error, if it raised."""

    points: list[list[Tensor]]
    params: list[Tensor]
    optimizer: Any
    failed: Exception | None = None


class Problem:
    """f_t(θ) = scale Σ [½ c (θ - a)² + log cosh θ + b_t θ], tensor by tensor: curved, not quadratic, new at each step."""

    def __init__(self, names: Sequence[str], seed: int = 0) -> None:
        g = torch.Generator().manual_seed(seed)

        def draw(name: str) -> Tensor:
            return torch.randn(SHAPES[name], generator=g, dtype=torch.float64)

        every: dict[str, Any] = {
            name: (draw(name), draw(name), draw(name).abs() + 0.1, [draw(name) for _ in range(32)]) for name in SHAPES
        }
        self.names = tuple(names)
        self.start, self.a, self.c = ([every[name][i] for name in self.names] for i in range(3))
        self.b = [every[name][3] for name in self.names]

    def loss(self, params: Sequence[Tensor], t: int, case: Case) -> Tensor:
        """f_t; with `zeros` every other entry, and at the third step all, have no part in it."""
        total = torch.zeros((), dtype=torch.float64)
        for p, a, c, b in zip(params, self.a, self.c, self.b, strict=True):
            each = 0.5 * c * (p - a) ** 2 + (p + softplus(-2 * p)) + b[t % 32] * p
            total = total + (each.reshape(-1)[int(t == 3) * 60 :: 2] if case.zeros else each).sum()
        return case.scale * total

    def run(self, method: Method, case: Case, lr: float, steps: int, noise: float = 0.0) -> Run:
        """Runs a method.  noise: relative size of a change of each entry of the start and of the gradients."""
        g = torch.Generator().manual_seed(1)

        def shaken(x: Tensor) -> Tensor:
            return x if not noise else x * (1 + noise * (torch.randint(0, 2, x.shape, generator=g, dtype=x.dtype) * 2 - 1))

        params = [shaken(x.clone()).requires_grad_() for x in self.start]
        lr *= method.factor
        optimizer = method.build(params, lr)
        run = Run([[p.detach().clone() for p in params]], params, optimizer)
        for t in range(1, steps + 1):
            for at, name, value in case.numbers:
                if at == t:
                    methods.write(optimizer, name, value)
            methods.write(optimizer, "lr", lr * (1.0 if method.keeps_first_rate else case.rates[(t - 1) % len(case.rates)]))
            for state in optimizer.state.values() if method.counts_together else ():
                state["step"].fill_(t - 1)
            try:
                _step(method, optimizer, self._closure(method, params, t, case, shaken))
            except Exception as error:  # whatever another's optimizer raises
                run.failed = error
                break
            run.points.append([p.detach().clone() for p in params])
        return run

    def _closure(
        self, method: Method, params: list[Tensor], t: int, case: Case, shaken: Callable[[Tensor], Tensor]
    ) -> Callable[[], Tensor]:
        def absent(i: int) -> bool:  # the second tensor joins late; each is left out once
            return case.missing and ((i == 1 and t <= 2) or (t + i) % 4 == 0)

        def closure() -> Tensor:
            with torch.enable_grad():
                loss = method.sign * self.loss(params, t, case)
            if not method.attached:
                for i, (p, grad) in enumerate(zip(params, torch.autograd.grad(loss, params), strict=True)):
                    missing = torch.zeros_like(p) if method.missing_is_zero else None
                    p.grad = missing if absent(i) else shaken(grad)
            return loss

        return closure


def _step(method: Method, optimizer: Any, closure: Callable[[], Tensor]) -> None:
    """A step, with the closure where the method needs one."""
    if method.recipe is not None:
        analysis = method.recipe.analysis
        needed = bool(analysis.inputs or analysis.second_gradient or analysis.needs_rows or analysis.second_order)
    else:
        arguments = inspect.signature(optimizer.step).parameters
        needed = bool(arguments) and next(iter(arguments.values())).default is inspect.Parameter.empty
    if needed:
        optimizer.step(closure)
    else:
        closure()
        optimizer.step()


def refusals(method: Method, lr: float) -> dict[str, Exception]:
    """The errors with which a method refuses to train a tensor, by the names of the shapes."""
    errors: dict[str, Exception] = {}
    for name in SHAPES:
        try:
            ran = Problem([name]).run(method, CASES[0], lr, 2)
            errors |= {} if ran.failed is None else {name: ran.failed}
        except Exception as error:
            errors[name] = error
    return errors


def differences(one: Run, two: Run) -> Tensor:
    """max|Δ - Δ'| / max(|Δ|, |Δ'|) of the steps Δ of two runs: rows are steps, columns tensors; NaN where not finite."""
    rows = []
    for t in range(1, min(len(one.points), len(two.points))):
        row = []
        for old, new, old2, new2 in zip(one.points[t - 1], one.points[t], two.points[t - 1], two.points[t], strict=True):
            moved, moved2 = new - old, new2 - old2
            size = torch.maximum(moved.abs().max(), moved2.abs().max())
            row.append(((moved - moved2).abs().max() / size if size > 0 else size).item())
        rows.append(row)
    return torch.tensor(rows, dtype=torch.float64).reshape(len(rows), len(one.params))


def rounding(run: Run) -> Tensor:
    """|θ| over the size of the step: what one unit in the last place of θ is of a step, in such units."""
    rows = []
    for old, new in zip(run.points, run.points[1:], strict=False):
        rows.append(
            [
                (n.abs().max() / (n - o).abs().max()).item() if bool((n != o).any()) else 0.0
                for o, n in zip(old, new, strict=True)
            ]
        )
    return torch.tensor(rows, dtype=torch.float64).reshape(len(rows), len(run.params))

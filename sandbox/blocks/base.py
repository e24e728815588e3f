"""What a block is: a frozen dataclass whose fields are hyperparameters and whose methods are pure tensor functions.

    @block
    class Halving(Rectifier):
        "D = max(|B|, σ) / 2: an example."
        sigma: Number = number(default=0.01, range="(0, inf)")

        def read(self, B):
            # D = max(|B|, σ) / 2
            return B.abs().clamp(min=self.sigma) / 2

is a whole one.  `@block` makes the dataclass, checks its numbers on construction, and registers it as a pytree: numbers
(floats, 0-d tensors, batches under vmap, functions of t) are leaves, everything else is structure.

A block sits in a slot.  In a step, it is called once, in this order of its methods:

    update(x, **state) -> new state     what it remembers; `x` is the `Flow` of the step, `state` its own tensors by name
    read(value, **state) -> output      what it gives to the next slot, from what the previous one gave and its own state
                                        (there, state of one number a scope or tensor comes spread over the coordinates)

A block acts coordinate by coordinate.  What it needs of a whole tensor or scope it gets by `x.tensor` and `x.scope` (sum, amax,
mean, then spread), never by torch's own reductions, and it takes no shape and counts no entries: a backend may hand it one
tensor, one as a vector, or many in one buffer with room between them.  A graph is tried against the pure update before it is
used, and refused with the reason where they differ.

Because `read` needs nothing else, last step's output can be computed again from the state: that is how a recipe recalls
its direction d without storing it.  A block whose output needs more overrides `step` and says `recalls = False`.
What depends only on t and on numbers goes into `coefficients`: once a step, in float64, and found in `x.c`.  There t is a
Python number on the host, where 1 / (t - 1) divides by zero at t = 1 on either side of a `where`, and a tensor elsewhere.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
import re
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Annotated, Any, ClassVar, TypeVar, dataclass_transform

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from sandbox import suggest
from sandbox.scope import Scope

# A hyperparameter: a float, a 0-d tensor, a batch of values under vmap, or a function of t.
Number = Annotated[Any, "float, Tensor or function of t"]

# Shapes that a state may have: one number a coordinate, one a scope, one a tensor.
ELEMENT, SCOPE, TENSOR = "element", "scope", "tensor"

T = TypeVar("T")


@dataclasses.dataclass
class Flow:
    """What one step has computed so far, by the paper's names.  Local to the step; blocks read it."""

    t: Any  # number of this update, from 1
    lr: Any  # η_t
    lr_old: Any  # η_{t-1}, the rate with which `d_old` was applied
    theta: Tensor  # θ before the step
    g: Tensor  # gradient, after the gradient blocks run so far
    tensor: Scope  # reductions over each parameter tensor
    scope: Scope  # reductions over the recipe's scope
    grad_norm: Any = None  # ‖g‖₂ over all tensors, before any gradient block
    hessian: Any = None  # z ⊙ Hz, for second-order blocks
    d_old: Any = None  # d_t, the previous direction (0 at first)
    m_old: Any = None  # m before the update
    m: Any = None  # m after it
    y: Any = None  # m - m_old
    a: Any = None  # weight that the moment gives to the newest gradient
    u: Any = None  # numerator of the direction
    B: Any = None  # what the curvature block gave
    averaged: Any = None  # what the averaging block made of B
    D: Any = None  # what the rectifier gave
    d: Any = None  # d_{t+1}, the direction of this step
    theta_new: Any = None  # θ after the step
    after: Any = None  # the new state, by name
    value: Any = None  # what the previous slot gave to this one
    c: SimpleNamespace = dataclasses.field(default_factory=SimpleNamespace)  # this block's coefficients


def number(*, default: Any = dataclasses.MISSING, range: str = "(-inf, inf)") -> Any:
    """A numeric field: its default and the interval in which its value must lie, as "[0, 1)"."""
    return dataclasses.field(default=default, metadata={"range": Interval(range)})


class Interval:
    """An interval written as in mathematics, "[0, 1)"."""

    def __init__(self, text: str) -> None:
        match = re.fullmatch(r"([\[(])\s*([^,]+),\s*([^,]+)([\])])", text)
        if match is None:
            raise ValueError(f"an interval is written as '[0, 1)', got {text!r}")
        self.text = text
        self.closed = match[1] == "[", match[4] == "]"
        self.low, self.high = float(match[2]), float(match[3])

    def __contains__(self, value: float) -> bool:
        above = value >= self.low if self.closed[0] else value > self.low
        below = value <= self.high if self.closed[1] else value < self.high
        return above and below


class Block:
    """Base of all blocks; see the module's docstring.

    Class attributes: `slots` (where it fits), `state` (name -> ELEMENT, SCOPE or TENSOR), `needs` (fields of Flow
    that must exist: "d_old", "y", "hessian", "grad_norm"), `recalls` (its output can be computed again from its state),
    `text` and `latex` (its equation).
    """

    slots: ClassVar[tuple[str, ...]] = ()
    needs: ClassVar[tuple[str, ...]] = ()
    state: ClassVar[Mapping[str, str]] = {}
    recalls: ClassVar[bool] = True
    text: ClassVar[str] = ""
    latex: ClassVar[str] = ""

    def initial(self, name: str) -> Any:
        """Value of the state `name` before the first step."""
        return 0.0

    def coefficients(self, t: Any) -> dict[str, Any]:
        """What depends only on t (from 1) and numbers: evaluated once a step, in float64, found in `x.c`."""
        return {}

    def update(self, x: Flow, **state: Tensor) -> dict[str, Tensor]:
        """New values of the state."""
        return state

    def read(self, value: Any, **state: Tensor) -> Any:
        """Output, from what the previous slot gave and the block's own state: by default the first state."""
        return next(iter(state.values())) if state else value

    def step(self, x: Flow, **state: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """Output and new state."""
        new = broadcast_state(self, self.update(x, **state), state)
        return self.read(x.value, **spread(self, new, x)), new

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if field.type in ("bool", bool) and not isinstance(value, bool):
                raise TypeError(f"{type(self).__name__}: {field.name} must be True or False, got {value!r}")
            if is_number(field):
                object.__setattr__(self, field.name, _checked(type(self).__name__, field, getattr(self, field.name)))
        _check_words(self)
        self.check()

    def check(self) -> None:
        """Conditions between fields; raises ValueError."""

    def __str__(self) -> str:
        shown = [f"{f.name}={show(getattr(self, f.name))}" for f in dataclasses.fields(self)]  # type: ignore[arg-type]
        return f"{type(self).__name__}({', '.join(shown)})"


def _check_words(made: Block) -> None:
    """Raises ValueError for a kind of state or a need that there is not."""
    kinds, needs = (ELEMENT, SCOPE, TENSOR), [f.name for f in dataclasses.fields(Flow)]
    for name, kind in made.state.items():
        if kind not in kinds:
            raise ValueError(f"{type(made).__name__}: state {name!r}: {suggest.unknown('kind of state', str(kind), kinds)}")
    for need in made.needs:
        if need not in needs:
            raise ValueError(f"{type(made).__name__}: {suggest.unknown('need', str(need), needs)}")


def is_number(field: dataclasses.Field) -> bool:
    """Whether a dataclass field is a hyperparameter (declared by `number`, or annotated float or Number)."""
    return "range" in field.metadata or field.type in ("float", "Number", float, Number)


def show(value: Any) -> str:
    """A field's value as people write it."""
    if isinstance(value, bool | str):
        return str(value)
    if isinstance(value, float):
        return f"{value:g}" if math.isinf(value) or float(f"{value:g}") == value else repr(value)
    if isinstance(value, Tensor):
        return show(float(value)) if value.ndim == 0 and _concrete(value) else f"<tensor of shape {tuple(value.shape)}>"
    if callable(value) and not isinstance(value, Block):
        return f"{getattr(value, '__name__', type(value).__name__)}(t)"
    return str(value)


def _concrete(value: Tensor) -> bool:
    return type(value) in (Tensor, torch.nn.Parameter) and not torch._C._functorch.is_functorch_wrapped_tensor(value)


def known(value: Any) -> list[float]:
    """The values that a number is known to have: none for a function of t, a tracer, or a tensor without data."""
    if isinstance(value, Tensor):
        return value.detach().reshape(-1).tolist() if _concrete(value) and not value.is_meta else []
    return [value] if isinstance(value, float) else []


def _checked(owner: str, field: dataclasses.Field, value: Any) -> Any:
    """`value` as a float, tensor or function of t, within the field's interval."""
    interval = field.metadata.get("range", Interval("[-inf, inf]"))
    wrong = f"{owner}: {field.name} must lie in {interval.text}, got "
    if isinstance(value, Tensor):
        if not value.is_floating_point():
            raise TypeError(f"{owner}: {field.name} must be a floating-point tensor, got {value.dtype}")
        for entry in known(value):
            if entry not in interval:
                raise ValueError(wrong + show(entry))
        return value
    if callable(value):
        return value
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{owner}: {field.name} must be a number, a tensor or a function of t, got {value!r}")
    try:
        found = float(value)
    except OverflowError:
        raise ValueError(wrong + "a number too large for a float") from None
    if found not in interval:  # NaN lies in no interval
        raise ValueError(wrong + show(found))
    return found


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(number,))
def block(cls: type[T]) -> type[T]:
    """Makes a class a block: frozen keyword-only dataclass, checked numbers, registered pytree."""
    made = dataclasses.dataclass(frozen=True, kw_only=True, repr=True)(cls)
    register(made)
    return made


def register(cls: type) -> None:
    """Registers a frozen dataclass as a pytree: numbers, blocks and tuples of blocks are children, the rest structure."""

    labels = [(f.name, f.default) for f in dataclasses.fields(cls) if "label" in f.metadata]

    def flatten(instance: Any) -> tuple[list[Any], Any]:
        children, names, fixed = [], [], []
        for field in dataclasses.fields(instance):
            if "label" in field.metadata:  # nothing depends on it; it is lost
                continue
            value = getattr(instance, field.name)
            if isinstance(value, float | Tensor | Block) or _is_blocks(value) or _dynamic(field, value):
                children.append(value)
                names.append(field.name)
            else:
                fixed.append((field.name, value))
        return children, (tuple(names), tuple(fixed))

    def unflatten(children: Any, context: Any) -> Any:
        # no __init__: leaves may be tracers, or placeholders of a tree transformation
        instance: Any = object.__new__(cls)
        names, fixed = context
        for name, value in [*labels, *zip(names, children, strict=True), *fixed]:
            object.__setattr__(instance, name, value)
        return instance

    pytree.register_pytree_node(cls, flatten, unflatten, serialized_type_name=f"{cls.__module__}.{cls.__qualname__}")


def _is_blocks(value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and all(isinstance(v, Block) for v in value)


def _dynamic(field: dataclasses.Field, value: Any) -> bool:
    """A number's field holding something else than a plain function is a leaf (a tracer, a placeholder)."""
    return is_number(field) and not callable(value)


def where(condition: Any, a: Any, b: Any) -> Any:
    """`a if condition else b`, also for tensors (under vmap and tracing t is one)."""
    if not isinstance(condition, Tensor):
        return a if condition else b
    a, b = (torch.as_tensor(v, dtype=torch.float64, device=condition.device) for v in (a, b))
    return torch.where(condition, a, b)


def broadcast_state(owner: Block, new: Any, old: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """New state in the shape of the old one: a number that is the same for all tensors is repeated for each.

    Raises TypeError where `update` gave no tensor, ValueError where it gave other states than the block has.
    """
    name = type(owner).__name__
    if not isinstance(new, Mapping) or new.keys() != old.keys():
        given = ", ".join(sorted(map(str, new))) or "nothing" if isinstance(new, Mapping) else repr(new)
        raise ValueError(f"{name}.update must return its states, {', '.join(old) or 'none'}, by name; it returned {given}")
    for key, value in new.items():
        if not isinstance(value, Tensor):
            raise TypeError(f"{name}.update must return tensors; its {key!r} is {value!r}")
    return {key: value if value.shape == old[key].shape else value.expand(old[key].shape) for key, value in new.items()}


def spread(owner: Block, state: Mapping[str, Tensor], x: Flow) -> dict[str, Tensor]:
    """A block's state with what is kept once a scope or once a tensor spread over the coordinates."""
    ways = {ELEMENT: lambda s: s, SCOPE: x.scope.spread, TENSOR: x.tensor.spread}
    return {name: ways[owner.state[name]](value) for name, value in state.items()}


class Schedule(Block):
    """A number as a function of t = 1, 2, …; fits wherever a number does."""

    slots: ClassVar[tuple[str, ...]] = ("number",)

    def __call__(self, t: Any) -> Any:
        """Value at update t (from 1)."""
        raise TypeError(f"{type(self).__name__} must define __call__(t)")


class Gradient(Block):
    """Turns the gradient (`value`, also `x.g`) into the one that the method sees."""

    slots: ClassVar[tuple[str, ...]] = ("gradient",)


class Moment(Block):
    """Averages the gradient.  First state: m; y = m_new - m_old; output: the numerator of the direction."""

    slots: ClassVar[tuple[str, ...]] = ("moment",)

    def weight(self, t: Any) -> Any:
        """Weight a of the newest gradient in m at update t."""
        return 1.0


class Curvature(Block):
    """Estimates a diagonal B from what the step has seen."""

    slots: ClassVar[tuple[str, ...]] = ("curvature",)
    estimates = ""  # what `estimate` gives, in terms of B; "" where it gives nothing

    def hessian(self, z: Tensor, Hz: Tensor) -> Tensor:
        """What a second-order block takes from one Hessian-vector product, in the parameter's own shape."""
        return z * Hz

    def estimate(self, B: Tensor, x: Flow) -> Tensor | None:
        """What B (averaged or not) says of the Hessian's diagonal, on its scale; None where it says nothing of it."""
        return None

    def residual(self, x: Flow) -> Tensor | None:
        """How far B is from the equation that the block solves, over the size of its terms; None where it solves none."""
        return None


class Averaging(Block):
    """Averages B (`value`) before it is rectified."""

    slots: ClassVar[tuple[str, ...]] = ("averaging",)


class Rectifier(Block):
    """Turns B into the diagonal D > 0 that divides the direction."""

    slots: ClassVar[tuple[str, ...]] = ("rectifier",)

    def on_floor(self, B: Tensor, **state: Tensor) -> Tensor | None:
        """Mask of coordinates where D is the floor and not the curvature; None where there is no floor."""
        return None


class Decay(Block):
    """Weight decay: what is added to the direction u = m/D (`value`), or taken off θ."""

    slots: ClassVar[tuple[str, ...]] = ("decay",)
    in_direction: ClassVar[bool] = False  # whether the decay is part of d

    def add(self, u: Tensor, theta: Tensor, **state: Tensor) -> Tensor:
        """The direction d from u and θ before the step."""
        return u

    def recall(self, u: Tensor, theta: Tensor, **state: Tensor) -> Tensor:
        """The previous direction from the previous u and θ as that step left it."""
        return u

    def step(self, x: Flow, **state: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """d and the new state."""
        new = broadcast_state(self, self.update(x, **state), state)
        return self.add(x.value, x.theta, **spread(self, new, x)), new

    def shrink(self, x: Flow) -> Tensor:
        """θ as the step starts from it."""
        return x.theta

    def check_lr(self, lr: float) -> None:
        """Raises ValueError where the rate of decay makes no sense together with `lr`."""


class Projection(Block):
    """Maps the new θ (`value`) into the feasible set."""

    slots: ClassVar[tuple[str, ...]] = ("projection",)

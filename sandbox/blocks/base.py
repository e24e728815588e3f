"""What a block is: a frozen dataclass whose fields are hyperparameters and whose methods are pure tensor functions.

    @block
    class Halving(Rectifier):
        "D = max(|B|, σ) / 2   (an example)."
        sigma: Number = number(default=0.01, range="(0, inf)")

        def read(self, B):
            # D = max(|B|, σ) / 2
            return B.abs().clamp(min=self.sigma) / 2

is a whole one, and the first line of its docstring, up to the source after three spaces, is its equation wherever it is shown.
`@block` makes the dataclass, checks its numbers on construction, and registers it as a pytree: numbers (floats, 0-d tensors,
batches under vmap, functions of t) are leaves, everything else is structure.

A block sits in a slot.  In a step, it is called once, in this order of its methods:

    update(x, **state) -> new state     what it remembers; `x` is the `Flow` of the step, `state` its own tensors by name
    read(value, **state) -> output      what it gives to the next slot, from what the previous one gave and its own state
                                        (there, state of one number a scope or tensor comes spread over the coordinates)

A block acts coordinate by coordinate.  What it needs of a whole tensor or scope it gets by `x.tensor` and `x.scope` (sum, amax,
mean, then spread), never by torch's own reductions, and it takes no shape and counts no entries: a backend may hand it one
tensor, one as a vector, or many in one buffer with room between them.  Only a block with a state of `OF_MATRICES`, or with
`matrix = True`, gets each tensor as a matrix (m, n), a vector as one column, and may use the products of matrices; one with a
SQUARE state may take each tensor as a vector.  A graph is tried against the pure update before it is used, and refused with the
reason where they differ.

Because `read` needs nothing else, last step's output can be computed again from the state: that is how a recipe recalls
its direction d without storing it.  The hyperparameters of a block with a `read` of its own are kept in the state as they were
(`reads` names those that it uses).  A block whose output needs more overrides `step` and says `recalls = False`.
What depends only on t and on numbers goes into `coefficients`: once a step, in float64, and found in `x.c`.  There t is a
Python number on the host, where 1 / (t - 1) divides by zero at t = 1 on either side of a `where`, and a tensor elsewhere.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, ClassVar, TypeVar, dataclass_transform

from torch import Tensor

from sandbox.blocks.number import is_number, number, show, validated
from sandbox.blocks.scope import Over
from sandbox.utils import suggest
from sandbox.utils.private_torch import pytree

# What a step may take beside the gradient, made by whoever runs it.
INPUTS = ("hessian", "sampled", "product")

# Shapes that a state may have: one number a coordinate, one a scope, one a tensor;
ELEMENT, SCOPE, TENSOR = "element", "scope", "tensor"
# for a tensor as an (m, n) matrix, m = shape[0]: (m, 1), (1, n), (m, m), (n, n);  for one of N entries: (N, N).
ROWS, COLUMNS, LEFT, RIGHT, SQUARE = "rows", "columns", "left", "right", "square"

KINDS = (ELEMENT, SCOPE, TENSOR, ROWS, COLUMNS, LEFT, RIGHT, SQUARE)
OF_MATRICES = (ROWS, COLUMNS, LEFT, RIGHT)
QUADRATIC = (LEFT, RIGHT, SQUARE)

T = TypeVar("T")


@dataclasses.dataclass
class Flow:
    """What one step has computed so far, by the paper's names.  Local to the step; blocks read it."""

    t: Any  # number of this update, from 1
    lr: Any  # η_t
    lr_old: Any  # η_{t-1}, the rate with which `d_old` was applied
    theta: Tensor  # θ before the step
    g: Tensor  # gradient, after the gradient blocks run so far
    tensor: Over  # reductions over each parameter tensor
    scope: Over  # reductions over the recipe's scope
    grad_norm: Any = None  # ‖g‖₂ over all tensors, before any gradient block
    hessian: Any = None  # z ⊙ Hz
    sampled: Any = None  # the gradient at labels drawn from the model
    product: Any = None  # Hv, v what the pairs block asks for
    again: Any = None  # ∇f(θ_t; ξ_{t-1}), the last batch's gradient at the present point (0 at first)
    d_old: Any = None  # d_t, the previous direction (0 at first)
    g_old: Any = None  # the previous gradient, after the gradient blocks (0 at first)
    m_old: Any = None  # m before the update
    m: Any = None  # m after it
    s: Any = None  # step of the pair, -η d as a rule
    y: Any = None  # change of the gradient along it, m - m_old as a rule
    order: Any = None  # places of rows and columns in the next step's basis, where it changes them
    left: Any = None  # eigenvalues of the basis's left factor, (m, 1)
    right: Any = None  # and of its right one, (1, n)
    outside: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # g, u, d_old, y, m in standard coordinates
    due: Any = True  # whether this block's periodic work is due
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


class Block:
    """Base of all blocks; see the module's docstring.

    Class attributes: `slots` (where it fits), `state` (name -> one of `KINDS`), `matrix` (it takes tensors as matrices),
    `needs` (fields of Flow that must exist: "d_old", "g_old", "s", "y", "grad_norm", "again", "left", "right", and the inputs
    "hessian", "sampled", "product"), `recalls` (its output comes again from its state),
    `reads` (the hyperparameters that a `read` or `recall` of its own uses, each kept as a number a tensor; None: all of them),
    `latex` (its equation; as plain text it is the first line of the docstring).
    """

    slots: ClassVar[tuple[str, ...]] = ()
    needs: ClassVar[tuple[str, ...]] = ()
    state: ClassVar[Mapping[str, str]] = {}
    recalls: ClassVar[bool] = True
    reads: ClassVar[tuple[str, ...] | None] = None
    latex: ClassVar[str] = ""

    @property
    def matrix(self) -> bool:
        """Whether it takes each tensor as an (m, n) matrix."""
        return any(kind in OF_MATRICES for kind in self.state.values())

    @property
    def text(self) -> str:
        """The block's equation: the first line of its docstring, up to the source, which follows after three spaces."""
        return (inspect.getdoc(type(self)) or type(self).__name__).splitlines()[0].partition("   ")[0].rstrip(".")

    def written(self, slot: str, *, latex: bool = False) -> str:
        """The equation with the symbols of a slot, as text or in LaTeX; "" where there is no LaTeX."""
        return self.latex if latex else self.text

    def initial(self, name: str) -> Any:
        """Value of the state `name` before the first step; of one of `QUADRATIC` kind, times the identity."""
        return 0.0

    def coefficients(self, t: Any) -> dict[str, Any]:
        """What depends only on t (from 1) and numbers: evaluated once a step, in float64, found in `x.c`."""
        return {}

    def due(self, t: Any) -> Any:
        """Whether the block's periodic work is due at step t, found in `x.due`; decided on the host if t is known."""
        return True

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
                object.__setattr__(self, field.name, validated(type(self).__name__, field, getattr(self, field.name)))
        self.check()
        _check_names(self)

    def check(self) -> None:
        """Conditions between fields; raises ValueError."""

    def __str__(self) -> str:
        shown = [f"{f.name}={show(getattr(self, f.name))}" for f in dataclasses.fields(self)]  # type: ignore[arg-type]
        return f"{type(self).__name__}({', '.join(shown)})"


def _check_names(made: Block) -> None:
    """Raises ValueError for an unknown kind of state, an unknown need, or a state named as a field."""
    needs = [f.name for f in dataclasses.fields(Flow)]
    fields = {f.name for f in dataclasses.fields(made)}  # type: ignore[arg-type]
    for name, kind in made.state.items():
        if name in fields:
            raise ValueError(f"{type(made).__name__}: a state and a field must not share the name {name!r}")
        if kind not in KINDS:
            raise ValueError(f"{type(made).__name__}: state {name!r}: {suggest.unknown('kind of state', str(kind), KINDS)}")
    for need in made.needs:
        if need not in needs:
            raise ValueError(f"{type(made).__name__}: {suggest.unknown('need', str(need), needs)}")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(number,))
def block(cls: type[T]) -> type[T]:
    """Makes a class a block: frozen keyword-only dataclass, checked numbers, registered pytree."""
    made = dataclasses.dataclass(frozen=True, kw_only=True, repr=True)(cls)
    plain_init = made.__init__

    @functools.wraps(plain_init)
    def init(self: Any, *args: Any, **fields: Any) -> None:
        if args:
            names = [f.name for f in dataclasses.fields(made)]  # type: ignore[arg-type]
            hint = f"{made.__name__}({names[0]}={args[0]!r})" if names else "it has none"
            raise TypeError(f"{made.__name__} takes its hyperparameters by name: {hint}")
        plain_init(self, **fields)

    made.__init__ = init  # type: ignore[method-assign]
    register(made)
    return made


_TREES: set[type] = set()


def register(cls: type) -> None:
    """Registers a frozen dataclass as a pytree: numbers, blocks and tuples of blocks are children, the rest structure."""

    _TREES.add(cls)
    labels = [(f.name, f.default) for f in dataclasses.fields(cls) if "label" in f.metadata]

    def flatten(instance: Any) -> tuple[list[Any], Any]:
        children, names, fixed = [], [], []
        for field in dataclasses.fields(instance):
            if "label" in field.metadata:  # nothing depends on it; it is lost
                continue
            value = getattr(instance, field.name)
            if (
                isinstance(value, float | Tensor | Block)
                or type(value) in _TREES
                or _is_blocks(value)
                or _dynamic(field, value)
            ):
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
    ways = {SCOPE: x.scope.spread, TENSOR: x.tensor.spread}
    return {name: ways.get(owner.state[name], lambda s: s)(value) for name, value in state.items()}

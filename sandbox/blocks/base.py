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

A block sits in a slot.  In a step, it is called once, in this order of its methods (the base class takes any arguments, so that
a block can name its own state: `def update(self, x, *, B)`):

    update(x, **state) -> new state     what it remembers; `x` is the `Flow` of the step, `state` its own tensors by name
    read(value, **state) -> output      what it gives to the next slot, from what the previous one gave and its own state
                                        (there, state with one number per scope or tensor comes spread over the coordinates)

A block acts coordinate by coordinate.  What it needs of a whole tensor or scope it gets by `x.tensor` and `x.scope` (sum, amax,
mean, then spread), never by torch's own reductions, and it takes no shape and counts no entries: a backend may hand it one
tensor, one as a vector, or many in one buffer with room between them.  Only a block with a state of `OF_MATRICES`, or with
`matrix = True`, gets each tensor as a matrix (m, n), a vector as one column, and may use the products of matrices; one with a
SQUARE state may take each tensor as a vector.  A graph is tried against the pure update before it is used, and refused with the
reason where they differ.

Because `read` needs nothing else, last step's output can be computed again from the state: that is how a recipe recalls
its direction d without storing it.  The hyperparameters of a block with a `read` of its own are kept in the state as they were
(`reads` names those that it uses).  A block whose output needs more overrides `step` and says `recalls = False`.
What depends only on t and on numbers goes into `coefficients`: once per step, in float64, and found in `x.c`.  There t is a
Python number on the host, where 1 / (t - 1) divides by zero at t = 1 on either side of a `where`, and a tensor elsewhere.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar, dataclass_transform

import torch
from torch import Tensor

from sandbox.blocks.flow import NEEDS, Flow
from sandbox.blocks.number import is_number, number, show, validated
from sandbox.utils import suggest
from sandbox.utils.private_torch import pytree

# Shapes that a state may have: one number per coordinate, per scope, per tensor;
ELEMENT, SCOPE, TENSOR = "element", "scope", "tensor"
# for a tensor as an (m, n) matrix, m = shape[0]: (m, 1), (1, n), (m, m), (n, n);  for one of N entries: (N, N).
ROWS, COLUMNS, LEFT, RIGHT, SQUARE = "rows", "columns", "left", "right", "square"

KINDS = (ELEMENT, SCOPE, TENSOR, ROWS, COLUMNS, LEFT, RIGHT, SQUARE)
OF_MATRICES = (ROWS, COLUMNS, LEFT, RIGHT)
QUADRATIC = (LEFT, RIGHT, SQUARE)

# What a step may take beside the gradient, made by whoever runs it, and its shape.
INPUTS = {"hessian": ELEMENT, "sampled": ELEMENT, "product": ELEMENT, "displaced": ELEMENT, "G": LEFT, "A": RIGHT}

T = TypeVar("T")


class Block:
    """Base of all blocks; see the module's docstring.

    Class attributes: `slots` (where it fits), `state` (name -> one of `KINDS`), `matrix` (it takes tensors as matrices),
    `needs` (what a step must have for it, some of `flow.NEEDS`), `recalls` (its output comes again from its state),
    `reads` (the hyperparameters that a `read` or `recall` of its own uses, one number per tensor each; None: all of them),
    `exact` (its states of kind LEFT and RIGHT are kept and handed to it in float64, whatever the precision of the step),
    `latex` (its equation; as plain text it is the first line of the docstring).
    """

    slots: ClassVar[tuple[str, ...]] = ()
    needs: ClassVar[tuple[str, ...]] = ()
    state: ClassVar[Mapping[str, str]] = {}
    recalls: ClassVar[bool] = True
    reads: ClassVar[tuple[str, ...] | None] = None
    exact: ClassVar[bool] = False
    latex: ClassVar[str] = ""

    @property
    def matrix(self) -> bool:
        """Whether it takes each tensor as an (m, n) matrix."""
        return any(kind in OF_MATRICES for kind in self.state.values())

    @property
    def text(self) -> str:
        """The block's equation: the first line of its docstring, up to the source, which follows after three spaces."""
        return (inspect.getdoc(type(self)) or type(self).__name__).splitlines()[0].partition("   ")[0].rstrip(".")

    def equation(self, slot: str, *, latex: bool = False) -> str:
        """The equation with the symbols of a slot, as text or in LaTeX; "" where there is no LaTeX."""
        return self.latex if latex else self.text

    def initial(self, name: str, /) -> Any:
        """Value of the state `name` before the first step; of one of `QUADRATIC` kind, times the identity."""
        return 0.0

    def coefficients(self, t: Any, /) -> dict[str, Any]:
        """What depends only on t (from 1) and numbers: evaluated once per step, in float64, found in `x.c`."""
        return {}

    def due(self, t: Any, /) -> Any:
        """Whether the block's periodic work is due at step t, found in `x.due`; decided on the host if t is known."""
        return True

    def update(self, x: Flow, /, *args: Any, **state: Any) -> dict[str, Tensor]:
        """New values of the state."""
        return state

    def read(self, value: Any, /, *args: Any, **state: Any) -> Any:
        """Output, from what the previous slot gave and the block's own state: by default the first state."""
        return next(iter(state.values())) if state else value

    def step(self, x: Flow, /, *args: Any, **state: Any) -> tuple[Any, dict[str, Tensor]]:
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

    def __getstate__(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}  # type: ignore[arg-type]

    def __str__(self) -> str:
        shown = [f"{f.name}={show(getattr(self, f.name))}" for f in dataclasses.fields(self)]  # type: ignore[arg-type]
        return f"{type(self).__name__}({', '.join(shown)})"


def _check_names(instance: Block) -> None:
    """Raises ValueError for an unknown kind of state, an unknown need, or a state named as a field."""
    fields = {f.name for f in dataclasses.fields(instance)}  # type: ignore[arg-type]
    for name, kind in instance.state.items():
        if name in fields:
            raise ValueError(f"{type(instance).__name__}: a state and a field must not share the name {name!r}")
        if kind not in KINDS:
            raise ValueError(f"{type(instance).__name__}: state {name!r}: {suggest.unknown('kind of state', str(kind), KINDS)}")
    for need in instance.needs:
        if need not in NEEDS:
            raise ValueError(f"{type(instance).__name__}: {suggest.unknown('need', str(need), NEEDS)}")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(number,))
def block(cls: type[T]) -> type[T]:
    """Makes a class a block: frozen keyword-only dataclass, checked numbers, registered pytree."""
    if cls.__doc__ is None:
        cls.__doc__ = cls.__name__  # a dataclass would put its signature here, which is no equation
    decorated = dataclasses.dataclass(frozen=True, kw_only=True, repr=True)(cls)
    plain_init = decorated.__init__

    @functools.wraps(plain_init)
    def init(self: Any, *args: Any, **fields: Any) -> None:
        if args:
            names = [f.name for f in dataclasses.fields(decorated)]  # type: ignore[arg-type]
            hint = f"{decorated.__name__}({names[0]}={args[0]!r})" if names else "it has none"
            raise TypeError(f"{decorated.__name__} takes its hyperparameters by name: {hint}")
        plain_init(self, **fields)

    decorated.__init__ = init  # type: ignore[method-assign]
    register(decorated)
    return decorated


_TREES: set[type] = set()


def register(cls: type) -> None:
    """Registers a frozen dataclass as a pytree: numbers, blocks and tuples of blocks are children, the rest structure."""

    _TREES.add(cls)
    # a label is lost: nothing depends on it
    labels = [(f.name, f.default) for f in dataclasses.fields(cls) if "label" in f.metadata]
    fields = [f for f in dataclasses.fields(cls) if "label" not in f.metadata]

    def flatten(instance: Any) -> tuple[list[Any], Any]:
        children, names, fixed = [], [], []
        for field in fields:
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
    # a framework may save parameter groups, the recipe among them, and load them by torch.load(weights_only=True)
    torch.serialization.add_safe_globals([cls])


def is_registered(value: Any) -> bool:
    """Whether the class of a block was made by `@block`, and not only derived from one."""
    return type(value) in _TREES


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
    """A block's state with what is kept once per scope or tensor spread over the coordinates."""
    ways = {SCOPE: x.scope.spread, TENSOR: x.tensor.spread}
    return {name: ways.get(owner.state[name], lambda s: s)(value) for name, value in state.items()}

"""A composition of blocks, one in each slot, and what follows from it: what a step keeps, needs and recalls."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from typing import Any, Self

from sandbox.blocks import (
    ELEMENT,
    EMA,
    INPUTS,
    SCOPE,
    SQUARE,
    AbsoluteFloor,
    Averaging,
    Basis,
    Block,
    Curvature,
    Decay,
    Divide,
    Moment,
    NoAveraging,
    NoDecay,
    NoProjection,
    Number,
    Pairs,
    Projection,
    Rectifier,
    Solve,
    Standard,
    Successive,
    WeakSecant,
    number,
    scope,
)
from sandbox.blocks.base import is_registered
from sandbox.blocks.number import is_function, validated
from sandbox.recipe import parts
from sandbox.recipe.by_shape import ByShape
from sandbox.recipe.parts import SLOTS
from sandbox.utils import suggest
from sandbox.utils.private_torch import pytree

AGAIN = "gradient.again"  # the state of a recipe that looks again, written by whoever runs it

# The slots whose outputs are read again from the state to recall d, the decay apart.
_RECALLING = ("moment", "curvature", "averaging", "rectifier", "solve")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Composition(ByShape):
    """A recipe as data; the defaults are Apollo's (paper, Algorithm 1).

    lr: the default rate η, a number or a function of t.  scope: who shares a secant constraint ("parameter", "global",
    "channel" or "coordinate").  vectors: the recipe of tensors with fewer than two axes, and of matrices with a side beyond the
    basis's limit; its rate stands to η as its own lr to this one's; None: this recipe, with Standard and Divide in place of a
    basis and a solver for matrices.  Raises TypeError for a block in a slot where it does not fit, and ValueError for blocks
    that do not fit together.
    """

    name: str = dataclasses.field(default="custom", metadata={"label": True})
    lr: Number = number(default=0.01, range="[0, inf)")
    gradient: tuple[Block, ...] = ()
    moment: Moment = EMA()
    pairs: Pairs = Successive()
    basis: Basis = Standard()
    curvature: Curvature = WeakSecant()
    averaging: Averaging | Moment = NoAveraging()
    rectifier: Rectifier = AbsoluteFloor()
    solve: Solve = Divide()
    decay: Decay = NoDecay()
    projection: Projection = NoProjection()
    scope: str = "parameter"
    vectors: Any = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise TypeError(f"a recipe's name is a text, got {self.name!r}")
        if isinstance(self.gradient, Block) or not isinstance(self.gradient, Iterable):
            object.__setattr__(self, "gradient", (self.gradient,))
        object.__setattr__(self, "gradient", tuple(self.gradient))
        lr = next(f for f in dataclasses.fields(self) if f.name == "lr")
        object.__setattr__(self, "lr", validated("Recipe", lr, self.lr))
        for path, block in self.blocks():
            slot = path.split(".")[0]
            if not isinstance(block, Block) or slot not in block.slots:
                raise TypeError(parts.misfit(slot, block))
            if not is_registered(block):
                raise TypeError(f"{type(block).__name__} in slot {slot!r} is no block yet: put @block above its class")
        if self.scope not in scope.NAMES:
            raise ValueError(suggest.unknown("scope", str(self.scope), scope.NAMES))
        self.check_vectors()
        if self.alone and self.scope == "global":
            raise ValueError("scope 'global' makes one vector of all tensors; a block whose state is a matrix takes them apart")
        if self.matrix and SQUARE in self.state_kinds().values():
            raise ValueError("a block that takes tensors as matrices and one with a SQUARE state do not go together")
        self._check_needs()

    def _check_needs(self) -> None:
        for path, block in self.blocks():
            name = type(block).__name__
            if "left" in block.needs and type(self.basis).eigenvalues is Basis.eigenvalues:
                raise ValueError(
                    f"{name} in slot {path!r} takes eigenvalues of a basis, and {type(self.basis).__name__} has none; a basis "
                    "of matrices leaves vectors to `vectors`, a recipe of their own"
                )
            if "hessian" in block.needs and not isinstance(self.basis, Standard):
                raise ValueError(f"{name} takes the Hessian's diagonal, which is not known in a basis other than Standard")
            if "grad_norm" in block.needs and path != "gradient.0":
                raise ValueError(f"{name} takes the norm of the raw gradients, so it must come first in `gradient`")
            if "again" in block.needs and not all(getattr(each, "affine", False) for each in self.gradient):
                raise ValueError(
                    f"{name} compares one batch's gradients at two points: it allows no gradient block but L2Decay"
                )
            if "product" in block.needs and self.gradient:
                raise ValueError(f"{name} sees the Hessian of the loss alone: it allows no gradient block")
            compared = {"y", "m"} if self.pairs.successive else {"m"}
            if compared & set(block.needs) and not self.moment.state:
                raise ValueError(
                    f"{name} in slot {path!r} compares averages of the gradient, but {type(self.moment).__name__} keeps "
                    "none; for no momentum take moment=EMA(beta=0)"
                )

    def blocks(self) -> tuple[tuple[str, Block], ...]:
        """(path, block) of every slot in the order of a step; gradient blocks are "gradient.0", "gradient.1", …"""
        return self._blocks

    @functools.cached_property
    def _blocks(self) -> tuple[tuple[str, Block], ...]:
        gradient = [(f"gradient.{i}", block) for i, block in enumerate(self.gradient)]
        return *gradient, *((slot, getattr(self, slot)) for slot in SLOTS[1:])

    @functools.cached_property
    def uses_direction(self) -> bool:
        """Whether some block looks at the previous direction d."""
        return self.needs_step or any("d_old" in block.needs for _, block in self.blocks())

    @functools.cached_property
    def needs_step(self) -> bool:
        """Whether some block looks at the last step s = -η d."""
        return not self.pairs.own_step and any("s" in block.needs for _, block in self.blocks())

    @functools.cached_property
    def stores_direction(self) -> bool:
        """Whether d must be stored, since it cannot be computed again from the rest of the state.

        d comes from the state where all blocks from moment to decay recall their outputs.  A decay inside d is recalled from
        θ, which a projection would have changed.
        """
        recalled = all(getattr(self, slot).recalls for slot in ("basis", *_RECALLING, "decay"))
        changed = self.decay.in_direction and not isinstance(self.projection, NoProjection)
        return self.uses_direction and not (recalled and not changed and "product" not in self.inputs)

    @functools.cached_property
    def stores_gradient(self) -> bool:
        """Whether some block looks at the previous gradient, which is then kept once for all of them."""
        return any("g_old" in block.needs for _, block in self.blocks())

    @functools.cached_property
    def recalls_direction(self) -> bool:
        """Whether each step computes the direction of the one before again."""
        return self.uses_direction and not self.stores_direction

    @functools.cached_property
    def recalled(self) -> tuple[str, ...]:
        """Dotted names of the hyperparameters that recall the previous direction, each a 0-d state of every tensor.

        Those of the blocks whose `read` (of a decay: `recall`) is their own, since what the base class does needs none.
        """
        if not self.recalls_direction:
            return ()
        named = [slot for slot in _RECALLING if type(getattr(self, slot)).read is not Block.read]
        named += ["decay"] if type(self.decay).recall is not Decay.recall else []
        found = []
        for slot in named:
            block = getattr(self, slot)
            found += parts.own_places(slot, block) if block.reads is None else [f"{slot}.{name}" for name in block.reads]
        return tuple(found)

    def applied(self, lr: Any) -> dict[str, Any]:
        """The rate and the `recalled` hyperparameters of a step made at `lr`: what the next step finds in the state."""
        return {"lr": lr, **{name: parts.value_at(self, name) for name in self.recalled}}

    def as_it_was(self, last: Mapping[str, Any]) -> Self:
        """This composition with the `recalled` hyperparameters of the step before."""
        made = self
        for name in self.recalled:
            made = parts.replaced(made, name, last[name], check=False)
        return made

    @functools.cached_property
    def has_schedules(self) -> bool:
        """Whether some number is a function of t."""
        found = [self.lr, *(getattr(o, f.name) for _, o in self.blocks() for f in dataclasses.fields(o))]  # type: ignore[arg-type]
        nested = [getattr(o, f.name) for o in found if isinstance(o, Block) for f in dataclasses.fields(o)]  # type: ignore[arg-type]
        return any(is_function(value) for value in found + nested)

    @functools.cached_property
    def inputs(self) -> tuple[str, ...]:
        """What a step takes beside the gradient, some of `blocks.base.INPUTS`."""
        needed = {need for _, block in self.blocks() for need in block.needs}
        needed |= set() if self.vectors is None else set(self.vectors.inputs)
        return tuple(name for name in INPUTS if name in needed)

    @functools.cached_property
    def second_order(self) -> bool:
        """Whether a step needs a Hessian-vector product."""
        return bool({"hessian", "product"} & set(self.inputs))

    @functools.cached_property
    def draws_labels(self) -> bool:
        """Whether a step takes gradients or factors at labels drawn from the model."""
        return "sampled" in (*self.inputs, self.basis.factors)

    @functools.cached_property
    def sees_rows(self) -> bool:
        """Whether a step sees the rows of its batch and not only their mean: it draws labels, or takes factors of layers."""
        return self.draws_labels or self.basis.factors is not None

    @functools.cached_property
    def looks_again(self) -> bool:
        """Whether each batch's gradient is taken a second time, at the point that its step has led to."""
        return any("again" in block.needs for _, block in self.blocks())

    @functools.cached_property
    def evaluations(self) -> int:
        """Gradients a step, a Hessian-vector product counted as one."""
        vectors = sum(INPUTS[name] == ELEMENT for name in self.inputs)
        return 1 + vectors + self.looks_again + (self.basis.factors == "sampled")

    @functools.cached_property
    def matrix(self) -> bool:
        """Whether some block takes tensors as matrices."""
        return any(block.matrix for _, block in self.blocks())

    @functools.cached_property
    def alone(self) -> bool:
        """Whether each tensor needs a layout of its own, since some block has matrices."""
        return self.matrix or SQUARE in self.state_kinds().values()

    def state_kinds(self) -> dict[str, str]:
        """Name -> kind of shape of every state tensor, the `host_names` apart."""
        kinds = {f"{path}.{name}": kind for path, block in self.blocks() for name, kind in block.state.items()}
        kinds |= {"direction.d": ELEMENT} if self.stores_direction else {}
        kinds |= {"gradient.g": ELEMENT} if self.stores_gradient else {}
        return kinds | ({AGAIN: ELEMENT} if self.looks_again else {})

    @property
    def host_names(self) -> tuple[str, ...]:
        """Names of the 0-d states in float64: updates made, the last rate, and what recalls the last direction."""
        return ("step", "lr", *self.recalled)

    @property
    def state_words(self) -> int:
        """State words a parameter."""
        few = SCOPE if self.scope == "coordinate" else ELEMENT
        return sum(kind in (ELEMENT, few) for kind in self.state_kinds().values())

    def structure(self) -> dict[str, str]:
        """Slot -> its block without numbers: two recipes of equal structure differ only in numbers."""
        slots = {slot: parts.structure(getattr(self, slot)) for slot in SLOTS}
        inner = {} if self.vectors is None else {"vectors": ", ".join(map("=".join, self.vectors.structure().items()))}
        return slots | {"scope": self.scope, **inner}

    @functools.cached_property
    def leaves(self) -> list[Any]:
        """Every number, in the order of the pytree."""
        return pytree.tree_leaves(self)

    @functools.cached_property
    def needs_norm(self) -> bool:
        """Whether a step needs the norm of all gradients together."""
        own = any("grad_norm" in block.needs for block in self.gradient)
        return own or (self.vectors is not None and self.vectors.needs_norm)

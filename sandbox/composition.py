"""A composition of blocks, one in each slot, and what follows from it: what a step keeps, needs and recalls."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from sandbox import parts, scope, suggest
from sandbox.blocks import (
    COLUMNS,
    ELEMENT,
    EMA,
    LEFT,
    RIGHT,
    ROWS,
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
    Projection,
    Rectifier,
    Solve,
    Standard,
    WeakSecant,
    number,
)
from sandbox.blocks.number import is_function, known, validated
from sandbox.parts import SLOTS

# The slots whose outputs are read again from the state to recall d, the decay apart.
_RECALLING = ("moment", "curvature", "averaging", "rectifier", "solve")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Composition:
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
        if self.scope not in scope.NAMES:
            raise ValueError(suggest.unknown("scope", str(self.scope), scope.NAMES))
        if self.alone and self.scope == "global":
            raise ValueError("scope 'global' makes one vector of all tensors; a block whose state is a matrix takes them apart")
        if self.matrix and SQUARE in self.state_kinds().values():
            raise ValueError("a block that takes tensors as matrices and one with a SQUARE state do not go together")
        self._check_needs()
        self._check_vectors()

    def _check_vectors(self) -> None:
        if self.vectors is None:
            return
        if not isinstance(self.vectors, Composition) or self.vectors.vectors is not None:
            raise TypeError(f"vectors must be a Recipe that has no vectors of its own, or None, got {self.vectors!r}")
        if is_function(self.lr) or is_function(self.vectors.lr) or 0.0 in known(self.lr):
            raise ValueError(
                "vectors keep the proportion of their lr to the recipe's: both must be numbers, the recipe's above 0"
            )

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
            if {"y", "m"} & set(block.needs) and not self.moment.state:
                raise ValueError(
                    f"{name} in slot {path!r} compares averages of the gradient, but {type(self.moment).__name__} keeps "
                    "none; for no momentum take moment=EMA(beta=0)"
                )

    def blocks(self) -> Iterator[tuple[str, Block]]:
        """(path, block) of every slot in the order of a step; gradient blocks are "gradient.0", "gradient.1", …"""
        for i, block in enumerate(self.gradient):
            yield f"gradient.{i}", block
        for slot in SLOTS[1:]:
            yield slot, getattr(self, slot)

    # -- which tensors it is for -------------------------------------------------------------------------------------

    def of(self, p: Tensor) -> Self:
        """The recipe of one tensor."""
        return self.for_vectors if self._apart(p) else self.matrices

    def _apart(self, p: Tensor) -> bool:
        return p.ndim < 2 or (self.basis.limit is not None and max(scope.matrix(p)) > self.basis.limit)

    @functools.cached_property
    def matrices(self) -> Self:
        """The recipe of tensors with two axes or more."""
        return self if self.vectors is None else dataclasses.replace(self, vectors=None)

    @functools.cached_property
    def for_vectors(self) -> Self:
        """The recipe of tensors with fewer."""
        if self.vectors is None:
            plain: dict[str, Any] = {"basis": Standard(), "solve": Divide()}
            changes = {slot: block for slot, block in plain.items() if getattr(self, slot).matrix}
            return dataclasses.replace(self, **changes) if changes else self
        return self.vectors

    def rate_of(self, p: Tensor, lr: Any) -> Any:
        """η of one tensor's recipe, where this one's is `lr`: a number, a function of t, or None for its own."""
        if self.vectors is None or not self._apart(p) or lr is None:
            return lr
        ratio = self.vectors.lr / self.lr
        return (lambda t: ratio * lr(t)) if is_function(lr) else ratio * lr

    def at_rate(self, lr: float) -> Self:
        """This recipe with another default rate, that of vectors in proportion."""
        if self.vectors is None:
            return dataclasses.replace(self, lr=lr)
        return dataclasses.replace(self, lr=lr, vectors=dataclasses.replace(self.vectors, lr=self.vectors.lr / self.lr * lr))

    # -- what a step keeps and needs ---------------------------------------------------------------------------------

    @functools.cached_property
    def uses_direction(self) -> bool:
        """Whether some block looks at the previous direction d."""
        return any("d_old" in block.needs for _, block in self.blocks())

    @functools.cached_property
    def stores_direction(self) -> bool:
        """Whether d must be stored, since it cannot be computed again from the rest of the state.

        d comes from the state where all blocks from moment to decay recall their outputs.  A decay inside d is recalled from
        θ, which a projection would have changed.
        """
        recalled = all(getattr(self, slot).recalls for slot in ("basis", *_RECALLING, "decay"))
        changed = self.decay.in_direction and not isinstance(self.projection, NoProjection)
        return self.uses_direction and not (recalled and not changed)

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
    def second_order(self) -> bool:
        """Whether a step needs a Hessian-vector product."""
        own = any("hessian" in block.needs for _, block in self.blocks())
        return own or (self.vectors is not None and self.vectors.second_order)

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
        return kinds | ({"gradient.g": ELEMENT} if self.stores_gradient else {})

    @property
    def host_names(self) -> tuple[str, ...]:
        """Names of the 0-d states in float64: updates made, the last rate, and what recalls the last direction."""
        return ("step", "lr", *self.recalled)

    @property
    def state_words(self) -> int:
        """State words a parameter."""
        few = SCOPE if self.scope == "coordinate" else ELEMENT
        return sum(kind in (ELEMENT, few) for kind in self.state_kinds().values())

    def words(self, shapes: Iterable[Sequence[int]]) -> float:
        """State words a parameter of tensors of these shapes: `state_words`, and what blocks keep of rows and columns."""
        kept, numbers = [torch.empty(*shape, device="meta") for shape in shapes], 0
        for p in kept:
            own, (m, n) = self.of(p), scope.matrix(p)
            each = {ROWS: m, COLUMNS: n, LEFT: m * m, RIGHT: n * n, SQUARE: (m * n) ** 2}
            numbers += own.state_words * m * n + sum(each.get(kind, 0) for kind in own.state_kinds().values())
        return numbers / max(sum(p.numel() for p in kept), 1)

    @property
    def words_text(self) -> str:
        """State words a parameter as text; of an (m, n) matrix where they depend on its shape."""
        each = {LEFT: "m/n", RIGHT: "n/m", ROWS: "1/n", COLUMNS: "1/m", SQUARE: "mn"}
        kinds = list(self.state_kinds().values())
        counts = {text: kinds.count(kind) for kind, text in each.items() if kind in kinds}
        return " + ".join(
            [str(self.state_words), *(f"{count if count > 1 else ''} {text}".strip() for text, count in counts.items())]
        )

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

"""A recipe: one block in each slot.  `init` and `update` are pure functions on any tree of tensors.

    recipe = Recipe(name="mine", curvature=WeakSecant(eps=0.0), rectifier=SoftAbsolute(sigma=0.1))
    state = recipe.init(params)
    state, params = recipe.update(state, params, grads)

The flow of one step, top to bottom: gradient blocks -> moment -> pairs -> basis -> curvature -> averaging -> rectifier -> solve
-> decay -> projection -> readout.  Known methods as recipes: `variants`.  What follows from the blocks: `analysis`.  How a
step runs them: `kernel`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor

from sandbox.blocks import (
    EMA,
    SQUARE,
    AbsoluteFloor,
    Averaging,
    Basis,
    Block,
    Curvature,
    Decay,
    Divide,
    Flow,
    Last,
    Moment,
    NoAveraging,
    NoDecay,
    NoProjection,
    Number,
    Pairs,
    Projection,
    Readout,
    Rectifier,
    Solve,
    Standard,
    Successive,
    WeakSecant,
    number,
    scope,
)
from sandbox.blocks.base import is_registered, register
from sandbox.blocks.flow import SLOTS
from sandbox.blocks.number import concrete_values, is_function, validated
from sandbox.recipe import analysis, describe, parts, pure
from sandbox.utils import suggest
from sandbox.utils.private_torch import pytree


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """An optimizer as data; the defaults are Apollo's (paper, Algorithm 1).

    Fields: name; lr, the default rate η, a number or a function of t; gradient (a tuple of blocks), moment, pairs, basis,
    curvature, averaging, rectifier, solve, decay, projection and readout (which weights to evaluate); scope, who shares a
    secant constraint ("parameter", "global", "channel" or "coordinate"); vectors, the recipe of tensors with fewer than two
    axes, and of matrices with a side beyond the basis's limit: its rate stands to η as its own lr to this one's; None: this
    recipe, with Standard and Divide in place of a basis and a solver for matrices.
    Raises TypeError for a block in a slot where it does not fit, and ValueError for blocks that do not fit together.
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
    readout: Readout = Last()
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
        self._check_vectors()
        if self.analysis.own_layout and self.scope == "global":
            raise ValueError("scope 'global' makes one vector of all tensors; a block whose state is a matrix takes them apart")
        if self.analysis.matrix and SQUARE in self.analysis.state_kinds.values():
            raise ValueError("a block that takes tensors as matrices and one with a SQUARE state do not go together")
        self._check_needs()

    def _check_vectors(self) -> None:
        if self.vectors is None:
            return
        if not isinstance(self.vectors, Recipe) or self.vectors.vectors is not None:
            raise TypeError(f"vectors must be a Recipe that has no vectors of its own, or None, got {self.vectors!r}")
        if self.vectors.analysis.second_gradient != self.analysis.second_gradient:
            raise ValueError("vectors must take a second gradient of each batch where the recipe does, and only there")
        if is_function(self.lr) or is_function(self.vectors.lr) or 0.0 in concrete_values(self.lr):
            raise ValueError(
                "vectors keep the proportion of their lr to the recipe's: both must be numbers, the recipe's above 0"
            )

    def _check_needs(self) -> None:
        if self.readout.moves and not isinstance(self.projection, NoProjection):
            raise ValueError(
                f"{type(self.readout).__name__} moves θ after the projection: it goes with projection=NoProjection() alone"
            )
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
    def analysis(self) -> analysis.Analysis:
        """What follows from the blocks."""
        return analysis.analyse(self)

    @functools.cached_property
    def leaves(self) -> list[Any]:
        """Every number, in the order of the pytree."""
        return pytree.tree_leaves(self)

    def structure(self) -> dict[str, str]:
        """Slot -> its block without numbers: two recipes of equal structure differ only in numbers."""
        slots = {slot: parts.structure(getattr(self, slot)) for slot in SLOTS}
        inner = {} if self.vectors is None else {"vectors": ", ".join(map("=".join, self.vectors.structure().items()))}
        return slots | {"scope": self.scope, **inner}

    # -- composing ---------------------------------------------------------------------------------------------------

    def replace(self, **changes: Any) -> Recipe:
        """This recipe with other blocks, scope or numbers: `replace(rectifier=SoftAbsolute(sigma=0.1))`,
        `replace(**{"rectifier.sigma": 0.1})`.

        The result is named by what differs, unless `name` is given.  Raises ValueError for an unknown slot or number.
        """
        fields = {f.name for f in dataclasses.fields(self)}
        numbers = {name: value for name, value in changes.items() if "." in name}
        whole = {name: value for name, value in changes.items() if "." not in name}
        for name in whole:
            if name not in fields:
                raise ValueError(suggest.unknown("slot", name, fields))
        new = dataclasses.replace(self, **whole).with_hyperparameters(numbers)
        return new if "name" in changes else dataclasses.replace(new, name=self.name + parts.difference(self, new))

    def hyperparameters(self) -> dict[str, Any]:
        """Every number by its dotted name: {"lr": 0.01, "moment.beta": 0.9, …}; functions of t by their parameters."""
        values = {} if parts.plain_function(self.lr) else parts.hyperparameters("lr", self.lr)
        for path, block in self.blocks():
            values |= parts.hyperparameters(path, block)
        inner = {} if self.vectors is None else self.vectors.hyperparameters()
        return values | {f"vectors.{name}": value for name, value in inner.items()}

    def _places(self) -> set[str]:
        own = {"lr"} | {path for where, block in self.blocks() for path in parts.places(where, block)}
        return own | (set() if self.vectors is None else {f"vectors.{name}" for name in self.vectors._places()})

    def with_hyperparameters(self, values: dict[str, Any]) -> Recipe:
        """This recipe with some numbers replaced by dotted name; the name stays."""
        new = self
        for name, value in values.items():
            places = new._places()
            if name not in places:
                raise ValueError(suggest.unknown("number", name, places))
            new = parts.replaced(new, name, value)
        return new

    def at_rate(self, lr: float) -> Recipe:
        """This recipe with another default rate, that of vectors in proportion."""
        if self.vectors is None:
            return dataclasses.replace(self, lr=lr)
        return dataclasses.replace(self, lr=lr, vectors=dataclasses.replace(self.vectors, lr=self.vectors.lr / self.lr * lr))

    # -- tensors of different shapes ---------------------------------------------------------------------------------

    def of(self, p: Tensor) -> Recipe:
        """The recipe of one tensor."""
        return self.for_vectors if self._takes_vectors(p) else self.matrices

    def _takes_vectors(self, p: Tensor) -> bool:
        return p.ndim < 2 or (self.basis.limit is not None and max(scope.matrix(p)) > self.basis.limit)

    @functools.cached_property
    def matrices(self) -> Recipe:
        """The recipe of tensors with two axes or more."""
        return self if self.vectors is None else dataclasses.replace(self, vectors=None)

    @functools.cached_property
    def for_vectors(self) -> Recipe:
        """The recipe of tensors with fewer."""
        if self.vectors is not None:
            return self.vectors
        changes = {slot: parts.PLAIN[slot] for slot in ("basis", "solve") if getattr(self, slot).matrix}
        return dataclasses.replace(self, **changes) if changes else self  # type: ignore[arg-type]

    def rate_of(self, p: Tensor, lr: Any) -> Any:
        """η of one tensor's recipe, where this one's is `lr`: a number, a function of t, or None for its own."""
        if self.vectors is None or not self._takes_vectors(p) or lr is None:
            return lr
        ratio = self.vectors.lr / self.lr
        return (lambda t: ratio * lr(t)) if is_function(lr) else ratio * lr

    # -- pure functions ----------------------------------------------------------------------------------------------

    def init(self, params: Any) -> Any:
        """State before the first step: a tree like `params` with a dict of tensors for each tensor.

        Keys: "step" (updates made), "lr" (the last rate), the dotted names of `analysis.recalled` (their last values), all 0-d
        in float64, and "slot.name" for each state of a block, in the parameter's dtype, float32 where that has fewer bits.
        Raises TypeError for a tensor that is not of floating point.
        """
        return pytree.tree_map(lambda p: pure.init(self, p), params)

    def update(
        self,
        state: Any,
        params: Any,
        grads: Any,
        *,
        lr: Any = None,
        observe: Callable[[list[int], Flow], None] | None = None,
        **inputs: Any,
    ) -> tuple[Any, Any]:
        """One step: (state, params) -> (state, params).  Pure: nothing is changed in place, no Python state.

        params, grads, inputs: trees of the same form; a gradient that is None leaves its tensor and state as they are.
        lr: η, a number, 0-d tensor or function of t; default the recipe's.
        inputs: what `analysis.inputs` names: hessian, z ⊙ Hz (`sandbox.curvature.hessian.hutchinson`); product, H v, v from
            `product_vector`; sampled, the gradient at labels drawn from the model; G and A, K-FAC's factors.
        observe: called for each tensor with its place among the tree's leaves (a list: under scope "global" they are
            one vector) and the `Flow` of its step; it must change nothing.
        Under scope "global" all tensors must have made the same number of steps.
        A recipe with `analysis.second_gradient` is to be shown each batch's gradient again after the step, by
        `with_second_gradient`.
        Works under torch.func.vmap, grad, and make_fx.  Raises ValueError where shapes differ or an input is missing.
        """
        return pure.update(self, state, params, grads, lr=lr, inputs=inputs, observe=observe)

    def product_vector(self, state: Any, params: Any) -> Any:
        """The v of the input `product`, H v: a tree like `params`."""
        leaves, spec = pytree.tree_flatten(params)
        vectors = [pure.product_vector(self, s, p) for s, p in zip(spec.flatten_up_to(state), leaves, strict=True)]
        return pytree.tree_unflatten(vectors, spec)

    def evaluated(self, state: Any, params: Any) -> Any:
        """The weights to evaluate, as the slot `readout` says, a tree like `params`; before a first step params themselves."""
        leaves, spec = pytree.tree_flatten(params)
        weights = [pure.evaluated(self, s, p) for s, p in zip(spec.flatten_up_to(state), leaves, strict=True)]
        return pytree.tree_unflatten(weights, spec)

    def with_second_gradient(self, state: Any, grads: Any) -> Any:
        """The state after a step, with the same batch's gradients at the point where the step has led."""
        leaves, spec = pytree.tree_flatten(grads)
        pairs = zip(spec.flatten_up_to(state), leaves, strict=True)
        states = [{**s, analysis.AGAIN: g.to(s[analysis.AGAIN].dtype)} for s, g in pairs]
        return pytree.tree_unflatten(states, spec)

    def source(self, **options: Any) -> str:
        """This recipe as one Python file that imports torch only; see `sandbox.source`."""
        import sandbox

        return sandbox.source(self, **options)

    def __getstate__(self) -> dict[str, Any]:
        # without what has been worked out from them
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}

    def __str__(self) -> str:
        """The algorithm line by line, with its numbers."""
        return describe.text(self)

    def _repr_markdown_(self) -> str:
        return describe.markdown(self)


register(Recipe)

"""A recipe: one block in each slot.  `init` and `update` are pure functions on any tree of tensors.

    recipe = Recipe(name="mine", curvature=WeakSecant(eps=0.0), rectifier=SoftAbsolute(sigma=0.1))
    state = recipe.init(params)
    state, params = recipe.update(state, params, grads)

The flow of one step, top to bottom: gradient blocks -> moment -> pairs -> basis -> curvature -> averaging -> rectifier -> solve
-> adjust blocks -> decay -> projection -> readout.  Known methods as recipes: `variants`.  What follows from the blocks:
`analysis`.  How a step runs them: `kernel`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
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
from sandbox.recipe.roles import COORDINATEWISE, ROLES, Roles
from sandbox.utils import suggest
from sandbox.utils.private_torch import pytree


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """An optimizer as data; the defaults are Apollo's (paper, Algorithm 1).

    Fields: name; lr, the default rate η, a number or a function of t; gradient (a tuple of blocks), moment, pairs, basis,
    curvature, averaging, rectifier, solve, adjust (a tuple), decay, projection and readout (which weights to evaluate); scope,
    who shares a secant constraint ("parameter", "global", "channel" or "coordinate"); vectors, the recipe of tensors with
    fewer than two axes, and of matrices with a side beyond the basis's limit; None: this recipe, with Standard and Divide in
    place of a basis and a solver for matrices; roles, a mapping or `Roles`: who trains the tensors of a role, where roles are
    known.  The rate of each recipe in it stands to η as its own lr to this one's.
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
    adjust: tuple[Block, ...] = ()
    decay: Decay = NoDecay()
    projection: Projection = NoProjection()
    readout: Readout = Last()
    scope: str = "parameter"
    vectors: Any = None
    roles: Any = Roles()

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise TypeError(f"a recipe's name is a text, got {self.name!r}")
        for slot in parts.SEVERAL:
            given: Any = getattr(self, slot)
            one = isinstance(given, Block) or not isinstance(given, Iterable)
            object.__setattr__(self, slot, (given,) if one else tuple(given))
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
        self._check_inner()
        if self.analysis.own_layout and self.scope == "global":
            raise ValueError("scope 'global' makes one vector of all tensors; a block whose state is a matrix takes them apart")
        if self.analysis.matrix and SQUARE in self.analysis.state_kinds.values():
            raise ValueError("a block that takes tensors as matrices and one with a SQUARE state do not go together")
        self._check_needs()

    def _check_inner(self) -> None:
        if isinstance(self.roles, Mapping):
            for role in self.roles:
                if role not in ROLES:
                    raise ValueError(suggest.unknown("role", str(role), ROLES))
            object.__setattr__(self, "roles", Roles(**self.roles))
        if not isinstance(self.roles, Roles):
            raise TypeError(f"roles must be a mapping from roles to recipes, got {self.roles!r}")
        for role, value in self.roles.given().items():
            if not isinstance(value, Recipe) and value not in ("vectors", "matrices"):
                raise TypeError(f"roles.{role} must be a Recipe, 'vectors' or 'matrices', got {value!r}")
        if self.vectors is not None and not isinstance(self.vectors, Recipe):
            raise TypeError(f"vectors must be a Recipe or None, got {self.vectors!r}")
        for name, recipe in self.inner.items():
            if recipe.inner or recipe.roles:
                raise TypeError(f"{name} must be a Recipe that has no vectors of its own and no roles, got {recipe.name!r}")
            if recipe.analysis.second_gradient != self.analysis.second_gradient:
                raise ValueError(f"{name} must take a second gradient of each batch where the recipe does, and only there")
            if ("displaced" in recipe.analysis.inputs) != any("displaced" in block.needs for block in self.gradient):
                raise ValueError(f"{name} must take the gradient at a displaced point where the recipe does, and only there")
            if is_function(self.lr) or is_function(recipe.lr) or 0.0 in concrete_values(self.lr):
                raise ValueError(
                    f"{name} keeps the proportion of its lr to the recipe's: both must be numbers, the recipe's above 0"
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
            if "displaced" in block.needs and path != "gradient.0":
                raise ValueError(f"{name} takes the gradient at another point, so it must come first in `gradient`")
            if "displaced" in block.needs and (len(self.analysis.inputs) > 1 or self.analysis.second_gradient):
                raise ValueError(f"{name} takes a second gradient of each batch, and no block may ask for a third")
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
        """(path, block) of every slot in the order of a step; of several in a slot "gradient.0", "gradient.1", …"""
        return self._blocks

    @functools.cached_property
    def _blocks(self) -> tuple[tuple[str, Block], ...]:
        pairs: list[tuple[str, Block]] = []
        for slot in SLOTS:
            some = getattr(self, slot)
            pairs += [(f"{slot}.{i}", block) for i, block in enumerate(some)] if slot in parts.SEVERAL else [(slot, some)]
        return tuple(pairs)

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
        inner = {name: ", ".join(map("=".join, recipe.structure().items())) for name, recipe in self.inner.items()}
        roles = [f"{role}={inner.pop(f'roles.{role}', who)}" for role, who in self.roles.given().items()]
        return {**slots, "scope": self.scope, **inner, **({"roles": "; ".join(roles)} if roles else {})}

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
        for where, recipe in self.inner.items():
            values |= {f"{where}.{name}": value for name, value in recipe.hyperparameters().items()}
        return values

    def _places(self) -> set[str]:
        own = {"lr"} | {path for where, block in self.blocks() for path in parts.places(where, block)}
        return own.union(*({f"{where}.{name}" for name in recipe._places()} for where, recipe in self.inner.items()))

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
        """This recipe with another default rate, those of the recipes in it in proportion."""
        rates = {f"{name}.lr": recipe.lr / self.lr * lr for name, recipe in self.inner.items()}
        return dataclasses.replace(self, lr=lr).with_hyperparameters(rates)

    # -- tensors of different shapes and roles ------------------------------------------------------------------------

    @functools.cached_property
    def inner(self) -> dict[str, Recipe]:
        """The recipes in this one by dotted name: "vectors", "roles.head", …"""
        some = {"vectors": self.vectors, **{f"roles.{role}": value for role, value in self.roles.given().items()}}
        return {name: value for name, value in some.items() if isinstance(value, Recipe)}

    def branch(self, p: Tensor, role: str | None = None) -> str:
        """Who trains a tensor: "" for this recipe's own blocks, "vectors", or "roles.head" and the like.

        role: what the tensor does in its module; None where that is not known: then its shape decides.
        Raises ValueError for a tensor without rows and columns whose role has a recipe of matrices.
        """
        given = getattr(self.roles, role) if role is not None else None
        if isinstance(given, Recipe):
            if given.analysis.only_matrices and given._takes_vectors(p):
                raise ValueError(f"roles.{role}: recipe {given.name!r} takes no tensor of shape {tuple(p.shape)}")
            return f"roles.{role}"
        plain = given is None and role in COORDINATEWISE and bool(self.roles)
        others = given == "vectors" or plain or self._takes_vectors(p)
        return "vectors" if others and self.for_vectors is not self.matrices else ""

    def of(self, p: Tensor, role: str | None = None) -> Recipe:
        """The recipe of one tensor."""
        return self.member(self.branch(p, role))

    def each(self, params: Any, roles: Any = None) -> list[Recipe]:
        """The recipe of every tensor of a tree, in the order of its leaves; roles: see `init`."""
        leaves, spec = pytree.tree_flatten(params)
        return [self.of(p, role) for p, role in zip(leaves, pure.listed(roles, spec), strict=True)]

    def member(self, branch: str) -> Recipe:
        """The recipe of a `branch`."""
        return self.matrices if not branch else self.for_vectors if branch == "vectors" else self.inner[branch]

    def _takes_vectors(self, p: Tensor) -> bool:
        return p.ndim < 2 or (self.basis.limit is not None and max(scope.matrix(p)) > self.basis.limit)

    @functools.cached_property
    def matrices(self) -> Recipe:
        """The recipe of tensors with two axes or more."""
        return dataclasses.replace(self, vectors=None, roles=Roles()) if self.inner or self.roles else self

    @functools.cached_property
    def for_vectors(self) -> Recipe:
        """The recipe of tensors with fewer."""
        if self.vectors is not None:
            return self.vectors
        changes = {slot: parts.PLAIN[slot] for slot in ("basis", "solve") if getattr(self, slot).matrix}
        return dataclasses.replace(self.matrices, **changes) if changes else self.matrices

    def rate_of(self, branch: str, lr: Any) -> Any:
        """η of one branch's recipe, where this one's is `lr`: a number, a function of t, or None for its own."""
        if branch not in self.inner or lr is None:
            return lr
        ratio = self.inner[branch].lr / self.lr
        return (lambda t: ratio * lr(t)) if is_function(lr) else ratio * lr

    # -- pure functions ----------------------------------------------------------------------------------------------

    def init(self, params: Any, *, roles: Any = None) -> Any:
        """State before the first step: a tree like `params` with a dict of tensors for each tensor.

        roles: a tree like `params` of texts or None, for a recipe with roles; the same at all of these functions.

        Keys: "step" (updates made), "lr" (the last rate), the dotted names of `analysis.recalled` (their last values), all 0-d
        in float64, and "slot.name" for each state of a block, in the parameter's dtype, float32 where that has fewer bits.
        Raises TypeError for a tensor that is not of floating point.
        """
        leaves, spec = pytree.tree_flatten(params)
        return pytree.tree_unflatten(list(map(pure.init, self.each(params, roles), leaves)), spec)

    def update(
        self,
        state: Any,
        params: Any,
        grads: Any,
        *,
        lr: Any = None,
        roles: Any = None,
        observe: Callable[[list[int], Flow], None] | None = None,
        **inputs: Any,
    ) -> tuple[Any, Any]:
        """One step: (state, params) -> (state, params).  Pure: nothing is changed in place, no Python state.

        params, grads, inputs: trees of the same form; a gradient that is None leaves its tensor and state as they are.
        lr: η, a number, 0-d tensor or function of t; default the recipe's.  roles: see `init`.
        inputs: what `analysis.inputs` names: hessian, z ⊙ Hz (`sandbox.curvature.hessian.hutchinson`); product, H v, v from
            `product_vector`; sampled, the gradient at labels drawn from the model; displaced, the same batch's gradient at
            `displaced`; G and A, K-FAC's factors.
        observe: called for each tensor with its place among the tree's leaves (a list: under scope "global" they are
            one vector) and the `Flow` of its step; it must change nothing.
        Under scope "global" all tensors must have made the same number of steps.
        A recipe with `analysis.second_gradient` is to be shown each batch's gradient again after the step, by
        `with_second_gradient`.
        Works under torch.func.vmap, grad, and make_fx.  Raises ValueError where shapes differ or an input is missing.
        """
        return pure.update(self, state, params, grads, lr=lr, roles=roles, inputs=inputs, observe=observe)

    def product_vector(self, state: Any, params: Any) -> Any:
        """The v of the input `product`, H v: a tree like `params`."""
        leaves, spec = pytree.tree_flatten(params)
        vectors = [pure.product_vector(self, s, p) for s, p in zip(spec.flatten_up_to(state), leaves, strict=True)]
        return pytree.tree_unflatten(vectors, spec)

    def displaced(self, params: Any, grads: Any) -> Any:
        """The point of the input `displaced`, θ + e: a tree like `params`.  grads: at θ, None for tensors that do not move."""
        leaves, spec = pytree.tree_flatten(params)
        rows = spec.flatten_up_to(grads)
        some = [i for i, g in enumerate(rows) if g is not None]
        moved = (
            pure.displaced([self.gradient[0]] * len(some), [leaves[i] for i in some], [rows[i] for i in some]) if some else []
        )
        return pytree.tree_unflatten([dict(zip(some, moved, strict=True)).get(i, p) for i, p in enumerate(leaves)], spec)

    def evaluated(self, state: Any, params: Any, *, roles: Any = None) -> Any:
        """The weights to evaluate, as the slot `readout` says, a tree like `params`; before a first step params themselves."""
        leaves, spec = pytree.tree_flatten(params)
        weights = map(pure.evaluated, self.each(params, roles), spec.flatten_up_to(state), leaves)
        return pytree.tree_unflatten(list(weights), spec)

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

"""A recipe: one block in each slot.  `init` and `update` are pure functions on any tree of tensors.

    recipe = Recipe(name="mine", curvature=WeakSecant(eps=0.0), rectifier=SoftAbsolute(sigma=0.1))
    state = recipe.init(params)
    state, params = recipe.update(state, params, grads)

The flow of one step, top to bottom: gradient blocks -> moment -> curvature -> averaging -> rectifier -> solve ->
decay -> projection.  Known methods as recipes: `variants`.  How a step runs them: `sandbox.recipe.kernel`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from sandbox.blocks.base import register
from sandbox.recipe import describe, kernel, parts, pure
from sandbox.recipe.composition import AGAIN, Composition
from sandbox.utils import suggest
from sandbox.utils.private_torch import pytree


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe(Composition):
    """An optimizer as data; the defaults are Apollo's (paper, Algorithm 1).

    Fields: name; lr, the default rate η, a number or a function of t; gradient (a tuple of blocks), moment, curvature,
    averaging, rectifier, solve, decay and projection; scope, who shares a secant constraint ("parameter", "global", "channel"
    or "coordinate"); vectors, another recipe for tensors with fewer than two axes (see `Composition`).  Raises TypeError for a
    block in a slot where it does not fit, and ValueError for blocks that do not fit
    together.
    """

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
        made = dataclasses.replace(self, **whole).with_hyperparameters(numbers)
        return made if "name" in changes else dataclasses.replace(made, name=self.name + parts.difference(self, made))

    def hyperparameters(self) -> dict[str, Any]:
        """Every number by its dotted name: {"lr": 0.01, "moment.beta": 0.9, …}; functions of t by their parameters."""
        found = {} if parts.plain_function(self.lr) else parts.hyperparameters("lr", self.lr)
        for path, block in self.blocks():
            found |= parts.hyperparameters(path, block)
        inner = {} if self.vectors is None else self.vectors.hyperparameters()
        return found | {f"vectors.{name}": value for name, value in inner.items()}

    def _places(self) -> set[str]:
        own = {"lr"} | {path for where, block in self.blocks() for path in parts.places(where, block)}
        return own | (set() if self.vectors is None else {f"vectors.{name}" for name in self.vectors._places()})

    def with_hyperparameters(self, values: dict[str, Any]) -> Recipe:
        """This recipe with some numbers replaced by dotted name; the name stays."""
        made = self
        for name, value in values.items():
            places = made._places()
            if name not in places:
                raise ValueError(suggest.unknown("number", name, places))
            made = parts.replaced(made, name, value)
        return made

    # -- pure functions ----------------------------------------------------------------------------------------------

    def init(self, params: Any) -> Any:
        """State before the first step: a tree like `params` with a dict of tensors for each tensor.

        Keys: "step" (updates made), "lr" (the last rate), the dotted names of `recalled` (their last values), all 0-d in
        float64, and "slot.name" for each state of a block, in the parameter's dtype, float32 where that has fewer bits.
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
        observe: Callable[[list[int], kernel.Flow], None] | None = None,
        **inputs: Any,
    ) -> tuple[Any, Any]:
        """One step: (state, params) -> (state, params).  Pure: nothing is changed in place, no Python state.

        params, grads, inputs: trees of the same form; a gradient that is None leaves its tensor and state as they are.
        lr: η, a number, 0-d tensor or function of t; default the recipe's.
        inputs: what `recipe.inputs` names: hessian, z ⊙ Hz (`hessian.hutchinson`); product, H v with the v of `asked`;
            sampled, the gradient at labels drawn from the model.
        observe: called for each tensor with its place among the tree's leaves (a list: under scope "global" they are
            one vector), the `Flow` of its step; it must change nothing.
        Under scope "global" all tensors must have made the same number of steps.
        A recipe that `looks_again` is to be shown each batch's gradient again after the step, by `seen`.
        Works under torch.func.vmap, grad, and make_fx.  Raises ValueError where shapes differ or an input is missing.
        """
        return pure.update(self, state, params, grads, lr=lr, inputs=inputs, observe=observe)

    def asked(self, state: Any, params: Any) -> Any:
        """The v of `product`, a tree like `params`."""
        leaves, spec = pytree.tree_flatten(params)
        made = [pure.asked(self, s, p) for s, p in zip(spec.flatten_up_to(state), leaves, strict=True)]
        return pytree.tree_unflatten(made, spec)

    def seen(self, state: Any, grads: Any) -> Any:
        """The state after a step of a recipe that `looks_again`, with the same batch's gradients where the step has led to."""
        leaves, spec = pytree.tree_flatten(grads)
        made = [{**s, AGAIN: g.to(s[AGAIN].dtype)} for s, g in zip(spec.flatten_up_to(state), leaves, strict=True)]
        return pytree.tree_unflatten(made, spec)

    def __getstate__(self) -> dict[str, Any]:
        # without what has been worked out from them
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}

    def __str__(self) -> str:
        """The algorithm line by line, with its numbers."""
        return describe.text(self)

    def _repr_markdown_(self) -> str:
        return describe.markdown(self)


register(Recipe)

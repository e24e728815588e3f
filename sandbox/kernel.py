"""One step of a recipe on one leaf: the slots in their order, nothing else.  Every backend runs this function.

A leaf is whatever the reductions `tensor` and `scope` know how to sum: one tensor, several joined ones, an arena.
`evaluate` does on the host, once a step and in float64, what depends only on t and on hyperparameters.

The previous direction d_{t-1} is not stored where it can be computed again from the state.  The hyperparameters with which it
was made may have changed since, so they are part of the state: `last`, a number each, written by the step that made it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from sandbox import parts
from sandbox.blocks import Block, Flow
from sandbox.blocks.base import spread
from sandbox.blocks.number import where
from sandbox.composition import AGAIN, Composition
from sandbox.scope import Over, Scope

State = Mapping[str, Tensor]
Observer = Callable[[Flow], None]


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A recipe at step t, its functions of t and its blocks' coefficients evaluated.

    last: "lr" and the `recalled` hyperparameters as they were at the step before.  a: weight of the newest gradient in m.
    """

    recipe: Composition
    coefficients: dict[str, dict[str, Any]]
    t: Any
    lr: Any
    last: dict[str, Any]
    a: Any

    def to(self, dtype: torch.dtype, device: torch.device) -> Prepared:
        """All numbers as 0-d tensors, rounded once to the dtype in which a step computes."""
        return pytree.tree_map(lambda value: torch.as_tensor(value, dtype=dtype, device=device), self)

    @property
    def applied(self) -> dict[str, Any]:
        """What the step after this one finds in `last`."""
        return self.recipe.applied(self.lr)

    @functools.cached_property
    def recipe_old(self) -> Composition:
        """The recipe with the hyperparameters of the step before, as far as they recall d."""
        return self.recipe.as_it_was(self.last)


pytree.register_pytree_node(
    Prepared,
    lambda p: ([p.recipe, p.coefficients, p.t, p.lr, p.last, p.a], None),
    lambda children, _: Prepared(*children),
    serialized_type_name="sandbox.kernel.Prepared",
)


def evaluate(recipe: Composition, t: Any, lr: Any, last: Mapping[str, Any]) -> Prepared:
    """`recipe` at step t, in float64.

    t counts from 1; t, lr and the values of `last` are floats or float64 tensors (0-d, or batches under vmap).
    Raises ValueError for a function of t that leaves its hyperparameter's range, and where the decay does not allow `lr`.
    """
    recipe = parts.at(recipe, t) if recipe.has_schedules else recipe
    lr = recipe.lr if lr is None else lr(t) if callable(lr) else lr
    if isinstance(lr, float | int):
        if not 0 <= lr < float("inf"):
            raise ValueError(f"lr must lie in [0, inf), got {lr:g}")
        recipe.decay.check_lr(lr)
    # by name, so that the same ones stand in the same order at every t
    coefficients = {path: dict(sorted(block.coefficients(t).items())) for path, block in recipe.blocks()}
    # before the first step there is no older rate
    before = {"lr": where(t == 1, lr, last["lr"]), **{name: last[name] for name in recipe.recalled}}
    return Prepared(recipe, coefficients, t, lr, before, recipe.moment.weight(t))


def advance(
    p: Prepared,
    state: State,
    theta: Tensor,
    g: Tensor,
    tensor: Scope,
    scope: Scope,
    grad_norm: Tensor | None = None,
    inputs: Mapping[str, Tensor] | None = None,
    observe: Observer | None = None,
) -> tuple[dict[str, Tensor], Tensor]:
    """New state and new θ of one leaf; pure.

    observe: called at the end with everything that the step computed; it must change nothing.

    inputs: by `recipe.inputs`.  `theta`, `g`, inputs and state of one number a parameter share the leaf's shape and dtype.
    """
    recipe, new = p.recipe, {}
    x = Flow(
        t=p.t,
        lr=p.lr,
        lr_old=p.last["lr"],
        theta=theta,
        g=g,
        tensor=Over(tensor, theta),
        scope=Over(scope, theta),
        grad_norm=grad_norm,
        a=p.a,
    )
    for name, given in (inputs or {}).items():
        setattr(x, name, given)
    x.d_old = recall(p, state, x)
    x.g_old = state["gradient.g"] if recipe.stores_gradient else None

    def run(path: str, block: Block, value: Any) -> Any:
        x.value, x.c = value, SimpleNamespace(**p.coefficients[path])
        output, after = block.step(x, **own(path, block, state))
        new.update({f"{path}.{name}": tensor for name, tensor in after.items()})
        return output

    x.again = state[AGAIN] if recipe.looks_again else None
    for i, block in enumerate(recipe.gradient):
        x.g = run(f"gradient.{i}", block, x.g)
        if recipe.looks_again:
            x.again = run(f"gradient.{i}", block, x.again)
    x.m_old = first("moment", recipe.moment, state)
    x.u = run("moment", recipe.moment, x.g)
    x.m = first("moment", recipe.moment, new)
    s, x.y = run("pairs", recipe.pairs, None)
    # s = θ_{t-1} - θ_{t-2} = -η d
    x.s = -x.lr_old * x.d_old if s is None and recipe.needs_step else s
    x.B = run("curvature", recipe.curvature, None)
    x.averaged = run("averaging", recipe.averaging, x.B)
    x.D = run("rectifier", recipe.rectifier, x.averaged)
    # d_t = m_t / D_t (+ γ θ);  θ_t = θ_{t-1} - η_t d_t
    x.d = run("decay", recipe.decay, run("solve", recipe.solve, x.u / x.D))
    x.theta_new = run("projection", recipe.projection, recipe.decay.shrink(x) - p.lr * x.d)
    if recipe.stores_direction:
        new["direction.d"] = x.d
    if recipe.stores_gradient:
        new["gradient.g"] = x.g
    if recipe.looks_again:
        new[AGAIN] = state[AGAIN]
    if observe is not None:
        x.after = new
        observe(x)
    return new, x.theta_new


def dealias(old: Sequence[Tensor], new: Sequence[Tensor], copy: Callable[[Tensor], Tensor] = torch.clone) -> list[Tensor]:
    """`new`, ready to be written over `old` one after another: what is another old tensor (a block may hand one state on to
    the next, or keep θ) is copied first, lest it change before it is read."""

    places: dict[int, set[int]] = {}
    for place, tensor in enumerate(old):
        places.setdefault(_storage(tensor), set()).add(place)
    return [copy(value) if places.get(_storage(value), {i}) != {i} else value for i, value in enumerate(new)]


def _storage(tensor: Tensor) -> int:
    """Equal for tensors that share memory."""
    return tensor.untyped_storage()._cdata


def own(path: str, block: Block, state: State) -> dict[str, Tensor]:
    """The state of one block, by the block's own names."""
    return {name: state[f"{path}.{name}"] for name in block.state}


def first(path: str, block: Block, state: State) -> Tensor | None:
    """A block's first state (a moment's m), None where it has none."""
    return next(iter(own(path, block, state).values()), None)


def recall(p: Prepared, state: State, x: Flow) -> Tensor | None:
    """The previous direction: stored, or computed again from the state, θ as it stands and the last hyperparameters; 0 at
    the first step."""
    recipe = p.recipe_old
    if recipe.stores_direction:
        return state["direction.d"]
    if not recipe.recalls_direction:
        return None
    u, D = read(recipe, "moment", state, x, None), rectified(recipe, state, x)
    solved = read(recipe, "solve", state, x, u / D)
    decay = spread(recipe.decay, own("decay", recipe.decay, state), x)
    return torch.where(x.t > 1, recipe.decay.recall(solved, x.theta, x.lr_old, **decay), 0.0)


def read(recipe: Composition, slot: str, state: State, x: Flow, value: Any) -> Any:
    """What the block in `slot` gave at the last step, from its state."""
    block = getattr(recipe, slot)
    return block.read(value, **spread(block, own(slot, block, state), x))


def averaged(recipe: Composition, state: State, x: Flow) -> Any:
    """B̄ of the last step, from the state."""
    return read(recipe, "averaging", state, x, read(recipe, "curvature", state, x, None))


def rectified(recipe: Composition, state: State, x: Flow) -> Any:
    """D of the last step, from the state."""
    return read(recipe, "rectifier", state, x, averaged(recipe, state, x))


def on_floor(recipe: Composition, state: State, x: Flow) -> Tensor | None:
    """Mask of the coordinates whose D was the rectifier's floor at the last step; None where it has no floor."""
    rectifier = spread(recipe.rectifier, own("rectifier", recipe.rectifier, state), x)
    return recipe.rectifier.on_floor(averaged(recipe, state, x), **rectifier)

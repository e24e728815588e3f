"""One step of a recipe on one leaf: the slots in their order, nothing else.  Every backend runs this function.

A leaf is whatever the reductions `tensor` and `scope` know how to sum: one tensor, several joined ones, an arena.
`prepare` does on the host, once a step and in float64, what depends only on t and numbers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from sandbox.blocks import Block, Flow
from sandbox.blocks.base import is_number, spread, where
from sandbox.scope import Over, Scope

if TYPE_CHECKING:
    from sandbox.recipe import Recipe

State = Mapping[str, Tensor]
Observer = Callable[[Flow], None]


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A recipe at step t: numbers and coefficients as 0-d tensors of the dtype in which the step computes.

    recalled: the recipe with the numbers of the step before, where it computes that step's direction again; else ().
    """

    recipe: Recipe
    coefficients: dict[str, dict[str, Any]]
    t: Tensor
    lr: Tensor
    lr_old: Tensor
    a: Tensor
    recalled: Recipe | tuple[()]


def prepare(
    recipe: Recipe, t: Any, lr: Any, lr_old: Any, dtype: torch.dtype, device: torch.device, old: Recipe | None = None
) -> Prepared:
    """`evaluate`, rounded once to `dtype`: 0-d tensors on `device`."""

    def as_tensor(value: Any) -> Tensor:
        return torch.as_tensor(value, dtype=dtype, device=device)

    return Prepared(*pytree.tree_map(as_tensor, evaluate(recipe, t, lr, lr_old, old)))


def evaluate(recipe: Recipe, t: Any, lr: Any, lr_old: Any, old: Recipe | None = None) -> tuple[Any, ...]:
    """The fields of `Prepared` in float64: functions of t and the blocks' coefficients, evaluated.

    t counts from 1; t, lr and lr_old are floats or float64 tensors (0-d, or batches under vmap).
    old: the recipe with the numbers of step t-1, where those are others than the recipe's own at t-1.
    Raises ValueError for a function of t that leaves its number's range, and for rates of decay that `lr` does not allow.
    """
    recalled: Recipe | tuple[()] = ()  # None would be a leaf
    if recipe.recalls_direction:
        recalled = old or (at(recipe, where(t > 1, t - 1, t)) if recipe.has_schedules else recipe)
    recipe = at(recipe, t) if recipe.has_schedules else recipe
    lr = recipe.lr if lr is None else lr(t) if callable(lr) else lr
    if isinstance(lr, float | int):
        if not 0 <= lr < float("inf"):
            raise ValueError(f"lr must lie in [0, inf), got {lr:g}")
        recipe.decay.check_lr(lr)
    # by name, so that the same ones stand in the same order at every t
    coefficients = {path: dict(sorted(block.coefficients(t).items())) for path, block in recipe.blocks()}
    # before the first step there is no older rate
    return recipe, coefficients, t, lr, where(t == 1, lr, lr_old), recipe.moment.weight(t), recalled


def at(owner: Any, t: Any) -> Any:
    """A recipe or block with every number that is a function of t replaced by its value."""
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(owner):
        value = getattr(owner, field.name)
        if is_number(field) and callable(value):
            changes[field.name] = value(t)
        elif isinstance(value, Block):
            changes[field.name] = at(value, t)
        elif isinstance(value, tuple):
            changes[field.name] = tuple(at(v, t) if isinstance(v, Block) else v for v in value)
    changed = {name: value for name, value in changes.items() if value is not getattr(owner, name)}
    return dataclasses.replace(owner, **changed) if changed else owner


def advance(
    p: Prepared,
    state: State,
    theta: Tensor,
    g: Tensor,
    tensor: Scope,
    scope: Scope,
    grad_norm: Tensor | None = None,
    hessian: Tensor | None = None,
    observe: Observer | None = None,
) -> tuple[dict[str, Tensor], Tensor]:
    """New state and new θ of one leaf; pure.

    observe: called at the end with everything that the step computed; it must change nothing.

    `theta`, `g`, `hessian` and state of one number a parameter share the leaf's shape and dtype.
    """
    recipe, new = p.recipe, {}
    x = Flow(
        t=p.t,
        lr=p.lr,
        lr_old=p.lr_old,
        theta=theta,
        g=g,
        tensor=Over(tensor, theta),
        scope=Over(scope, theta),
        grad_norm=grad_norm,
        hessian=hessian,
        a=p.a,
    )
    x.d_old = recall(p, state, x)

    def run(path: str, block: Block, value: Any) -> Any:
        x.value, x.c = value, SimpleNamespace(**p.coefficients[path])
        output, after = block.step(x, **own(path, block, state))
        new.update({f"{path}.{name}": tensor for name, tensor in after.items()})
        return output

    for i, block in enumerate(recipe.gradient):
        x.g = run(f"gradient.{i}", block, x.g)
    x.m_old = first("moment", recipe.moment, state)
    x.u = run("moment", recipe.moment, x.g)
    x.m = first("moment", recipe.moment, new)
    if x.m is not None and x.m_old is not None:
        # y = m_t - m_{t-1}
        x.y = x.m - x.m_old
    x.B = run("curvature", recipe.curvature, None)
    x.averaged = run("averaging", recipe.averaging, x.B)
    x.D = run("rectifier", recipe.rectifier, x.averaged)
    # d_t = m_t / D_t (+ γ θ);  θ_t = θ_{t-1} - η_t d_t
    x.d = run("decay", recipe.decay, x.u / x.D)
    x.theta_new = run("projection", recipe.projection, recipe.decay.shrink(x) - p.lr * x.d)
    if recipe.stores_direction:
        new["direction.d"] = x.d
    if observe is not None:
        x.after = new
        observe(x)
    return new, x.theta_new


def dealias(old: Sequence[Tensor], new: Sequence[Tensor], copy: Callable[[Tensor], Tensor] = torch.clone) -> list[Tensor]:
    """`new`, ready to be written over `old` one after another: what is another old tensor (a block may hand one state on to
    the next, or keep θ) is copied first, lest it change before it is read."""

    def is_another(value: Tensor, place: int) -> bool:
        return any(i != place and torch._C._is_alias_of(value, other) for i, other in enumerate(old))  # type: ignore[attr-defined]

    return [copy(value) if is_another(value, place) else value for place, value in enumerate(new)]


def own(path: str, block: Block, state: State) -> dict[str, Tensor]:
    """The state of one block, by the block's own names."""
    return {name: state[f"{path}.{name}"] for name in block.state}


def first(path: str, block: Block, state: State) -> Tensor | None:
    """A block's first state (a moment's m), None where it has none."""
    return next(iter(own(path, block, state).values()), None)


def recall(p: Prepared, state: State, x: Flow) -> Tensor | None:
    """The previous direction: stored, or computed again from the state, θ as it stands, and the numbers it was made with."""
    if p.recipe.stores_direction:
        return state["direction.d"]
    recipe = p.recalled
    if not recipe:
        return None
    u, D = read(recipe, "moment", state, x, None), rectified(recipe, state, x)
    decay = spread(recipe.decay, own("decay", recipe.decay, state), x)
    return recipe.decay.recall(u / D, x.theta, **decay)


def read(recipe: Recipe, slot: str, state: State, x: Flow, value: Any) -> Any:
    """What the block in `slot` gave at the last step, from its state."""
    block = getattr(recipe, slot)
    return block.read(value, **spread(block, own(slot, block, state), x))


def averaged(recipe: Recipe, state: State, x: Flow) -> Any:
    """B̄ of the last step, from the state."""
    return read(recipe, "averaging", state, x, read(recipe, "curvature", state, x, None))


def rectified(recipe: Recipe, state: State, x: Flow) -> Any:
    """D of the last step, from the state."""
    return read(recipe, "rectifier", state, x, averaged(recipe, state, x))


def on_floor(recipe: Recipe, state: State, x: Flow) -> Tensor | None:
    """Mask of the coordinates whose D was the rectifier's floor at the last step; None where it has no floor."""
    rectifier = spread(recipe.rectifier, own("rectifier", recipe.rectifier, state), x)
    return recipe.rectifier.on_floor(averaged(recipe, state, x), **rectifier)

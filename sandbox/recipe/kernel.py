"""One step of a recipe on one leaf: the slots in their order, nothing else.  Every backend runs this function.

A leaf is whatever the reductions `tensor` and `scope` know how to sum: one tensor, several joined ones, an arena.
`evaluate` does on the host, once per step and in float64, what depends only on t and on hyperparameters.

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

from sandbox.blocks import ELEMENT, Block, Flow
from sandbox.blocks.base import broadcast_state, spread
from sandbox.blocks.number import concrete_values, where
from sandbox.blocks.scope import Over, Scope
from sandbox.recipe import parts
from sandbox.recipe.analysis import AGAIN
from sandbox.utils.private_torch import pytree, storage_id

State = Mapping[str, Tensor]
Observer = Callable[[Flow], None]

# What the slots from curvature to solver see in the basis.
INSIDE = ("g", "u", "d_old", "s", "y", "m", "m_old", "g_old")


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A recipe at step t, its functions of t and its blocks' coefficients evaluated.

    last: "lr" and the `recalled` hyperparameters as they were at the step before.  a: weight of the newest gradient in m.
    due: by path, what a block's `due` says of this step; a number is part of the structure, a tensor a leaf.
    """

    recipe: Any
    coefficients: dict[str, dict[str, Any]]
    t: Any
    lr: Any
    last: dict[str, Any]
    a: Any
    due: dict[str, Any] = dataclasses.field(default_factory=dict)

    def to(self, dtype: torch.dtype, device: torch.device) -> Prepared:
        """All numbers as 0-d tensors, rounded once to the dtype in which a step computes."""
        p = pytree.tree_map(lambda value: torch.as_tensor(value, dtype=dtype, device=device), self)
        vars(p.recipe)["analysis"] = self.recipe.analysis  # which depends on no number
        return p

    @property
    def applied(self) -> dict[str, Any]:
        """What the step after this one finds in `last`."""
        return applied(self.recipe, self.lr)

    @functools.cached_property
    def recipe_old(self) -> Any:
        """The recipe with the hyperparameters of the step before, as far as they recall d."""
        return as_it_was(self.recipe, self.last)


def _flatten(p: Prepared) -> tuple[list[Any], Any]:
    traced = {path: due for path, due in p.due.items() if isinstance(due, Tensor)}
    fixed = tuple((path, due) for path, due in p.due.items() if path not in traced)
    return [p.recipe, p.coefficients, p.t, p.lr, p.last, p.a, traced], fixed


def _unflatten(children: Any, fixed: Any) -> Prepared:
    recipe, coefficients, t, lr, last, a, traced = children
    return Prepared(recipe, coefficients, t, lr, last, a, {**traced, **dict(fixed)})


pytree.register_pytree_node(
    Prepared,
    _flatten,
    _unflatten,
    serialized_type_name="sandbox.recipe.kernel.Prepared",
)


def applied(recipe: Any, lr: Any) -> dict[str, Any]:
    """Returns the rate and the recalled hyperparameters of a step made at `lr`: what the next step finds in the state."""
    return {"lr": lr, **{name: parts.value_at(recipe, name) for name in recipe.analysis.recalled}}


def as_it_was(recipe: Any, last: Mapping[str, Any]) -> Any:
    """Returns the recipe with the recalled hyperparameters of the step before."""
    old = recipe
    for name in recipe.analysis.recalled:
        old = parts.replaced(old, name, last[name], check=False)
    vars(old)["analysis"] = recipe.analysis  # which depends on no number
    return old


def evaluate(recipe: Any, t: Any, lr: Any, last: Mapping[str, Any]) -> Prepared:
    """`recipe` at step t, in float64.

    t counts from 1; t, lr and the values of `last` are floats or float64 tensors (0-d, or batches under vmap).
    Raises ValueError for a function of t that leaves its hyperparameter's range, and where the decay does not allow `lr`.
    """
    recipe = parts.at_step(recipe, t) if recipe.analysis.has_schedules else recipe
    lr = recipe.lr if lr is None else lr(t) if callable(lr) else lr
    if isinstance(lr, float | int):
        if not 0 <= lr < float("inf"):
            raise ValueError(f"lr must lie in [0, inf), got {lr:g}")
        recipe.decay.check_lr(lr)
    k = recipe.basis.count(t)
    # by name, so that the same ones stand in the same order at every t
    coefficients = {
        path: dict(sorted(block.coefficients(t if path == "basis" else k).items())) for path, block in recipe.blocks()
    }
    # before the first step there is no older rate
    before = {"lr": where(k == 1, lr, last["lr"]), **{name: last[name] for name in recipe.analysis.recalled}}
    # what is due is decided here, if t is known
    at = concrete_values(t) if isinstance(t, Tensor) else [t]
    now = at[0] if len(at) == 1 else t
    due = {path: block.due(now) for path, block in recipe.blocks() if type(block).due is not Block.due}
    return Prepared(recipe, coefficients, k, lr, before, recipe.moment.weight(k), due)


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

    inputs: by `recipe.analysis.inputs`.  `theta`, `g`, inputs and per-coordinate states share the leaf's shape and dtype.
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
        **(inputs or {}),
    )
    x.set(
        d_old=recall(p, state, x),
        g_old=state["gradient.g"] if recipe.analysis.stores_gradient else None,
        again=state[AGAIN] if recipe.analysis.second_gradient else None,
        m_old=first_state("moment", recipe.moment, state),
    )

    def turn(path: str, value: Any = None) -> None:
        x.slot, x.value, x.c, x.due = path, value, SimpleNamespace(**p.coefficients[path]), p.due.get(path, True)

    def run(path: str, block: Block, value: Any) -> Any:
        turn(path, value)
        try:
            output, after = block.step(x, **block_state(path, block, state))
        except Exception as error:
            raise _named(error, path, block) from error.__cause__
        new.update({f"{path}.{name}": tensor for name, tensor in after.items()})
        return output

    for i, block in enumerate(recipe.gradient):
        x.g = run(f"gradient.{i}", block, x.g)
        if recipe.analysis.second_gradient:
            x.again = run(f"gradient.{i}", block, x.again)
    x.u = run("moment", recipe.moment, x.g)
    x.set(m=first_state("moment", recipe.moment, new))
    s, y = run("pairs", recipe.pairs, None)
    # s = θ_{t-1} - θ_{t-2} = -η d
    x.set(s=-x.lr_old * x.d_old if s is None and recipe.analysis.needs_step else s, y=y)
    turn("basis")
    frame, order = enter(p, state, new, x)
    x.B = run("curvature", recipe.curvature, None)
    x.averaged = run("averaging", recipe.averaging, x.B)
    x.D = run("rectifier", recipe.rectifier, x.averaged)
    direction = recipe.basis.out(run("solve", recipe.solve, x.u / x.D), **frame)
    if recipe.adjust:
        x.set(**x.outside)
    for i, block in enumerate(recipe.adjust):
        direction = run(f"adjust.{i}", block, direction)
    # d_t = m_t / D_t (+ γ θ);  θ_t = θ_{t-1} - η_t d_t
    x.d = run("decay", recipe.decay, direction)
    projected = run("projection", recipe.projection, recipe.decay.shrink(x) - p.lr * x.d)
    x.theta_new = run("readout", recipe.readout, projected)
    if recipe.analysis.stores_direction:
        new["direction.d"] = _displacement(x) if recipe.readout.moves else x.d
    if recipe.analysis.stores_gradient:
        new["gradient.g"] = x.outside["g"]
    if recipe.analysis.second_gradient:
        new[AGAIN] = state[AGAIN]
    leave(p, state, new, x, order)
    if observe is not None:
        x.after = new
        observe(x)
    return new, x.theta_new


def _displacement(x: Flow) -> Tensor:
    """(θ_{t-1} - θ_t)/η, the d with which the step would have led to θ_t; 0 where η is."""
    moving = x.lr > 0
    return torch.where(moving, (x.theta - x.theta_new) / torch.where(moving, x.lr, 1.0), 0.0)


def enter(p: Prepared, state: State, new: dict[str, Tensor], x: Flow) -> tuple[dict[str, Tensor], Any]:
    """Takes the step's vectors into the basis.  Returns the basis's state that holds in this step, and the order in which the
    next step's basis takes the coordinates."""
    basis = p.recipe.basis
    old = block_state("basis", basis, state)
    changed, order = basis.advance(x, **old)
    now = broadcast_state(basis, changed, old)
    new.update({f"basis.{name}": tensor for name, tensor in now.items()})
    frame = now if basis.before else old
    x.outside = {name: vars(x).get(name) for name in INSIDE}
    x.set(**{name: basis.into(v, **frame) for name, v in x.outside.items() if v is not None})
    left, right = basis.eigenvalues(**frame)
    x.set(left=left, right=right)
    return frame, order


def leave(p: Prepared, state: State, new: dict[str, Tensor], x: Flow, order: Any) -> None:
    """Transforms the per-coordinate state into the next step's basis; undoes the rest of a step that only makes a basis."""
    for slot in ("curvature", "averaging", "rectifier", "solve"):
        block = getattr(p.recipe, slot)
        names = [f"{slot}.{name}" for name, kind in block.state.items() if kind == ELEMENT]
        new.update({name: p.recipe.basis.carry(new[name], order) for name in names})
    moving = p.coefficients["basis"].get("moving")
    if moving is not None:
        others = [name for name in new if not name.startswith("basis.")]
        new.update({name: torch.where(moving > 0, new[name], state[name]) for name in others})
        x.theta_new = torch.where(moving > 0, x.theta_new, x.theta)


def dealias(old: Sequence[Tensor], new: Sequence[Tensor], copy: Callable[[Tensor], Tensor] = torch.clone) -> list[Tensor]:
    """`new`, ready to be written over `old` one after another: what is another old tensor (a block may hand one state on to
    the next, or keep θ) is copied first, lest it change before it is read."""

    places: dict[int, set[int]] = {}
    for place, tensor in enumerate(old):
        places.setdefault(storage_id(tensor), set()).add(place)
    return [copy(value) if places.get(storage_id(value), {i}) != {i} else value for i, value in enumerate(new)]


def block_state(path: str, block: Block, state: State) -> dict[str, Tensor]:
    """The state of one block, by the block's own names."""
    return {name: state[f"{path}.{name}"] for name in block.state}


def first_state(path: str, block: Block, state: State) -> Tensor | None:
    """A block's first state (a moment's m), None where it has none."""
    return next(iter(block_state(path, block, state).values()), None)


def recall(p: Prepared, state: State, x: Flow) -> Tensor | None:
    """The previous direction: stored, or computed again from the state, θ as it stands and the last hyperparameters; 0 at
    the first step."""
    recipe = p.recipe_old
    if recipe.analysis.stores_direction:
        return state["direction.d"]
    if not recipe.analysis.recalls_direction:
        return None
    u, D = read(recipe, "moment", state, x, None), rectified(recipe, state, x)
    solved = read(recipe, "solve", state, x, u / D)
    decay = spread(recipe.decay, block_state("decay", recipe.decay, state), x)
    return torch.where(x.t > 1, recipe.decay.recall(solved, x.theta, x.lr_old, **decay), 0.0)


def read(recipe: Any, slot: str, state: State, x: Flow, value: Any) -> Any:
    """What the block in `slot` gave at the last step, from its state."""
    block = getattr(recipe, slot)
    try:
        return block.read(value, **spread(block, block_state(slot, block, state), x))
    except Exception as error:
        raise _named(error, slot, block) from error.__cause__


def _named(error: Exception, path: str, block: Block) -> Exception:
    """The error, with block and slot as a note."""
    if not hasattr(error, "__notes__"):
        error.add_note(f"block {type(block).__name__} in slot {path.partition('.')[0]!r}")
    return error


def averaged(recipe: Any, state: State, x: Flow) -> Any:
    """B̄ of the last step, from the state."""
    return read(recipe, "averaging", state, x, read(recipe, "curvature", state, x, None))


def rectified(recipe: Any, state: State, x: Flow) -> Any:
    """D of the last step, from the state."""
    return read(recipe, "rectifier", state, x, averaged(recipe, state, x))


def on_floor(recipe: Any, state: State, x: Flow) -> Tensor | None:
    """Mask of the coordinates whose D was the rectifier's floor at the last step; None where it has no floor."""
    rectifier = spread(recipe.rectifier, block_state("rectifier", recipe.rectifier, state), x)
    return recipe.rectifier.on_floor(averaged(recipe, state, x), **rectifier)

"""A recipe: one block in each slot.  `init` and `update` are pure functions on any tree of tensors.

    recipe = Recipe(name="mine", curvature=WeakSecant(eps=0.0), rectifier=SoftAbsolute(sigma=0.1))
    state = recipe.init(params)
    state, params = recipe.update(state, params, grads)

The flow of one step, top to bottom: gradient blocks -> moment -> curvature -> averaging -> rectifier -> decay ->
projection.  Known methods as recipes: `variants`.  How a step runs them: `sandbox.kernel`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from sandbox import kernel, parts, scope, suggest
from sandbox.blocks import (
    ELEMENT,
    EMA,
    SCOPE,
    AbsoluteFloor,
    Averaging,
    Block,
    Curvature,
    Decay,
    Moment,
    NoAveraging,
    NoDecay,
    NoProjection,
    Number,
    Projection,
    Rectifier,
    WeakSecant,
    number,
)
from sandbox.blocks.base import _checked, register
from sandbox.parts import SLOTS


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """An optimizer as data; the defaults are Apollo's (paper, Algorithm 1).

    lr: the default rate η, a number or a function of t.  scope: who shares a secant constraint ("parameter", "global",
    "channel" or "coordinate").  Raises TypeError for a block in a slot where it does not fit, and ValueError for blocks that
    do not fit together.
    """

    name: str = dataclasses.field(default="custom", metadata={"label": True})
    lr: Number = number(default=0.01, range="[0, inf)")
    gradient: tuple[Block, ...] = ()
    moment: Moment = EMA()
    curvature: Curvature = WeakSecant()
    averaging: Averaging | Moment = NoAveraging()
    rectifier: Rectifier = AbsoluteFloor()
    decay: Decay = NoDecay()
    projection: Projection = NoProjection()
    scope: str = "parameter"

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise TypeError(f"a recipe's name is a text, got {self.name!r}")
        if isinstance(self.gradient, Block) or not isinstance(self.gradient, Iterable):
            object.__setattr__(self, "gradient", (self.gradient,))
        object.__setattr__(self, "gradient", tuple(self.gradient))
        lr = next(f for f in dataclasses.fields(self) if f.name == "lr")
        object.__setattr__(self, "lr", _checked("Recipe", lr, self.lr))
        for path, block in self.blocks():
            slot = path.split(".")[0]
            if not isinstance(block, Block) or slot not in block.slots:
                raise TypeError(parts.misfit(slot, block))
        if self.scope not in scope.NAMES:
            raise ValueError(suggest.unknown("scope", str(self.scope), scope.NAMES))
        self._check_needs()

    def _check_needs(self) -> None:
        for path, block in self.blocks():
            name = type(block).__name__
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
        return found

    def with_hyperparameters(self, values: dict[str, Any]) -> Recipe:
        """This recipe with some numbers replaced by dotted name; the name stays."""
        made = self
        for name, value in values.items():
            places = {"lr"} | {path for where, block in made.blocks() for path in parts.places(where, block)}
            if name not in places:
                raise ValueError(suggest.unknown("number", name, places))
            made = parts.replaced(made, name.split("."), value)
        return made

    # -- what it keeps -----------------------------------------------------------------------------------------------

    @functools.cached_property
    def uses_direction(self) -> bool:
        """Whether some block looks at the previous direction d."""
        return any("d_old" in block.needs for _, block in self.blocks())

    @functools.cached_property
    def stores_direction(self) -> bool:
        """Whether d must be stored, since it cannot be computed again from the rest of the state.

        d = m/D comes from the state where moment, curvature, averaging and rectifier recall their outputs.  A decay inside
        d is recalled from θ, which a projection would have changed.
        """
        recalled = all(getattr(self, slot).recalls for slot in ("moment", "curvature", "averaging", "rectifier", "decay"))
        changed = self.decay.in_direction and not isinstance(self.projection, NoProjection)
        return self.uses_direction and not (recalled and not changed)

    @functools.cached_property
    def recalls_direction(self) -> bool:
        """Whether each step computes the direction of the one before again."""
        return self.uses_direction and not self.stores_direction

    @functools.cached_property
    def has_schedules(self) -> bool:
        """Whether some number is a function of t."""
        found = [self.lr, *(getattr(o, f.name) for _, o in self.blocks() for f in dataclasses.fields(o))]  # type: ignore[arg-type]
        nested = [getattr(o, f.name) for o in found if isinstance(o, Block) for f in dataclasses.fields(o)]  # type: ignore[arg-type]
        return any(parts.is_function(value) for value in found + nested)

    @functools.cached_property
    def second_order(self) -> bool:
        """Whether a step needs a Hessian-vector product."""
        return any("hessian" in block.needs for _, block in self.blocks())

    def state_kinds(self) -> dict[str, str]:
        """Name -> kind of shape of every state tensor, "step" and "lr" (both 0-d) apart."""
        kinds = {f"{path}.{name}": kind for path, block in self.blocks() for name, kind in block.state.items()}
        return kinds | ({"direction.d": ELEMENT} if self.stores_direction else {})

    @property
    def state_words(self) -> int:
        """State words a parameter."""
        few = SCOPE if self.scope == "coordinate" else ELEMENT
        return sum(kind in (ELEMENT, few) for kind in self.state_kinds().values())

    def structure(self) -> dict[str, str]:
        """Slot -> its block without numbers: two recipes of equal structure differ only in numbers."""
        slots = {slot: parts.structure(getattr(self, slot)) for slot in SLOTS}
        return slots | {"scope": self.scope}

    # -- pure functions ----------------------------------------------------------------------------------------------

    def init(self, params: Any) -> Any:
        """State before the first step: a tree like `params` with a dict of tensors for each tensor.

        Keys: "step" (updates made, int64), "lr" (the last rate, float64) and "slot.name" for each state of a block; the
        latter in the parameter's dtype, float32 where that has fewer bits.
        """
        return pytree.tree_map(self.init_tensor, params)

    def init_tensor(self, p: Tensor) -> dict[str, Tensor]:
        """State of one tensor before the first step.  Raises TypeError for a tensor that is not of floating point."""
        if not p.is_floating_point():
            raise TypeError(f"a recipe updates floating-point tensors, got one of {p.dtype}")
        state = {
            "step": torch.zeros((), dtype=torch.int64, device=p.device),
            "lr": torch.zeros((), dtype=torch.float64, device=p.device),
        }
        initial = {f"{path}.{name}": block.initial(name) for path, block in self.blocks() for name in block.state}
        for name, kind in self.state_kinds().items():
            shape = p.shape if kind == ELEMENT else scope.shape_of(self.scope, p) if kind == SCOPE else ()
            zeros = torch.zeros(shape, dtype=state_dtype(p.dtype), device=p.device)
            value = initial.get(name, 0.0)
            state[name] = zeros + value if isinstance(value, Tensor) or value else zeros
        return state

    def update(
        self,
        state: Any,
        params: Any,
        grads: Any,
        *,
        lr: Any = None,
        hessian: Any = None,
        old: Recipe | None = None,
        observe: Callable[[list[int], kernel.Flow], None] | None = None,
    ) -> tuple[Any, Any]:
        """One step: (state, params) -> (state, params).  Pure: nothing is changed in place, no Python state.

        params, grads, hessian: trees of the same form; a gradient that is None leaves its tensor and state as they are.
        lr: η, a number, 0-d tensor or function of t; default the recipe's.
        hessian: z ⊙ Hz for a second-order recipe (`sandbox.hessian.hutchinson`).
        old: the recipe of the step before, where its numbers were others: d is computed again with those it was made with.
        observe: called for each tensor with its place among the tree's leaves (a list: under scope "global" they are
            one vector), the `Flow` of its step; it must change nothing.
        Under scope "global" all tensors must have made the same number of steps.
        Works under torch.func.vmap, grad, and make_fx.  Raises ValueError where shapes differ or `hessian` is missing.
        """
        leaves, spec = pytree.tree_flatten(params)
        states, grads = spec.flatten_up_to(state), spec.flatten_up_to(grads)
        hessians = [None] * len(leaves) if hessian is None else spec.flatten_up_to(hessian)
        if self.second_order and hessian is None:
            raise ValueError(
                f"recipe {self.name!r} needs `hessian`: z ⊙ Hz for each parameter; sandbox.hessian.hutchinson computes it, "
                "and sandbox.Optimizer does when step(closure) gets a closure that returns the loss"
            )
        missing = [name for s in states for name in self.state_kinds() if name not in s]
        if missing:
            raise ValueError(f"the state is not one of recipe {self.name!r}: it lacks {', '.join(sorted(set(missing)))}")
        active = [i for i, g in enumerate(grads) if g is not None]
        for i in active:
            if grads[i].shape != leaves[i].shape:
                raise ValueError(f"gradient of shape {tuple(grads[i].shape)} for a parameter of {tuple(leaves[i].shape)}")
        norm = global_norm([grads[i] for i in active]) if self.needs_norm and active else None
        joint = self.scope == "global" and len(active) > 1
        for group in [active] if joint else [[i] for i in active]:
            t = (states[group[0]]["step"] + 1).to(torch.float64)
            dtype, device = state_dtype(leaves[group[0]].dtype), leaves[group[0]].device
            prepared = kernel.prepare(self, t, lr, states[group[0]]["lr"], dtype, device, old)
            rows = [[row[i] for i in group] for row in (states, leaves, grads, hessians)]
            after = self.leaf_update(prepared, rows, norm, observe and functools.partial(observe, group))
            for i, (new, theta) in zip(group, after, strict=True):
                rate = prepared.lr.to(torch.float64).expand(states[i]["lr"].shape)
                states[i] = {"step": states[i]["step"] + 1, "lr": rate, **new}
                leaves[i] = theta
        return pytree.tree_unflatten(states, spec), pytree.tree_unflatten(leaves, spec)

    @functools.cached_property
    def leaves(self) -> list[Any]:
        """Every number, in the order of the pytree."""
        return pytree.tree_leaves(self)

    @functools.cached_property
    def needs_norm(self) -> bool:
        """Whether a step needs the norm of all gradients together."""
        return any("grad_norm" in block.needs for block in self.gradient)

    def leaf_update(
        self,
        prepared: kernel.Prepared,
        rows: Sequence[Any],
        norm: Tensor | None,
        observe: kernel.Observer | None = None,
    ) -> list[tuple[dict[str, Tensor], Tensor]]:
        """New state (without "step" and "lr") and θ of tensors that make one step together: one, or all under "global".

        rows: lists of states, parameters, gradients and Hessian diagonals (or None), an entry a tensor.
        observe: see `kernel.advance`; tensors that make a step together are one vector there.
        """
        states, params, grads, hessians = rows
        dtype, kinds = prepared.lr.dtype, self.state_kinds()
        norm = None if norm is None else norm.to(dtype)
        wide: list[list[Any]] = [[None if v is None else v.to(dtype) for v in row] for row in (params, grads, hessians)]
        if len(params) == 1:
            (theta,), (g,), (h,) = wide
            state, within = {name: states[0][name] for name in kinds}, scope.of_tensor(self.scope)
            new, theta = kernel.advance(prepared, state, theta, g, scope.OneTensor(), within, norm, h, observe)
            return [(new, theta.to(params[0].dtype))]
        layout = scope.Joined(params)
        theta, g = layout.pack(wide[0]), layout.pack(wide[1])
        h = None if hessians[0] is None else layout.pack(wide[2])
        pack = {name: layout.pack if kind == ELEMENT else torch.stack for name, kind in kinds.items()}
        state = {name: pack[name]([s[name] for s in states]) for name in kinds}
        new, theta = kernel.advance(prepared, state, theta, g, layout.tensor, layout.everything, norm, h, observe)
        apart = {n: layout.unpack(v) if kinds[n] == ELEMENT else list(v.unbind()) for n, v in new.items()}
        each = [{name: parts[i] for name, parts in apart.items()} for i in range(len(params))]
        return [(s, th.to(p.dtype)) for s, th, p in zip(each, layout.unpack(theta), params, strict=True)]

    # -- forms -------------------------------------------------------------------------------------------------------

    def __str__(self) -> str:
        """The algorithm line by line, with its numbers."""
        from sandbox import describe

        return describe.text(self)

    def _repr_markdown_(self) -> str:
        from sandbox import describe

        return describe.markdown(self)

    def to_toml(self) -> str:
        """The recipe as TOML; see `from_toml`.  Raises ValueError for a number or block that has no import path."""
        from sandbox import toml_form

        return toml_form.dumps(self)

    @staticmethod
    def from_toml(text: str) -> Recipe:
        """The recipe that `to_toml` wrote; blocks outside the package come by their import path, "module:Name"."""
        from sandbox import toml_form

        return toml_form.loads(text)

    def script(self, path: str | Path, dtype: torch.dtype = torch.float32) -> None:
        """Saves the update as TorchScript for parameters of `dtype`: `torch.jit.load(path)` in a process without this package
        gives a program with `init(params)` and `step(params, grads, state, lr)`; see `sandbox.backends.scripted`.

        Raises ValueError, with the reason, for a recipe that cannot be scripted.
        """
        from sandbox.backends import scripted

        scripted.save(self, path, dtype)

    def export(self, dtype: torch.dtype = torch.float32) -> Any:
        """The step of one tensor as a `torch.export.ExportedProgram`, of any size; see `sandbox.backends.exported`.

        Raises ValueError for scopes that no single tensor has.
        """
        from sandbox.backends import exported

        return exported.export(self, dtype)

    def fingerprint(self) -> str:
        """Twelve hexadecimal digits that depend on blocks and numbers, not on the name; the same in every process."""
        from sandbox import toml_form

        return toml_form.fingerprint(self)


register(Recipe)


def state_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of state and arithmetic for parameters of `dtype`: at least float32."""
    return torch.float32 if dtype.itemsize < 4 else dtype


def global_norm(grads: list[Tensor]) -> Tensor:
    """‖g‖₂ over all tensors, as `torch.nn.utils.clip_grad_norm_` takes it."""
    wide = [torch.linalg.vector_norm(g.to(state_dtype(g.dtype))) for g in grads]
    return torch.linalg.vector_norm(torch.stack([n.to(wide[0].device, wide[0].dtype) for n in wide]))

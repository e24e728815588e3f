"""What follows from a recipe's blocks: what a step takes, what it keeps, and how it recalls the previous direction."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from sandbox.blocks import (
    COLUMNS,
    ELEMENT,
    INPUTS,
    LEFT,
    RIGHT,
    ROWS,
    SCOPE,
    SQUARE,
    Block,
    Decay,
    NoProjection,
    Readout,
    scope,
)
from sandbox.blocks.number import is_function
from sandbox.recipe import parts

AGAIN = "gradient.again"  # the state of a recipe that needs a second gradient, written by whoever runs it

# The slots whose outputs are read again from the state to recall d, the decay apart.
_RECALLING = ("moment", "curvature", "averaging", "rectifier", "solve")


@dataclasses.dataclass(frozen=True)
class Analysis:
    """Facts about a recipe, worked out once; recipes that differ in numbers alone have the same.

    inputs: what a step takes beside the gradient, some of `blocks.base.INPUTS`.
    second_order: whether a step needs a Hessian-vector product.
    second_gradient: whether each step evaluates its batch's gradient again at the new point.
    draws_labels: whether a step takes gradients or factors at labels drawn from the model.
    needs_rows: whether a step sees the rows of its batch and not only their mean: it draws labels, or takes factors of layers.
    needs_norm: whether a step needs the norm of all gradients together.
    evaluations: gradients per step, a Hessian-vector product counted as one.
    uses_direction: whether some block looks at the previous direction d.
    needs_step: whether some block looks at the last step s = -η d.
    stores_direction: whether d must be stored, since it cannot be computed again from the rest of the state.
    stores_gradient: whether some block looks at the previous gradient, which is then kept once for all of them.
    recalled: dotted names of the hyperparameters that recall the previous direction, each a 0-d state of every tensor.
    has_schedules: whether some number is a function of t.
    reads_out: whether other weights than θ are evaluated.
    matrix: whether some block takes tensors as matrices.  only_matrices: whether basis or solver takes nothing else.
    own_layout: whether each tensor needs a layout of its own, since some block has matrices.
    state_kinds: name -> kind of shape of every state tensor, the `host_names` apart.
    exact: names of the states in float64, whatever the precision of a step.
    host_names: names of the 0-d states in float64: updates made, the last rate, and what recalls the last direction.
    state_elements: per-coordinate state elements per parameter.
    """

    inputs: tuple[str, ...]
    second_order: bool
    second_gradient: bool
    draws_labels: bool
    needs_rows: bool
    needs_norm: bool
    evaluations: int
    uses_direction: bool
    needs_step: bool
    stores_direction: bool
    stores_gradient: bool
    recalled: tuple[str, ...]
    has_schedules: bool
    reads_out: bool
    matrix: bool
    only_matrices: bool
    own_layout: bool
    state_kinds: dict[str, str]
    exact: frozenset[str]
    host_names: tuple[str, ...]
    state_elements: int

    @property
    def recalls_direction(self) -> bool:
        """Whether each step computes the direction of the one before again."""
        return self.uses_direction and not self.stores_direction


def analyse(recipe: Any) -> Analysis:
    """The analysis of a `Recipe`."""
    blocks, inner = recipe.blocks(), [each.analysis for each in recipe.inner.values()]
    needs = {need for _, block in blocks for need in block.needs}
    inputs = tuple(name for name in INPUTS if name in needs.union(*(each.inputs for each in inner)))
    needs_step = "s" in needs and not recipe.pairs.own_step
    uses_direction = needs_step or "d_old" in needs
    second_gradient = "again" in needs
    draws_labels = "sampled" in (*inputs, recipe.basis.factors)
    # d comes from the state where all blocks from moment to decay recall their outputs; a decay inside d is recalled from θ,
    # which a projection or a readout would have changed
    recalls = all(getattr(recipe, slot).recalls for slot in ("basis", *_RECALLING, "decay"))
    changed = (recipe.decay.in_direction and not isinstance(recipe.projection, NoProjection)) or recipe.readout.moves
    stores_direction = uses_direction and not (recalls and not changed and not recipe.adjust and "product" not in inputs)
    recalled = _recalled(recipe) if uses_direction and not stores_direction else ()
    kinds = {f"{path}.{name}": kind for path, block in blocks for name, kind in block.state.items()}
    kinds |= {"direction.d": ELEMENT} if stores_direction else {}
    kinds |= {"gradient.g": ELEMENT} if "g_old" in needs else {}
    kinds |= {AGAIN: ELEMENT} if second_gradient else {}
    matrix = any(block.matrix for _, block in blocks)
    return Analysis(
        inputs=inputs,
        second_order=bool({"hessian", "product"} & set(inputs)),
        second_gradient=second_gradient,
        draws_labels=draws_labels,
        needs_rows=draws_labels or recipe.basis.factors is not None,
        needs_norm=any("grad_norm" in block.needs for block in recipe.gradient) or any(i.needs_norm for i in inner),
        evaluations=1 + sum(INPUTS[name] == ELEMENT for name in inputs) + second_gradient + (recipe.basis.factors == "sampled"),
        uses_direction=uses_direction,
        needs_step=needs_step,
        stores_direction=stores_direction,
        stores_gradient="g_old" in needs,
        recalled=recalled,
        has_schedules=is_function(recipe.lr) or any(map(_has_schedule, (block for _, block in blocks))),
        reads_out=type(recipe.readout).evaluated is not Readout.evaluated,
        matrix=matrix,
        only_matrices=recipe.basis.matrix or recipe.solve.matrix,
        own_layout=matrix or SQUARE in kinds.values(),
        state_kinds=kinds,
        exact=frozenset(f"{path}.{name}" for path, block in blocks if block.exact for name in _sided(block)),
        host_names=("step", "lr", *recalled),
        state_elements=sum(kind == ELEMENT or (kind == SCOPE and recipe.scope == "coordinate") for kind in kinds.values()),
    )


def _recalled(recipe: Any) -> tuple[str, ...]:
    """The hyperparameters of the blocks whose `read` (of a decay: `recall`) is their own; the base class's needs none."""
    slots = [slot for slot in _RECALLING if type(getattr(recipe, slot)).read is not Block.read]
    slots += ["decay"] if type(recipe.decay).recall is not Decay.recall else []
    names: list[str] = []
    for slot in slots:
        block = getattr(recipe, slot)
        names += parts.own_places(slot, block) if block.reads is None else [f"{slot}.{name}" for name in block.reads]
    return tuple(names)


def _sided(block: Block) -> list[str]:
    return [name for name, kind in block.state.items() if kind in (LEFT, RIGHT)]


def _has_schedule(block: Block) -> bool:
    values = [getattr(block, f.name) for f in dataclasses.fields(block)]  # type: ignore[arg-type]
    return any(is_function(value) or (isinstance(value, Block) and _has_schedule(value)) for value in values)


def state_elements(recipe: Any, shapes: Sequence[Sequence[int]], roles: Sequence[str | None] | None = None) -> float:
    """State elements per parameter of tensors of these shapes, those that blocks keep for rows and columns included."""
    tensors, total = [torch.empty(tuple(shape), device="meta") for shape in shapes], 0
    for p, role in zip(tensors, roles or [None] * len(tensors), strict=True):
        one, (m, n) = recipe.of(p, role).analysis, scope.matrix(p)
        sizes = {ROWS: m, COLUMNS: n, LEFT: m * m, RIGHT: n * n, SQUARE: (m * n) ** 2}
        total += one.state_elements * m * n + sum(sizes.get(kind, 0) for kind in one.state_kinds.values())
    return total / max(sum(p.numel() for p in tensors), 1)


def state_text(recipe: Any) -> str:
    """State elements per parameter as text; of an (m, n) matrix where they depend on its shape."""
    ratios = {LEFT: "m/n", RIGHT: "n/m", ROWS: "1/n", COLUMNS: "1/m", SQUARE: "mn"}
    kinds = list(recipe.analysis.state_kinds.values())
    counts = {text: kinds.count(kind) for kind, text in ratios.items() if kind in kinds}
    terms = [f"{count if count > 1 else ''} {text}".strip() for text, count in counts.items()]
    return " + ".join([str(recipe.analysis.state_elements)] * (recipe.analysis.state_elements > 0 or not terms) + terms)

"""Checks a new graph on four small tensors against the pure update.

A graph lays tensors out as vectors, as rows of channels, or many in one arena.  A block that acts coordinate by coordinate and
sums through `x.scope` and `x.tensor` cannot tell; one that calls `g.norm()`, asks for a shape, or counts entries gives other
numbers there, and nobody would notice.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sandbox.backends.tracing import graph, layout
from sandbox.blocks import ELEMENT, INPUTS, SCOPE, TENSOR
from sandbox.recipe import Recipe, rounding
from sandbox.recipe.pure import global_norm, state_shape

SHAPES = [(3, 4), (5,), (2, 3, 2), (4, 1)]
MATRICES = [(3, 4), (5, 2), (2, 3, 2), (4, 3)]  # for recipes that take matrices
STEPS = 3  # made by the pure update first, so that no state is empty
# Of a tensor's largest entry: far above rounding, far below a mistake.
ROUNDING = {torch.float64: 1e-6, torch.float32: 1e-2, torch.bfloat16: 5e-2, torch.float16: 5e-2}
HINT = "sum with x.scope.sum, amax or mean (x.tensor for whole tensors), and take no shape and no count of entries"


def check(recipe: Recipe, signature: graph.Signature, run: Any, steps_only: bool = False) -> None:
    """Raises NoGraph where `run`, a graph of the recipe, and its pure update give other numbers.

    steps_only: the graph writes the step in θ's place.
    """
    shapes = MATRICES if recipe.analysis.matrix else SHAPES
    tensors = _tensors(shapes, signature.theta, signature.device)
    grads = [_tensors(shapes, signature.grad, signature.device, seed) for seed in range(1, STEPS + 2)]
    given: dict[str, Any] = {}
    for k, name in enumerate(recipe.analysis.inputs):
        like = [state_shape(recipe, INPUTS[name], tensor) for tensor in tensors]
        values = _tensors(like, signature.grad, signature.device, STEPS + 2 + k)
        given[name] = values if INPUTS[name] == ELEMENT else [x @ x.mT for x in values]
    states, lr = recipe.init(tensors), _rate(recipe)
    for row in grads[:-1]:
        states, tensors = recipe.update(states, tensors, row, lr=lr, **given)
    states = [
        {n: v.to(rounding.dtype_of(recipe, n, v.dtype, signature.stored)).to(v.dtype) for n, v in state.items()}
        for state in states
    ]
    values, structure = graph.numbers_of(recipe, float(STEPS + 1), lr, states[0], evaluated=signature.evaluated)
    if structure != signature.structure:
        return  # coefficients that have other names at other t
    kind = signature.dtype if signature.evaluated else torch.float64
    numbers = torch.tensor([float(v) for v in values], dtype=kind, device=signature.device)
    norm = [global_norm(grads[-1]).to(signature.dtype).view(1)] if recipe.analysis.needs_norm else []
    right_states, right_theta = recipe.update(states, tensors, grads[-1], lr=lr, **given)
    # tensors that share a scalar make one step; others may go alone
    parts = [list(range(len(tensors)))] if signature.kind == "arena" else [[i] for i in range(len(tensors))]
    if signature.kind != "arena":
        parts = [part for part in parts if layout.kind_of(recipe, tensors[part[0]]) == signature.kind]
    for part in parts:
        packed = _Packed(recipe, signature, *([row[i] for i in part] for row in (states, tensors, grads[-1], *given.values())))
        extra = [*norm, *packed.inputs, *packed.places]
        run(numbers.clone(), *packed.rows, packed.theta, packed.g, *extra, *packed.states)
        for i, (state, theta) in zip(part, packed.unpacked(), strict=True):
            computed = {"θ": tensors[i] - theta if steps_only else theta, **state}
            for name, value in computed.items():
                right = right_theta[i] if name == "θ" else right_states[i][name]
                _compare(recipe, name, value, right, tuple(tensors[i].shape))


def _rate(recipe: Recipe) -> float:
    """Returns a rate that the recipe's decay allows."""
    for lr in (1e-2, 1e-5):
        try:
            recipe.decay.check_lr(lr)
        except ValueError:
            continue
        return lr
    return 1e-9


def _tensors(shapes: list[tuple[int, ...]], dtype: torch.dtype, device: str, seed: int = 0) -> list[Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [(0.5 + torch.rand(s, generator=draw)).mul(torch.randn(s, generator=draw).sign()).to(device, dtype) for s in shapes]


def _compare(recipe: Recipe, name: str, value: Tensor, right: Tensor, shape: tuple[int, ...]) -> None:
    tolerance, value, right = max(ROUNDING[value.dtype], ROUNDING[right.dtype]), value.double(), right.double()
    finite = right.isfinite()
    size = float(right[finite].abs().max()) if finite.any() else 0.0
    same = torch.equal(value.isfinite(), finite) and bool(((value - right)[finite].abs() <= tolerance * size + 1e-12).all())
    if not same:
        raise graph.NoGraph(
            f"recipe {recipe.name!r} gives another {name} for a tensor of shape {shape} where tensors are laid out for speed: "
            f"some block does not act coordinate by coordinate; {HINT} (backend='reference' runs it as it is)"
        )


class _Packed:
    """Tensors and states in a graph's layout, and the way back."""

    def __init__(self, recipe: Recipe, signature: graph.Signature, states: Any, tensors: Any, grads: Any, *inputs: Any) -> None:
        self.recipe, self.signature, self.tensors = recipe, signature, tensors
        self.arena = signature.kind == "arena"
        device = torch.device(signature.device)
        self.rows: list[Tensor] = []
        if self.arena:
            owners = layout.rows_of([p.numel() for p in tensors], signature.width, device)
            each = owners
            if recipe.scope == "channel":
                each = layout.rows_of([n for p in tensors for n in layout.channel_sizes(p)], signature.width, device)
            self.rows = [t for r in (owners, each) for t in (r.owner, r.lengths, r.valid)]
            starts = (owners.lengths.cumsum(0) - owners.lengths) * signature.width
            self.at = torch.cat([s + torch.arange(p.numel(), device=device) for s, p in zip(starts, tensors, strict=True)])
            self.total = len(owners.owner)
        self.theta, self.g = self._lay_out(tensors), self._lay_out(grads)
        self.inputs = [self._lay_out(each) for each in inputs]
        self.places: list[Tensor] = []
        if signature.stored:
            first = torch.zeros(self.total if self.arena else 1, dtype=torch.int32, device=device)
            self.places = [first[:1].clone(), first, layout.columns(signature.row, device)]
        self.states = [self._state([s[name] for s in states], kind) for name, kind in recipe.analysis.state_kinds.items()]
        self.states = [
            x.to(rounding.dtype_of(recipe, name, x.dtype, signature.stored))
            for x, name in zip(self.states, recipe.analysis.state_kinds, strict=True)
        ]

    def _lay_out(self, tensors: list[Tensor]) -> Tensor:
        if not self.arena:
            return layout.flatten(self.signature.kind, tensors[0].clone())
        buffer = torch.zeros(self.total, self.signature.width, dtype=tensors[0].dtype, device=tensors[0].device)
        buffer.view(-1)[self.at] = torch.cat([t.reshape(-1) for t in tensors])
        return buffer

    def _is_long(self, kind: str) -> bool:
        return kind == ELEMENT or (kind == SCOPE and self.recipe.scope == "coordinate")

    def _state(self, values: list[Tensor], kind: str) -> Tensor:
        if self._is_long(kind):
            return self._lay_out(values)
        if self.arena:
            return torch.cat([v.reshape(-1) for v in values])
        value = values[0].clone()
        if kind not in (SCOPE, TENSOR):
            return value
        return layout.flatten(self.signature.kind, value) if kind == SCOPE and value.ndim else value.view(1)

    def _split(self, packed: Tensor, long: bool, likes: list[Tensor]) -> list[Tensor]:
        if not self.arena:
            return [packed.reshape(likes[0].shape)]
        flat = packed.view(-1)[self.at] if long else packed
        return [part.view(like.shape) for part, like in zip(flat.split([like.numel() for like in likes]), likes, strict=True)]

    def unpacked(self) -> list[tuple[dict[str, Tensor], Tensor]]:
        """Returns (state, θ) of each tensor."""
        columns = {}
        for packed, (name, kind) in zip(self.states, self.recipe.analysis.state_kinds.items(), strict=True):
            likes = [torch.empty(state_shape(self.recipe, kind, p)) for p in self.tensors]
            columns[name] = self._split(packed, self._is_long(kind), likes)
        thetas = self._split(self.theta, True, self.tensors)
        return [({name: column[i] for name, column in columns.items()}, theta) for i, theta in enumerate(thetas)]

"""The step of a grid of small members: losses run under vmap, the update as a list of operators that is recorded once.

With a few thousand parameters, nearly all the time of an update under two vmaps is Python's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sandbox.backends.tracing.record import NotRecordable, record
from sandbox.ensemble.grid import CONFIGURATION, MEMBER, SEED, Loss, first_look, over_grid, second_look
from sandbox.ensemble.members import Group
from sandbox.utils.private_torch import pytree

# A recording holds every value of 21 members at once, some two hundred for each parameter, and may take an eighth of the
# budget: by default members of up to 8,000 parameters in float32 are recorded.
VALUES, SHARE = 21 * 200, 8
AXES = (CONFIGURATION, CONFIGURATION, *[MEMBER] * 4)


def fits(params: Any, memory: int) -> bool:
    """Whether an update of members with these parameters, two axes first, may be recorded within `memory` bytes."""
    return VALUES * SHARE * sum(p[0, 0].numel() * p.element_size() for p in pytree.tree_leaves(params)) <= memory


def step_of(group: Group, loss: Loss) -> Callable[..., Any]:
    """What `grid.over_grid(grid.member_step(…))` is without probes, bit for bit."""
    first = over_grid(first_look(group, loss), (CONFIGURATION, MEMBER, MEMBER, SEED, SEED))
    second = over_grid(second_look(group, loss), (CONFIGURATION, MEMBER, MEMBER, SEED))
    recipe = group.recipe([float(v[0]) for v in group.varied])
    looks_at_state = recipe.analysis.second_order  # else it need not pass through vmap, which takes time
    update: Callable[..., Any] | None = None

    def step(varied: Any, lr: Tensor, state: Any, params: Any, batch: Any, z: Any, old: Any) -> Any:
        nonlocal update
        seen, grads, inputs, value, finite = first(varied, state if looks_at_state else {}, params, batch, z)
        state = seen if looks_at_state else state
        arguments = varied, lr, state, params, grads, inputs
        update = update or _update(group, arguments)
        state, params = update(*arguments)
        if recipe.analysis.second_gradient:
            state = second(varied, state, params, batch)
        return state, params, value, finite, {}, ()

    return step


def _update(group: Group, arguments: Any) -> Callable[..., Any]:
    def one(varied: Any, lr: Tensor, state: Any, params: Any, grads: Any, inputs: Any) -> Any:
        return group.recipe(varied).update(state, params, grads, lr=lr, **inputs)

    whole = over_grid(one, AXES)
    spec = pytree.tree_structure(arguments)
    made: list[Any] = []

    def flat(*leaves: Tensor) -> list[Tensor]:
        out, form = pytree.tree_flatten(whole(*pytree.tree_unflatten(leaves, spec)))
        made[:] = [form]
        return out

    try:
        # sizes that identify an axis: their ratios 3/2, 5/3 and, of the product, 5/2 differ
        graph = record(flat, _sample(arguments, 2, 3), _sample(arguments, 3, 5), batch=2)
    except NotRecordable:
        return whole
    for node in graph.graph.nodes:
        node.meta.clear()  # it holds the values of the recording

    def run(*arguments: Any) -> Any:
        # a gradient may lie transposed; the recorded one did not
        leaves = [leaf.contiguous() for leaf in pytree.tree_leaves(arguments)]
        return pytree.tree_unflatten(graph(*leaves), made[0])

    return run


def _sample(arguments: Any, seeds: int, configurations: int) -> list[Tensor]:
    """Arguments of the same form for so many members."""
    varied, lr, *rest = arguments
    numbers = [torch.ones_like(x[:1]).repeat(configurations) for x in (*varied, lr)]
    return numbers + [x.new_ones((seeds, configurations, *x.shape[2:])) for x in pytree.tree_leaves(rest)]

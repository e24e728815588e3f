"""The step of a grid of small members: losses run under vmap, the update as a list of operators that is recorded once.

With a few thousand parameters, nearly all the time of an update under two vmaps is Python's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from sandbox.backends.tracing.record import NotRecordable, record
from sandbox.ensemble import grid
from sandbox.ensemble.members import Group
from sandbox.utils.private_torch import pytree

# A recording holds every value of 21 members at once, some two hundred for each parameter, and may take an eighth of the
# budget: by default members of up to 8,000 parameters in float32 are recorded.
VALUES, SHARE = 21 * 200, 8
LOOK_AGAIN = (grid.CONFIGURATION, grid.MEMBER, grid.MEMBER, grid.SEED)
UPDATE = (grid.CONFIGURATION, grid.CONFIGURATION, *[grid.MEMBER] * 5)


def fits(params: Any, memory: int) -> bool:
    """Whether an update of members with these parameters, two axes first, may be recorded within `memory` bytes."""
    return VALUES * SHARE * sum(p[0, 0].numel() * p.element_size() for p in pytree.tree_leaves(params)) <= memory


def grid_step(group: Group, loss: grid.Loss) -> Callable[..., Any]:
    """Returns what `grid.over_grid(grid.member_step(…))` is without probes, bit for bit."""
    look, again = grid.over_grid(grid.first_look(group, loss), grid.LOOK), grid.second_look(group, loss)
    needs_state = group.first.analysis.second_order
    update: Callable[..., Any] | None = None

    def look_without_state(varied: Any, state: Any, *rest: Any) -> Any:
        return state, *look(varied, {}, *rest)[1:]  # that it need not pass through vmap, which takes time

    def recorded_update(*arguments: Any) -> Any:
        nonlocal update
        update = update or _record(group, arguments)
        return update(*arguments)

    return grid.in_sequence(
        look if needs_state else look_without_state, recorded_update, again and grid.over_grid(again, LOOK_AGAIN)
    )


def _record(group: Group, arguments: Any) -> Callable[..., Any]:
    update = grid.over_grid(grid.member_update(group, {}, before=False), UPDATE)
    spec = pytree.tree_structure(arguments)
    out_spec: Any = None

    def flat(*leaves: Tensor) -> list[Tensor]:
        nonlocal out_spec
        out, out_spec = pytree.tree_flatten(update(*pytree.tree_unflatten(leaves, spec)))
        return out

    try:
        # sizes that identify an axis: their ratios 3/2, 5/3 and, of the product, 5/2 differ
        graph = record(flat, _sample(arguments, 2, 3), _sample(arguments, 3, 5), batch=2)
    except NotRecordable:
        return update
    for node in graph.graph.nodes:
        node.meta.clear()  # it holds the values of the recording

    def run(*arguments: Any) -> Any:
        # a gradient may lie transposed; the recorded one did not
        leaves = [leaf.contiguous() for leaf in pytree.tree_leaves(arguments)]
        return pytree.tree_unflatten(graph(*leaves), out_spec)

    return run


def _sample(arguments: Any, seeds: int, configurations: int) -> list[Tensor]:
    """Returns arguments of the same form for so many members."""
    varied, lr, *rest = arguments
    numbers = [x.new_ones(configurations) for x in (*varied, lr)]
    return numbers + [x.new_ones((seeds, configurations, *x.shape[2:])) for x in pytree.tree_leaves(rest)]

"""How tensors lie for a kernel: whole, by channels, or many in one arena; and the scopes of each.

    whole      one tensor as a vector (n,); the tensor is the scope
    channels   one tensor as a matrix (channels, rest); each row is a scope
    tall       one tensor as a matrix (m, n) with m > n, for blocks that take matrices
    wide       one with m ≤ n
    arena      many tensors as (rows, width), each padded to whole rows; `owner[row]` names its tensor.  A scope's sum is the
               sums of its rows, then of neighbouring rows of one owner: the same order every time, so deterministic

Numbers of one scope reach the coordinates by `spread`.  In compiled graphs that is an opaque operator, so that the pass over
the coordinates reads the number and does not compute it again for each of them; scripts have no such operator and need none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sandbox.blocks import scope
from sandbox.recipe import Recipe, rounding

WIDTH = 128  # entries of an arena's row: eight cache lines of float32, little padding for small tensors

_OPERATORS = torch.library.Library("apollo_sandbox", "DEF")
_OPERATORS.define("spread(Tensor s, Tensor owner) -> Tensor")
_OPERATORS.define("hold(Tensor s) -> Tensor")
_OPERATORS.define("segments(Tensor x, Tensor lengths, str reduce) -> Tensor")
_OPERATORS.define("rows(Tensor x, Tensor valid, str reduce) -> Tensor")
_OPERATORS.define("reduced(Tensor x, str op, str over) -> Tensor")
_OPERATORS.define("places(Tensor like, Tensor column) -> Tensor")


def _spread(s: Tensor, owner: Tensor) -> Tensor:
    return s.index_select(0, owner)


def _hold(s: Tensor) -> Tensor:
    return s.clone()


def _segments(x: Tensor, lengths: Tensor, reduce: str) -> Tensor:
    return torch.segment_reduce(x, reduce, lengths=lengths, unsafe=True)


def _rows(x: Tensor, valid: Tensor, reduce: str) -> Tensor:
    inside = torch.arange(x.shape[1], device=x.device) < valid[:, None]
    if reduce == "sum":
        return torch.where(inside, x, 0.0).sum(1)
    return torch.where(valid > 0, torch.where(inside, x, -torch.inf).amax(1), 0.0)


def _reduced(x: Tensor, op: str, over: str) -> Tensor:
    return x.clone()


_OPERATORS.impl("spread", _spread, "CompositeExplicitAutograd")
_OPERATORS.impl("hold", _hold, "CompositeExplicitAutograd")
_OPERATORS.impl("segments", _segments, "CompositeExplicitAutograd")
_OPERATORS.impl("rows", _rows, "CompositeExplicitAutograd")
_OPERATORS.impl("reduced", _reduced, "CompositeExplicitAutograd")
_OPERATORS.impl("places", lambda like, column: rounding.entry_numbers(like), "CompositeExplicitAutograd")
torch.library.register_fake("apollo_sandbox::spread", lambda s, owner: s.new_empty((owner.shape[0],)))
torch.library.register_fake("apollo_sandbox::hold", lambda s: torch.empty_like(s))
torch.library.register_fake("apollo_sandbox::rows", lambda x, valid, reduce: x.new_empty((x.shape[0],)))
torch.library.register_fake("apollo_sandbox::reduced", lambda x, op, over: torch.empty_like(x))
torch.library.register_fake("apollo_sandbox::places", lambda like, column: torch.empty_like(like, dtype=torch.int32))
torch.library.register_fake("apollo_sandbox::segments", lambda x, lengths, reduce: x.new_empty((lengths.shape[0],)))

REDUCED = torch.ops.apollo_sandbox.reduced.default  # where a marked graph can be cut


@dataclasses.dataclass(frozen=True)
class Rows:
    """Which rows of an arena belong together.

    owner: (rows,), sorted; lengths: (owners,), rows of each; valid: (rows,), entries of each row that are no padding.
    """

    owner: Tensor
    lengths: Tensor
    valid: Tensor


class Arena:
    """The scope of an arena, with one number per owner.  `joint`: all owners share it, and each has a copy.

    opaque, rowwise: see `scopes`.
    """

    def __init__(self, rows: Rows, *, joint: bool, opaque: bool, rowwise: bool = False) -> None:
        self.rows, self.joint, self.opaque, self.rowwise = rows, joint, opaque, rowwise

    def _inside(self, x: Tensor) -> Tensor:
        """`x` with zeros for padding: whatever a block makes of padding, no sum sees it."""
        if x.shape[1] == 1:
            return x
        column = torch.arange(x.shape[1], device=x.device, dtype=x.dtype)
        return torch.where(column < self.rows.valid.to(x.dtype)[:, None], x, 0.0)

    def _each_row(self, x: Tensor, reduce: str) -> Tensor:
        if self.rowwise:
            return torch.ops.apollo_sandbox.rows(x, self.rows.valid, reduce)
        return self._inside(x).sum(1) if reduce == "sum" else self._inside(x).amax(1)

    def _segments(self, x: Tensor, reduce: str) -> Tensor:
        if self.opaque:
            return torch.ops.apollo_sandbox.segments(x, self.rows.lengths, reduce)
        return torch.segment_reduce(x, reduce, lengths=self.rows.lengths, unsafe=True)

    def sum(self, x: Tensor) -> Tensor:
        """Sums over each owner."""
        parts = self._each_row(x, "sum")
        if self.joint:
            return parts.sum().expand(self.rows.lengths.shape)
        return self._segments(parts, "sum")

    def amax(self, x: Tensor) -> Tensor:
        """Returns the largest entry ≥ 0 of each owner."""
        parts = self._each_row(x, "max")
        if self.joint:
            return parts.amax().expand(self.rows.lengths.shape)
        return self._segments(parts, "max")

    def mean(self, x: Tensor) -> Tensor:
        """Averages over each owner."""
        valid = self.rows.valid.to(x.dtype)
        count = valid.sum().expand(self.rows.lengths.shape) if self.joint else self._segments(valid, "sum")
        return self.sum(x) / count

    def spread(self, s: Tensor) -> Tensor:
        """(owners,) -> (rows, 1)."""
        if self.opaque:
            return torch.ops.apollo_sandbox.spread(s, self.rows.owner)[:, None]
        return s.index_select(0, self.rows.owner)[:, None]


class Held(scope.OneTensor):
    """The scope of a whole tensor in a compiled graph."""

    def spread(self, s: Tensor) -> Tensor:
        """s, computed once."""
        return torch.ops.apollo_sandbox.hold(s)


class HeldChannels(scope.Channel):
    """Each row of a matrix in a compiled graph."""

    spread = Held.spread


class Marked:
    """A scope whose sums and maxima are named in the graph, so that it can be cut there; see `cut`."""

    def __init__(self, inner: scope.Scope, over: str) -> None:
        self.inner, self.over = inner, over

    def sum(self, x: Tensor) -> Tensor:
        """Sums over each scope; complete once the reduction is."""
        return torch.ops.apollo_sandbox.reduced(self.inner.sum(x), "sum", self.over)

    def amax(self, x: Tensor) -> Tensor:
        """Returns the largest entry ≥ 0 of each scope; complete once the reduction is."""
        return torch.ops.apollo_sandbox.reduced(self.inner.amax(x), "max", self.over)

    def mean(self, x: Tensor) -> Tensor:
        """Σ x / Σ 1, both complete."""
        return self.sum(x) / self.sum(torch.ones_like(x))

    def spread(self, s: Tensor) -> Tensor:
        """Spreads as the scope inside does."""
        return self.inner.spread(s)


def kind_of(recipe: Recipe, p: Tensor) -> str:
    """Returns the layout in which a tensor is a leaf of its own."""
    if recipe.analysis.matrix:
        m, n = scope.matrix(p)
        return "tall" if m > n else "wide"
    return "channels" if recipe.scope == "channel" and p.ndim > 1 else "whole"


def flatten(kind: str, x: Tensor) -> Tensor:
    """Returns `x` (contiguous) in the layout `kind`, without a copy."""
    return x.view(-1) if kind == "whole" else x.view(x.shape[0] if x.ndim else 1, -1)


def scopes(
    kind: str, name: str, rows: tuple[Rows, Rows] | None, *, opaque: bool, marked: bool = False, rowwise: bool = False
) -> tuple[scope.Scope, scope.Scope]:
    """Returns the scopes (over tensors, over the recipe's scope) of a leaf of layout `kind`.

    rows: of tensors and of scopes, for an arena.

    opaque: numbers of scopes reach the coordinates by operators of ours.  marked: name every sum and maximum over
    more than one coordinate in the graph.  rowwise: sum an arena's rows, without their padding, by one operator.
    """
    if rows is not None:
        tensor: scope.Scope = Arena(rows[0], joint=False, opaque=opaque, rowwise=rowwise)
        within: scope.Scope = Arena(rows[1], joint=name == "global", opaque=opaque, rowwise=rowwise)
    else:
        tensor = Held() if opaque else scope.OneTensor()
        within = (HeldChannels() if opaque else scope.Channel()) if name == "channel" else tensor
    # a vector's channels are its coordinates
    if name == "coordinate" or (name == "channel" and kind == "whole"):
        within = scope.Coordinate()
    if not marked:
        return tensor, within
    return Marked(tensor, "tensor"), within if isinstance(within, scope.Coordinate) else Marked(within, "scope")


def counter(kind: str, like: Tensor, key: Tensor, first: Tensor, column: Tensor) -> Tensor:
    """Returns key + the place of each entry of `like` in its tensor, for `rounding.round_states`.

    key: (1,), of the step.  first: (rows,), places of the first entries of an arena's rows, or (1,), that of a leaf of its own.
    column: (1, width), the places in a row.
    """
    start = first + key
    return start[:, None] + column if kind == "arena" else torch.ops.apollo_sandbox.places(like, column) + start


def fill_places(start: int, out: Tensor) -> None:
    """Computes the operator `places` for a piece of a leaf that begins at entry `start`."""
    torch.arange(out.numel(), out=out.view(-1))
    if start:
        out.add_(rounding.signed(start))


def first_places(rows: Rows, firsts: Sequence[int], width: int) -> Tensor:
    """Returns the place in its tensor of the first entry of each row; firsts: of each owner's first entry."""
    lengths, device = rows.lengths, rows.owner.device
    begin = torch.tensor([*firsts, *[0] * (len(lengths) - len(firsts))], device=device)
    row = torch.arange(len(rows.owner), device=device) - (lengths.cumsum(0) - lengths)[rows.owner]
    return (begin[rows.owner] + width * row).to(torch.int32)


def columns(width: int, device: torch.device) -> Tensor:
    """Returns the places in a row, (1, width)."""
    return torch.arange(width, dtype=torch.int32, device=device)[None]


def channel_sizes(p: Tensor) -> list[int]:
    """Returns the number of entries of each channel of a tensor."""
    return [p.numel() // p.shape[0]] * p.shape[0] if p.ndim > 1 else [1] * p.numel()


def rows_of(sizes: Sequence[int], width: int, device: torch.device) -> Rows:
    """Lays owners of the given sizes one after another in rows; an empty one has a row of padding."""
    count = [max(-(-size // width), 1) for size in sizes]
    valid = torch.cat([torch.full((n,), width, dtype=torch.int32) for n in count])
    ends = torch.tensor(count).cumsum(0) - 1
    valid[ends] = torch.tensor([size - (n - 1) * width for size, n in zip(sizes, count, strict=True)], dtype=torch.int32)
    lengths = torch.tensor(count, dtype=torch.int64)
    owner = torch.repeat_interleave(torch.arange(len(sizes)), lengths)
    return Rows(owner.to(device), lengths.to(device), valid.to(device))


def row_sums(x: Tensor, padding: Any, reduce: str, out: Tensor) -> None:
    """Sums each row of x, or takes its maximum, without its padding; 0 where it is all padding.  padding: see `padding_of`."""
    function, nothing = (torch.sum, 0.0) if reduce == "sum" else (torch.amax, -torch.inf)
    if padding == 0:
        out.zero_()
        return
    if isinstance(padding, int):
        function(x[:, :padding], 1, out=out)
        return
    function(x, 1, out=out)
    if padding is not None:
        rows, outside = padding
        out.index_copy_(0, rows, function(x.index_select(0, rows).masked_fill_(outside, nothing), 1))
        if reduce != "sum":
            out[rows[outside.all(1)]] = 0.0


def padding_of(valid: Tensor, width: int) -> Any:
    """Returns what `row_sums` needs to know about an arena's rows.

    None where all are full, their length where they have the same one, else which are not full and which of their entries are
    padding.
    """
    shortest, longest = int(valid.min()), int(valid.max())
    if shortest == longest:
        return None if shortest == width else shortest
    rows = (valid < width).nonzero()[:, 0]
    return rows, torch.arange(width, device=valid.device) >= valid[rows, None]

"""Searches one number along a line until its optimum lies between worse values, then refines it.

Positions count half the gaps of the first round, which lies around a centre: at -4, -2, 0, 2, 4 for five points.  Then
1. while the lowest loss is at an end of what was tried, the next two positions beyond that end are tried;
2. once it is bracketed, the middles of the intervals around it, nearest first;
until `trials` positions have been tried; a line whose optimum is still at an end goes on up to `limit`.  An infinite loss (the
run diverged) bounds the optimum as any worse loss does; where all are infinite, the search goes down.

The next positions are a function of the losses alone, so that a search that was interrupted continues as it would have.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping

GAP = 2  # positions between neighbours of the first round
ROUND = 2  # positions per further round
FINEST = 0.25  # of intervals that are still halved


@dataclasses.dataclass(frozen=True)
class Line:
    """What a search along a line may do.  points: of the first round.  centre: its middle.  low, high: the range."""

    points: int
    trials: int
    limit: int
    centre: float = 0.0
    low: float = -math.inf
    high: float = math.inf

    def propose(self, losses: Mapping[float, float]) -> list[float]:
        """Returns the next positions to try, none when the search is over.  losses: position -> mean loss."""
        if new := [p for p in self.first() if p not in losses]:
            return new
        beyond = self._beyond(losses)
        left = (self.limit if beyond else self.trials) - len(losses)
        return (beyond or _middles(losses))[: max(min(left, ROUND), 0)]

    def first(self) -> list[float]:
        """Returns the positions of the first round, those outside the range moved to its ends."""
        around = (self.centre + 2 * i - (self.points - 1) for i in range(self.points))
        return sorted({min(max(p, self.low), self.high) for p in around})

    def _beyond(self, losses: Mapping[float, float]) -> list[float]:
        """Returns untried positions on the side where the optimum may lie outside what was tried."""
        side = outside(losses)
        end = min(losses) if side < 0 else max(losses)
        further = (min(max(end + side * GAP * (i + 1), self.low), self.high) for i in range(ROUND)) if side else ()
        return [p for p in dict.fromkeys(further) if p not in losses]


def best(losses: Mapping[float, float]) -> float | None:
    """Returns the position of the lowest loss, the lower of equal ones; None where all are infinite."""
    position = min(losses, key=lambda p: (losses[p], p))
    return position if math.isfinite(losses[position]) else None


def outside(losses: Mapping[float, float]) -> int:
    """Returns the side on which the optimum may lie beyond what was tried, -1 or 1; 0 where it is bracketed."""
    position = best(losses)
    if position is None or position == min(losses):
        return -1
    return 1 if position == max(losses) else 0


def _middles(losses: Mapping[float, float]) -> list[float]:
    """Returns the middles of intervals with a finite end: the wide ones first, of these the nearest to the best position."""
    centre = best(losses)
    if centre is None:
        return []
    ranked = []
    for a, b in itertools.pairwise(sorted(losses)):
        lower, higher = sorted((losses[a], losses[b]))
        if b - a > FINEST and math.isfinite(lower):
            ranked.append((b - a < GAP, abs((a + b) / 2 - centre), lower, higher, (a + b) / 2))
    return [middle for *_, middle in sorted(ranked)]

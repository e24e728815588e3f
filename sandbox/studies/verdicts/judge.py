"""Verdicts on claims, from stored rows."""

from __future__ import annotations

import dataclasses

from sandbox.experiments.selection import statistics
from sandbox.studies.verdicts.claims import Claim
from sandbox.studies.verdicts.deciders import Comparison, Decider, Every
from sandbox.studies.verdicts.quantities import Missing, Rows

HOLDS, NOT, UNDECIDED, UNTESTED = "holds here", "does not hold here", "not decidable at this size", "not tested"
LISTED = 4  # comparisons that are shown one by one


@dataclasses.dataclass(frozen=True)
class Verdict:
    """One of the four verdicts on a claim, and the numbers that it rests on."""

    claim: Claim
    verdict: str
    because: str


def judge(claim: Claim, rows: Rows) -> Verdict:
    """Returns the verdict on a claim; rows: study's key -> its rows.

    It holds where every comparison is as claimed, each beyond its own 95 % interval: all must be, so nothing is corrected.
    It does not where one is the opposite beyond its interval, with p < 0.05 after Holm over all comparisons of the claim: one
    of many is enough, so they are corrected; whatever else has not been run.
    """
    comparisons, missing = _compared(claim.by, rows)
    against = statistics.holm([c.p for c in comparisons]) if comparisons else []
    studies = " ".join(sorted(claim.by.reads & set(rows), key=lambda key: int(key[1:])))
    because = f"{studies}: {_listed(comparisons)}" if comparisons else ""
    if any(c.says < 0 and p < 0.05 for c, p in zip(comparisons, against, strict=True)):
        return Verdict(claim, NOT, because)
    if missing:
        return Verdict(claim, UNTESTED, "; ".join([*dict.fromkeys(missing), *([because] if because else [])]))
    if all(c.says > 0 for c in comparisons):
        return Verdict(claim, HOLDS, because)
    smallest = next((text for c in comparisons if c.says <= 0 and (text := c.smallest())), "")
    return Verdict(claim, UNDECIDED, f"{because}; detectable with 80 % power: {smallest}" if smallest else because)


def _compared(by: Decider, rows: Rows) -> tuple[list[Comparison], list[str]]:
    """Returns the comparisons, and the reasons why others are missing."""
    if isinstance(by, Every):
        each = [_compared(part, rows) for part in by.of]
        return [c for comparisons, _ in each for c in comparisons], [why for _, whys in each for why in whys]
    try:
        return by.compared(rows), []
    except Missing as error:
        return [], [str(error)]


def _listed(comparisons: list[Comparison]) -> str:
    """Lists all comparisons, or counts them and lists those that are against or undecided."""
    if len(comparisons) <= LISTED:
        return "; ".join(c.shown for c in comparisons)
    words = {1: "for", 0: "undecided", -1: "against"}
    counts = ((sum(c.says == sign for c in comparisons), word) for sign, word in words.items())
    counted = ", ".join(f"{n} {word}" for n, word in counts if n)
    first = sorted((c for c in comparisons if c.says <= 0), key=lambda c: c.says)[:LISTED]
    return f"{len(comparisons)} comparisons, {counted}" + (": " + "; ".join(c.shown for c in first) if first else "")

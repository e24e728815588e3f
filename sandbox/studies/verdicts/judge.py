"""Verdicts on claims, from rows that were kept."""

from __future__ import annotations

import dataclasses

from sandbox.experiments.selection import statistics
from sandbox.studies.verdicts.claims import Claim
from sandbox.studies.verdicts.deciders import ON_EDGE, TOO_FEW, Cases, Comparison, Decider, Every, reads
from sandbox.studies.verdicts.quantities import Missing, Rows

HOLDS, NOT, NULL, DEPENDS = "holds here", "does not hold here", "no effect here", "a verdict per condition"
EDGE, FEW = f"not decidable: {ON_EDGE}", f"not decidable: {TOO_FEW}"
UNDECIDED, UNTESTED = "not decidable at this size", "not tested"
VERDICTS = (HOLDS, NOT, NULL, DEPENDS, EDGE, FEW, UNDECIDED, UNTESTED)
LISTED = 4  # comparisons that are shown one by one


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What is said of a claim: one of `VERDICTS`, and the numbers that it rests on."""

    claim: Claim
    verdict: str
    because: str


def judge(claim: Claim, rows: Rows) -> Verdict:
    """The verdict on a claim; rows: study's key -> its rows.

    It holds where every comparison is as claimed, each beyond its own 95 % interval: all must be, so nothing is corrected.
    It does not where one is the opposite beyond its interval, with p < 0.05 after Holm over all comparisons of the claim: one
    of many is enough, so they are corrected; whatever else has not been run.  It has no effect where no comparison is undecided
    and an interval is tight around 0.  A claim of several cases is judged in each; where they differ, it has one verdict per
    condition.
    """
    if isinstance(claim.by, Cases):
        return _cases(claim, claim.by, rows)
    found, missing = _compare(claim.by, rows)
    against = statistics.holm([c.p for c in found]) if found else []
    studies = " ".join(sorted(reads(claim.by) & set(rows), key=lambda key: int(key[1:])))
    because = f"{studies}: {_listed(found)}" if found else ""
    if any(c.says < 0 and p < 0.05 for c, p in zip(found, against, strict=True)):
        return Verdict(claim, NOT, because)
    if missing:
        return Verdict(claim, UNTESTED, "; ".join([*dict.fromkeys(missing), *([because] if because else [])]))
    if all(c.says > 0 for c in found):
        return Verdict(claim, HOLDS, because)
    for verdict, why in ((EDGE, ON_EDGE), (FEW, TOO_FEW)):
        if any(c.barred == why for c in found):
            return Verdict(claim, verdict, because)
    if all(c.says > 0 or c.null for c in found):
        return Verdict(claim, NULL, because)
    smallest = next((said for c in found if c.says <= 0 and (said := c.smallest())), "")
    return Verdict(claim, UNDECIDED, f"{because}; detectable with 80 % power: {smallest}" if smallest else because)


def _cases(claim: Claim, by: Cases, rows: Rows) -> Verdict:
    """Returns the verdict that all cases share, or one for each condition."""
    each = [(condition, judge(dataclasses.replace(claim, by=case), rows)) for condition, case in by.of]
    if len({v.verdict for _, v in each}) == 1:
        return Verdict(claim, each[0][1].verdict, "; ".join(f"{condition}: {v.because}" for condition, v in each))
    return Verdict(claim, DEPENDS, "; ".join(f"{condition}: {v.verdict} ({v.because})" for condition, v in each))


def _compare(by: Decider, rows: Rows) -> tuple[list[Comparison], list[str]]:
    """What the rows say, and what is missing."""
    if isinstance(by, Every):
        each = [_compare(part, rows) for part in by.of]
        return [c for found, _ in each for c in found], [why for _, whys in each for why in whys]
    try:
        return by.compare(rows), []
    except Missing as error:
        return [], [str(error)]


def _listed(found: list[Comparison]) -> str:
    """All, or how many say what and those that speak against or decide nothing."""
    if len(found) <= LISTED:
        return "; ".join(c.shown for c in found)
    counts = ((sum(c.says == sign for c in found), word) for sign, word in ((1, "for"), (0, "undecided"), (-1, "against")))
    said = ", ".join(f"{n} {word}" for n, word in counts if n)
    first = sorted((c for c in found if c.says <= 0), key=lambda c: c.says)[:LISTED]
    return f"{len(found)} comparisons, {said}" + (": " + "; ".join(c.shown for c in first) if first else "")

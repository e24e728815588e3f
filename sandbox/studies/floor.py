"""What Apollo's curvature changes: Apollo against the method that it is on its floor, at equal rates and at the best ones."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from sandbox.experiments.selection import statistics
from sandbox.studies.arms import BETA, SIGMA
from sandbox.studies.verdicts.deciders import FEWEST, direction, edges, interval_text, p_of, paired
from sandbox.studies.verdicts.quantities import TINY, End, Rows, Seeds, final

Table = tuple[str, list[str], list[list[str]]]  # title, head, rows

# Control -> its rate over Apollo's where both are alike.  "sgd" counts only where it has Apollo's warm-up (F11).
CONTROLS = {"frozen": 1.0, "sgd-w": (1 - BETA) / SIGMA, "sgd": (1 - BETA) / SIGMA}
SHOWN = ("apollo", "hessian-ema", "scale-invariant")  # of F14's arms; its others are for claims 9 and 12
AT_EQUAL_RATES = ["study", "arm", "control", "on floor", "training loss, arm minus control [95 %]", "p (Holm)", "lower"]
OFF_THE_FLOOR = [
    "part", "arm", "on floor", "η, arm / frozen", "largest stable η, arm / frozen", "test loss, each at its best η [95 %]",
    "training loss, there", "training loss, both at the arm's η",
]  # fmt: skip


def floor_share(rows: pl.DataFrame) -> str:
    """Returns the mean share of the coordinates on the floor, over the evaluations of some runs after their start."""
    found = rows.filter(pl.col("step") > 0)["floor_occupancy"].drop_nulls()
    return f"{100 * float(np.mean(found.to_numpy())):.1f} %" if len(found) else "—"


def against_controls(rows: Rows) -> Table:
    """Returns Apollo minus each of its controls, in every part that has both.

    The controls are `frozen`, Apollo with B = 0, and momentum SGD at the rate of the floor.  Final runs are compared seed by
    seed where the rates are equal; different rates are not replicates.  A diverged run counts as the worst there is.  Holm over
    all rows with at least `FEWEST` pairs; fewer are not judged.
    """
    found = list(_pairs(rows))
    enough = [d for _, d, _ in found if d is not None and d.pairs >= FEWEST]
    corrected = iter(statistics.holm([p_of(d) for d in enough]) if enough else [])
    body = []
    for shown, d, sign in found:
        if d is None or d.pairs < FEWEST:
            body.append([*shown, "—", "not judged"])
            continue
        p = next(corrected)
        body.append([*shown, f"{p:.3f}", ("no difference seen", shown[2], shown[1])[sign if p < 0.05 else 0]])
    return "Apollo minus its controls at equal rates", AT_EQUAL_RATES, body


def _pairs(rows: Rows) -> Iterator[tuple[list[str], statistics.Difference | None, int]]:
    """Yields what is compared, its difference if the rates are equal, and the sign of that beyond its interval."""
    for key, table in rows.items():
        arms = table.select("part", "arm").unique(maintain_order=True).rows()
        for part, arm in arms:
            for control, factor in CONTROLS.items() if arm.split()[0] == "apollo" else ():
                other = arm.replace("apollo", control, 1)
                if (part, other) not in arms or (control == "sgd" and " w=" not in arm):
                    continue
                mine = final(rows, key, part, arm)
                eta, theirs = mine["lr"][0], final(rows, key, part, other)["lr"][0]
                shown = [f"{key} {part}", arm, other, floor_share(mine)]
                if not np.isclose(eta * factor, theirs, rtol=1e-3):
                    yield [*shown, f"η {eta:.3g} and {theirs:.3g}"], None, 0
                    continue
                a, b = paired(*(End(key, part, name, "train_loss", log=True).values(rows) for name in (arm, other)))
                d = statistics.paired(a, b)
                yield [*shown, interval_text(_RELATIVE, d)], d, direction(d, a, b)


_RELATIVE = End("", "", "", "", log=True)


def off_the_floor(table: pl.DataFrame) -> Table:
    """Returns for each part of F14 and each arm beside its control what the arm gains where coordinates leave the floor.

    The largest stable rate is the largest one up to which no run of the search diverged.  Gains are those of fresh runs, each
    arm at its best rate, and those of the search's runs, both at the arm's rate.  Intervals are not corrected for the number of
    rows.
    """
    rows, body = {"F14": table}, []
    for part, arm in table.filter(pl.col("role") == "tuning").select("part", "arm").unique(maintain_order=True).rows():
        if arm not in SHOWN:
            continue
        both = (arm, "frozen")
        rates = [final(rows, "F14", part, name)["lr"][0] for name in both]
        outside = set(edges({("F14", part, name) for name in both}, rows))
        tried = {name: _tried(table, part, name) for name in both}
        ends = [
            interval_text(_RELATIVE, statistics.paired(*paired(*(End("F14", part, a, c, log=True).values(rows) for a in both))))
            for c in ("test_loss", "train_loss")
        ]
        equal = [v for name in both for eta, v in tried[name].items() if np.isclose(eta, rates[0], rtol=1e-3)]
        body.append([
            part, arm, floor_share(final(rows, "F14", part, arm)),
            " / ".join(f"{eta:.3g}{' (edge)' if name in outside else ''}" for eta, name in zip(rates, both, strict=True)),
            " / ".join(_largest_stable(tried[name]) for name in both), *ends,
            interval_text(_RELATIVE, statistics.paired(*paired(*equal))) if len(equal) == 2 else "—",
        ])  # fmt: skip
    return "Off the floor: arms minus frozen", OFF_THE_FLOOR, body


def _tried(table: pl.DataFrame, part: str, arm: str) -> dict[float, Seeds]:
    """Returns the logarithms of training losses at the end of the search's runs, by rate and seed; infinite where diverged."""
    runs = table.filter(
        (pl.col("part") == part) & (pl.col("arm") == arm) & (pl.col("role") == "tuning") & (pl.col("step") == pl.col("steps"))
    )
    found: dict[float, Seeds] = {}
    for eta, seed, loss, diverged in runs.select("lr", "seed", "train_loss", "diverged").sort("lr", "seed").rows():
        found.setdefault(eta, {})[seed] = np.inf if diverged else float(np.log(max(loss, TINY)))
    return found


def _largest_stable(tried: dict[float, Seeds]) -> str:
    """Returns the largest rate at or below which no run diverged, marked where no higher one was tried."""
    stable = None
    for eta, ends in sorted(tried.items()):
        if not np.isfinite(list(ends.values())).all():
            return "—" if stable is None else f"{stable:.3g}"
        stable = eta
    return "—" if stable is None else f"≥ {stable:.3g}"

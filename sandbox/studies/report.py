"""What a study found: a table a part, and the table of the claims; from rows that were kept, nothing by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import polars as pl

from sandbox.experiments import statistics
from sandbox.studies.claims import CLAIMS
from sandbox.studies.judge import Verdict, ends, judge
from sandbox.studies.study import Study

Table = tuple[str, list[str], list[list[str]]]  # title, head, rows

HEAD = ["arm", "lr", "training loss", "validation loss", "test loss", "test metric", "diverged", "ms/step", "on floor"]
DIFFERENCES = ["difference of test losses", "mean [95 %]", "p (Holm)"]


def kept(folder: str | Path, tier: str) -> dict[str, pl.DataFrame]:
    """Study's key -> its rows of a tier, of all studies that lie in `folder`."""
    found = {path.name.split("-")[0]: pl.read_parquet(path) for path in sorted(Path(folder).glob(f"F*-{tier}.parquet"))}
    return dict(sorted(found.items(), key=lambda pair: int(pair[0][1:])))


def tables(study: Study, rows: pl.DataFrame) -> list[Table]:
    """Each part's arms, and their paired differences to the first one."""
    found: list[Table] = []
    final = rows.filter(pl.col("role") == "final")
    for part in final["part"].unique(maintain_order=True):
        mine = final.filter(pl.col("part") == part)
        arms = mine["arm"].unique(maintain_order=True).to_list()
        title = f"{study.key} {part}"
        found.append((title, HEAD, [_row(mine, part, arm) for arm in arms]))
        if mine["seed"].n_unique() > 1 and len(arms) > 1:
            found.append((f"{title}, minus {arms[0]}", DIFFERENCES, _differences(mine, part, arms)))
    return found


def _row(rows: pl.DataFrame, part: str, arm: str) -> list[str]:
    mine = rows.filter(pl.col("arm") == arm)
    last = mine.filter(pl.col("step") == pl.col("steps"))
    columns = ("train_loss", "validation_loss", "test_loss", "test_metric")
    means = [ends(rows, part, arm, c, math.nan if c == "test_metric" else math.inf) for c in columns]
    floor = mine.filter(pl.col("step") > 0)["floor_occupancy"].drop_nulls()
    return [
        arm,
        f"{last['lr'][0]:.3g}",
        *(_mean(values) for values in means),
        f"{int(last['diverged'].sum())} of {len(last)}",
        f"{1000 * float(np.median(last['seconds_a_step'].to_numpy())):.2f}",
        f"{100 * float(np.mean(floor.to_numpy())):.1f} %" if len(floor) else "—",
    ]


def _mean(values: list[float]) -> str:
    """Mean ± standard deviation."""
    with np.errstate(invalid="ignore"):
        spread = f" ± {float(np.std(values, ddof=1)):.2g}" if len(values) > 1 and np.isfinite(values).all() else ""
        return f"{float(np.mean(values)):.4g}{spread}"


def _differences(rows: pl.DataFrame, part: str, arms: list[str]) -> list[list[str]]:
    base = ends(rows, part, arms[0], "test_loss", math.inf)
    found = [statistics.paired(ends(rows, part, arm, "test_loss", math.inf), base) for arm in arms[1:]]
    corrected = statistics.holm([d.p for d in found])
    return [
        [arm, "runs diverged" if d.mean is None else f"{d.mean:+.4f} [{d.low:+.4f}, {d.high:+.4f}]", f"{p:.3f}"]
        for arm, d, p in zip(arms[1:], found, corrected, strict=True)
    ]


def verdicts(rows: Mapping[str, pl.DataFrame]) -> list[Verdict]:
    """What is said of each of the 41 claims."""
    return [judge(claim, rows) for claim in CLAIMS]


def claims_table(rows: Mapping[str, pl.DataFrame]) -> Table:
    """The claims with their verdicts."""
    found = [[str(v.claim.number), v.claim.text, v.verdict, v.because] for v in verdicts(rows)]
    return "The paper's claims", ["", "claim", "verdict", "by"], found


def markdown(tables: list[Table]) -> str:
    """Tables as Markdown."""
    lines: list[str] = []
    for title, head, rows in tables:
        cells = [[cell.replace("|", "\\|") for cell in row] for row in [head, *rows]]
        lines += [f"**{title}**", "", f"| {' | '.join(cells[0])} |", f"|{'---|' * len(head)}"]
        lines += [*(f"| {' | '.join(row)} |" for row in cells[1:]), ""]
    return "\n".join(lines)

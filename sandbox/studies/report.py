"""What a study found: a table a part, and the table of the claims; from rows that were kept, nothing by hand."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import polars as pl

from sandbox.experiments.selection import statistics
from sandbox.studies.floor import Table, against_controls, floor_share, off_the_floor
from sandbox.studies.study import Study
from sandbox.studies.verdicts.claims import CLAIMS, Claim
from sandbox.studies.verdicts.deciders import p_of, paired
from sandbox.studies.verdicts.judge import VERDICTS, Verdict, judge
from sandbox.studies.verdicts.quantities import EDGE, End, Missing, Place, Rows, final, rate

HEAD = ["arm", "lr", "training loss", "validation loss", "test loss", "test metric", "diverged", "ms/step", "on floor"]
DIFFERENCES = ["difference of test losses", "mean [95 %]", "p (Holm)"]


def load(folder: str | Path, tier: str) -> dict[str, pl.DataFrame]:
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
        found.append((title, HEAD, [_row(study, rows, part, arm) for arm in arms]))
        if mine["seed"].n_unique() > 1 and len(arms) > 1:
            found.append((f"{title}, minus {arms[0]}", DIFFERENCES, _differences(study, final, part, arms)))
    return found


def _row(study: Study, rows: pl.DataFrame, part: str, arm: str) -> list[str]:
    mine = rows.filter((pl.col("part") == part) & (pl.col("arm") == arm) & (pl.col("role") == "final"))
    last = mine.filter(pl.col("step") == pl.col("steps"))
    columns = ("train_loss", "validation_loss", "test_loss", "test_metric")
    means = [list(End(study.key, part, arm, c).values({study.key: rows}).values()) for c in columns]
    return [
        arm,
        f"{last['lr'][0]:.3g}{' (edge)' if rate({study.key: rows}, (study.key, part, arm)) == EDGE else ''}",
        *(_mean(values) for values in means),
        f"{int(last['diverged'].sum())} of {len(last)}",
        f"{1000 * float(np.median(last['seconds_a_step'].to_numpy())):.2f}",
        floor_share(mine),
    ]


def _mean(values: list[float]) -> str:
    """Mean ± standard deviation."""
    with np.errstate(invalid="ignore"):
        spread = f" ± {float(np.std(values, ddof=1)):.2g}" if len(values) > 1 else ""
        return f"{float(np.mean(values)):.4g}{spread}" if np.isfinite(values).all() else "—"


def _differences(study: Study, rows: pl.DataFrame, part: str, arms: list[str]) -> list[list[str]]:
    base, *others = [End(study.key, part, arm, "test_loss").values({study.key: rows}) for arm in arms]
    found = [statistics.paired(*paired(other, base)) for other in others]
    corrected = statistics.holm([p_of(d) for d in found])
    return [
        [arm, "runs diverged" if d.mean is None else f"{d.mean:+.4f} [{d.low:+.4f}, {d.high:+.4f}]", f"{p:.3f}"]
        for arm, d, p in zip(arms[1:], found, corrected, strict=True)
    ]


def verdicts(rows: Rows) -> list[Verdict]:
    """What is said of each of the 41 claims."""
    return [judge(claim, rows) for claim in CLAIMS]


def claims_table(rows: Rows) -> Table:
    """Returns the claims with their verdicts and the runs behind each.

    Of the runs it says the fewest seeds of an arm, the share of Apollo's coordinates on the floor, and whether rates were given
    or chosen, and then from inside or from an edge of their grid.
    """
    body = [[str(v.claim.number), v.claim.text, v.verdict, *_behind(v.claim, rows), v.because] for v in verdicts(rows)]
    return "The paper's claims", ["", "claim", "verdict", "seeds", "on floor", "rates", "by"], body


def _behind(claim: Claim, rows: Rows) -> list[str]:
    """Returns seeds, share on the floor and kinds of rates of the runs that a claim's decider reads and that have been made."""
    runs: dict[Place, pl.DataFrame] = {}
    for place in sorted(claim.by.places):
        with contextlib.suppress(Missing):
            runs[place] = final(rows, *place)
    if not runs:
        return ["—"] * 3
    apollo = [table for (_, _, arm), table in runs.items() if arm.startswith("apollo")]
    return [
        str(min(table["seed"].n_unique() for table in runs.values())),
        floor_share(pl.concat(apollo, how="diagonal")) if apollo else "—",
        ", ".join(sorted({rate(rows, place) for place in runs})),
    ]


def counts(rows: Rows) -> dict[str, int]:
    """Verdict -> of how many claims."""
    found = [v.verdict for v in verdicts(rows)]
    return {verdict: found.count(verdict) for verdict in VERDICTS}


def claims_tables(rows: Rows) -> list[Table]:
    """Returns the claims, where Apollo differs from its controls, and what it does off its floor."""
    off = [off_the_floor(rows["F14"])] if "F14" in rows else []
    return [claims_table(rows), against_controls(rows), *off]


def claims_text(rows: Rows) -> str:
    """Returns these tables as Markdown."""
    return markdown(claims_tables(rows))


def study_text(study: Study, rows: pl.DataFrame) -> str:
    """A study's question and tables, as Markdown."""
    return f"# {study.key} {study.name}\n\n{study.question}\n\n{study.note}\n\n{markdown(tables(study, rows))}"


def write(folder: str | Path, tier: str) -> list[Path]:
    """Tables and a picture of each study whose rows of a tier lie in `folder`, and the claims, beside them."""
    from sandbox import studies
    from sandbox.studies import figures

    rows, made = load(folder, tier), []
    for key, table in rows.items():
        study = studies.get(key)
        path = Path(folder) / f"{key}-{tier}.md"
        path.write_text(study_text(study, table))
        picture = figures.picture(study, table)
        picture.savefig(path.with_suffix(".png"))
        made += [path, path.with_suffix(".png")]
    path = Path(folder) / f"claims-{tier}.md"
    path.write_text(claims_text(rows))
    return [*made, path]


def markdown(tables: list[Table]) -> str:
    """Tables as Markdown."""
    lines: list[str] = []
    for title, head, rows in tables:
        cells = [[cell.replace("|", "\\|") for cell in row] for row in [head, *rows]]
        lines += [f"**{title}**", "", f"| {' | '.join(cells[0])} |", f"|{'---|' * len(head)}"]
        lines += [*(f"| {' | '.join(row)} |" for row in cells[1:]), ""]
    return "\n".join(lines)

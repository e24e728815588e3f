"""The results of studies: one table per part, and the table of the claims, all from stored rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from sandbox.experiments.selection import statistics
from sandbox.studies.arms import BETA, SIGMA
from sandbox.studies.study import Study
from sandbox.studies.verdicts.claims import CLAIMS
from sandbox.studies.verdicts.deciders import interval_text, p_of, paired
from sandbox.studies.verdicts.judge import HOLDS, NOT, UNDECIDED, UNTESTED, Verdict, judge
from sandbox.studies.verdicts.quantities import End, Rows

Table = tuple[str, list[str], list[list[str]]]  # title, head, rows

HEAD = ["arm", "lr", "training loss", "validation loss", "test loss", "test metric", "diverged", "ms/step", "on floor"]
SGD_W = ["study", "arm", "on floor", "measure", "difference [95 %]", "p (Holm)", "better"]
_RELATIVE = End("", "", "", "", log=True)
DIFFERENCES = ["difference of test losses", "mean [95 %]", "p (Holm)"]


def load(folder: str | Path, tier: str) -> dict[str, pl.DataFrame]:
    """Returns the rows of a tier by study's key, of all studies in `folder`."""
    rows = {path.name.split("-")[0]: pl.read_parquet(path) for path in sorted(Path(folder).glob(f"F*-{tier}.parquet"))}
    return dict(sorted(rows.items(), key=lambda pair: int(pair[0][1:])))


def tables(study: Study, rows: pl.DataFrame) -> list[Table]:
    """Returns each part's arms, and their paired differences to the first one."""
    result: list[Table] = []
    final = rows.filter(pl.col("role") == "final")
    for part in final["part"].unique(maintain_order=True):
        mine = final.filter(pl.col("part") == part)
        arms = mine["arm"].unique(maintain_order=True).to_list()
        title = f"{study.key} {part}"
        result.append((title, HEAD, [_row(study, rows, part, arm) for arm in arms]))
        if mine["seed"].n_unique() > 1 and len(arms) > 1:
            result.append((f"{title}, minus {arms[0]}", DIFFERENCES, _differences(study, final, part, arms)))
    return result


def _row(study: Study, rows: pl.DataFrame, part: str, arm: str) -> list[str]:
    mine = rows.filter((pl.col("part") == part) & (pl.col("arm") == arm) & (pl.col("role") == "final"))
    last = mine.filter(pl.col("step") == pl.col("steps"))
    columns = ("train_loss", "validation_loss", "test_loss", "test_metric")
    means = [list(End(study.key, part, arm, c).values({study.key: rows}).values()) for c in columns]
    return [
        arm,
        f"{last['lr'][0]:.3g}{' (edge)' if _on_edge(rows, part, arm) else ''}",
        *(_mean(values) for values in means),
        f"{int(last['diverged'].sum())} of {len(last)}",
        f"{1000 * float(np.median(last['seconds_a_step'].to_numpy())):.2f}",
        floor_share(mine),
    ]


def _on_edge(rows: pl.DataFrame, part: str, arm: str) -> bool:
    """Whether the chosen rate is the lowest or highest that was tried: a better one may lie outside."""
    mine = rows.filter((pl.col("part") == part) & (pl.col("arm") == arm))
    tried = mine.filter(pl.col("role") == "tuning")["lr"].unique().to_list()
    return bool(tried) and mine.filter(pl.col("role") == "final")["lr"][0] in (min(tried), max(tried))


def floor_share(rows: pl.DataFrame) -> str:
    """Returns the mean share of coordinates on the floor over the evaluations after the start."""
    shares = rows.filter(pl.col("step") > 0)["floor_occupancy"].drop_nulls()
    return f"{100 * float(np.mean(shares.to_numpy())):.1f} %" if len(shares) else "—"


def _mean(values: list[float]) -> str:
    """Formats mean ± standard deviation."""
    with np.errstate(invalid="ignore"):
        spread = f" ± {float(np.std(values, ddof=1)):.2g}" if len(values) > 1 else ""
        return f"{float(np.mean(values)):.4g}{spread}" if np.isfinite(values).all() else "—"


def _differences(study: Study, rows: pl.DataFrame, part: str, arms: list[str]) -> list[list[str]]:
    base, *others = [End(study.key, part, arm, "test_loss").values({study.key: rows}) for arm in arms]
    differences = [statistics.paired(*paired(other, base)) for other in others]
    corrected = statistics.holm([p_of(d) for d in differences])
    return [
        [arm, "runs diverged" if d.mean is None else f"{d.mean:+.4f} [{d.low:+.4f}, {d.high:+.4f}]", f"{p:.3f}"]
        for arm, d, p in zip(arms[1:], differences, corrected, strict=True)
    ]


def against_sgd_w(rows: Rows) -> Table:
    """Shows where curvature matters: Apollo minus momentum SGD at the rate that is equal on Apollo's floor, (η/σ)(1-β).

    In every part with both.  Final runs are compared, seed by seed, by their training losses; where a search chose rates that
    are not equal, its runs are, rate by rate, by their validation losses.  Holm over all rows.
    """
    compared = []
    for key, table in rows.items():
        arms = table.select("part", "arm").unique(maintain_order=True).rows()
        for part, arm in arms:
            apollo = arm.replace("sgd-w", "apollo")
            if arm.startswith("sgd-w") and (part, apollo) in arms:
                mine, other = (table.filter((pl.col("part") == part) & (pl.col("arm") == a)) for a in (apollo, arm))
                what, d = "training loss, a pair a seed", _at_equal_rates(mine, other, "final", "train_loss")
                if d is None:
                    what, d = "validation loss, a pair a rate", _at_equal_rates(mine, other, "tuning", "validation_loss")
                if d is not None:
                    compared.append((d, [f"{key} {part}", apollo, floor_share(mine), what, interval_text(_RELATIVE, d)]))
    body = []
    for (d, shown), p in zip(compared, statistics.holm([p_of(d) for d, _ in compared]), strict=True):
        sign = 0 if p >= 0.05 or d.low is None or d.high is None else int(d.low > 0) - int(d.high < 0)
        body.append([*shown, f"{p:.3f}", ("no difference seen", "sgd-w", "apollo")[sign]])
    return "Apollo minus sgd-w at equal rates", SGD_W, body


def _at_equal_rates(apollo: pl.DataFrame, sgd: pl.DataFrame, role: str, column: str) -> statistics.Difference | None:
    """Compares the logarithms of a column at the end of runs whose rates are equal on the floor and which both ended well.

    Returns None where there are no such runs.
    """
    ends = [
        t.filter((pl.col("role") == role) & (pl.col("step") == pl.col("steps")) & pl.col(column).is_finite())
        .with_columns((pl.col("lr") * factor).round_sig_figs(4).alias("rate"))
        .select("rate", "seed", pl.col(column).log())
        for t, factor in ((apollo, (1 - BETA) / SIGMA), (sgd, 1.0))
    ]
    both = ends[0].join(ends[1], on=["rate", "seed"], suffix="_sgd").sort("rate", "seed")
    return statistics.paired(both[column].to_list(), both[f"{column}_sgd"].to_list()) if len(both) else None


def verdicts(rows: Rows) -> list[Verdict]:
    """Returns the verdict on each of the 41 claims."""
    return [judge(claim, rows) for claim in CLAIMS]


def claims_table(rows: Rows) -> Table:
    """Returns the claims with their verdicts."""
    body = [[str(v.claim.number), v.claim.text, v.verdict, v.because] for v in verdicts(rows)]
    return "The paper's claims", ["", "claim", "verdict", "by"], body


def counts(rows: Rows) -> dict[str, int]:
    """Returns the number of claims per verdict."""
    all_verdicts = [v.verdict for v in verdicts(rows)]
    return {verdict: all_verdicts.count(verdict) for verdict in (HOLDS, NOT, UNDECIDED, UNTESTED)}


def claims_text(rows: Rows) -> str:
    """Returns the claims, and where Apollo differs from sgd-w, as Markdown."""
    return markdown([claims_table(rows), against_sgd_w(rows)])


def study_text(study: Study, rows: pl.DataFrame) -> str:
    """Returns a study's question and tables as Markdown."""
    return f"# {study.key} {study.name}\n\n{study.question}\n\n{study.note}\n\n{markdown(tables(study, rows))}"


def write(folder: str | Path, tier: str) -> list[Path]:
    """Writes tables and a picture of each study whose rows of a tier are in `folder`, and the claims; returns the paths."""
    from sandbox import studies
    from sandbox.studies import figures

    rows, paths = load(folder, tier), []
    for key, table in rows.items():
        study = studies.get(key)
        path = Path(folder) / f"{key}-{tier}.md"
        path.write_text(study_text(study, table))
        picture = figures.picture(study, table)
        picture.savefig(path.with_suffix(".png"))
        paths += [path, path.with_suffix(".png")]
    path = Path(folder) / f"claims-{tier}.md"
    path.write_text(claims_text(rows))
    return [*paths, path]


def markdown(tables: list[Table]) -> str:
    """Formats tables as Markdown."""
    lines: list[str] = []
    for title, head, rows in tables:
        cells = [[cell.replace("|", "\\|") for cell in row] for row in [head, *rows]]
        lines += [f"**{title}**", "", f"| {' | '.join(cells[0])} |", f"|{'---|' * len(head)}"]
        lines += [*(f"| {' | '.join(row)} |" for row in cells[1:]), ""]
    return "\n".join(lines)


kept = load  # its name in version 0.1

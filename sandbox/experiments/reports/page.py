"""A comparison as one HTML file that opens without a network: tables, charts, and how to make it again.

While runs are made, the same page is written every few seconds with what is there, and reloads itself (`Live`).
"""

from __future__ import annotations

import functools
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from sandbox.experiments.reports import charts, tables
from sandbox.experiments.reports.comparison_data import ComparisonData
from sandbox.experiments.runs.store import atomically
from sandbox.experiments.selection import targets

FILES = Path(__file__).parent / "files"
ROWS = 20_000  # of a table in a page; more are thinned out
PAUSE = 5.0  # seconds between two versions of a live page, and at least twenty times what writing it takes


def html(result: ComparisonData) -> str:
    """Returns the page of a finished comparison."""
    results, *differences = tables.from_comparison(result)
    timed = tables.to_target(result)
    details = (
        *([("Time to the target", timed.shown()[0][0])] if timed else []),
        ("Cost", tables.costs(result)),
        ("Who trains what", tables.trained(result)),
        ("Search", tables.budgets(result)),
        ("Smallest difference found with 80 % power here", tables.power(result)),
        ("Is this comparison fair?", tables.checklist(result)),
    )
    plan = result.plan
    rates = {s.name: s.lr for s in result.summaries}
    return _render(
        title=f"{plan.task.name}: {', '.join(plan.names)}",
        tables=[("Results", *results), *[("Differences", *d) for d in differences]],
        details=[(heading, *table) for heading, table in details if table is not None],
        notes=tables.notes(result),
        charts=_charts(plan.names, plan.task.metric, plan.settings.budget, result.runs, rates, _differences(result)),
        environment=_flat(result.environment),
        recipes=[(m.name, m.text()) for m in plan.methods],
        failures=result.failures,
    )


def several(result: Any) -> str:
    """Returns the page of several comparisons, a `comparisons.Comparisons`, with links to their own pages."""
    parts, notes = result.shown()
    *shown, checks = parts
    names, profiles = result.names, result.profiles()
    drawn: list[tuple[charts.Chart, list[dict[str, Any]]]] = []
    if profiles:
        rows = [
            {"variant": one.name, **{name: _short(v) for name, v in zip(("tau", "rho", "low", "high"), row, strict=True)}}
            for one in profiles
            for row in zip(one.ratios, one.rho, one.low, one.high, strict=True)
        ]
        drawn.append((charts.profiles(names, targets.UNITS[result.budget]), rows))
    if result.lengths:
        found = result.speedups()
        rows = [{name: _short(value) for name, value in row.items()} for row in found.iter_rows(named=True)]
        drawn.append((charts.lengths(names, found["task"].unique(maintain_order=True).to_list()), rows))
    headings = ("Results", "Times to the targets", *(["Profiles"] if profiles else []), "Losses at the lengths")
    return _render(
        title=f"{len(result.comparisons)} comparisons: {', '.join(names)}",
        links=[(f"{each.folder.relative_to(result.folder)}/report.html", label) for label, each in result.comparisons.items()],
        tables=[(heading, *table) for heading, table in zip(headings, shown, strict=False)],
        details=[("Are these comparisons fair?", *checks)],
        notes=notes,
        charts=drawn,
        environment=_flat(result.first.environment),
        recipes=[(m.name, m.text()) for m in result.first.plan.methods],
        failures=result.failures,
    )


class Live:
    """Writes a comparison's page while its runs are made.

    rows: returns the rows of the runs so far.  names, metric, budget, title: of the comparison.
    """

    def __init__(
        self, path: Path, title: str, names: Sequence[str], metric: str, budget: str, rows: Callable[[], pl.DataFrame]
    ) -> None:
        self.path, self.title, self.names, self.metric, self.budget, self.rows = path, title, names, metric, budget, rows
        self.next = 0.0

    def __call__(self, done: float, total: int, what: str) -> None:
        """Writes the page, unless it was written a moment ago."""
        now = time.monotonic()
        if now < self.next:
            return
        note = f"{what}: {int(done)} of {total} runs; this page reloads itself until they are finished."
        drawn = _charts(self.names, self.metric, self.budget, self.rows(), {}, [])
        with atomically(self.path) as path:
            path.write_text(_render(title=self.title, notes=[note], charts=drawn, refresh=math.ceil(PAUSE)))
        self.next = time.monotonic() + max(PAUSE, 20 * (time.monotonic() - now))


def _charts(
    names: Sequence[str],
    metric: str,
    budget: str,
    runs: pl.DataFrame,
    rates: Mapping[str, float],
    differences: list[dict[str, Any]],
) -> list[tuple[charts.Chart, list[dict[str, Any]]]]:
    """Returns the charts that have data, each with its table."""
    last = pl.col("step") == pl.col("step").max().over("run")
    final, tuning = (runs.filter(pl.col("role") == role) for role in ("final", "tuning"))
    seconds = targets.SECONDS.alias("seconds")
    losses = {"training loss": "train_loss", "validation loss": "validation_loss"}
    scores = {f"validation {metric}": "validation_metric"}
    tested = {"test loss": "test_loss", f"test {metric}": "test_metric"}
    axes = {"updates": "step", "gradient evaluations": "gradients", "seconds of updates": "seconds"}
    axes = dict(sorted(axes.items(), key=lambda item: item[1] != targets.COLUMNS[budget]))  # the budget's own first
    floor = {"share on the floor": "floor_occupancy"}
    chosen = pl.struct("variant", "lr").map_elements(lambda x: rates.get(x["variant"]) == x["lr"], return_dtype=pl.Boolean)
    curves = final.with_columns(seconds, pl.coalesce("sample_loss", "train_loss").alias("train_loss"))
    parts = [
        (charts.curves(names, axes, losses | scores | floor), _records(curves, seconds="seconds")),
        (charts.rates(names, {"validation loss": "validation_loss"} | scores), _records(tuning.filter(last), chosen=chosen)),
        (charts.ends(names, losses | tested), _records(final.filter(last & pl.col("diverged").is_not_null()))),
    ]
    drawn = [(chart, rows) for chart, rows in parts if rows]
    if differences:
        measures = {"training loss": "train_loss", f"test {metric}": "test_metric"}
        drawn.append((charts.differences(names, measures), differences))
    return drawn


COLUMNS = ("variant", "seed", "lr", "step", "gradients", "train_loss", "validation_loss", "validation_metric",
           "floor_occupancy", "test_loss", "test_metric")  # fmt: skip


def _records(rows: pl.DataFrame, **more: Any) -> list[dict[str, Any]]:
    """Returns the rows as JSON has them: of numbers five digits, null for what is not finite."""
    rows = rows.with_columns(**{name: pl.col(e) if isinstance(e, str) else e for name, e in more.items()})
    if len(rows) > ROWS:
        steps = rows["step"].unique().sort()
        kept = steps.gather_every(math.ceil(len(rows) / ROWS)).append(steps.tail(1)).implode()
        rows = rows.filter(pl.col("step").is_in(kept))
    rows = rows.select(*COLUMNS, *more)
    rows = rows.select(name for name in rows.columns if name == "variant" or rows[name].is_not_null().any())
    return [{name: _short(value) for name, value in row.items()} for row in rows.iter_rows(named=True)]


def _short(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return float(f"{value:.5g}") if math.isfinite(value) else None


def _differences(result: ComparisonData) -> list[dict[str, Any]]:
    rows = []
    for s in result.summaries:
        for measure, d, p in (("train_loss", s.train_difference, s.train_p), ("test_metric", s.test_difference, s.test_p)):
            if d is not None and d.mean is not None:
                values = {"mean": d.mean, "low": d.low, "high": d.high, "p": p}
                rows.append({"variant": s.name, "measure": measure, **{name: _short(v) for name, v in values.items()}})
    return rows


def _flat(environment: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns the environment as lines of a table."""
    lines = []
    for name, value in environment.items():
        if isinstance(value, Mapping):
            lines += _flat({f"{name} {key}": each for key, each in value.items()})
        else:
            lines.append((name, " ".join(map(str, value)) if isinstance(value, list) else str(value)))
    return lines


def _render(*, charts: Sequence[tuple[charts.Chart, list[dict[str, Any]]]], **values: Any) -> str:
    data = [{"chart": {"spec": c.spec, "choices": c.choices}, "rows": rows} for c, rows in charts]
    # a text may hold "</script>"
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return _template().render(headings=[c.heading for c, _ in charts], data=text, vega=_vega(), **values)


@functools.cache
def _template() -> Any:
    from jinja2 import Environment

    return Environment(autoescape=True).from_string((FILES / "page.html").read_text())


@functools.cache
def _vega() -> str:
    return (FILES / "vega.js").read_text()

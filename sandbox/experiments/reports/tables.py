"""Tables as plain text, Markdown and HTML; names from users are data in each of them."""

from __future__ import annotations

import dataclasses
import html as web
import math
from typing import Any

import polars as pl

from sandbox.experiments.reports.comparison_data import ComparisonData, Summary
from sandbox.experiments.selection import search, statistics, targets
from sandbox.experiments.selection.plan import untuned_decay
from sandbox.experiments.selection.targets import ToTarget
from sandbox.utils.literal import latex as escape_latex
from sandbox.utils.literal import markdown as literal

Table = tuple[list[str], list[list[str]]]  # heads, rows


def from_comparison(result: ComparisonData) -> list[Table]:
    """Returns the results, and the paired differences to the first variant (none where there is only one)."""
    task, seeds = result.plan.task, result.plan.seeds
    head = [
        "variant",
        "lr",
        "final loss",
        "best validation loss",
        f"test {task.metric}",
        "diverged",
        "ms/step",
        "state",
        "on floor",
    ]
    rows = [_result(s, seeds) for s in result.summaries]
    if len(rows) < 2:
        return [(head, rows)]
    first, *others = result.summaries
    against = [f"minus {first.name}", "final loss [95 %]", "p", f"test {task.metric} [95 %]", "p"]
    differences = [
        [s.name, *difference(s.train_difference, s.train_p, ".2g"), *difference(s.test_difference, s.test_p, ".4f")]
        for s in others
    ]
    return [(head, rows), (against, differences)]


def shown(result: ComparisonData) -> tuple[list[Table], list[str]]:
    """Returns results, differences and who trains what, with notes."""
    divided = trained(result)
    return (from_comparison(result) if result.summaries else []) + ([divided] if divided else []), notes(result)


def _result(s: Summary, seeds: int) -> list[str]:
    return [
        s.name,
        f"{s.lr:.3g}{' (edge)' if s.on_edge else ''}",
        f"{s.train_loss:.4g}",
        f"{s.best_loss:.4g}",
        f"{s.test_metric:.4f}",
        f"{s.diverged} of {seeds}",
        f"{1000 * s.seconds_a_step:.2f}",
        "—" if s.state_words is None else f"{s.state_words:.3g}",
        "—" if s.floor_occupancy is None else f"{100 * s.floor_occupancy:.1f} %",
    ]


def difference(d: statistics.Difference | None, p: float | None, digits: str) -> list[str]:
    """Returns a difference with its interval, and p, as cells of a table."""
    if d is None or p is None:
        return ["—", "—"]
    size = "some infinite" if d.mean is None else f"{d.mean:+{digits}} [{d.low:+{digits}}, {d.high:+{digits}}]"
    return [size, "< 0.001" if p < 0.001 else f"{p:.3f}"]


def to_target(
    result: ComparisonData, target: Any = None, column: str = "validation_metric", *, higher: bool | None = None
) -> ToTargetTable | None:
    """Returns how soon the runs of each variant reach a target; None where neither it nor the comparison names one.

    target, column, higher: see `Comparison.to_target`.
    """
    target, metric = result.plan.settings.target if target is None else target, column == "validation_metric"
    if target is None:
        return None
    named = not isinstance(target, int | float)
    if metric:
        target = result.goal(target)
    elif isinstance(target, str):
        raise ValueError(f"target must be a number for {column!r}, got {target!r}")
    if named and math.isnan(target):
        return None  # that variant failed
    if higher is None:
        if not metric and not column.endswith("_loss"):
            raise ValueError(f"higher must say whether higher values of {column!r} are better")
        higher = metric and result.plan.task.higher_is_better
    names, budget = [s.name for s in result.summaries], result.plan.settings.budget
    rows = targets.reach(result.runs, names, column, target, higher=higher, budget=budget)
    what = f"{result.plan.task.metric if metric else column} {'≥' if higher else '≤'} {target:g}"
    return ToTargetTable(rows, what, targets.UNITS[budget])


def budgets(result: ComparisonData) -> Table | None:
    """Returns the numbers that a search chose, its trials, the losses at neighbouring rates, and how flat the optimum is.

    Of trials that do not depend on each other (grid, random), the expected best loss against budget too.
    """
    if not result.plan.tuned:
        return None
    trials = result.plan.trials
    ks = sorted({1, max(1, trials // 3), trials}) if result.plan.settings.tuner in ("grid", "random") else []
    head = [
        "variant",
        "chosen",
        "contending",
        "trials",
        "tuning loss [next rates]",
        *(f"best of {k}" for k in ks),
        "decades within 1 %",
    ]
    rows = []
    for s in result.summaries:
        chosen = result.chosen[s.name]
        best, flat = search.expected_best(chosen.trials) if ks else [], search.flatness(chosen.trials)
        numbers = ", ".join(f"{n} {v:.3g}" if isinstance(v, float) else f"{n} {v}" for n, v in chosen.numbers.items())
        shown = [f"{best[k - 1]:.4g}" if k <= len(best) else "—" for k in ks]
        flatness = "—" if flat is None else f"{flat:.2f}"
        others = "; ".join(
            ", ".join(f"{v:.3g}" if isinstance(v, float) else str(v) for v in t.numbers.values()) for t in chosen.contenders
        )
        rows.append([s.name, numbers, others or "—", str(len(chosen.trials)), _around(chosen), *shown, flatness])
    return head, rows


def _around(chosen: search.Chosen) -> str:
    """Returns the tuning loss of the chosen numbers, and in brackets those of the next lower and higher rate."""
    others, rate = {**chosen.numbers, "lr": 0}, float(chosen.numbers["lr"])
    along = {float(t.numbers.get("lr", rate)): t.loss for t in chosen.trials if {**others, **t.numbers, "lr": 0} == others}
    if rate not in along:
        return "—"

    def at(rates: list[float]) -> str:
        return "—" if not rates else "diverged" if math.isinf(along[rates[0]]) else f"{along[rates[0]]:.4g}"

    below, above = sorted((r for r in along if r < rate), reverse=True), sorted(r for r in along if r > rate)
    return f"{at([rate])} [{at(below)}, {at(above)}]"


def power(result: ComparisonData) -> Table | None:
    """Returns the smallest differences to the first variant that these seeds find with 80 % power."""
    if len(result.summaries) < 2:
        return None
    first, *others = result.summaries
    head = [f"minus {first.name}", "final loss", f"test {result.plan.task.metric}"]
    rows = []
    for s in others:
        sizes = [
            "—"
            if d is None or d.mean is None
            else f"{statistics.smallest_detectable(d.spread, d.pairs, freedom=d.freedom):.2g}"
            for d in (s.train_difference, s.test_difference)
        ]
        rows.append([s.name, *sizes])
    return head, rows


def checklist(result: ComparisonData, *, several: bool = False) -> Table:
    """Returns what a fair comparison has, whether this one has it, and why or why not (AlgoPerf; Wen et al. 2025).

    several: whether it is one of several, of other tasks or lengths.
    """
    plan, settings, names = result.plan, result.plan.settings, [s.name for s in result.summaries]
    trials = {name: len(result.chosen[name].trials) for name in names}
    edges = [s.name for s in result.summaries if s.on_edge or not s.tuned]
    decays = {m.name: untuned_decay(m, settings.search) for m in plan.methods}
    fixed = [f"{name} ({value:g})" for name, value in decays.items() if value]
    constant = plan.schedules == "constant"
    runs = result.runs
    final, tuning = (runs.filter(pl.col("role") == role) for role in ("final", "tuning"))
    shared = set(final["seed"]) & set(tuning["seed"])
    unknown = final.filter(pl.col("step") == pl.col("step").max().over("run"))["diverged"].has_nulls()
    tried = {name: tuning.filter(pl.col("variant") == name)["lr"].n_unique() for name in names}
    inside = "untuned" if not plan.tuned else f"on an edge: {', '.join(edges)}" if edges else ""
    seeds = f"both: {sorted(shared)}" if shared else f"{settings.tuning_seeds} and {plan.seeds}"
    splits = "validation and test split" if plan.tested_apart else "one split"
    uncounted = [s.name for s in result.summaries if s.gradients is None or not math.isfinite(s.seconds_a_step)]
    count = f"not of {', '.join(uncounted)}" if uncounted else "see the cost"
    baseline = plan.sources.get(names[0], "")
    lines = [
        ("every variant tuned over as many trials", plan.tuned and len(set(trials.values())) == 1,
         ", ".join(f"{n} {k}" for n, k in trials.items()) if plan.tuned else "untuned"),
        ("every chosen rate inside its range", plan.tuned and not edges, inside),
        ("weight decay tuned where there is one", not fixed, f"fixed: {', '.join(fixed)}" if fixed else ""),
        ("a schedule tied to the length, rates tuned for it", not constant, f"{plan.schedules}; {plan.steps} updates"),
        ("compared at the end of training", settings.time_limit is None, "" if settings.time_limit is None else "time limit"),
        ("several lengths, sizes or tasks", several, "" if several else f"one: {plan.task.name}, {plan.steps} updates"),
        ("the choice of rates in the intervals", plan.tuned and settings.tuning_seeds > 1,
         f"{settings.tuning_seeds} tuning seeds" if plan.tuned else "untuned"),
        ("seeds of tuning and of results apart", not shared, seeds),
        ("tuned and reported on different data", plan.tested_apart, splits),
        ("divergence counted", not unknown, ", ".join(f"{s.name} {s.diverged}" for s in result.summaries)),
        ("sensitivity to the rate shown", min(tried.values()) >= 3, ", ".join(f"{n} {k} rates" for n, k in tried.items())),
        ("updates, gradient evaluations and seconds given", not uncounted, count),
        ("defaults of the first variant with their source", bool(baseline), baseline or f"{names[0]}'s are its own"),
        ("enough seeds", not result.exploratory, f"{plan.seeds} of {result.enough_seeds} or more"),
    ]  # fmt: skip
    return ["a fair comparison has", "here", ""], [[what, "yes" if yes else "NO", why] for what, yes, why in lines]


def costs(result: ComparisonData) -> Table:
    """Returns the cost of a run."""
    head = ["variant", "gradient evaluations per run", "ms/step", "state elements per parameter"]
    rows = [
        [
            s.name,
            "—" if s.gradients is None else f"{s.gradients:.0f}",
            f"{1000 * s.seconds_a_step:.2f}",
            "—" if s.state_words is None else f"{s.state_words:.3g}",
        ]
        for s in result.summaries
    ]
    return head, rows


def trained(result: ComparisonData) -> Table | None:
    """Returns who trains what, for variants of several optimizers; None where there are none."""
    head = ["variant", "trained by", "what", "tensors", "parameters", "share"]
    rows = []
    for name, some in result.plan.trained.items():
        total = sum(size for *_, size in some)
        rows += [[name, by, what, str(n), f"{size:,}", f"{100 * size / total:.1f} %"] for by, what, n, size in some]
    return (head, rows) if rows else None


def notes(result: ComparisonData) -> list[str]:
    """Returns what a reader must know to read the table."""
    plan, settings = result.plan, result.plan.settings
    first = (result.summaries or plan.methods)[0].name
    better = "higher" if plan.task.higher_is_better else "lower"
    what = f"{plan.trials} {'trials' if settings.search else 'rates'}"
    tuning = f"{what} × {settings.tuning_seeds} tuning seeds per variant, chosen on validation loss"
    lengths = ", ".join(f"{name} {steps}" for name, steps in plan.lengths.items() if steps != plan.steps)
    equal = "gradient evaluations" if settings.budget == "gradients" else "seconds of updates, as measured before"
    budget = f"; equal {equal}: steps of {lengths}" if lengths else ""
    lines = [
        f"{plan.task.name}, {plan.steps} steps{budget} ({plan.warmup} of warm-up, then {plan.schedules}), "
        f"{plan.seeds} paired seeds; {tuning if plan.tuned else 'each at its own default rate, untuned'}.",
        f"Losses are on the training split.  Minus {first}: mean paired difference with its 95 % Student t interval; p: "
        f"sign-flip test, Holm-corrected.  A lower loss and a {better} {plan.task.metric} are better.",
    ]
    contending = [
        f"{s.name} {t.numbers.get('lr', s.lr):.3g}" for s in result.summaries for t in result.chosen[s.name].contenders
    ]
    if plan.tuned and settings.tuning_seeds > 1:
        others = f"other tuning seeds might have chosen {', '.join(contending)}" if contending else "no other rate contends"
        lines.append(f"Intervals and p include the choice of rates, which was by validation loss for both measures: {others}.")
    sample = "" if not plan.sampled else "  Training losses before the end are on a fixed sample."
    share = "" if math.isnan(plan.evaluated_share) else f"; {plan.evaluated_share:.2g} rows evaluated per row trained"
    lines.append(f"Evaluated at the start and at {len(plan.at)} points{share}.{sample}")
    if any(name not in plan.refusals for name in plan.names):
        lines.append("Runs of a variant were made together (vectorised); ms/step is a run's share of that.")
    reasons: dict[str, list[str]] = {}
    for name, reason in plan.refusals.items():
        reasons.setdefault(reason, []).append(name)
    lines += [f"Made one by one: {', '.join(names)} ({reason})." for reason, names in reasons.items() if reason]
    if result.exploratory:
        lines.append(f"Exploratory: {plan.seeds} seeds are too few for a conclusion ({result.enough_seeds} or more).")
    edges = [s.name for s in result.summaries if s.on_edge]
    if edges:
        lines.append(f"The best numbers of {', '.join(edges)} lie on the edge of what was tried: others may do better.")
    more = [f"{s.name} ({n})" for s in result.summaries if (n := len(result.chosen[s.name].trials)) > plan.trials]
    if more:
        lines.append(f"Searched further, their best rates being at an end of what was tried: {', '.join(more)}.")
    idle = [name for name, some in plan.trained.items() if name not in [by for by, *_ in some]]
    if idle:
        lines.append(f"Trains no parameter of this task itself, but leaves all to others: {', '.join(idle)}.")
    lost = [s.name for s in result.summaries if not s.tuned]
    if lost:
        lines.append(f"Every rate of {', '.join(lost)} diverged in tuning; its default was kept.")
    floors = [s for s in result.summaries if s.floor_occupancy is not None and s.floor_occupancy > 0.99]
    if floors:
        lines.append(
            f"On the floor almost everywhere: {', '.join(s.name for s in floors)}.  There D is the floor and the curvature "
            "estimate hardly matters; with a constant floor σ the method is then momentum SGD with rate lr/σ."
        )
    if settings.time_limit is not None:
        lines.append(f"A run ended after {settings.time_limit:g} s at the latest: results depend on this machine.")
    if result.interrupted:
        lines.append("Interrupted: final runs are missing, and the same command continues; a variant is shown once it has all.")
    lines += [f"Failed: {failure}." for failure in result.failures]
    lines += [f"Could not be read, and was made again: {path}." for path in result.unreadable]
    return lines


# -- forms -------------------------------------------------------------------------------------------------------------


def text(tables: list[Table], notes: list[str]) -> str:
    """Formats tables with their notes as plain text."""
    lines: list[str] = []
    for head, rows in tables:
        widths = [max(len(line[i]) for line in [head, *rows]) for i in range(len(head))]
        lines += ["  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in [head, *rows]]
        lines.append("")
    return "\n".join([*lines, *notes])


def markdown(tables: list[Table], notes: list[str]) -> str:
    """Formats tables with their notes as Markdown."""
    lines: list[str] = []
    for head, rows in tables:
        lines += ["| " + " | ".join(map(literal, head)) + " |", "|" + "---|" * len(head)]
        lines += ["| " + " | ".join(map(literal, row)) + " |" for row in rows]
        lines.append("")
    return "\n".join([*lines, *[f"{literal(n)}\n" for n in notes]])


def latex(tables: list[Table]) -> str:
    """Formats tables for LaTeX (package booktabs)."""

    def line(cells: list[str]) -> str:
        return " & ".join(escape_latex(cell) for cell in cells) + r" \\"

    parts = []
    for head, rows in tables:
        body = "\n".join(line(row) for row in rows)
        columns = "l" + "r" * (len(head) - 1)
        parts.append(
            f"\\begin{{tabular}}{{{columns}}}\n\\toprule\n{line(head)}\n\\midrule\n{body}\n\\bottomrule\n\\end{{tabular}}"
        )
    return "\n\n".join(parts)


def html(tables: list[Table], notes: list[str]) -> str:
    """Formats tables with their notes as HTML."""
    parts = []
    for head, rows in tables:
        cells = "".join(f"<th>{web.escape(cell)}</th>" for cell in head)
        body = "".join("<tr>" + "".join(f"<td>{web.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
        parts.append(f"<table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>")
    return "\n".join([*parts, *(f"<p>{web.escape(n)}</p>" for n in notes)])


class Shown:
    """A result shown as tables with notes: as plain text, in notebooks as HTML."""

    def shown(self) -> tuple[list[Table], list[str]]:
        """Returns tables and notes."""
        raise NotImplementedError

    def __str__(self) -> str:
        return text(*self.shown())

    __repr__ = __str__

    def _repr_markdown_(self) -> str:
        return markdown(*self.shown())

    def _repr_html_(self) -> str:
        return html(*self.shown())


@dataclasses.dataclass(frozen=True, repr=False)
class TablesShown(Shown):
    """Tables with notes."""

    tables: list[Table]
    notes: list[str]

    def shown(self) -> tuple[list[Table], list[str]]:
        """Returns both."""
        return self.tables, self.notes


@dataclasses.dataclass(frozen=True, repr=False)
class ToTargetTable(Shown):
    """How soon the variants of a comparison reach a target: `rows`, one per variant; what, unit: target and time in words."""

    rows: list[ToTarget]
    what: str
    unit: str = "updates"

    def shown(self) -> tuple[list[Table], list[str]]:
        """Returns one row per variant, and what must be known to read it."""
        head = ["variant", "reached [95 %]", f"median {self.unit}", "restricted mean", "minus the first [95 %]", "p"]
        body = []
        for row in self.rows:
            low, high = row.interval
            share = f"{100 * row.share:.0f} % [{100 * low:.0f}, {100 * high:.0f}]"
            d = row.difference
            apart = ["—", "—"] if d is None else difference(d, d.p, ".3g")
            median = "not by half" if math.isinf(row.median) else f"{row.median:.4g}"
            body.append([row.name, share, median, f"{row.restricted_mean:.4g}", *apart])
        notes = [
            f"{self.unit.capitalize()} until {self.what}, where an evaluation says so.  A run that does not get there counts "
            f"with all {self.unit} of the variant that ends first in the restricted mean and the differences, which are paired "
            "by seed; p is not corrected for several "
            "variants, and the choice of rates is not in the intervals."
        ]
        return [(head, body)], notes

"""Several comparisons of the same variants: on several tasks, at several lengths."""

from __future__ import annotations

import dataclasses
import functools
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from sandbox.experiments.reports import figures, page, tables
from sandbox.experiments.reports.comparison import Comparison
from sandbox.experiments.runs.batch import Failure
from sandbox.experiments.runs.store import atomically
from sandbox.experiments.selection import scaling, targets
from sandbox.utils import suggest

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FILES = ("report.html", "table.md", "table.tex", "profiles.png", "profiles.svg", "manifest.json")
LIMIT = 4.0  # of a profile: times beyond so many times the best one count as not reached, as in AlgoPerf


@dataclasses.dataclass(frozen=True, repr=False)
class Comparisons(tables.Shown):
    """The outcome of several comparisons: `comparisons` by label (the task, with its length where there are several).

    asked: the target as `compare` was given it.  lost: errors of comparisons in which every variant failed.  missing: the
    labels of those, and of comparisons that an interrupted call has not made.
    """

    comparisons: Mapping[str, Comparison]
    folder: Path
    asked: Any
    lost: Sequence[Failure]
    missing: Sequence[str]

    def __getitem__(self, label: str) -> Comparison:
        if label not in self.comparisons:
            raise KeyError(suggest.unknown("comparison", label, self.comparisons))
        return self.comparisons[label]

    def __iter__(self) -> Iterator[str]:
        return iter(self.comparisons)

    @property
    def first(self) -> Comparison:
        """One of them, which stands for what all have in common: variants, seeds, budget."""
        return next(iter(self.comparisons.values()))

    @property
    def names(self) -> list[str]:
        """The names of the variants."""
        return list(self.first.plan.names)

    @property
    def failures(self) -> list[Failure]:
        """All errors of users' code."""
        return [*self.lost, *(failure for each in self.comparisons.values() for failure in each.failures)]

    @property
    def frame(self) -> pl.DataFrame:
        """All rows, with a column "comparison"."""
        each = [result.runs.with_columns(comparison=pl.lit(label)) for label, result in self.comparisons.items()]
        return pl.concat(each, how="diagonal")

    @property
    def budget(self) -> str:
        """In what times are counted: "steps", "gradients" or "seconds"."""
        return str(self.first.plan.settings.budget)

    @functools.cached_property
    def goals(self) -> dict[str, float]:
        """Label -> target: what `compare` was asked about, by default what the first variant reaches.

        Comparisons in which that variant failed have none.
        """
        asked = self.names[0] if self.asked is None else self.asked
        goals = {label: each.goal(asked) for label, each in self.comparisons.items()}
        return {label: goal for label, goal in goals.items() if math.isfinite(goal)}

    def times(self, goals: Mapping[str, float] | None = None) -> dict[str, dict[str, tuple[float, ...]]]:
        """Returns variant -> label -> the time at which each seed reaches the target, infinite where it does not.

        goals: label -> value of the task's metric on the validation split; default `goals`.
        """
        found: dict[str, dict[str, tuple[float, ...]]] = {name: {} for name in self.names}
        for label, goal in (self.goals if goals is None else goals).items():
            each = self[label]
            survivors, higher = [s.name for s in each.summaries], each.plan.task.higher_is_better
            times = targets.times(each.runs, survivors, "validation_metric", goal, higher=higher, budget=self.budget)
            for name in self.names:
                found[name][label] = times.get(name, (math.inf,) * each.plan.seeds)
        return found

    def profiles(self, goals: Mapping[str, float] | None = None) -> list[targets.Profile]:
        """Returns a performance profile with its band and AlgoPerf's score per variant; empty where no target is known."""
        times = self.times(goals)
        return targets.profiles(times, LIMIT) if times[self.names[0]] else []

    def to_target(self, target: Any) -> tables.TablesShown:
        """Returns times to another target than the one that `compare` was asked about, with profiles."""
        other = dataclasses.replace(self, asked=target)
        return tables.TablesShown([other._times_table(), *other._profile_tables()], other._target_notes())

    # -- tables ----------------------------------------------------------------------------------------------------------

    def tabulate(self) -> list[tables.Table]:
        """Returns results, times to the targets, profiles and, with several lengths, end losses."""
        return [self._results(), self._times_table(), *self._profile_tables(), *self._lengths_tables()]

    def shown(self) -> tuple[list[tables.Table], list[str]]:
        """Returns all tables, with notes."""
        return [*self.tabulate(), self.checklist()], [*self._target_notes(), *self._notes()]

    def checklist(self) -> tables.Table:
        """Returns what fair comparisons have, and which of these lack it."""
        several = len(self.comparisons) > 1
        lines = {label: tables.checklist(each, several=several)[1] for label, each in self.comparisons.items()}
        rows = []
        for i, (what, _, why) in enumerate(next(iter(lines.values()))):
            lacking = {label: rows[i][2] for label, rows in lines.items() if rows[i][1] != "yes"}
            reasons = "; ".join(f"{label}: {reason}" if reason else label for label, reason in lacking.items())
            same = len({rows[i][2] for rows in lines.values()}) == 1
            rows.append([what, "NO" if lacking else "yes", why if same else reasons])
        return ["a fair comparison has", "here", ""], rows

    def _results(self) -> tables.Table:
        first = self.names[0]
        head = ["", "variant", "lr", "final loss", f"minus {first} [95 %]", "p", "test metric", f"minus {first} [95 %]", "p"]
        rows = []
        for label, each in self.comparisons.items():
            for s in each.summaries:
                loss, metric = (
                    tables.difference(d, p, digits)
                    for d, p, digits in ((s.train_difference, s.train_p, ".2g"), (s.test_difference, s.test_p, ".4f"))
                )
                test = f"{each.plan.task.metric} {s.test_metric:.4f}"
                rate = f"{s.lr:.3g}{' (edge)' if s.on_edge else ''}"
                rows.append([label, s.name, rate, f"{s.train_loss:.4g}", *loss, test, *metric])
        return head, rows

    def _times_table(self) -> tables.Table:
        times, rows = self.times(), []
        for label, goal in self.goals.items():
            task = self[label].plan.task
            cells = []
            for name in self.names:
                each = times[name][label]
                share = sum(map(math.isfinite, each))
                middle = targets.median(each)
                cells.append(f"{'not by half' if math.isinf(middle) else f'{middle:.4g}'} ({share} of {len(each)})")
            rows.append([label, f"{task.metric} {'≥' if task.higher_is_better else '≤'} {goal:.4g}", *cells])
        return [f"median {targets.UNITS[self.budget]} to", "target", *self.names], rows

    def _profile_tables(self) -> list[tables.Table]:
        profiles, first = self.profiles(), self.names[0]
        head = ["variant", "score [95 %]", "fastest on", "within 2×", "within 4×", f"time / {first}"]
        rows = []
        for each in profiles:
            at = {tau: each.rho[int(np.searchsorted(each.ratios, tau, side="right")) - 1] for tau in (1.0, 2.0, LIMIT)}
            low, high = each.interval
            score = f"{each.score:.3f} [{low:.3f}, {high:.3f}]"
            ratio = "—" if each.ratio is None else f"{each.ratio:.3g}"
            rows.append([each.name, score, *(f"{100 * share:.0f} %" for share in at.values()), ratio])
        return [(head, rows)] if profiles else []

    @functools.cached_property
    def losses(self) -> pl.DataFrame:
        """Mean validation loss at the end: task, variant, length (in units of the budget, by the first variant), loss."""
        rows = []
        for each in self.comparisons.values():
            final = each.runs.filter((pl.col("role") == "final") & (pl.col("step") == pl.col("step").max().over("run")))
            for s in each.summaries:
                loss = final.filter(pl.col("variant") == s.name)["validation_loss"].to_numpy()
                rows.append(
                    {"task": each.plan.task.name, "variant": s.name, "length": each.plan.steps, "loss": float(loss.mean())}
                )
        return pl.DataFrame(rows)

    @property
    def lengths(self) -> list[int]:
        """The lengths of the comparisons, where a task has several; else none."""
        several = self.losses.select("task", "length").unique()["task"].is_duplicated().any()
        return sorted(set(self.losses["length"])) if several else []

    def speedups(self) -> pl.DataFrame:
        """Returns the losses with "speedup": by how much the first variant's runs must be longer to end at the same loss.

        Its losses at three lengths or more are fitted by α D^-B + β; null without such a fit, infinite below β.
        """
        first, parts = self.names[0], []
        for _, rows in self.losses.sort("length").group_by("task", maintain_order=True):
            own = rows.filter(pl.col("variant") == first)
            law = scaling.fit(own["length"].to_list(), own["loss"].to_list())
            D = [
                None if law is None or not math.isfinite(loss) else law.length(loss) / n
                for loss, n in rows.select("loss", "length").rows()
            ]
            parts.append(rows.with_columns(speedup=pl.Series(D, dtype=pl.Float64)))
        return pl.concat(parts)

    def _lengths_tables(self) -> list[tables.Table]:
        if not self.lengths:
            return []
        rows, found = [], self.speedups()
        for (task, variant), own in found.group_by("task", "variant", maintain_order=True):
            by_length = {n: (loss, s) for n, loss, s in own.select("length", "loss", "speedup").rows()}
            cells = [
                "—" if n not in by_length else f"{by_length[n][0]:.4g}" + _times_as_fast(by_length[n][1]) for n in self.lengths
            ]
            rows.append([str(task), str(variant), *cells])
        return [(["validation loss at the end", "variant", *(f"{n} updates" for n in self.lengths)], rows)]

    def _target_notes(self) -> list[str]:
        unit = targets.UNITS[self.budget]
        first = self.names[0]
        asked = first if self.asked is None else self.asked if isinstance(self.asked, str) else ""
        what = f": what {asked} reaches, the median over its seeds of the best value" if asked else ""
        lines = [
            f"Targets are values of the task's metric on the validation split{what}.  Times, in {unit}: by which half of the "
            "seeds got there, where an evaluation says so; in brackets, how many ever did.",
            "Score: AlgoPerf's, the mean over τ from 1 to 4 of the share of comparisons on which a variant takes at most τ "
            "times the best time; in brackets the 95 % percentile interval of a bootstrap over comparisons and seeds, with "
            f"these targets.  It depends on who takes part: {', '.join(self.names)}.  Time / {first}: geometric mean where "
            "both get there.",
        ]
        if self.lengths:
            lines.append(
                f"In brackets after a loss: how many times as long {first} would train for it, by α D^-B + β fitted to its own "
                f"losses; {scaling.LENGTHS} lengths are needed, and beyond them it is an extrapolation."
            )
        return lines

    def _notes(self) -> list[str]:
        lines = [
            "Each comparison is tuned for itself and has a report of its own; p is corrected for the variants of one of them, "
            f"not for {len(self.comparisons)}.",
        ]
        edges = [f"{s.name} on {label}" for label, each in self.comparisons.items() for s in each.summaries if s.on_edge]
        if edges:
            lines.append(
                f"The best numbers lie on the edge of what was tried, so that others may do better: {', '.join(edges)}."
            )
        if self.missing:
            lines.append(f"Missing: {', '.join(self.missing)}.")
        return lines + [f"Failed: {failure}." for failure in self.failures]

    # -- files -----------------------------------------------------------------------------------------------------------

    @property
    def files(self) -> tuple[str, ...]:
        """The names of the files in the folder, beside the folders of the comparisons."""
        return FILES

    def write(self) -> None:
        """Writes the page, tables and pictures into the folder, and those of each comparison into its own."""
        for each in self.comparisons.values():
            each.write()
        write(self)

    def plot(self) -> Figure:
        """Draws the performance profiles with their bands."""
        drawing = figures.figure(7.5, 4.6)
        figures.profiles(self.profiles(), drawing.subplots())
        return drawing


def _times_as_fast(speedup: float | None) -> str:
    if speedup is None:
        return ""
    return " (never)" if math.isinf(speedup) else f" ({speedup:.3g}×)"


def write(result: Comparisons) -> None:
    """Writes the page, tables and pictures of several comparisons into their folder."""
    parts, notes = result.shown()
    texts = {
        "report.html": page.several(result),
        "table.md": tables.markdown(parts, notes) + "\n",
        "table.tex": tables.latex(result.tabulate()) + "\n",
    }
    for name, text in texts.items():
        with atomically(result.folder / name) as path:
            path.write_text(text)
    drawing = result.plot()
    for form in ("png", "svg"):
        file = io.BytesIO()
        drawing.savefig(file, format=form, metadata={"Date": None} if form == "svg" else None)
        with atomically(result.folder / f"profiles.{form}") as path:
            path.write_bytes(file.getvalue())

"""The result of `compare`, which prints, draws and saves itself: tables, pictures, and report.html, a page without network."""

from __future__ import annotations

import base64
import dataclasses
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sandbox.experiments.reports import figures, tables
from sandbox.experiments.reports.comparison_data import ComparisonData
from sandbox.experiments.runs.store import atomically, write_frames

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FILES = ("report.html", "table.md", "curves.png", "rates.png", "results.parquet", "manifest.json")

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{{ title }}</title><style>
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70em; margin: 2em auto; padding: 0 1em; color: #222 }
table { border-collapse: collapse; margin: 1em 0 }
th, td { padding: .25em .8em; text-align: right; border-bottom: 1px solid #ddd }
th:first-child, td:first-child { text-align: left } th { border-bottom: 2px solid #888 } img { max-width: 100% }
pre { background: #f6f6f6; padding: .8em; overflow-x: auto; font-size: 13px } h2 { margin-top: 2em } .wide { overflow-x: auto }
</style></head><body>
<h1>{{ title }}</h1>
{% for heading, head, rows in tables %}<h2>{{ heading }}</h2><div class="wide"><table><thead><tr>
{% for cell in head %}<th>{{ cell }}</th>{% endfor %}</tr></thead><tbody>
{% for row in rows %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</tbody></table></div>
{% endfor %}{% for note in notes %}<p>{{ note }}</p>
{% endfor %}{% for heading, data in pictures %}<h2>{{ heading }}</h2>
<img alt="{{ heading }}" src="data:image/png;base64,{{ data }}">
{% endfor %}<h2>What was run</h2>
{% for name, text in recipes %}<h3>{{ name }}</h3><pre>{{ text }}</pre>
{% endfor %}{% for failure in failures %}<h3>{{ failure.variant }} failed</h3><p>{{ failure }}</p><pre>{{ failure.trace }}</pre>
{% endfor %}</body></html>
"""


def write(result: ComparisonData) -> None:
    """Writes report.html, table.md and the two pictures into the comparison's folder."""
    result.folder.mkdir(parents=True, exist_ok=True)
    with atomically(result.folder / "table.md") as path:
        path.write_text(tables.markdown(tables.from_comparison(result), tables.notes(result)) + "\n")
    pictures = []
    for name, heading, draw in (
        ("curves.png", "Training loss", figures.curves),
        ("rates.png", "Validation loss over the rate", figures.rates),
    ):
        data = png(result, draw)
        pictures.append((heading, base64.b64encode(data).decode()))
        with atomically(result.folder / name) as path:
            path.write_bytes(data)
    with atomically(result.folder / "report.html") as path:
        path.write_text(page(result, pictures))


def png(result: ComparisonData, draw: Any) -> bytes:
    """Returns a picture as a PNG file."""
    figure, file = figures.figure(7.5, 4.6), io.BytesIO()
    draw(result, figure.subplots())
    figure.savefig(file, format="png")
    return file.getvalue()


def page(result: ComparisonData, pictures: list[tuple[str, str]]) -> str:
    """Returns the page, all texts escaped."""
    from jinja2 import Environment

    results, *differences = tables.from_comparison(result)
    named = [("Results", *results), *[("Differences", *d) for d in differences], ("Cost", *tables.costs(result))]
    more = (("Search", tables.budgets(result)), ("Smallest difference found with 80 % power here", tables.power(result)))
    named += [(heading, *table) for heading, table in more if table is not None]
    return (
        Environment(autoescape=True)
        .from_string(PAGE)
        .render(
            title=f"{result.plan.task.name}: {', '.join(result.plan.names)}",
            tables=named,
            notes=tables.notes(result),
            pictures=pictures,
            recipes=[(m.name, m.text()) for m in result.plan.methods],
            failures=result.failures,
        )
    )


@dataclasses.dataclass(frozen=True, repr=False)
class Comparison(ComparisonData, tables.Shown):
    """The outcome of a comparison; see `ComparisonData` for what it holds."""

    def plot(self) -> Figure:
        """Draws curves of the training loss, beside the losses over the rate."""
        return figures.both(self)

    def save(self, folder: str | Path) -> None:
        """Writes the tables, pictures and report into another folder."""
        write(dataclasses.replace(self, folder=Path(folder)))
        write_frames(Path(folder), self.runs, self.probes if len(self.probes) else None)

    def shown(self) -> tuple[list[tables.Table], list[str]]:
        """Returns results and differences, with notes."""
        return tables.from_comparison(self), tables.notes(self)

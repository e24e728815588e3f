"""Names from users are data, in whatever form they are shown."""

import html
import json
from html.parser import HTMLParser

import polars as pl
import pytest
from markdown_it import MarkdownIt
from rich.console import Console

import sandbox
import variants
from sandbox.cli import screen
from sandbox.experiments.callbacks import CSV, TensorBoard
from sandbox.experiments.compare import compare
from sandbox.experiments.reports import inspection, tables
from sandbox.utils import literal
from tests.experiments import networks

NAMES = [
    *("_a[bold]$x_1$|*b*", "<script>alert(1)</script>", "plain", "apollo[rectifier=SoftAbsolute(sigma=0.1)]", "a|b"),
    *("<b>x</b>", "$x_1$", "[red]x", "[x](y)", "a\\b`c`~d~#"),
]


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    folder = tmp_path_factory.mktemp("names")
    recipes = [variants.get("sgd").replace(name=name) for name in NAMES]
    told = CSV(folder / "rows.csv")
    return compare(recipes, "quadratic", seeds=2, tuning_seeds=1, rates=2, tuner="grid", steps=5, out=folder, callbacks=[told])


@pytest.fixture(scope="module")
def inspected():
    recipes = [variants.get("sgd").replace(name=name) for name in NAMES]
    return sandbox.inspect(recipes, "quadratic", steps=2, samples=1, seeds=2)


class Page(HTMLParser):
    """A page's cells, images and addresses; an element that is not closed in its order is an error."""

    def __init__(self, text):
        super().__init__()
        self.open, self.cells, self.images, self.addresses, self.scripts = [], [], [], [], 0
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.addresses += [value for name, value in attributes if name in ("src", "href", "action", "data")]
        self.images += [value for name, value in attributes if tag == "img" and name == "src"]
        self.scripts += tag in ("script", "link", "iframe")
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, text):
        if self.open and self.open[-1] in ("td", "th"):
            self.cells[-1] += text


def test_in_a_terminal(result, inspected, capsys):
    for head, rows in [*tables.from_comparison(result), inspection.table(inspected)]:
        screen.table(Console(width=300), head, rows)
        out = capsys.readouterr().out
        assert all(name in out for name in NAMES[1:])
        screen.table(Console(width=40), head, rows)
        assert "[red]x" in capsys.readouterr().out.replace("\n", "")


def test_in_html(result, inspected):
    for text in (result._repr_html_(), inspected._repr_html_()):
        page = Page(text)
        assert [cell for cell in page.cells if cell in NAMES][: len(NAMES)] == NAMES
        assert page.addresses == []
        assert page.scripts == 0


def test_report_is_one_page_that_needs_no_network(result):
    """Well-formed, nothing fetched from anywhere; its data are in it, and no name ends them."""
    text = (result.folder / "report.html").read_text()
    page = Page(text)
    assert set(NAMES) < set(page.cells)
    assert page.addresses == page.images == []
    assert page.scripts == text.count("</script>") == 3
    assert "@import" not in text
    data = json.loads(text.split('id="data">')[1].split("</script>")[0])
    assert {row["variant"] for row in data[0]["rows"]} == set(NAMES)


def test_in_markdown(result, inspected):
    """As a reader of Markdown shows them, a table keeps its columns."""
    written = (result.folder / "table.md").read_text(), inspected._repr_markdown_()
    for text in written:
        page = Page(MarkdownIt("commonmark").enable("table").render(text))
        assert [cell for cell in page.cells if cell in NAMES][: len(NAMES)] == NAMES
    assert literal.markdown("scale-invariant") == "scale-invariant"
    assert literal.markdown("-0.004 [-0.006, -0.002]") == "-0.004 [-0.006, -0.002]"
    for name in NAMES:
        head = MarkdownIt("commonmark").render(variants.get("sgd").replace(name=name)._repr_markdown_()).splitlines()[0]
        assert f"<strong>{html.escape(name)}</strong>" in head
        assert "\\$" in literal.markdown(name) or "$" not in name  # no formula of a notebook


def test_in_formulas():
    """Every character with a meaning of its own has a backslash."""
    assert literal.latex("D = |B| + {σ}_1 $x$ 5 %") == r"D = |B| + \{σ\}\_1 \$x\$ 5 \%"


def test_in_pictures(result, inspected):
    pictures = [result.plot(), inspected.plot(), inspected.correlations(), inspected.floors()]
    for figure in pictures:
        figure.canvas.draw()  # "$" that begins a formula would raise here, or vanish
    shown = [text.get_text() for axes in pictures[0].axes for text in axes.get_legend().get_texts()]
    assert sum(r"\$x_1\$" in text for text in shown) == 4
    assert len(shown) == 2 * len(NAMES)
    assert literal.picture("apollo") == "apollo"


def test_rows_as_they_come(result):
    lines = (result.folder / "rows.csv").read_text().splitlines()
    assert lines[0].startswith("run,variant,task")
    assert len(lines) == 1 + len(result.runs) / len(NAMES)  # equal recipes share their runs


def test_tensorboard(tmp_path):
    """Read back with TensorBoard's own reader: every final evaluation's losses, a folder a run."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    told = TensorBoard(tmp_path / "logs")
    found = compare(["sgd"], "quadratic", seeds=2, rates=1, steps=5, evaluations=5, out=tmp_path / "out", callbacks=[told])
    told.close()
    folders = sorted((tmp_path / "logs").iterdir())
    assert len(folders) == 2
    for seed, folder in enumerate(folders):
        read = accumulator.EventAccumulator(str(folder)).Reload()
        rows = found.runs.filter(found.runs["seed"] == seed).sort("step")
        scalars = read.Scalars("train_loss")
        assert [s.step for s in scalars] == rows["step"].to_list()
        assert [s.value for s in scalars] == pytest.approx(rows["train_loss"].to_list(), rel=1e-6)  # kept as float32


@pytest.mark.parametrize("way", [{"vectorised": True}, {"vectorised": False}, {"vectorised": False, "jobs": 2}])
def test_rows_come_while_runs_go_on(tmp_path, way):
    """Before the last step of its run each row but the last is told, then the last with the test split; each once, and equal
    to what is kept."""
    told = []

    def hear(row):
        told.append({**row, "kept": (tmp_path / "runs" / f"{row['run']}.json").exists()})

    found = compare(["sgd"], "quadratic", seeds=2, rates=1, steps=6, evaluations=3, out=tmp_path, callbacks=[hear], **way)
    assert sorted((row["seed"], row["step"]) for row in told) == [(seed, step) for seed in (0, 1) for step in (0, 2, 4, 6)]
    for row in told:
        last = row["step"] == 6
        assert row["kept"] or not last
        assert not row["kept"] or last or "jobs" in way  # who hears of another process hears a little later
        assert (row["test_loss"] is not None) == (row["diverged"] is not None) == last
        kept = found.runs.filter(seed=row["seed"], step=row["step"])
        assert kept["train_loss"].to_list() == [row["train_loss"]]
        assert kept["validation_metric"].to_list() == [row["validation_metric"]]


def test_csv_has_a_column_for_every_metric(tmp_path):
    told = CSV(tmp_path / "rows.csv")
    found = compare(["sgd"], networks.Net(), seeds=2, rates=1, steps=2, out=tmp_path / "out", callbacks=[told])
    read = pl.read_csv(tmp_path / "rows.csv")
    assert read.sort("seed", "step")["validation_error"].to_list() == pytest.approx(
        found.runs.sort("seed", "step")["validation_error"].to_list()
    )
    assert read.filter(step=2)["test_error"].null_count() == 0


@pytest.mark.parametrize("vectorised", [True, False])
def test_an_error_of_a_callback_is_raised(tmp_path, vectorised):
    """It is no failure of the variant in whose run it came."""

    def broken(row):
        raise ZeroDivisionError("in the callback")

    with pytest.raises(ZeroDivisionError, match="in the callback"):
        compare(["sgd"], "quadratic", seeds=2, rates=1, steps=4, out=tmp_path, callbacks=[broken], vectorised=vectorised)

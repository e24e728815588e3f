"""Names from users are data, in whatever form they are shown."""

import pytest
from rich.console import Console

import variants
from sandbox.cli import screen
from sandbox.experiments import figures, tables
from sandbox.experiments.callbacks import CSV, TensorBoard
from sandbox.experiments.compare import compare

NAMES = ["_a[bold]$x_1$|*b*", "<script>alert(1)</script>", "plain"]


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    folder = tmp_path_factory.mktemp("names")
    recipes = [variants.get("sgd").replace(name=name) for name in NAMES]
    told = CSV(folder / "rows.csv")
    return compare(recipes, "quadratic", seeds=2, tuning_seeds=1, rates=2, steps=5, out=folder, callbacks=[told])


def test_in_a_terminal(result, capsys):
    for width in (200, 40):
        for head, rows in tables.of(result):
            screen.table(Console(width=width), head, rows)
        out = capsys.readouterr().out
        if width == 200:
            assert all(name in out for name in NAMES)
        else:
            assert "[bold]" in out.replace("\n", "")


def test_in_html(result):
    page = (result.folder / "report.html").read_text()
    for text in (page, result._repr_html_()):
        assert "<script>" not in text
        assert "&lt;script&gt;" in text
        assert "http" not in text
    assert "data:image/png;base64," in page


def test_in_markdown(result):
    """Every special character is escaped, so a table keeps its columns."""
    lines = [line for line in (result.folder / "table.md").read_text().splitlines() if line.startswith("|")]
    widths = {line.replace("\\|", "").count("|") for line in lines[: len(NAMES) + 2]}
    assert len(widths) == 1
    assert "\\<script\\>" in "\n".join(lines)
    assert tables.literal("scale-invariant") == "scale-invariant"


def test_in_pictures(result):
    figure = result.plot()
    figure.canvas.draw()  # "$" that begins a formula would raise here, or vanish
    shown = [text.get_text() for axes in figure.axes for text in axes.get_legend().get_texts()]
    assert sum(r"\$x_1\$" in text for text in shown) == 2
    assert len(shown) == 2 * len(NAMES)
    assert figures.literal("apollo") == "apollo"


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

"""The page of a comparison: its charts, what it says of fairness, a comparison read from its folder again."""

import json
import re
import shutil
import subprocess

import polars as pl
import pytest

import sandbox
import variants
from sandbox import cli
from sandbox.experiments.reports import charts, tables
from tests.experiments.test_tables import NAMES

OPTIONS = {"seeds": 6, "tuning_seeds": 1, "rates": 3, "tuner": "grid", "steps": 6, "evaluations": 3}


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    recipes = [variants.get("apollo").replace(name=NAMES[0]), variants.get("adamw").replace(name=NAMES[1]), "sgd"]
    return sandbox.compare(recipes, "quadratic", out=tmp_path_factory.mktemp("page"), **OPTIONS)


def data_of(text):
    return json.loads(text.split('id="data">')[1].split("</script>")[0])


def first(choices):
    return {name: next(iter(options)) for name, options in choices.items()}


def test_choices_take_the_place_of_their_names():
    choices = {"y": {"loss": "train_loss"}, "scale": {"log": {"axis": "log", "shown": {"field": "$y", "gt": 0}}}}
    spec = {"a": ["$y", "$y label", 1], "b": {"filter": "$scale.shown", "type": "$scale.axis"}, "$schema": "x"}
    filled = {"a": ["train_loss", "loss", 1], "b": {"filter": {"field": "train_loss", "gt": 0}, "type": "log"}, "$schema": "x"}
    assert charts.fill(spec, choices, first(choices)) == filled


def test_the_data_are_the_rows(result):
    """Curves, losses over the rate, values at the end, differences."""
    curves, rates, ends, differences = (each["rows"] for each in data_of((result.folder / "report.html").read_text()))
    final = result.runs.filter(pl.col("role") == "final")
    assert len(curves) == len(final) == 3 * 6 * 4
    assert {round(row["train_loss"], 9) for row in curves} == {float(f"{x:.5g}") for x in final["train_loss"]}
    assert {(row["variant"], row["lr"]) for row in rates if row["chosen"]} == {
        (s.name, float(f"{s.lr:.5g}")) for s in result.summaries
    }
    assert len(rates) == 3 * 3
    assert len(ends) == 3 * 6
    assert [row["mean"] for row in differences if row["measure"] == "train_loss"] == [
        float(f"{s.train_difference.mean:.5g}") for s in result.summaries[1:]
    ]


def compile_charts(result, every):
    vega = pytest.importorskip("vl_convert")
    for each in data_of((result.folder / "report.html").read_text()):
        chart = charts.Chart("", "", **each["chart"])
        for spec in list(chart.filled())[: None if every else 1]:
            svg = vega.vegalite_to_svg(spec | {"datasets": {"table": each["rows"]}})
            shown = re.sub(r"<[^>]+>", "\n", svg)
            assert "sgd" in shown
            assert "$" not in shown.replace("$x_1$", "")
            assert svg.count("<path") >= 10


def test_charts_are_drawn_by_vega(result):
    compile_charts(result, every=False)


@pytest.mark.slow
def test_every_choice_is_drawn_by_vega(result):
    compile_charts(result, every=True)


@pytest.mark.slow
def test_in_a_browser(result):
    """All charts are there, and the console is silent."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("needs a browser")
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000", "--enable-logging=stderr"]
    page = (result.folder / "report.html").resolve().as_uri()
    run = subprocess.run([*command, "--dump-dom", page], capture_output=True, text=True, timeout=120)
    assert run.stdout.count('class="marks"') == 4
    assert run.stdout.count("<select") == 4 + 2 + 2 + 1
    assert "CONSOLE" not in run.stderr


def test_a_page_while_runs_are_made(tmp_path):
    """It is there with the first report of progress, reloads itself, and shows the runs so far; the last one does not reload."""
    seen = []

    def look(done, total, what):
        text = (tmp_path / "report.html").read_text() if (tmp_path / "report.html").exists() else ""
        seen.append(('http-equiv="refresh"' in text, f"of {total} runs; this page reloads itself" in text))

    sandbox.compare(["sgd", "adamw"], "quadratic", out=tmp_path, progress=look, **OPTIONS)
    assert (True, True) in seen
    assert 'http-equiv="refresh"' not in (tmp_path / "report.html").read_text()


def test_a_folder_gives_the_comparison_again(result):
    again = sandbox.load(result.folder)
    assert str(again) == str(result)
    assert again.summaries == result.summaries
    assert again.runs.equals(result.runs)
    assert tables.checklist(again) == tables.checklist(result)
    assert not again.interrupted
    assert again.plot().axes
    before = data_of((result.folder / "report.html").read_text())
    again.save(result.folder)
    assert data_of((result.folder / "report.html").read_text()) == before


def test_an_interrupted_comparison(tmp_path, capsys):
    """What is there is shown: here two variants of three."""

    def stop(done, total, what):
        if what == "training with fresh seeds" and done >= total - 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sandbox.compare(["sgd", "adamw", "apollo"], "quadratic", out=tmp_path, progress=stop, vectorised=False, **OPTIONS)
    part = sandbox.load(tmp_path)
    assert part.interrupted
    assert [s.name for s in part.summaries] == ["sgd", "adamw"]
    assert cli.main(["report", str(tmp_path)]) == 0
    assert "Interrupted: final runs are missing" in capsys.readouterr().out
    whole = sandbox.compare(["sgd", "adamw", "apollo"], "quadratic", out=tmp_path, vectorised=False, **OPTIONS)
    ends = [[(s.name, s.lr, s.train_loss, s.test_metric) for s in each.summaries[:2]] for each in (part, whole)]
    assert ends[0] == ends[1]
    assert str(sandbox.load(tmp_path)) == str(whole)


def test_what_is_no_comparison(tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no comparison"):
        sandbox.load(tmp_path)
    assert cli.main(["report", str(tmp_path / "nowhere")]) == 2
    sandbox.compare(["sgd", "adamw"], "quadratic", out=tmp_path, **OPTIONS)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    del manifest["defaults"]
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match="older version: its manifest lacks 'defaults'"):
        sandbox.load(tmp_path)


def test_a_handicapped_baseline_is_flagged(tmp_path):
    """AdamW at a fixed weight decay, its best rate on the edge of the grid; an even comparison has neither."""
    slow = variants.get("adamw").replace(**{"lr": 1e-7, "decay.weight_decay": 0.3}, name="adamw")
    unfair = sandbox.compare(["sgd", slow], "quadratic", out=tmp_path / "1", **OPTIONS)
    lines = {what: (answer, why) for what, answer, why in tables.checklist(unfair)[1]}
    assert lines["every chosen rate inside its range"] == ("NO", "on an edge: adamw")
    assert lines["weight decay tuned where there is one"] == ("NO", "fixed: adamw (0.3)")
    assert lines["every variant tuned over as many trials"] == ("yes", "sgd 3, adamw 3")
    assert lines["enough seeds"][0] == "yes"
    wide = OPTIONS | {"rates": 9}
    fair = sandbox.compare(["sgd", "apollo"], "quadratic", out=tmp_path / "2", schedule="cosine", **wide)
    lines = {what: answer for what, answer, _ in tables.checklist(fair)[1]}
    assert lines["weight decay tuned where there is one"] == "yes"
    assert lines["a schedule tied to the length, rates tuned for it"] == "yes"
    page = (tmp_path / "1" / "report.html").read_text()
    assert "fixed: adamw (0.3)" in page


def test_a_table_for_a_paper(result, capsys):
    assert cli.main(["report", str(result.folder), "--latex"]) == 0
    text = capsys.readouterr().out
    assert text == (result.folder / "table.tex").read_text()
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert {line.count(" & ") for line in rows} == {8, 4}
    assert r"\$x\_1\$" in text
    assert r"100.0 \%" in text or r" \%" in text
    for name in ("curves.svg", "rates.svg"):
        assert (result.folder / name).exists()

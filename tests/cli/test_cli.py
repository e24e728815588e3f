"""The command line as a user sees it."""

import os
import re
import subprocess
import sys

import pytest

import variants
from sandbox import cli, tasks
from sandbox.cli import screen
from sandbox.forms import toml


def run(*arguments, **options):
    return subprocess.run([sys.executable, "-m", "sandbox", *arguments], capture_output=True, text=True, **options)


@pytest.mark.parametrize("command", [[], ["compare"], ["variants"], ["show"], ["tasks"], ["check"], ["curvature"]])
def test_help_teaches_without_loading_torch(command):
    code = f"import sys; sys.argv = ['apollo-sandbox', *{command!r}, '--help']\nfrom sandbox import cli\ntry: cli.main()\n"
    code += "except SystemExit: pass\nassert not {'torch', 'numpy', 'polars'} & set(sys.modules), 'heavy'"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "usage: apollo-sandbox" in found.stdout
    if command in ([], ["compare"], ["show"]):
        assert "apollo-sandbox compare apollo" in found.stdout


def test_lists(capsys):
    assert cli.main(["variants"]) == 0
    out = capsys.readouterr().out
    assert all(re.search(rf"^\s*{name}( |$)", out, re.MULTILINE) for name in variants.names())
    assert cli.main(["tasks"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in tasks.names())


def test_show(capsys):
    assert cli.main(["show", "monotone"]) == 0
    out = capsys.readouterr().out
    assert "the repair of Theorem 2" in out
    assert "Λ = 4" in out
    assert cli.main(["show", "apollow", "--toml"]) == 0
    assert toml.loads(capsys.readouterr().out) == variants.get("apollow")
    assert cli.main(["show", "tests.outside_blocks:recipe"]) == 0
    assert "D = |B| + σ" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["show", "apolo"], "did you mean 'apollo'?"),
        (["show", "missing.toml"], "no recipe file 'missing.toml'"),
        (["show", "tests.outside_blocks:nothing"], "cannot import 'tests.outside_blocks:nothing'"),
        (["show", "tests.outside_blocks:__name__"], "is a str, not a Recipe"),
        (["compare"], "name at least one variant"),
        (["compare", "apollo", "--task", "digits"], "unknown task 'digits'"),
        (["compare", "apollo", "--seeds", "1"], "seeds must be at least 2, got 1"),
        (["curvature"], "name at least one variant"),
        (["curvature", "apollo", "--method", "exat"], "did you mean 'exact'"),
        (["curvature", "apolo"], "did you mean 'apollo'?"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(arguments, says, capsys):
    assert cli.main(arguments) == 2
    err = capsys.readouterr().err
    assert says in err
    assert len(err.strip().splitlines()) == 1


def test_compare_from_a_shell(tmp_path, capsys):
    (tmp_path / "mine.toml").write_text(toml.dumps(variants.get("apollo").replace(**{"rectifier.sigma": 0.1}, name="mine")))
    small = ["--seeds", "2", "--tuning-seeds", "1", "--rates", "3", "--steps", "20", "--task", "logistic-breast-cancer"]
    small += ["--jobs", "1", "--out", str(tmp_path / "r")]
    command = ["compare", "apollo", str(tmp_path / "mine.toml"), "tests.outside_blocks:recipe", *small]
    found = run(*command)
    assert found.returncode == 0, found.stderr
    for said in ("apollo", "mine", "outside", "Exploratory: 2 seeds", "Written to"):
        assert said in found.stdout
    assert "runs" in found.stderr
    assert cli.main(command) == 0
    again = capsys.readouterr()
    assert again.out == found.stdout
    assert "27 of 27 runs" in again.err
    with pytest.raises(SystemExit) as ended:
        cli.main(["compare", "apollo", "--sedes", "3"])
    assert ended.value.code == 2


def test_narrow_terminals_lose_no_digit(capsys):
    from rich.console import Console

    head = ["variant", "lr", "final loss", "best validation loss", "test accuracy", "diverged"]
    screen.table(Console(width=60), head, [["scale-invariant", "0.00316", "0.0123456", "0.0123456", "0.9731", "0 of 10"]])
    out = capsys.readouterr().out
    assert "…" not in out
    for value in ("scale-invariant", "0.00316", "0.0123456", "0.9731"):
        assert value in out


def test_files_in_the_way_and_broken_modules(tmp_path, monkeypatch, capsys):
    (tmp_path / "taken").write_text("")
    small = ["--seeds", "2", "--tuning-seeds", "1", "--rates", "1", "--steps", "5", "--task", "quadratic"]
    assert cli.main(["compare", "sgd", *small, "--out", str(tmp_path / "taken")]) == 2
    (tmp_path / "broken_module.py").write_text("def recipe(:\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert cli.main(["show", "broken_module:recipe"]) == 2
    err = capsys.readouterr().err
    assert "SyntaxError" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "command",
    [
        ["check", "regret"],
        ["check", "adversary", "--minutes", "60"],
        ["check", "all"],
        ["compare", "sgd"],
        ["sweep", "sgd", "--vary", "lr=0.1,0.2"],
        ["curvature", "apollo"],
    ],
    ids=" ".join,
)
def test_a_file_in_place_of_the_folder_is_said_before_the_work(command, tmp_path, monkeypatch, capsys):
    def work(*arguments, **options):
        pytest.fail("work was begun")

    for name in (
        "theory_checks.record",
        "theory_checks.search.adversary.search",
        "theory_checks.proofs.counterexamples.all_cases",
    ):
        monkeypatch.setattr(name, work)
    for name in (
        "sandbox.experiments.compare.compare",
        "sandbox.experiments.sweep.sweep",
        "sandbox.experiments.inspect.inspect",
    ):
        monkeypatch.setattr(name, work)
    (tmp_path / "taken").write_text("")
    for out in (tmp_path / "taken", tmp_path / "taken" / "inside"):
        assert cli.main([*command, "--out", str(out)]) == 2
        assert f"out must be a folder, {out} is a file or lies in one" in capsys.readouterr().err


def test_check_counterexamples(capsys):
    assert cli.main(["check", "counterexamples"]) == 0
    out = capsys.readouterr().out
    for name in ("CE1", "CE2", "CE3"):
        assert name in out
    assert "not refuted" not in out


def test_check_regret(tmp_path, capsys):
    arguments = ["--recipe", "monotone", "--problem", "cycle-box", "--steps", "200", "--eta", "0.38", "--out", str(tmp_path)]
    assert cli.main(["check", "regret", *arguments]) == 0
    out = capsys.readouterr().out
    assert "repaired 1" in out
    assert (tmp_path / "regret-monotone-cycle-box.png").read_bytes()[:4] == b"\x89PNG"
    assert "assumptions" in (tmp_path / "regret-monotone-cycle-box.json").read_text()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["regrets"], "Available subcommands: counterexamples, regret"),
        (["all", "--steps", "3"], "--steps (applied to apollo-sandbox check all)"),
        (["counterexamples", "--out", "/nowhere"], "--out (applied to apollo-sandbox check counterexamples)"),
        (["coupling", "--out", "/nowhere"], "--out (applied to apollo-sandbox check coupling)"),
        (["adversary", "--problem", "cycle"], "--problem (applied to apollo-sandbox check adversary)"),
    ],
)
def test_what_a_check_does_not_use_is_refused(arguments, says, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["check", *arguments])
    assert ended.value.code == 2
    assert says in " ".join(capsys.readouterr().err.replace("│", "").split())


def test_check_scale_invariance(capsys):
    """1 where the recipe that should be invariant is not; 0 where nothing says that it should be."""
    small = ["check", "scale-invariance", "--problem", "random-quadratic", "--steps", "20", "--recipe"]
    assert cli.main([*small, "scale-invariant"]) == 0
    assert cli.main([*small, "apollo"]) == 0
    assert "NO  θ_t the same on both sides" in capsys.readouterr().out
    assert cli.main([*small, "tests.outside_blocks:broken_promise"]) == 1


@pytest.mark.slow
def test_check_all(tmp_path, capsys):
    """Everything within minutes, and exit code 0: the paper's statements are refuted, the repaired ones kept."""
    assert cli.main(["check", "all", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "coupling of apollow on ridge-diabetes, c = 4, ε and γ as stated" in out
    assert "scale invariance of scale-invariant" in out
    assert len(list(tmp_path.glob("*.json"))) == 6


def test_curvature(tmp_path, capsys):
    small = [
        "--task",
        "logistic-breast-cancer",
        "--steps",
        "6",
        "--samples",
        "2",
        "--seeds",
        "2",
        "--jobs",
        "1",
        "--out",
        str(tmp_path),
    ]
    assert cli.main(["curvature", "apollo", "adahessian", "sgd", *small]) == 0
    out = capsys.readouterr()
    for said in ("B/η", "√B", "No estimate of the Hessian in sgd", "all 341 rows of the training split, exact", "Written to"):
        assert said in out.out
    assert "6 of 6 runs" in out.err
    assert (tmp_path / "scatter.png").read_bytes()[:4] == b"\x89PNG"


def test_lines_of_progress_begin_again_with_each_part(capsys):
    """Where there is no terminal: a line a tenth of each part, and never a time that is negative."""
    with screen.progress(screen.console(), "runs") as say:
        for what, total in (("one", 4), ("two", 2)):
            for done in range(total + 1):
                say(done, total, what)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(",")[0] for line in lines] == [f"one: {k} of 4 runs" for k in range(5)] + [
        f"two: {k} of 2 runs" for k in range(3)
    ]
    assert "-" not in "".join(lines)


def test_curvature_without_an_estimate(tmp_path, capsys):
    """Said before anything is trained."""
    assert cli.main(["curvature", "sgd", "adamw", "--task", "quadratic", "--out", str(tmp_path / "none")]) == 2
    error = capsys.readouterr().err
    assert "no estimate of the Hessian in sgd, adamw" in error
    assert "estimate(self, B, x)" in error
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("command", [["compare", "--help"], ["variants"]])
def test_a_reader_that_goes_away_is_no_error(command):
    """As in `apollo-sandbox variants | head`: no traceback."""
    reader, writer = os.pipe()
    os.close(reader)
    found = subprocess.run(
        [sys.executable, "-c", "from sandbox.cli import run; run()", *command], stdout=writer, stderr=subprocess.PIPE, text=True
    )
    os.close(writer)
    assert "Traceback" not in found.stderr
    assert found.returncode != 0

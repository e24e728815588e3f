"""A recipe is found by its name wherever one works, whatever folders lie there."""

import os
import subprocess
import sys
import types

import pytest

import variants
from sandbox.forms import lookup

# In a folder of one's own, as the installed command and as `python -m sandbox` (which puts the folder first on the path).
COMMANDS = """
import sys
sys.path[:] = [*{first}, *sys.path[1:], {home!r}]
from sandbox import cli
codes = [cli.main(["show", "apollo"]), cli.main(["show", "nothing"]), cli.main(["show", "tests.mine:recipe"])]
assert cli.main(["check", "regret", "--steps", "3", "--out", "out"]) == 0
assert codes == [0, 2, 0], codes
"""


@pytest.mark.parametrize(
    "first", [pytest.param([], id="installed command", marks=pytest.mark.slow), pytest.param([""], id="python -m")]
)
def test_folders_called_like_ours(first, tmp_path):
    for name, text in (("variants", "1 / 0"), ("theory_checks", "1 / 0"), ("tests", "")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(text)
    (tmp_path / "tests" / "mine.py").write_text("from sandbox.recipe import Recipe\nrecipe = Recipe(name='of my own')\n")
    at = [sys.executable, "-c", COMMANDS.format(first=first, home=str(lookup.HOME))]
    found = subprocess.run(at, cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ""})
    assert found.returncode == 0, found.stderr
    assert "of my own" in found.stdout


def test_another_variants_imported_before_is_named(tmp_path, monkeypatch):
    other = types.ModuleType("variants")
    other.__file__ = str(tmp_path / "variants.py")
    monkeypatch.setitem(sys.modules, "variants", other)
    with pytest.raises(ImportError, match=r"'variants' was imported from .*variants\.py, which hides .*; rename the former"):
        lookup.recipe("apollo")


def test_another_sandbox_is_refused(tmp_path, monkeypatch):
    (tmp_path / "sandbox").mkdir()
    monkeypatch.chdir(tmp_path)
    assert lookup.recipe("apollo") == variants.get("apollo")
    with pytest.raises(ImportError, match="contains another 'sandbox'"):
        lookup.recipe("mine:recipe")


def test_a_folder_that_another_module_hides_is_named(tmp_path, monkeypatch):
    (tmp_path / "tests").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"'tests' is the one in .*, not the folder"):
        lookup.recipe("tests.mine:recipe")


def test_a_file_and_a_toml_beside_its_module(tmp_path, monkeypatch):
    """From another folder: "file.py:attribute", and a TOML whose block lies in a module beside it."""
    monkeypatch.syspath_prepend(tmp_path)  # what is added to the path goes with it
    folder, elsewhere = tmp_path / "a", tmp_path / "b"
    folder.mkdir()
    elsewhere.mkdir()
    text = "from sandbox.blocks import Rectifier, block\nimport variants\n@block\nclass Plain(Rectifier):\n    'D = B'\n"
    (folder / "blocks_of_mine.py").write_text(
        text + "recipe = variants.get('apollo').replace(rectifier=Plain(), name='mine')\n"
    )
    (folder / "mine.toml").write_text('name = "told"\n[rectifier]\nblock = "blocks_of_mine:Plain"\n')
    monkeypatch.chdir(elsewhere)
    assert lookup.recipe("../a/mine.toml").name == "told"
    assert lookup.recipe("../a/blocks_of_mine.py:recipe").name == "mine"
    with pytest.raises(FileNotFoundError, match=r"no file 'nowhere\.py'"):
        lookup.recipe("nowhere.py:recipe")

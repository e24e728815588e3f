"""The site builds without a warning, shows every public name, and opens in a browser without an error on its console."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import sandbox
from sandbox import blocks

DOCS = Path(__file__).parents[2] / "docs"


def test_the_picture_of_the_house_has_no_circle(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    import rooms

    graph = rooms.arrows(DOCS.parent)
    heights = rooms.levels(graph)
    assert heights["blocks"] < heights["recipe"] < heights["backends"] < heights["optimizer"] < heights["experiments"]
    assert all(targets <= graph[source] for source, targets in rooms.reduced(graph).items())
    with pytest.raises(ValueError, match=r"circle: \['a', 'b'\]"):
        rooms.levels({"a": {"b"}, "b": {"a"}, "c": set()})


@pytest.mark.slow
def test_the_site(tmp_path):
    pytest.importorskip("pydata_sphinx_theme")
    command = [sys.executable, "-m", "sphinx", "-W", "-q", "-b", "html", str(DOCS), str(tmp_path)]
    built = subprocess.run(command, capture_output=True, text=True, cwd=DOCS.parent, check=False)
    assert built.returncode == 0, built.stderr[-3000:]
    for module in (sandbox, blocks):
        page = (tmp_path / "reference" / "generated" / f"{module.__name__}.html").read_text()
        classes = [name for name in module.__all__ if isinstance(getattr(module, name), type)]
        assert [name for name in classes if f'id="{module.__name__}.{name}"' not in page] == []
    if browser := shutil.which("chromium"):
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom"]
        for page in ("index", "reference/generated/sandbox", "explanation/house"):
            seen = subprocess.run(
                [browser, *options, f"file://{tmp_path}/{page}.html"], capture_output=True, text=True, check=False
            )
            assert "apollo-sandbox" in seen.stdout
            assert [line for line in seen.stderr.splitlines() if "CONSOLE" in line and "Error" in line] == []

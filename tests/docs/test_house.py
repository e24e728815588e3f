"""The lives of a step and of a comparison, as the page of the house lists them, name files and functions that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/explanation/house.md").read_text()
# Where a name that the page gives without its folder stands.
ROOMS = ("sandbox", "sandbox/experiments", "sandbox/experiments/reports", "sandbox/optimizer", "sandbox/blocks")


def test_files_exist():
    paths = re.findall(r"`([\w/]+(?:\.py|/))`", PAGE)
    assert len(paths) >= 20
    missing = [path for path in paths if not any((ROOT / room / path).exists() for room in (".", *ROOMS))]
    assert missing == []


def test_functions_stand_in_the_file_of_their_line():
    steps = re.findall(r"^\d\. `(sandbox/[\w/]+\.py)`:(.*)", PAGE, re.MULTILINE)
    named = [(path, name.split(".")[-1]) for path, text in steps for name in re.findall(r"`([\w.]+)`", text)]
    named = [(path, name) for path, name in named if name != "py" and f"{name}.py" not in PAGE]
    assert len(named) >= 3
    assert [(p, n) for p, n in named if not re.search(rf"\bdef {n}\b", (ROOT / p).read_text())] == []

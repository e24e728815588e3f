"""What `sandbox.blocks` offers: its page lists every block by slot, old names stand for new ones, and users' blocks type-check."""

import dataclasses
import re
import subprocess
import sys

import pytest

from sandbox import blocks
from sandbox.forms import toml

USERS = """
from typing import Any

from torch import Tensor

from sandbox.blocks import ELEMENT, Curvature, Flow, Number, Rectifier, block, number

@block
class Halfway(Rectifier):
    "D = |B| + σ."
    sigma: Number = number(default=0.01, range="(0, inf)")

    def read(self, B: Tensor) -> Any:
        return B.abs() + self.sigma

@block
class Absolute(Curvature):
    "B ← |g| + |B|/2."
    state = {"B": ELEMENT}

    def update(self, x: Flow, *, B: Tensor) -> dict[str, Tensor]:
        return {"B": x.g.abs() + B / 2}
"""


def listed():
    slot, names = "", {}
    for line in blocks.__doc__.splitlines():
        if match := re.match(r"(\w+) {2,}(.*)", line):
            slot, line = match.groups()
        if slot and line.strip():
            names.setdefault(slot, set()).update(re.findall(r"\b[A-Z]\w+", line))
        slot = slot if line.strip() else ""
    return names


def test_the_page_lists_every_block_by_slot():
    values = [(name, getattr(blocks, name)) for name in blocks.__all__]
    every = [(name, value) for name, value in values if isinstance(value, type) and dataclasses.is_dataclass(value)]
    slots = {slot for _, value in every for slot in value.slots}
    assert listed() == {slot: {name for name, value in every if slot in value.slots} for slot in slots}


def test_old_names_stand_for_new_ones():
    assert blocks.GivenFactors is blocks.KroneckerFactors
    text = toml.dumps(toml.loads('name = "old"\n[curvature]\nblock = "CoverOfSquares"\n'))
    assert 'block = "SM3"' in text
    with pytest.raises(AttributeError, match="Nothing"):
        _ = blocks.Nothing


@pytest.mark.slow
def test_users_blocks_type_check(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(USERS)
    ran = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", str(file)], capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stdout

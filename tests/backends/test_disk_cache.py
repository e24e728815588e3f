"""Compiled steps kept on disk: another process finds them, and only what is the same step and still right."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import sandbox
import variants
from sandbox.backends.inductor import kernels
from sandbox.backends.inductor.disk_cache import path_of
from tests.outside_blocks import Halfway

STEP = """
import sys, torch, sandbox
p = torch.linspace(-1, 1, 700).requires_grad_()
optimizer = sandbox.Optimizer([p], sys.argv[1], lr=0.1, backend="compiled")
for _ in range(3):
    p.grad = 3 * p.detach() + 1
    optimizer.step()
print(p.tolist(), "torch._inductor" in sys.modules)
"""


def entries(folder):
    return sorted(Path(folder, "apollo-sandbox").glob("*.json"))


def steps(recipe="adamw"):
    """Three steps, compiled and in the reference form."""
    found = []
    for backend in ("compiled", "reference"):
        p = torch.linspace(-1, 1, 700, dtype=torch.float64).requires_grad_()
        optimizer = sandbox.Optimizer([p], recipe, lr=0.1, backend=backend)
        for _ in range(3):
            p.grad = 3 * p.detach() + 1
            optimizer.step()
        found.append(p.detach())
    return found


def assert_right():
    mine, right = steps()
    torch.testing.assert_close(mine, right, rtol=1e-11, atol=1e-13)  # sums in another order


def test_another_process_does_without_inductor(tmp_path):
    """The first compiles and keeps, the second makes the same steps, to the bit, and never imports Inductor."""
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", STEP, "adamw"]
    said = [subprocess.run(command, capture_output=True, text=True, env=environment, check=True).stdout for _ in range(2)]
    (first, compiles), (second, compiles_again) = (text.rsplit(maxsplit=1) for text in said)
    assert first == second
    assert (compiles, compiles_again) == ("True", "False")


def test_a_damaged_entry_is_made_again(own_cache, tmp_path):
    """Another step's code in its place, a library that is gone, half a file: noticed, and right all the same."""
    steps("sgd")
    (other,) = entries(tmp_path)
    steps()
    (mine,) = set(entries(tmp_path)) - {other}
    whole = mine.read_text()
    gone = json.loads(whole)
    gone["parts"][0][1] = {name: path + ".gone" for name, path in gone["parts"][0][1].items()}
    for damage in (other.read_text(), json.dumps(gone), whole[:-20]):
        kernels._COMPILED.clear()
        mine.write_text(damage)
        assert_right()
        assert mine.read_text() == whole


@pytest.mark.usefixtures("own_cache")
def test_nobody_needs_a_place_to_keep_it(tmp_path):
    (tmp_path / "apollo-sandbox").write_text("a file where the folder would be")
    assert_right()


@pytest.mark.usefixtures("own_cache")
def test_what_tells_steps_apart(monkeypatch):
    """The code of a block, the number of threads and the layout do; the values of hyperparameters do not."""
    recipe = variants.get("apollo").replace(rectifier=Halfway())
    steps(recipe)
    (key,) = kernels._COMPILED
    kept = path_of(recipe, key[0], step_only=True, phased=False)
    assert kept == path_of(recipe.replace(rectifier=Halfway(sigma=0.3)), key[0], step_only=True, phased=False)
    assert kept != path_of(recipe, key[0], step_only=False, phased=False)
    with monkeypatch.context() as patched:
        patched.setattr(torch, "get_num_threads", lambda: 99)
        assert kept != path_of(recipe, key[0], step_only=True, phased=False)
    monkeypatch.setattr(Halfway, "read", lambda self, B: B.abs() + 2 * self.sigma)
    assert kept != path_of(recipe, key[0], step_only=True, phased=False)

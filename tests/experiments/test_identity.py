"""A result on disk is only taken for a run that would give it again: what makes another identity, and what does not."""

import functools
import importlib
import importlib.machinery
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

import variants
from sandbox import tasks
from sandbox.experiments.compare import compare
from sandbox.experiments.runs import identity
from sandbox.experiments.runs.methods import method
from tests import outside_blocks

QUADRATIC = tasks.get("quadratic")


def code(recipe, task=QUADRATIC):
    return identity.fingerprint([method(recipe).parts(), task])


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Imports modules from their texts, anew each time, under the same names."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def written(**texts):
        for name in texts:
            sys.modules.pop(name, None)
        for name, text in texts.items():
            (tmp_path / f"{name}.py").write_text(text)
        importlib.invalidate_caches()
        return importlib.import_module(next(iter(texts)))

    yield written
    for name in ("edited_recipe", "edited_base", "edited_task", "edited_helpers"):
        sys.modules.pop(name, None)


BASE = """
from sandbox.blocks import Number, Rectifier, number
class Base(Rectifier):
    def read(self, B):
        return B.abs() + {factor} * self.sigma
"""
RECIPE = """
from sandbox.blocks import Number, block, number
from sandbox.recipe import Recipe
from edited_base import Base
@block
class Edited(Base):
    '''D = |B| + σ.'''
    sigma: Number = number(default=0.1, range='(0, inf)')
def recipe():
    return Recipe(name='edited', rectifier=Edited())
"""


def test_the_base_class_of_a_block_in_another_module(write):
    found = [code(write(edited_recipe=RECIPE, edited_base=BASE.format(factor=f)).recipe()) for f in (1, 10, 1)]
    assert found[0] == found[2] != found[1]


def test_comments_and_docstrings_do_not_count(write):
    """Nor do lines that move."""
    first = code(write(edited_recipe=RECIPE, edited_base=BASE.format(factor=1)).recipe())
    remarked = RECIPE.replace("'''D = |B| + σ.'''", "'''Something else.'''\n    # and a comment\n")
    assert code(write(edited_recipe="'''A module.'''\n\n" + remarked, edited_base=BASE.format(factor=1)).recipe()) == first
    assert code(write(edited_recipe=RECIPE.replace("0.1", "0.2"), edited_base=BASE.format(factor=1)).recipe()) != first


def test_a_number_that_is_a_function(write):
    def of(factor, helper=1):
        text = f"from edited_helpers import half\ndef beta(t):\n    return {factor} * half(t)\n"
        made = write(edited_recipe=text, edited_helpers=f"def half(t):\n    return {helper} / 2\n")
        return variants.get("apollo").replace(**{"moment.beta": made.beta}, name="x")

    codes = [code(of(*args)) for args in ((0.5,), (0.9,), (0.5, 0.5), (0.5,))]
    assert codes[0] == codes[3]
    assert len(set(codes)) == 3
    assert code(of(0.5).replace(name="another name")) == codes[0]


def test_what_a_task_holds(write):
    """Functions, lambdas of one file, what they have closed over, networks and their buffers, arrays."""
    text = "def f(x):\n    return {factor} * x\ng, h = (lambda x: f(x)), (lambda x: f(x) + 1)\ndef held(a):\n    return lambda x: a * x\n"
    quadratic = tasks.get("quadratic")
    found = []
    for factor in (1, 2, 1):
        made = write(edited_task=text.format(factor=factor))
        for held in (made.f, made.g, made.h, [made.f], made.held(1), made.held(2), functools.partial(made.f, 3)):
            quadratic.held = held
            found.append(identity.fingerprint(quadratic))
    assert found[:7] == found[14:]
    assert len(set(found)) == 14
    found = []
    for seed, rate in ((0, 0.0), (1, 0.0), (0, 0.5), (0, 0.0)):
        torch.manual_seed(seed)
        quadratic.held = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3), torch.nn.Dropout(rate))
        found.append(identity.fingerprint(quadratic))
    quadratic.held[1].running_mean += 1
    assert found[0] == found[3]
    assert len({*found, identity.fingerprint(quadratic)}) == 4


def test_values():
    """Equal values are equal, others are not, also where their elements come to the same texts."""
    values = [
        [1, [2]], [1, 2], (1, 2), ["1", "2"], {"a": 1}, {1, 2}, {1, 3}, None, 1.0, True, "1", b"1", np.float64(1), np.arange(2.0),
        torch.zeros(2), torch.zeros(2, 1), torch.zeros((), dtype=torch.bfloat16), torch.ones(()), np.random.default_rng(0),
        np.random.default_rng(1), torch.nn.functional.relu, torch.nn.functional.silu, torch.relu, len, range(3), outside_blocks,
    ]  # fmt: skip
    once, again = ([identity.fingerprint(v) for v in values] for _ in range(2))
    assert once == again
    assert len(set(once)) == len(values)


def test_what_cannot_be_told_is_never_taken_for_the_same():
    quadratic = tasks.get("quadratic")
    for held in (threading.Lock(), (i for i in range(3))):
        quadratic.held = held
        assert identity.fingerprint(quadratic) != identity.fingerprint(quadratic)


def test_a_notebooks_code_is_reused_only_when_asked():
    space = {"__name__": "__main__", "Task": tasks.PureTask}
    exec("class Mine(Task):\n    name = 'mine'\n", space)
    task = space["Mine"]()
    assert identity.fingerprint(task) != identity.fingerprint(task)
    assert identity.fingerprint(task, reuse=True) == identity.fingerprint(task, reuse=True)


def test_probes_of_ones_own(write, tmp_path):
    text = "def length(v):\n    return {factor} * v.d.norm()\n"
    options = dict(seeds=2, rates=1, steps=4, evaluations=2, vectorised=False, every=2, out=tmp_path / "out")
    means = []
    for factor in (1, 100):
        probe = write(edited_task=text.format(factor=factor)).length
        means.append(compare(["sgd"], "quadratic", probes=[probe], **options).probes["value"].mean())
    assert means[1] == pytest.approx(100 * means[0])


def test_a_block_that_was_edited_is_another_run(write, tmp_path):
    losses = []
    for factor in (1, 10):
        recipe = write(edited_recipe=RECIPE, edited_base=BASE.format(factor=factor)).recipe()
        found = compare([recipe], "quadratic", seeds=2, rates=1, steps=20, vectorised=False, out=tmp_path / "out")
        losses.append(found.summaries[0].train_loss)
    assert losses[0] != losses[1]


def test_a_compiled_extension_counts_by_its_bytes(write, tmp_path):
    """In place beside a user's module; it is not imported for that, and it is no Python source."""
    extension = tmp_path / f"edited_helpers{importlib.machinery.EXTENSION_SUFFIXES[0]}"
    texts = {"edited_recipe": RECIPE + "def later():\n    import edited_helpers\n", "edited_base": BASE.format(factor=1)}
    codes = []
    for content in (b"\x7fELF\0\x01", b"\x7fELF\0\x02", b"\x7fELF\0\x01"):
        extension.write_bytes(content)
        codes.append(code(write(**texts).recipe()))
    assert codes[0] == codes[2] != codes[1]


def test_the_same_in_every_process():
    """Also where Python orders sets otherwise, and without bytecode from disk."""
    text = (
        "import variants, tests.outside_blocks as outside\nfrom sandbox import tasks\nfrom sandbox.experiments.runs import identity\n"
        "recipe = variants.get('apollo').replace(rectifier=outside.Halfway(), name='x')\n"
        "found = identity.fingerprint([tasks.get('digits-mlp'), recipe, {'a', 'b', 'c', 'd', len}]), identity.package()\n"
    )
    here = {}
    exec(text, here)
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    command, environment = [sys.executable, "-B", "-c", text + "print(*found)"], {**os.environ, "PYTHONHASHSEED": seed}
    there = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    assert there.split() == list(here["found"])


def test_it_is_cheap(monkeypatch):
    """The package's own files are read once in a process, whatever the number of recipes."""
    identity.package()
    monkeypatch.setattr(identity.Path, "rglob", lambda *arguments: pytest.fail("the package was read again"))
    for name in variants.names():
        identity.fingerprint([identity.package(), method(name).parts()])

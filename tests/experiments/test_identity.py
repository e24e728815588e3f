"""A result on disk is only taken for a run that would give it again: what makes another identity, and what does not."""

import importlib
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

import variants
from sandbox import tasks
from sandbox.comparison import compare
from sandbox.study import identity
from sandbox.tasks import Task
from tests import outside_blocks

QUADRATIC = tasks.get("quadratic")


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Imports a package of modules from their texts, anew each time, under the same names."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def written(**texts):
        for name in texts:
            sys.modules.pop(name, None)
        for name, text in texts.items():
            (tmp_path / f"{name}.py").write_text(text)
        importlib.invalidate_caches()
        identity._own.cache_clear()
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
    found = [
        identity.code(write(edited_recipe=RECIPE, edited_base=BASE.format(factor=f)).recipe(), QUADRATIC) for f in (1, 10, 1)
    ]
    assert found[0] == found[2] != found[1]


def test_a_number_that_is_a_function(write):
    def of(factor, helper=1):
        text = f"from edited_helpers import half\ndef beta(t):\n    return {factor} * half(t)\n"
        made = write(edited_recipe=text, edited_helpers=f"def half(t):\n    return {helper} / 2\n")
        return variants.get("apollo").replace(**{"moment.beta": made.beta}, name="x")

    codes = [identity.code(of(*args), QUADRATIC) for args in ((0.5,), (0.9,), (0.5, 0.5), (0.5,))]
    assert codes[0] == codes[3]
    assert len(set(codes)) == 3
    assert identity.code(of(0.5).replace(name="another name"), QUADRATIC) == codes[0]


def test_a_task_that_holds_a_function_or_a_module(write):
    text = "def f(x):\n    return {factor} * x\ng = lambda x: f(x)\n"
    quadratic = tasks.get("quadratic")
    found = []
    for factor in (1, 2, 1):
        made = write(edited_task=text.format(factor=factor))
        for held in (made.f, made.g, [made.f], lambda x, f=made.f: f(x)):
            quadratic.held = held
            found.append(identity.task(quadratic))
    assert found[:4] == found[8:]
    assert len(set(found)) == 8
    found = []
    for seed, rate in ((0, 0.0), (1, 0.0), (0, 0.5), (0, 0.0)):
        torch.manual_seed(seed)
        quadratic.held = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3), torch.nn.Dropout(rate))
        found.append(identity.task(quadratic))
    quadratic.held[1].running_mean += 1
    assert found[0] == found[3]
    assert len({*found, identity.task(quadratic)}) == 4


def test_values_that_a_task_holds():
    """Equal values are equal, others are not, also where their elements come to the same texts."""
    values = [
        [1, [2]], [1, 2], (1, 2), ["1", "2"], {"a": 1}, {1, 2}, {1, 3}, None, 1.0, True, "1", b"1", np.float64(1), np.arange(2.0),
        np.array([1, "a"], dtype=object), torch.zeros(2), torch.zeros(2, 1), torch.zeros((), dtype=torch.bfloat16), torch.ones(()),
        np.random.default_rng(0), np.random.default_rng(1), torch.nn.functional.relu, torch.nn.functional.silu, torch.relu, len,
        slice(1, 2), range(3), outside_blocks, [1.5].append, "x".join,
    ]  # fmt: skip
    once, again = ([identity._digest(v) for v in values] for _ in range(2))
    assert once == again
    assert len(set(once)) == len(values)
    assert identity._digest([1.0] * 10**6) == identity._digest([1.0] * 10**6)


def test_what_cannot_be_told_is_never_taken_for_the_same():
    quadratic = tasks.get("quadratic")
    for held in (threading.Lock(), (i for i in range(3)), sys.stdout):
        quadratic.held = held
        assert identity.task(quadratic) != identity.task(quadratic)


def test_a_task_from_a_notebook():
    """Its cells have no file: the bytecode of the class and what it refers to tell."""

    def cell(factor, scale):
        space = {"__name__": "__main__", "Task": Task}
        exec(
            f"scale = {scale}\ndef f(x):\n    return scale * x\nclass Mine(Task):\n    name = 'mine'\n"
            f"    def loss(self, params, batch):\n        return {factor} * f(params['x'])\n",
            space,
        )
        return space["Mine"]()

    codes = [identity.code(variants.get("sgd"), cell(*args)) for args in ((1, 1), (2, 1), (1, 2), (1, 1))]
    assert codes[0] == codes[3]
    assert len(set(codes)) == 3


def test_probes_of_ones_own(write, tmp_path):
    text = "def length(v):\n    return {factor} * v.d.norm()\n"
    options = dict(seeds=2, rates=1, steps=4, evaluations=2, vectorised=False, every=2, out=tmp_path / "out")
    means = []
    for factor in (1, 100):
        probe = write(edited_task=text.format(factor=factor)).length
        means.append(compare(["sgd"], "quadratic", probes=[probe], **options).probes["value"].mean())
    assert means[1] == pytest.approx(100 * means[0])
    assert identity.probe("floor_occupancy", identity.measures.ALL["floor_occupancy"]) == "floor_occupancy"


def test_the_same_in_every_process():
    """Also where Python orders sets otherwise, and with bytecode from disk or not."""
    code = (
        "import variants, tests.outside_blocks as outside\nfrom sandbox import tasks\nfrom sandbox.study import identity\n"
        "t = tasks.get('digits-mlp')\n"
        "recipe = variants.get('apollo').replace(rectifier=outside.Halfway(), name='x')\n"
        "print(identity.task(t), identity.code(recipe, t), identity._digest({'a', 'b', 'c', 'd', len}))"
    )
    found = [
        subprocess.run(
            [sys.executable, *more, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": s},
        ).stdout
        for s, more in (("1", []), ("2", ["-B"]))
    ]
    assert found[0] == found[1]


def test_it_is_cheap(monkeypatch):
    """The package's own files are read once in a process, whatever the number of recipes."""
    digits, recipes = tasks.get("digits-cnn"), [variants.get(n) for n in variants.names()]
    recipes.append(variants.get("apollo").replace(rectifier=outside_blocks.Halfway(), name="x"))
    identity.code(recipes[0], digits)
    monkeypatch.setattr(identity.Path, "glob", lambda *arguments: pytest.fail("the package was read again"))
    for recipe in recipes:
        identity.code(recipe, digits)
    identity.task(digits)

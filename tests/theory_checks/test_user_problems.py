"""A user's own problem, task and recipe, from files in an otherwise empty folder, by the command line."""

import json
import sys

import pytest
import torch

from sandbox import cli, tasks
from theory_checks import problems

MINE = """
import torch
from sandbox import tasks
from sandbox.blocks import EMA, AbsoluteFloor, Monotone
from sandbox.recipe import Recipe
from theory_checks import problems
import variants

rows = torch.randn(50, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
problem = problems.from_losses(lambda t, x: (rows[t % 50] @ x - 1).square(), start=[0.0, 0.0, 0.0], name="mine")
bumpy = problems.from_losses(lambda t, x: x.cos().sum(), start=[0.5], name="bumpy")
recipe = variants.get("monotone").with_hyperparameters({"rectifier.inner.sigma": 1.0, "moment.beta": 0.1})
number = 3
left = problems.from_losses(lambda t, x: (x - 1).square().sum(), start=[0.0])
right = problems.from_losses(lambda t, x: (x + 2).square().sum(), start=[0.0])
steep = problems.from_losses(lambda t, x: (x.pow(4) + (-x).exp()).sum(), start=[2.0])
plain = Recipe(rectifier=AbsoluteFloor(sigma=1.0))
number_loss = problems.from_losses(lambda t, x: 1.0, start=[0.0])


def task():
    return tasks.get("ridge-diabetes")
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    yield tmp_path
    sys.modules.pop("mine", None)


def check(problem, *more):
    return cli.main(["check", "regret", "--problem", problem, "--steps", "20", *more])


def test_a_problem_and_a_recipe(folder, capsys):
    assert check("mine.py:problem", "--recipe", "mine.py:recipe", "--eta", "0.1") == 0
    out = capsys.readouterr().out
    assert "regret of monotone on mine, T = 20" in out
    assert "yes f_t is convex between points of the run" in out
    assert json.loads((folder / "results/check/regret-monotone-mine.json").read_text())["measured"] > 0


def test_problems_and_recipes_without_a_name_have_files_of_their_own(folder, capsys):
    for problem in ("left", "right"):
        assert check(f"mine.py:{problem}", "--recipe", "mine.py:plain") == 0
        assert f"regret of mine.py:plain on mine.py:{problem}, T = 20" in capsys.readouterr().out
    titles = [json.loads(path.read_text())["title"] for path in (folder / "results/check").glob("*.json")]
    assert sorted(titles) == [f"regret of mine.py:plain on mine.py:{problem}, T = 20" for problem in ("left", "right")]


def test_a_coupling_that_ends_in_nan_does_not_pass(capsys):
    """A rate far too large: no θ is equal to another one that is not a number."""
    assert cli.main(["check", "coupling", "--problem", "mine.py:steep", "--steps", "20", "--eta", "1e3"]) == 1


def test_what_is_not_convex_is_said(capsys):
    assert check("mine.py:bumpy", "--eta", "0.3", "--recipe", "monotone") == 0
    out = capsys.readouterr().out
    assert "NO  f_t is convex" in out
    assert "verified" not in out


def test_a_task(capsys):
    """float32 data, checked in float64."""
    assert check("mine.py:task", "--eta", "0.02") == 0
    assert "regret of apollo on ridge-diabetes, T = 20" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("problem", "says"),
    [
        ("mine.py:problen", "unknown attribute 'problen'; did you mean 'problem'"),
        ("yours.py:problem", "no file 'yours.py'"),
        ("mine.py:number", "a problem is a theory_checks Problem"),
        ("no_such_module:x", "cannot import 'no_such_module:x': ModuleNotFoundError"),
        ("cycles", "unknown problem 'cycles'; did you mean 'cycle'"),
        ("mine.py:number_loss", "loss(t, θ) must return a 0-d float64 tensor, and loss(1, θ) is a float"),
    ],
)
def test_bad_names(problem, says, capsys):
    assert check(problem) == 2
    assert says in capsys.readouterr().err


class Module(tasks.Task):
    """A task whose loss takes (model, batch), applied to given parameters by `apply`; batches of two sizes, an epoch that ends."""

    name, about = "linear", "least squares by a module"

    def __init__(self):
        self.X = torch.randn(10, 2, generator=torch.Generator().manual_seed(1))
        self.model = torch.nn.Linear(2, 1)

    def init(self, seed):
        return {name: p.detach() for name, p in self.model.named_parameters()}

    def batches(self, seed):
        yield self.X[:7]
        yield self.X[7:]

    def loss(self, model, batch):
        return (model(batch) - batch[:, :1].square()).square().mean()

    def apply(self, function, params, batch):
        return function(lambda x: torch.func.functional_call(self.model, params, x), batch)


def test_a_task_of_a_module():
    """θ is all parameters as one vector, in float64; the comparator is least squares' own."""
    task = Module()
    problem = problems.get(task)
    assert problem.start.tolist() == [0.0, 0.0, 0.0]
    X = torch.cat([task.X.double(), torch.ones(10, 1, dtype=torch.float64)], dim=1)
    theta = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
    for t, rows in ((1, X[:7]), (2, X[7:]), (3, X[:7])):
        assert float(problem.loss(t, theta)) == pytest.approx(
            float((rows @ theta - rows[:, 0].square()).square().mean()), rel=1e-12
        )
    # the mean loss of two steps weighs each row by one over its batch's size
    weights = torch.tensor([1 / 7] * 7 + [1 / 3] * 3, dtype=torch.float64).sqrt()[:, None]
    best = torch.linalg.lstsq(weights * X, weights * X[:, :1].square()).solution[:, 0]
    assert problem.comparator(2, theta).theta.numpy() == pytest.approx(best.numpy(), abs=1e-7)

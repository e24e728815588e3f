"""TorchScript and torch.export: programs that run without the package."""

import subprocess
import sys
import textwrap

import pytest
import torch

import sandbox
import variants
from sandbox.backends.torchscript import exported
from sandbox.blocks import ClipGlobalNorm
from tests.problem import Torchs

pytestmark = pytest.mark.usefixtures("both_ways")

ELSEWHERE = """
import sys, torch
class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("sandbox", "variants"):
            raise ImportError("this process has no sandbox")
sys.meta_path.insert(0, Nothing())
program = torch.jit.load(sys.argv[1])
start, grads, expected = torch.load(sys.argv[2], weights_only=True)
params = [p.clone() for p in start]
state = program.init(params)
for step, row in enumerate(grads):
    program.step(params, row, state, 0.002 if step < 5 else 0.001)
torch.save((params, [dict(s) for s in state]), sys.argv[3])
assert "sandbox" not in sys.modules
"""


@pytest.mark.parametrize(
    "name",
    ["apollo", "channel-secant"]
    + [pytest.param(n, marks=pytest.mark.slow) for n in ("apollow", "global-secant", "scale-invariant", "radam")],
)
def test_a_script_runs_where_the_package_is_not(name, tmp_path):
    recipe = variants.get(name)
    if name == "apollo":
        recipe = recipe.replace(gradient=(ClipGlobalNorm(max_norm=1.0),))
    problem = Torchs(torch.float64)
    start = [p.detach().clone() for p in problem.params]
    draw = torch.Generator().manual_seed(5)
    grads = [[torch.randn(p.shape, generator=draw, dtype=torch.float64) for p in start] for _ in range(8)]
    for row in grads[2:4]:
        row[3] = None
    optimizer = sandbox.Optimizer(problem.params, recipe, lr=0.002)
    for step, row in enumerate(grads):
        if step == 5:
            optimizer.param_groups[0]["lr"] = 0.001
        for p, g in zip(problem.params, row, strict=True):
            p.grad = g
        optimizer.step()
    sandbox.script(recipe, tmp_path / "program.pt", dtype=torch.float64)
    torch.save((start, grads, None), tmp_path / "in.pt")
    (tmp_path / "elsewhere.py").write_text(textwrap.dedent(ELSEWHERE))
    command = [sys.executable, "elsewhere.py", "program.pt", "in.pt", "out.pt"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    params, state = torch.load(tmp_path / "out.pt", weights_only=True)
    for p, q, s in zip(problem.params, params, state, strict=True):
        torch.testing.assert_close(p.detach(), q, rtol=1e-10, atol=1e-12)
        assert s.keys() == optimizer.state[p].keys()


def test_what_cannot_be_scripted_says_why(tmp_path):
    """In a file t is a tensor; within the optimizer functions of t are evaluated on the host, and any will do."""
    import math

    from sandbox.blocks import EMA

    recipe = variants.get("apollo").replace(moment=EMA(beta=lambda t: 0.5 if math.sin(t) > 0 else 0.6, bias_correction=False))
    p = torch.ones(2, requires_grad=True)
    p.grad = torch.ones(2)
    with pytest.raises(ValueError, match=r"(?s)cannot be scripted: .*\nA function of t must accept t as a 0-d float64 tensor"):
        sandbox.script(recipe, tmp_path / "no.pt")
    sandbox.Optimizer([p], recipe, backend="scripted").step()


@pytest.mark.parametrize("name", ["apollo", "apollow", "scale-invariant", "adamw", "coordinate-secant"])
def test_export(name):
    """torch.export of the update, run on another size than it was made with."""
    recipe = variants.get(name)
    run = sandbox.export(recipe, torch.float64).module()
    theta, g = torch.randn(2, 37, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    p = theta.clone().requires_grad_()
    optimizer = sandbox.Optimizer([p], recipe, lr=0.002)
    state = [recipe.init(theta)[k].reshape(-1) for k in recipe.analysis.state_kinds]
    last = None
    for t in range(1, 6):
        numbers = exported.numbers(recipe, t, 0.002, last)
        run(numbers, theta, g * t, *state)
        last = numbers[-1 - len(recipe.analysis.recalled) :]
        p.grad = g * t
        optimizer.step()
        torch.testing.assert_close(theta, p.detach(), rtol=1e-11, atol=1e-13)
    with pytest.raises(ValueError, match="has no scope 'global'"):
        sandbox.export(variants.get("global-secant"))


@pytest.mark.parametrize("name", ["muon", pytest.param("shampoo", marks=pytest.mark.slow)])
def test_a_script_of_the_matrices_alone(name, tmp_path):
    """1e-10: eigenvectors of the same matrices by the same calls, sums in another order."""
    recipe = variants.get(name).matrices
    draw = torch.Generator().manual_seed(0)
    start = [torch.randn(shape, generator=draw, dtype=torch.float64) for shape in ((4, 3), (2, 5))]
    sandbox.script(recipe, tmp_path / "program.pt", dtype=torch.float64)
    program = torch.jit.load(tmp_path / "program.pt")
    params, theirs = [x.clone().requires_grad_() for x in start], [x.clone() for x in start]
    optimizer, state = sandbox.Optimizer(params, recipe, lr=0.01), program.init(theirs)
    for _ in range(4):
        grads = [torch.randn(x.shape, generator=draw, dtype=torch.float64) for x in start]
        program.step(theirs, grads, state, 0.01)
        for p, g in zip(params, grads, strict=True):
            p.grad = g
        optimizer.step()
    for p, q in zip(params, theirs, strict=True):
        torch.testing.assert_close(p.detach(), q, rtol=1e-10, atol=1e-10)
    with pytest.raises(torch.jit.Error, match="this script takes matrices alone"):
        program.init([torch.ones(3, dtype=torch.float64)])


def test_two_steps_are_no_program(tmp_path):
    with pytest.raises(ValueError, match=r"take recipe\.matrices and recipe\.for_vectors"):
        sandbox.script(variants.get("shampoo"), tmp_path / "no.pt")
    with pytest.raises(ValueError, match="takes factors of layers"):
        sandbox.script(variants.get("kfac").matrices, tmp_path / "no.pt")

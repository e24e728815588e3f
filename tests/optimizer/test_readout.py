"""`train()` and `eval()` of `sandbox.Optimizer`: exact copies, refused steps, checkpoints in either mode."""

import copy
import io
import pickle

import pytest
import torch

import sandbox
import variants
from tests.problem import Torchs

NAMES = ["schedule-free-adamw", "ema-adamw", "gpa-adamw"]


def made(name, dtype=torch.float32, **options):
    problem = Torchs(dtype)
    return problem, problem.params, sandbox.Optimizer(problem.params, name, lr=0.01, **options)


def go(problem, params, optimizer, steps):
    for step in steps:
        optimizer.zero_grad()
        problem.loss(step, params).backward()
        optimizer.step()


def values(params):
    return [p.detach().clone() for p in params]


def equal(one, two):
    return all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("backend", ["eager", "reference", "scripted"])
@pytest.mark.parametrize("name", NAMES)
def test_looking_changes_nothing(name, backend, dtype):
    """Bitwise: with a look after each step, twice over, the run is the one without."""
    problem, plain, optimizer = made(name, dtype, backend=backend)
    other, looked, watched = made(name, dtype, backend=backend)
    for step in range(6):
        go(problem, plain, optimizer, [step])
        go(other, looked, watched, [step])
        trained = values(looked)
        watched.eval()
        watched.eval()
        assert watched.evaluating
        assert not equal(looked, trained) or step == 0
        with pytest.raises(RuntimeError, match=r"train\(\)"):
            watched.step()
        watched.train()
        watched.train()
        assert not watched.evaluating
        assert equal(looked, trained)
        assert equal(plain, looked)


@pytest.mark.parametrize("name", [*NAMES, "apollo"])
def test_before_the_first_step_both_are_the_same(name):
    _, params, optimizer = made(name)
    start = values(params)
    optimizer.eval()
    assert equal(params, start)
    with pytest.raises(RuntimeError, match=r"train\(\)"):
        optimizer.step()
    optimizer.train()
    assert equal(params, start)


def test_a_parameter_without_a_step_stays():
    used, unused = torch.ones(3, requires_grad=True), torch.ones(2, requires_grad=True)
    optimizer = sandbox.Optimizer([used, unused], "ema-adamw", lr=0.1)
    used.grad = torch.ones(3)
    optimizer.step()
    optimizer.eval()
    assert torch.equal(unused, torch.ones(2))


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("name", NAMES)
def test_checkpoints_in_either_mode(name, mode):
    problem, params, optimizer = made(name)
    go(problem, params, optimizer, range(4))
    getattr(optimizer, mode)()
    file = io.BytesIO()
    torch.save({"optimizer": optimizer.state_dict(), "model": values(params)}, file)
    optimizer.train()
    go(problem, params, optimizer, range(4, 8))
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    other, resumed, second = made(name)
    go(other, resumed, second, range(1))
    second.eval()  # whatever mode it was in
    with torch.no_grad():
        for p, x in zip(resumed, saved["model"], strict=True):
            p.copy_(x)
    second.load_state_dict(saved["optimizer"])
    assert second.evaluating == (mode == "eval")
    second.train()
    go(other, resumed, second, range(4, 8))
    assert equal(params, resumed)
    optimizer.eval()
    second.eval()
    assert equal(params, resumed)


def test_a_checkpoint_without_the_weights_to_train_is_refused():
    """As frameworks make one that take only the states which the optimizer had in train mode."""
    problem, params, optimizer = made("schedule-free-adamw")
    go(problem, params, optimizer, range(2))
    optimizer.eval()
    saved = optimizer.state_dict()
    for state in saved["state"].values():
        state.pop("readout.train", None)
    before = {k: v.clone() for k, v in optimizer.state[params[0]].items()}
    with pytest.raises(ValueError, match=r"between eval\(\) and train\(\), and lacks the weights to train of parameter 0"):
        optimizer.load_state_dict(saved)
    assert all(torch.equal(v, optimizer.state[params[0]][k]) for k, v in before.items())


def test_a_checkpoint_from_before_there_were_modes_is_one_in_train_mode():
    _, _, optimizer = made("apollo")
    saved = optimizer.state_dict()
    for group in saved["param_groups"]:
        del group["evaluating"]
    optimizer.eval()
    optimizer.load_state_dict(saved)
    assert not optimizer.evaluating


def test_copies_keep_the_mode():
    problem, params, optimizer = made("schedule-free-adamw")
    go(problem, params, optimizer, range(3))
    trained = values(params)
    optimizer.eval()
    for twin in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        assert twin.evaluating
        twin.train()
        assert equal([p for g in twin.param_groups for p in g["params"]], trained)


def test_groups_join_in_train_mode():
    _, params, optimizer = made("ema-adamw")
    optimizer.eval()
    with pytest.raises(RuntimeError, match=r"train\(\)"):
        optimizer.add_param_group({"params": [torch.ones(2, requires_grad=True)]})


def test_the_pure_form_reads_out_what_the_optimizer_does():
    recipe = variants.get("schedule-free-adamw")
    problem, params, optimizer = made(recipe, torch.float64)
    theta = values(params)
    state = recipe.init(theta)
    assert equal(recipe.evaluated(state, theta), theta)
    for step in range(4):
        go(problem, params, optimizer, [step])
        grads = [None if p.grad is None else p.grad.clone() for p in params]
        state, theta = recipe.update(state, theta, grads, lr=0.01)
    optimizer.eval()
    for p, x in zip(params, recipe.evaluated(state, theta), strict=True):
        torch.testing.assert_close(p.detach(), x, rtol=1e-12, atol=1e-14)


def test_a_projection_does_not_go_with_a_readout_that_moves():
    box = sandbox.blocks.Box()
    with pytest.raises(ValueError, match="NoProjection"):
        variants.get("schedule-free-sgd").replace(projection=box)
    assert variants.get("ema-adamw").replace(projection=box).projection == box

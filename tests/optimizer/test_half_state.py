"""An optimizer whose state is bfloat16: its bytes, its checkpoints, its groups, and what it refuses."""

import copy
import io
import pickle
import warnings

import pytest
import torch

import sandbox
import variants
from sandbox.recipe import rounding
from sandbox.recipe.analysis import AGAIN

BF16 = torch.bfloat16
HOW = ["file", "deepcopy", "pickle", "distributed"]


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 50), torch.nn.Tanh(), torch.nn.Linear(50, 3))


def made(model, name="apollo", **options):
    return sandbox.Optimizer(model.parameters(), name, **{"lr": 0.01, "state_dtype": BF16, "seed": 4, **options})


def train(model, optimizer, steps):
    for t in steps:
        draw = torch.Generator().manual_seed(t)
        x = torch.randn(8, 6, generator=draw)

        def closure(x=x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)


def same(model, optimizer, other, resumed):
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q)
        for name, value in optimizer.state[p].items():
            assert resumed.state[q][name].dtype == value.dtype
            assert torch.equal(resumed.state[q][name], value), name


def resumed(model, optimizer, how, folder, name):
    """Another network and optimizer that go on from here."""
    if how == "deepcopy":
        return copy.deepcopy((model, optimizer))
    if how == "pickle":
        return pickle.loads(pickle.dumps((model, optimizer)))
    other = network()
    other.load_state_dict(model.state_dict())
    again = made(other, name, seed=99)  # the checkpoint's seed counts
    if how == "file":
        file = io.BytesIO()
        torch.save(optimizer.state_dict(), file)
        file.seek(0)
        again.load_state_dict(torch.load(file, weights_only=True))
        return other, again
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        dcp.save({"optimizer": get_optimizer_state_dict(model, optimizer)}, checkpoint_id=folder, no_dist=True)
        empty = {"optimizer": get_optimizer_state_dict(other, again)}
        dcp.load(empty, checkpoint_id=folder, no_dist=True)
    set_optimizer_state_dict(other, again, empty["optimizer"])
    return other, again


@pytest.mark.parametrize("name", ["apollo", "scale-invariant", "sgd-qn"])
@pytest.mark.parametrize("how", HOW)
def test_a_resumed_run_is_the_uninterrupted_one(how, name, tmp_path):
    """To the bit; sgd-qn also keeps the gradient of its second look, which no step writes."""
    model = network()
    optimizer = made(model, name)
    train(model, optimizer, range(3))
    other, again = resumed(model, optimizer, how, tmp_path, name)
    same(model, optimizer, other, again)
    train(model, optimizer, range(3, 6))
    train(other, again, range(3, 6))
    same(model, optimizer, other, again)


def test_a_state_of_four_bytes_a_parameter():
    """m and B; a tensor has also its host numbers ("step", "lr", …), of eight bytes each."""
    model = network()
    optimizer = made(model)
    train(model, optimizer, range(2))
    count = sum(p.numel() for p in model.parameters())
    states = [value for state in optimizer.state.values() for value in state.values()]
    assert sum(v.numel() * v.element_size() for v in states if v.ndim) == 4 * count
    assert all(v.dtype == torch.float64 for v in states if not v.ndim)


def test_the_seed_says_how_states_are_rounded():
    ends = []
    for seed in (4, 4, 5):
        model = network()
        train(model, made(model, seed=seed), range(3))
        ends.append(model[0].weight.detach())
    assert torch.equal(ends[0], ends[1])
    assert not torch.equal(ends[0], ends[2])
    assert (ends[0] - ends[2]).abs().max() < 0.02  # in float32 both would be the same


def test_the_gradient_of_a_second_look_is_rounded_too():
    """No step writes it: sgd-qn's optimizer does, after the step that led to the point."""
    model = network()
    optimizer = made(model, "sgd-qn")
    train(model, optimizer, range(1))
    x, kinds = torch.randn(8, 6, generator=torch.Generator().manual_seed(0)), variants.get("sgd-qn").analysis.state_kinds
    grads = torch.autograd.grad(model(x).square().mean(), list(model.parameters()))
    for p, g in zip(model.parameters(), grads, strict=True):
        wanted = rounding.round_states(kinds, {AGAIN: g}, rounding.entry_numbers(g) + rounding.key(4, 1))
        assert torch.equal(optimizer.state[p][AGAIN], wanted[AGAIN])


def test_a_skipped_step_changes_nothing_and_draws_nothing():
    """After a step that was left out, the run is one that never met it."""
    model, other = network(), network()
    optimizer, never = made(model, nonfinite="skip"), made(other)
    train(model, optimizer, range(2))
    train(other, never, range(2))
    for p in model.parameters():
        p.grad = torch.full_like(p, float("nan"))
    optimizer.step()
    assert optimizer.skipped_steps == 1
    same(model, optimizer, other, never)
    train(model, optimizer, range(2, 4))
    train(other, never, range(2, 4))
    same(model, optimizer, other, never)


@pytest.mark.parametrize("backend", ["eager", "reference"])
def test_groups_and_tensors_without_a_gradient(backend):
    """Each tensor by its group's recipe and its own steps, as if it were alone."""

    def leaves():
        draw = torch.Generator().manual_seed(0)
        return [torch.randn(40, 30, generator=draw).requires_grad_() for _ in range(4)]

    def step(params, optimizer, t):
        draw = torch.Generator().manual_seed(t)
        for i, p in enumerate(params):
            g = torch.randn(40, 30, generator=draw)
            p.grad = None if (i, t) == (1, 1) else g
        optimizer.step()

    params = leaves()
    groups = [{"params": params[:2]}, {"params": params[2:], "recipe": "adamw", "lr": 0.001}]
    optimizer = sandbox.Optimizer(groups, "apollo", lr=0.01, state_dtype=BF16, backend=backend)
    for t in range(3):
        step(params, optimizer, t)
    for i, alone in enumerate(leaves()):
        recipe, lr = ("apollo", 0.01) if i < 2 else ("adamw", 0.001)
        one = sandbox.Optimizer([alone], recipe, lr=lr, state_dtype=BF16, backend=backend)
        for t in range(3):
            step([torch.empty(40, 30)] * i + [alone], one, t)
        assert torch.equal(alone, params[i])
        for name, value in one.state[alone].items():
            assert torch.equal(value, optimizer.state[params[i]][name]), name


def test_a_checkpoint_of_another_precision():
    """float32 states are rounded to the nearest; bfloat16 ones fit into float32."""
    model, other = network(), network()
    wide, narrow = made(model, state_dtype=None), made(other)
    train(model, wide, range(3))
    narrow.load_state_dict(wide.state_dict())
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(narrow.state[q]["moment.m"], wide.state[p]["moment.m"].to(BF16))
    wide.load_state_dict(narrow.state_dict())
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert wide.state[p]["curvature.B"].dtype == torch.float32
        assert torch.equal(wide.state[p]["curvature.B"], narrow.state[q]["curvature.B"].float())


def test_a_model_cast_to_bfloat16_or_float64():
    """Steps compute in at least float32, whatever the parameters are; states stay as they were asked for."""
    for dtype in (BF16, torch.float64):
        model = network()
        optimizer = made(model)
        train(model, optimizer, range(2))
        model.to(dtype)
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        optimizer.step()
        assert {optimizer.state[p]["moment.m"].dtype for p in model.parameters()} == {BF16}
        assert all(p.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"state_dtype": torch.float16}, "state_dtype must be None .* or torch.bfloat16, got torch.float16"),
        ({"state_dtype": "bfloat16"}, "state_dtype must be None"),
        (
            {"backend": "scripted"},
            "backend 'scripted' keeps states as it computes them; state_dtype needs 'eager', 'compiled' or 'reference'",
        ),
    ],
)
def test_refusals(options, says):
    with pytest.raises(ValueError, match=says):
        made(network(), **options)


def test_it_is_no_option_of_a_group():
    with pytest.raises(ValueError, match="state_dtype is an option of the whole optimizer"):
        made(network()).add_param_group({"params": [torch.ones(2, requires_grad=True)], "state_dtype": None})

"""Whole lives of an optimizer: what others do to it between two steps, each with the value that is right.

Values are from recursions of their own in float64, run once and uninterrupted; tolerances are the digits written here.
"""

import copy
import pickle
from collections import defaultdict

import numpy as np
import pytest
import torch

import sandbox
from sandbox.schedules import warmup
from tests.optimizer.leaves import BACKENDS, leaf, through_a_file


def near(p, *values):
    np.testing.assert_allclose(p.detach().numpy(), values, atol=6e-6)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("how", ["load", "deepcopy", "pickle", "nothing"])
def test_a_copy_between_two_changes_of_a_hyperparameter(backend, how):
    p = leaf(1.0, -2.0)
    optimizer = sandbox.Optimizer([p], "apollo", lr=0.1, backend=backend)
    for step, sigma in enumerate([0.5, 0.4, 0.3, 0.2, 0.1, 0.05]):
        if step == 3 and how == "load":
            saved = through_a_file(optimizer.state_dict())
            optimizer = sandbox.Optimizer([p], "apollo", lr=0.1, backend=backend)
            optimizer.load_state_dict(saved)
        elif step == 3 and how != "nothing":
            optimizer = copy.deepcopy(optimizer) if how == "deepcopy" else pickle.loads(pickle.dumps(optimizer))
            p = optimizer.param_groups[0]["params"][0]
        optimizer.param_groups[0]["rectifier.sigma"] = sigma
        p.grad = 2 * p.detach() * torch.tensor([1.0, 3.0])
        optimizer.step()
    near(p, -0.62416, -1.95263)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("change", [lambda groups: groups.pop(0), list.reverse, lambda groups: None])
def test_groups_removed_or_reversed(backend, change):
    p, q = leaf(1.0, 2.0), leaf(0.7, 0.9)
    alone = leaf(0.7, 0.9)
    optimizer = sandbox.Optimizer([{"params": [p]}, {"params": [q]}], "soft-absolute", lr=0.05, backend=backend)
    other = sandbox.Optimizer([alone], "soft-absolute", lr=0.05)
    for t in range(4):
        if t == 2:
            change(optimizer.param_groups)
        for o in (optimizer, other):
            for group in o.param_groups:
                group["rectifier.sigma"] = 0.5 / (t + 1)
                for x in group["params"]:
                    x.grad = 2 * x.detach()
            o.step()
    torch.testing.assert_close(q, alone, rtol=1e-12, atol=0)
    # what is in no group any more is in no checkpoint either
    saved = optimizer.state_dict()
    assert sorted(saved["state"]) == [i for group in saved["param_groups"] for i in group["params"]]
    assert len(optimizer.state) == len(optimizer.param_groups)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("container", [dict, lambda s: defaultdict(dict, s)])
def test_a_plain_dict_in_place_of_a_state(backend, container):
    p = leaf(1.0, 2.0)
    optimizer = sandbox.Optimizer([p], "adam", lr=0.1, backend=backend)

    def step(*g):
        p.grad = torch.tensor(g, dtype=torch.float64)
        optimizer.step()

    step(1.0, 1.0)
    step(2.0, 2.0)
    optimizer.state[p] = container(optimizer.state[p])
    step(-1.0, -1.0)
    for name in ("moment.m", "curvature.v"):
        optimizer.state[p][name] = torch.zeros_like(optimizer.state[p][name])
    step(3.0, 3.0)
    near(p, 0.70336, 1.70336)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("how", ["del", "empty", "clear", "default", "one"])
def test_what_is_missing_in_a_state_is_made_anew(backend, how):
    p, q = leaf(1.0, 2.0), leaf(3.0)
    optimizer = sandbox.Optimizer([p, q], "apollo", lr=0.1, backend=backend)

    def step():
        for x in (p, q):
            x.grad = x.detach().clone()
        optimizer.step()

    step()
    if how == "del":
        del optimizer.state[p]
    elif how == "one":
        del optimizer.state[p]["moment.m"]
    elif how == "clear":
        optimizer.state[p].clear()
    else:
        optimizer.state[p] = {} if how == "empty" else defaultdict(dict)
    step()
    assert int(optimizer.state[p]["step"]) == (2 if how == "one" else 1)
    assert int(optimizer.state[q]["step"]) == 2
    late = leaf(1.0, 1.0)
    optimizer.param_groups[0]["params"].append(late)
    late.grad = torch.ones_like(late)
    step()
    assert int(optimizer.state[late]["step"]) == 1
    near(late, -9.0, -9.0)  # η/σ = 10
    through_a_file(optimizer.state_dict())


def test_a_replaced_state_of_another_shape_is_refused():
    p = leaf(1.0, 2.0)
    optimizer = sandbox.Optimizer([p], "apollo")
    p.grad = torch.ones_like(p)
    optimizer.state[p]["moment.m"] = torch.zeros(3)
    with pytest.raises(ValueError, match=r"state 'moment.m' of parameter 0 of group 0 must have shape \(2,\), got \(3,\)"):
        optimizer.step()
    optimizer.state[p]["moment.m"] = 0.0
    with pytest.raises(TypeError, match="must be a tensor"):
        optimizer.step()


def test_a_group_that_joins_a_warm_up():
    p, q = leaf(1.0), leaf(1.0)
    optimizer = sandbox.Optimizer([p], "sgd", lr=1.0)
    schedule = warmup(optimizer, 10, init=0.0)
    for step in range(12):
        if step == 4:
            optimizer.add_param_group({"params": [q], "lr": 2.0})
        optimizer.step()
        schedule.step()
        rates = [group["lr"] for group in optimizer.param_groups]
        k = min(step + 1, 10) / 10
        assert rates == pytest.approx([k] if step < 4 else [k, 0.002 + (2 - 0.002) * k], rel=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_adamw_under_a_schedule_of_beta_is_torchs(backend):
    p, q = leaf(1.0, -2.0), leaf(1.0, -2.0)
    mine, torchs = sandbox.Optimizer([p], "adamw", lr=0.1, backend=backend), torch.optim.AdamW([q], lr=0.1)
    schedules = [torch.optim.lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=10) for o in (mine, torchs)]
    for k in range(8):
        for x, optimizer, schedule in zip((p, q), (mine, torchs), schedules, strict=True):
            x.grad = torch.tensor([1.0 + k, -k / 2], dtype=torch.float64)
            optimizer.step()
            schedule.step()
    near(p, 0.56814, -1.58094)
    torch.testing.assert_close(p, q, rtol=1e-12, atol=1e-14)


def test_numbers_of_numpy_in_groups():
    p = leaf(1.0)
    optimizer = sandbox.Optimizer([p], "apollo", lr=np.float64(0.1), **{"rectifier.sigma": np.float32(0.5)})
    optimizer.param_groups[0]["tag"] = np.int64(3)
    saved = through_a_file(optimizer.state_dict())["param_groups"][0]
    assert (saved["lr"], saved["rectifier.sigma"], saved["tag"]) == (0.1, 0.5, 3)


def test_what_groups_may_hold():
    p, q = leaf(1.0), leaf(2.0)
    group = {"params": [p], "name": "body", "lr_scale": 0.5}
    assert sandbox.Optimizer([group], "apollo").param_groups[0]["lr_scale"] == 0.5
    with pytest.raises(ValueError, match="did you mean 'momentum'"):
        sandbox.Optimizer([{"params": [p], "momentun": 0.5}], "apollo")
    optimizer = sandbox.Optimizer([p], "adamw", betas=(0.9, 0.99))
    optimizer.param_groups[0]["betas"] = (0.8, 0.9)  # which would change nothing
    with pytest.raises(ValueError, match=r"'betas' are separate hyperparameters here: 'momentum' and 'curvature.beta'"):
        optimizer.step()
    with pytest.raises(ValueError, match="the same parameter twice, at places 0 and 2"):
        sandbox.Optimizer([p, q, p], "apollo")
    with pytest.raises(ValueError, match="backend is an option of the whole optimizer"):
        sandbox.Optimizer([{"params": [p], "backend": "compiled"}], "apollo")
    with pytest.raises(TypeError, match=r"AbsoluteFloor takes its hyperparameters by name: AbsoluteFloor\(sigma=0.1\)"):
        sandbox.blocks.AbsoluteFloor(0.1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_changes_where_a_gradient_does_not_fit(backend):
    p, q = leaf(1.0, 2.0), leaf(3.0, 4.0)
    optimizer = sandbox.Optimizer([p, q], "apollo", backend=backend)
    for x in (p, q):
        x.grad = torch.ones_like(x)
    q.data = torch.ones(3, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"(state|parameter 1 of group 0 has shape \(3,\), its gradient \(2,\))"):
        optimizer.step()
    near(p, 1.0, 2.0)
    with pytest.raises(TypeError, match=r"has dtype torch\.float8_e4m3fn"):
        sandbox.Optimizer([torch.zeros(2).to(torch.float8_e4m3fn)], "apollo")


def test_a_recipe_exchanged_by_name():
    """As ZeroRedundancyOptimizer does, which copies into the groups what its constructor was given."""
    p, q = leaf(1.0), leaf(1.0)
    optimizer, other = sandbox.Optimizer([p], "apollo", lr=0.1), sandbox.Optimizer([q], "soft-absolute", lr=0.1)
    optimizer.param_groups[0]["recipe"] = "soft-absolute"
    for _ in range(3):
        for x, o in ((p, optimizer), (q, other)):
            x.grad = 3 * x.detach()
            o.step()
    assert torch.equal(p, q)
    with pytest.raises(ValueError, match="did you mean 'adam'"):
        optimizer.param_groups[0]["recipe"] = "adamv"
        optimizer.step()


@pytest.mark.parametrize("backend", BACKENDS)
def test_host_numbers_written_in_place(backend):
    """A step count set to 0 by hand begins anew, with m and B as they are; a σ written into the state is what recalls d."""
    p, q = leaf(1.0, -2.0), leaf(1.0, -2.0)
    optimizer, other = (sandbox.Optimizer([x], "apollo", lr=0.1, backend=b) for x, b in ((p, backend), (q, "reference")))
    for step in range(6):
        for x, o in ((p, optimizer), (q, other)):
            if step == 2:
                o.state[x]["step"].zero_()
            if step == 4 and o is optimizer:
                o.state[x]["rectifier.sigma"].fill_(0.3)
            elif step == 4:
                o.state[x]["rectifier.sigma"] = torch.tensor(0.3, dtype=torch.float64)
            x.grad = 2 * x.detach()
            o.step()
    assert int(optimizer.state[p]["step"]) == 4
    torch.testing.assert_close(p, q, rtol=1e-12, atol=0)
    assert float(optimizer.state[p]["rectifier.sigma"]) == 0.01

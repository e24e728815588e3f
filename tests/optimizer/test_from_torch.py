"""Keywords and checkpoints as torch.optim has them, against torch.optim itself; float64, 1e-12 for sums in another order."""

import pytest
import torch

import sandbox
import variants
from sandbox.blocks import L2Decay
from tests.optimizer.leaves import through_a_file


def leaves():
    g = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=g, dtype=torch.float64, requires_grad=True) for shape in ((3, 2), (4,), ())]


def train(optimizer, params, steps, start=0):
    for t in range(start, start + steps):
        for k, p in enumerate(params):
            p.grad = None if (t, k) == (1, 2) else (p.detach() * (k + 1) + t).cos()
        optimizer.step()


def check(mine, torchs):
    for p, q in zip(mine, torchs, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-12, atol=1e-14)


TORCH = {
    "adamw": (torch.optim.AdamW, {"betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.1}),
    "adam": (torch.optim.Adam, {"betas": (0.8, 0.95), "eps": 1e-3}),
    "radam": (torch.optim.RAdam, {"betas": (0.8, 0.95), "eps": 1e-3}),
    "rmsprop": (torch.optim.RMSprop, {"eps": 1e-3}),
    "amsgrad": (torch.optim.Adam, {"betas": (0.8, 0.95), "eps": 1e-3}),
}


@pytest.mark.parametrize("name", TORCH)
def test_betas_and_eps_are_torchs(name):
    kind, options = TORCH[name]
    more = {"amsgrad": True} if name == "amsgrad" else {}
    for grouped in (False, True):
        params, others = leaves(), leaves()
        given = [{"params": params, **options, "fused": True, "foreach": None}] if grouped else params
        keywords = {} if grouped else {**options, "fused": None, "foreach": True}
        train(sandbox.Optimizer(given, name, lr=0.01, **keywords), params, 8)
        train(kind(others, lr=0.01, **options, **more), others, 8)
        check(params, others)


def test_betas_reach_every_slot_that_repeats_them():
    group = sandbox.Optimizer(leaves(), "adabound", betas=(0.5, 0.6)).param_groups[0]
    assert (group["momentum"], group["rectifier.beta"]) == (0.5, 0.5)
    assert (group["curvature.beta"], group["rectifier.inner.beta"]) == (0.6, 0.6)
    group = sandbox.Optimizer(leaves(), "lion", betas=(0.5, 0.6)).param_groups[0]
    assert (group["momentum"], group["moment.memory_beta"]) == (0.5, 0.6)
    group = sandbox.Optimizer(leaves(), "soap", betas=(0.5, 0.6), eps=1e-3).param_groups[0]
    assert (group["momentum"], group["basis.beta"], group["curvature.beta"], group["rectifier.beta"]) == (0.5, 0.6, 0.6, 0.6)
    assert group["rectifier.eps"] == 1e-3
    assert sandbox.Optimizer(leaves(), "apollo", eps=1e-8).param_groups[0]["curvature.eps"] == 1e-8


@pytest.mark.parametrize(
    ("recipe", "options", "says"),
    [
        ("adan", {"betas": (0.9, 0.99)}, "'betas' are separate hyperparameters here"),
        ("apollo", {"betas": (0.9, 0.99)}, "'betas' are separate hyperparameters here: 'momentum'"),
        ("adamw", {"betas": 0.9}, "betas must be a pair of numbers"),
        ("adamw", {"betas": (0.9, 0.99), "momentum": 0.5}, "'momentum' is given twice, once as betas"),
        ("adamw", {"betas": (0.9, 1.5)}, r"beta must lie in \[0, 1\), got 1.5"),
        ("shampoo", {"eps": 1e-8}, "'eps' is called 'basis.eps' or "),
        ("sgd", {"eps": 1e-8}, "unknown hyperparameter of a parameter group 'eps'"),
    ],
)
def test_what_a_recipe_does_not_have_is_refused(recipe, options, says):
    with pytest.raises(ValueError, match=says):
        sandbox.Optimizer(leaves(), recipe, **options)
    with pytest.raises(ValueError, match=says):
        sandbox.Optimizer([{"params": leaves(), **options}], recipe)


L2 = variants.get("adam").replace(gradient=(L2Decay(weight_decay=0.0),))


@pytest.mark.parametrize(
    ("recipe", "kind", "options"),
    [
        ("adamw", torch.optim.AdamW, {"weight_decay": 0.1, "betas": (0.8, 0.95), "eps": 1e-3}),
        ("adam", torch.optim.AdamW, {"weight_decay": 0.0}),
        ("adamw", torch.optim.Adam, {"betas": (0.8, 0.95)}),
        ("amsgrad", torch.optim.Adam, {"amsgrad": True}),
        (L2, torch.optim.Adam, {"weight_decay": 0.1}),
        ("adamw", torch.optim.AdamW, {"maximize": True, "fused": True}),
    ],
)
def test_a_checkpoint_of_adam_goes_on_here(recipe, kind, options):
    """Half of the steps there, with a tensor whose gradient was missing at first, half of them here."""
    params, others = leaves(), leaves()
    there = kind(others, lr=0.02, **options)
    train(there, others, 1)
    others[2].grad = None
    for p, q in zip(params, others, strict=True):
        p.data.copy_(q.data)
    here = sandbox.Optimizer(params, recipe, lr=0.5)
    here.load_state_dict(through_a_file(there.state_dict()))
    train(here, params, 6, start=1)
    train(there, others, 6, start=1)
    check(params, others)


def test_a_parameter_without_a_state_there_has_made_no_step_here():
    params, others = leaves(), leaves()
    there, here = torch.optim.AdamW(others, lr=0.02), sandbox.Optimizer(params, "adamw")
    others[0].grad = others[0].detach().clone()
    there.step()
    train(here, params, 3)
    here.load_state_dict(there.state_dict())
    for p, q in zip(params, others, strict=True):
        p.data.copy_(q.data)
    train(here, params, 4)
    train(there, others, 4)
    check(params, others)


@pytest.mark.parametrize(
    ("recipe", "options"),
    [("apollow", {}), ("adam", {}), ("adamw", {"amsgrad": True}), (L2, {}), ("radam", {})],
)
def test_a_checkpoint_of_other_steps_is_refused(recipe, options):
    params, others = leaves(), leaves()
    there = torch.optim.AdamW(others, lr=0.02, weight_decay=0.1, **options)
    train(there, others, 1)
    with pytest.raises(ValueError, match=r"group 0: the checkpoint is one of torch.optim.Adam or AdamW .* makes other steps"):
        sandbox.Optimizer(params, recipe).load_state_dict(there.state_dict())


def test_a_checkpoint_of_another_kind_is_refused():
    others = leaves()
    with pytest.raises(ValueError, match="no recipe in the checkpoint"):
        sandbox.Optimizer(leaves(), "sgd").load_state_dict(torch.optim.SGD(others).state_dict())
    there = torch.optim.AdamW([{"params": others[:1]}, {"params": others[1:]}])
    with pytest.raises(ValueError, match="the checkpoint has 2 parameter groups, the optimizer 1"):
        sandbox.Optimizer(leaves(), "adamw").load_state_dict(there.state_dict())

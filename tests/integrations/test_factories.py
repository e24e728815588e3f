"""Factories for trainers, without these."""

import pytest
import torch

import sandbox
from sandbox import integrations


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.LayerNorm(3), torch.nn.Linear(3, 2)).double()


def made(recipe, **options):
    model = network()
    kind, kwargs = integrations.named(recipe, **options)
    return model, kind()(model, **kwargs)


def test_named_parameters_and_patterns():
    patterns = {"bias|^1": {"weight_decay": 0.0, "lr": 0.5}, "^2": {"recipe": "apollo"}}
    model, optimizer = made("adamw", lr=0.1, patterns=patterns, weight_decay=0.1)
    first, second, rest = optimizer.param_groups
    assert first["param_names"] == ["0.bias", "1.weight", "1.bias", "2.bias"]
    assert (first["lr"], first["weight_decay"]) == (0.5, 0.0)
    assert second["param_names"] == ["2.weight"]
    assert second["recipe"].name == "apollo"
    assert (rest["param_names"], rest["lr"], rest["weight_decay"]) == (["0.weight"], 0.1, 0.1)


def test_a_frozen_parameter_is_left_out():
    model = network()
    model[0].weight.requires_grad_(False)
    kind, kwargs = integrations.named("apollo", patterns={"weight": {}})
    assert kind()(model, **kwargs).param_groups[0]["param_names"] == ["1.weight", "2.weight"]


def test_a_pattern_of_nothing_is_refused():
    with pytest.raises(ValueError, match="patterns: no parameter belongs to 'wait'"):
        made("adamw", patterns={"wait": {}})


def test_groups_as_torchtitan_gives_them():
    model = network()
    groups = [{
        "params": list(model.parameters()), "param_names": [name for name, _ in model.named_parameters()], "fused": True,
        "foreach": False, "lr": 0.01, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1,
    }]  # fmt: skip
    optimizer = integrations.titan("adamw", nonfinite="skip")(groups, maximize=True)
    other = network()
    torchs = torch.optim.AdamW(other.parameters(), lr=0.01, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1, maximize=True)
    for _ in range(4):
        for m, o in ((model, optimizer), (other, torchs)):
            m(torch.ones(2, 4, dtype=torch.float64)).square().sum().backward()
            o.step()
            o.zero_grad()
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-12, atol=1e-14)  # float64, sums in another order
    assert optimizer.nonfinite == "skip"
    assert (
        sandbox.Optimizer([{**groups[0], "betas": (0.9, 0.99), "weight_decay": 0.0}], "adam").param_groups[0]["momentum"] == 0.9
    )

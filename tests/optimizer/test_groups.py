"""Groups: their rates, decays, recipes and numbers; what they refuse."""

import re

import pytest
import torch

import sandbox
import variants
from sandbox.blocks import AdamWDecay, ClipGlobalNorm, Decoupled, L2Decay
from tests.problem import Problem


def test_groups_have_their_own_rate_decay_and_recipe():
    """A group behaves as an optimizer of its own would."""
    problem = Problem()
    params, others = problem.tensors(), problem.tensors()
    apollow = variants.get("apollow")
    together = sandbox.Optimizer(
        [
            {"params": params[:2], "lr": 0.002, "weight_decay": 0.5},
            {"params": params[2:4]},
            {"params": params[4:], "recipe": "adamw", "lr": 0.01, "rectifier.eps": 0.1},
        ],
        apollow,
        lr=0.003,
    )
    apart = [
        sandbox.Optimizer(others[:2], apollow, lr=0.002, weight_decay=0.5),
        sandbox.Optimizer(others[2:4], apollow.replace(**{"decay.weight_decay": 5e-4}), lr=0.003),
        sandbox.Optimizer(others[4:], "adamw", lr=0.01, **{"rectifier.eps": 0.1}),
    ]
    for step in range(10):
        problem.set_gradients(step, params)
        problem.set_gradients(step, others)
        together.step()
        for optimizer in apart:
            optimizer.step()
        assert all(torch.equal(p, q) for p, q in zip(params, others, strict=True))
    assert "momentum" in together.param_groups[2]
    assert "curvature.eps" not in together.param_groups[2]


def test_a_group_with_its_own_recipe_takes_numbers_from_it_unless_told():
    a, b = (torch.ones(2, requires_grad=True) for _ in range(2))
    slow = variants.get("apollo").replace(**{"moment.beta": 0.5, "lr": 0.7})
    for given, expected in (
        ({}, [(0.01, 0.9), (0.7, 0.5)]),
        ({"lr": 0.1}, [(0.1, 0.9), (0.1, 0.5)]),
        ({"momentum": 0.3}, [(0.01, 0.3), (0.7, 0.3)]),
    ):
        optimizer = sandbox.Optimizer([{"params": [a]}, {"params": [b], "recipe": slow}], "apollo", **given)
        assert [(g["lr"], g["momentum"]) for g in optimizer.param_groups] == expected


def test_numbers_changed_by_hand_take_effect():
    problem = Problem()
    params, others = problem.tensors(), problem.tensors()
    optimizer = sandbox.Optimizer(params, "apollo", lr=0.003)
    fresh = sandbox.Optimizer(others, variants.get("apollo").replace(**{"moment.beta": 0.5, "rectifier.sigma": 0.1}), lr=0.003)
    optimizer.param_groups[0]["momentum"] = 0.5
    optimizer.param_groups[0]["rectifier.sigma"] = 0.1
    for step in range(5):
        problem.set_gradients(step, params)
        problem.set_gradients(step, others)
        optimizer.step()
        fresh.step()
    assert all(torch.equal(p, q) for p, q in zip(params, others, strict=True))
    optimizer.param_groups[0]["rectifier.sigma"] = -1.0
    problem.set_gradients(5, params)
    with pytest.raises(ValueError, match=re.escape("AbsoluteFloor: sigma must lie in (0, inf), got -1")):
        optimizer.step()


@pytest.mark.parametrize(
    ("keywords", "says"),
    [
        ({"weight_decay": 0.1}, "recipe 'apollo' has no weight decay; give it some"),
        ({"rectifier.sigm": 0.1}, "did you mean 'rectifier.sigma'?"),
        ({"sigma": 0.1}, "'sigma' is called 'rectifier.sigma' here"),
        ({"moment.beta": 0.1}, "'moment.beta' is called 'momentum' in a parameter group"),
        ({"lr": -0.1}, "lr must lie in [0, inf), got -0.1"),
        ({"lr": float("nan")}, "lr must lie in [0, inf), got nan"),
        ({"lr": torch.ones(2)}, "lr must be a number or a tensor of one entry"),
        ({"backend": "eagre"}, "unknown backend 'eagre'; did you mean 'eager'?"),
        ({"nonfinite": "skp"}, "did you mean 'skip'?"),
        ({"momentum": 1.5}, "EMA: beta must lie in [0, 1), got 1.5"),
    ],
)
def test_bad_arguments_are_explained(keywords, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        sandbox.Optimizer([torch.ones(2, requires_grad=True)], "apollo", **keywords)


@pytest.mark.parametrize("name", ["apollo", "adahessian", "sgd", "muon"])
def test_no_weight_decay_may_be_asked_of_every_recipe(name):
    """As trainers do, for each of their groups; the steps are those without the entry."""
    ends = []
    for more in ({}, {"weight_decay": 0}, {"weight_decay": 0.0}):
        p = torch.linspace(-1, 1, 6, dtype=torch.float64).view(2, 3).requires_grad_()
        optimizer = sandbox.Optimizer([{"params": [p], **more}], name, lr=0.01, **more)
        for _ in range(3):
            optimizer.zero_grad()
            optimizer.step(lambda p=p: (p**4).sum()) if name == "adahessian" else step(p, optimizer)
        optimizer.load_state_dict(optimizer.state_dict())
        ends.append(p.detach().clone())
    assert torch.equal(ends[0], ends[1])
    assert torch.equal(ends[0], ends[2])


def test_muons_weight_decay_by_keyword_and_by_slot():
    """Zero gradients and one step of η = .1: θ (1 - ηγ), for vectors with Adam's η = .1 · 3e-4/.02."""
    ends = []
    for recipe, more in (("muon", {"weight_decay": 0.5}), (variants.get("muon").replace(**{"decay.weight_decay": 0.5}), {})):
        params = [torch.ones(shape, dtype=torch.float64, requires_grad=True) for shape in ((3, 2), (3,))]
        optimizer = sandbox.Optimizer(params, recipe, lr=0.1, **more)
        for p in params:
            p.grad = torch.zeros_like(p)
        optimizer.step()
        ends.append([p.detach().flatten()[0].item() for p in params])
    assert ends[0] == pytest.approx([0.95, 1 - 0.0015 * 0.5])
    assert ends[1] == pytest.approx([0.95, 1.0])


def step(p, optimizer):
    (p**4).sum().backward()
    optimizer.step()


def test_unknown_keys_in_groups_are_errors_whenever_they_come():
    p = torch.ones(2, requires_grad=True)
    with pytest.raises(ValueError, match=r"did you mean 'rectifier.sigma'"):
        sandbox.Optimizer([{"params": [p], "rectifier.sgma": 1.0}], "apollo")
    optimizer = sandbox.Optimizer([p], "apollo")
    optimizer.param_groups[0]["rectifier.sgma"] = 1.0
    p.grad = torch.ones(2)
    with pytest.raises(ValueError, match=r"did you mean 'rectifier.sigma'"):
        optimizer.step()


def test_decay_rates_that_turn_parameters_around_are_errors():
    p = torch.ones(2, requires_grad=True)
    p.grad = torch.ones(2)
    optimizer = sandbox.Optimizer([p], variants.get("apollow").replace(decay=Decoupled(weight_decay=20.0)), lr=0.05)
    with pytest.raises(ValueError, match=re.escape("Decoupled: weight_decay * lr must be below 1, got 20 * 0.05")):
        optimizer.step()


def test_parameters_that_cannot_be_trained_are_named():
    good = torch.ones(2, requires_grad=True)
    for bad, says in (
        (torch.ones(2, dtype=torch.complex64, requires_grad=True), "parameter 'odd' is complex"),
        (torch.ones(2, dtype=torch.int64), "parameter 'odd' has dtype torch.int64"),
        (torch.eye(2).to_sparse().requires_grad_(), "parameter 'odd' is sparse"),
    ):
        with pytest.raises(TypeError, match=says):
            sandbox.Optimizer([("good", good), ("odd", bad)], "apollo")
    with pytest.raises(TypeError, match="parameter 1 of group 0 is complex"):
        sandbox.Optimizer([good, torch.ones(2, dtype=torch.complex64, requires_grad=True)], "apollo")
    table = torch.nn.Embedding(5, 2, sparse=True)
    optimizer = sandbox.Optimizer(table.named_parameters(), "apollo")
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(TypeError, match="gradient of parameter 'weight' is sparse"):
        optimizer.step()


def test_add_param_group_later():
    problem = Problem()
    params = problem.tensors()
    optimizer = sandbox.Optimizer(params[:3], "apollo", lr=0.003)
    for step in range(4):
        problem.set_gradients(step, params)
        if step == 2:
            optimizer.add_param_group({"params": params[3:], "lr": 0.001})
        optimizer.step()
    assert [int(optimizer.state[p]["step"]) for p in params] == [4, 4, 4, 2, 2, 2]
    assert set(optimizer.state[params[5]]) == {"step", "lr", "rectifier.sigma", "moment.m", "curvature.B"}
    with pytest.raises(ValueError, match="lr must lie in"):
        optimizer.add_param_group({"params": [torch.ones(1, requires_grad=True)], "lr": -1.0})
    assert len(optimizer.param_groups) == 2


def test_clip_global_norm_is_torchs():
    problem = Problem()
    params, others = problem.tensors(), problem.tensors()
    clipped = variants.get("apollo").replace(gradient=(ClipGlobalNorm(max_norm=0.7),))
    # two groups: the norm is over both
    optimizer = sandbox.Optimizer([{"params": params[:2]}, {"params": params[2:], "lr": 0.001}], clipped, lr=0.003)
    plain = sandbox.Optimizer([{"params": others[:2]}, {"params": others[2:], "lr": 0.001}], "apollo", lr=0.003)
    for step in range(10):
        problem.set_gradients(step, params)
        problem.set_gradients(step, others)
        assert torch.nn.utils.clip_grad_norm_(others, 0.7) > 0.7
        optimizer.step()
        plain.step()
        for p, q in zip(params, others, strict=True):
            torch.testing.assert_close(p, q, rtol=2e-6, atol=1e-9)  # torch divides by norm + 1e-6


def test_weight_decay_is_an_entry_of_the_group_for_every_kind():
    for change in (
        {"decay": AdamWDecay(weight_decay=0.1)},
        {"decay": Decoupled(weight_decay=0.1)},
        {"gradient": (L2Decay(weight_decay=0.1),)},
    ):
        p, q = (torch.ones(2, requires_grad=True) for _ in range(2))
        recipe = variants.get("apollo").replace(**change)
        optimizer, none = sandbox.Optimizer([p], recipe, weight_decay=0.0), sandbox.Optimizer([q], "apollo")
        assert optimizer.param_groups[0]["weight_decay"] == 0.0
        for _ in range(3):
            p.grad = q.grad = torch.tensor([1.0, -2.0])
            optimizer.step()
            none.step()
        torch.testing.assert_close(p, q, rtol=1e-6, atol=0)  # a term of 0 may be added in one rounding with another


def test_torchs_own_numbers_set_later_are_not_ignored():
    p = torch.ones(2, requires_grad=True)
    p.grad = torch.ones(2)
    optimizer = sandbox.Optimizer([p], "apollo")
    optimizer.param_groups[0]["weight_decay"] = 0.5
    with pytest.raises(ValueError, match="has no weight decay"):
        optimizer.step()


def test_numbers_given_as_tensors_belong_to_one_group():
    sigma = torch.tensor(0.1)
    groups = [{"params": [torch.ones(2, requires_grad=True)]} for _ in range(2)]
    optimizer = sandbox.Optimizer(groups, "apollo", **{"rectifier.sigma": sigma})
    optimizer.param_groups[0]["rectifier.sigma"].fill_(0.5)
    assert float(optimizer.param_groups[1]["rectifier.sigma"]) == pytest.approx(0.1)
    assert float(sigma) == pytest.approx(0.1)

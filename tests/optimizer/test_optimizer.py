"""`Optimizer` as a torch optimizer: groups, closures, schedulers, hooks, checkpoints, bad input."""

import copy
import io
import math
import pickle
import re
import warnings

import pytest
import torch
from torch.optim import lr_scheduler as schedulers

import sandbox
import variants
from sandbox.blocks import EMA, AdamWDecay, ClipGlobalNorm, Decoupled, L2Decay, SoftAbsolute
from sandbox.recipe import Recipe
from tests.light import light
from tests.problem import SHAPES, Problem


def network(seed=0, dtype=torch.float64):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3), torch.nn.LayerNorm(3)).to(dtype)


def data(dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    return tuple(torch.randn(20, n, generator=generator, dtype=torch.float64).to(dtype) for n in (5, 3))


def loss_of(model, dtype=torch.float64):
    X, y = data(dtype)
    return (model(X) - y).square().mean()


def train(optimizer, model, steps, scheduler=None, dtype=torch.float64):
    second = any(g["recipe"].second_order for g in optimizer.param_groups)

    def closure():
        optimizer.zero_grad()
        loss = loss_of(model, dtype)
        if not second:
            loss.backward()
        return loss

    losses = []
    for _ in range(steps):
        losses.append(float(optimizer.step(closure).detach()))
        if scheduler is not None:
            scheduler.step()
    return losses


def same(a, b):
    return all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


# -- groups ----------------------------------------------------------------------------------------------------------


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


# -- the rate --------------------------------------------------------------------------------------------------------


def test_a_tensor_rate_is_filled_never_shared_or_replaced():
    lr = torch.tensor(0.1)
    a, b = (torch.ones(2, requires_grad=True) for _ in range(2))
    optimizer = sandbox.Optimizer([{"params": [a]}, {"params": [b]}], "apollo", lr=lr)
    rates = [g["lr"] for g in optimizer.param_groups]
    schedule = schedulers.ExponentialLR(optimizer, 0.5)
    for _ in range(2):
        a.grad, b.grad = torch.ones(2), torch.ones(2)
        optimizer.step()
        schedule.step()
    assert [g["lr"] is r for g, r in zip(optimizer.param_groups, rates, strict=True)] == [True, True]
    assert [float(r) for r in rates] == pytest.approx([0.025, 0.025])  # not 0.00625: the groups do not alias
    assert float(lr) == pytest.approx(0.1)


@pytest.mark.parametrize(
    "make",
    [
        lambda o: schedulers.LambdaLR(o, lambda k: 0.9**k),
        lambda o: schedulers.MultiplicativeLR(o, lambda k: 0.9),
        lambda o: schedulers.StepLR(o, 3),
        lambda o: schedulers.MultiStepLR(o, [2, 5]),
        lambda o: schedulers.ConstantLR(o, 0.5, 3),
        lambda o: schedulers.LinearLR(o, 0.5, total_iters=4),
        lambda o: schedulers.ExponentialLR(o, 0.9),
        lambda o: schedulers.PolynomialLR(o, 8),
        lambda o: schedulers.CosineAnnealingLR(o, 8),
        lambda o: schedulers.CosineAnnealingWarmRestarts(o, 3),
        lambda o: schedulers.ReduceLROnPlateau(o, patience=1, threshold=10.0),
        lambda o: schedulers.CyclicLR(o, 0.001, 0.01, 3, base_momentum=0.7, max_momentum=0.8),
        lambda o: schedulers.OneCycleLR(o, 0.01, 8),
        lambda o: schedulers.SequentialLR(o, [schedulers.ConstantLR(o, 0.1, 3), schedulers.ExponentialLR(o, 0.9)], [3]),
        lambda o: schedulers.ChainedScheduler([schedulers.ConstantLR(o, 0.1, 3), schedulers.ExponentialLR(o, 0.9)]),
    ],
)
def test_every_scheduler_of_torch(make):
    """Rates (and cycled momenta) are those that a torch optimizer gets, and each of them is the one that a step uses."""
    p, q = (torch.ones((), dtype=torch.float64, requires_grad=True) for _ in range(2))
    mine = sandbox.Optimizer([p], Recipe(moment=EMA(beta=0.75)), lr=0.01, **{"rectifier.sigma": 1e6})
    peer = torch.optim.SGD([q], lr=0.01, momentum=0.75)
    ours, theirs = make(mine), make(peer)
    for _ in range(7):
        p.grad, q.grad = torch.ones_like(p), torch.ones_like(q)
        before, m = p.detach().clone(), mine.state[p]["moment.m"].clone()
        rate, beta, t = mine.param_groups[0]["lr"], mine.param_groups[0]["momentum"], int(mine.state[p]["step"]) + 1
        assert rate == peer.param_groups[0]["lr"]
        assert beta == peer.param_groups[0]["momentum"]
        mine.step()
        peer.step()
        m = beta * (1 - beta ** (t - 1)) / (1 - beta**t) * m + (1 - beta) / (1 - beta**t)
        assert float(before - p.detach()) == pytest.approx(
            float(rate * m / 1e6), rel=1e-6
        )  # θ = 1, step 1e-8: 1e-16/1e-8 and more
        for s in (ours, theirs):
            s.step(1.0) if isinstance(s, schedulers.ReduceLROnPlateau) else s.step()


def test_schedulers_survive_checkpoints():
    model, again = network(), network()
    optimizer, other = (sandbox.Optimizer(m.parameters(), "apollo", lr=0.01) for m in (model, again))
    schedule, second = (schedulers.CosineAnnealingLR(o, 20) for o in (optimizer, other))
    train(optimizer, model, 8, schedule)
    again.load_state_dict(model.state_dict())
    other.load_state_dict(optimizer.state_dict())
    second.load_state_dict(schedule.state_dict())
    train(optimizer, model, 8, schedule)
    train(other, again, 8, second)
    assert same(model, again)


# -- torch's habits --------------------------------------------------------------------------------------------------


def test_hooks_closures_and_named_parameters():
    model, seen = network(), []
    optimizer = sandbox.Optimizer(model.named_parameters(), "apollo", lr=0.01)
    optimizer.register_step_pre_hook(lambda o, a, k: seen.append("before"))
    optimizer.register_step_post_hook(lambda o, a, k: seen.append("after"))
    losses = train(optimizer, model, 3)
    assert seen == ["before", "after"] * 3
    assert losses[2] < losses[0]
    assert optimizer.param_groups[0]["param_names"][0] == "0.weight"
    assert "apollo at lr 0.01 on 6 tensors" in repr(optimizer)


@pytest.mark.parametrize("how", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_go_on_alike(how):
    model = network()
    optimizer = sandbox.Optimizer(model.parameters(), "adahessian", lr=0.01, nonfinite="skip", seed=3)
    train(optimizer, model, 3)
    model2, optimizer2 = how((model, optimizer))
    train(optimizer, model, 3)
    train(optimizer2, model2, 3)
    assert same(model, model2)
    assert optimizer2.nonfinite == "skip"


def test_state_is_made_at_construction_under_stable_names():
    p = torch.ones(3, 2, dtype=torch.bfloat16, requires_grad=True)
    optimizer = sandbox.Optimizer([p], "hessian-ema")
    assert {k: (v.dtype, tuple(v.shape)) for k, v in optimizer.state[p].items()} == {
        "step": (torch.float64, ()),
        "lr": (torch.float64, ()),
        "rectifier.sigma": (torch.float64, ()),
        "moment.m": (torch.float32, (3, 2)),
        "curvature.B": (torch.float32, (3, 2)),
        "averaging.m": (torch.float32, (3, 2)),
    }


def test_low_precision_parameters_are_computed_in_float32():
    problem = Problem()
    params = [p.detach().to(torch.bfloat16).requires_grad_() for p in problem.tensors()]
    optimizer = sandbox.Optimizer(params, "apollo", lr=0.003)
    wide = [p.detach().float().requires_grad_() for p in params]
    reference = sandbox.Optimizer(wide, "apollo", lr=0.003)
    for step in range(10):
        problem.set_gradients(step, params)
        for p, q in zip(params, wide, strict=True):
            q.data.copy_(p.detach())
            q.grad = p.grad.float()
        optimizer.step()
        reference.step()
        for p, q in zip(params, wide, strict=True):
            assert torch.equal(p, q.to(torch.bfloat16))
            assert torch.equal(optimizer.state[p]["curvature.B"], reference.state[q]["curvature.B"])


@pytest.mark.parametrize("name", ["apollo", "apollow"])
def test_grad_scaler(name):
    """Scaled by powers of two, so equal bitwise; an overflow is skipped by the scaler and leaves everything as it was."""
    model, plain = network(dtype=torch.float32), network(dtype=torch.float32)
    optimizer, other = (sandbox.Optimizer(m.parameters(), name, lr=0.01) for m in (model, plain))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for step in range(4):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, torch.float32) * (math.inf if step == 2 else 1)).backward()
        scaler.step(optimizer)
        scaler.update()
        if step != 2:
            other.zero_grad()
            loss_of(plain, torch.float32).backward()
            other.step()
        assert same(model, plain)
    assert int(optimizer.state[next(model.parameters())]["step"]) == 3


# -- NaN and infinity ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nonfinite_gradients(bad):
    def make(nonfinite):
        model = network()
        optimizer = sandbox.Optimizer(model.named_parameters(), "apollo", lr=0.01, nonfinite=nonfinite)
        train(optimizer, model, 2)
        optimizer.zero_grad()
        loss_of(model).backward()
        model[2].bias.grad[1] = bad
        kept = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        return model, optimizer, kept

    def untouched(model, optimizer, kept):
        state = optimizer.state_dict()["state"]
        return all(torch.equal(v, kept[0][k]) for k, v in model.state_dict().items()) and all(
            torch.equal(v, kept[1]["state"][i][k]) for i in state for k, v in state[i].items()
        )

    model, optimizer, kept = make("raise")
    with pytest.raises(FloatingPointError, match=r"gradient of parameter '2.bias'; nothing was changed"):
        optimizer.step()
    assert untouched(model, optimizer, kept)
    model, optimizer, kept = make("skip")
    optimizer.step()
    assert untouched(model, optimizer, kept)
    assert optimizer.skipped_steps == 1
    assert optimizer.state_dict()["param_groups"][0]["skipped_steps"] == 1
    model, optimizer, kept = make("pass")
    optimizer.step()
    assert not model[2].bias.isfinite().all()
    assert model[0].weight.isfinite().all()


# -- checkpoints -----------------------------------------------------------------------------------------------------


def through_a_file(state_dict):
    file = io.BytesIO()
    torch.save(state_dict, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", variants.names())
def test_checkpoints_are_exact(name, dtype):
    """Resumed from a file, a run is bitwise the run that was not interrupted."""
    model, again = network(dtype=dtype), network(seed=5, dtype=dtype)
    optimizer, other = (sandbox.Optimizer(m.parameters(), light(name), seed=k) for k, m in enumerate((model, again)))
    for o, m, steps in ((optimizer, model, 4), (other, again, 2)):
        train(o, m, steps, dtype=dtype)
    optimizer.param_groups[0]["lr"] = 0.003
    again.load_state_dict(model.state_dict())
    other.load_state_dict(through_a_file(optimizer.state_dict()))
    train(optimizer, model, 4, dtype=dtype)
    train(other, again, 4, dtype=dtype)
    assert same(model, again)
    for p, q in zip(model.parameters(), again.parameters(), strict=True):
        assert all(
            torch.equal(v, other.state[q][k]) and v.dtype == other.state[q][k].dtype for k, v in optimizer.state[p].items()
        )
        if dtype == torch.bfloat16:
            assert {v.dtype for k, v in optimizer.state[p].items() if v.ndim} == {torch.float32}


def test_checkpoints_of_another_recipe_name_the_slots_that_differ():
    model = network()
    saved = sandbox.Optimizer(model.parameters(), "hessian-ema").state_dict()
    other = sandbox.Optimizer(model.parameters(), variants.get("apollo").replace(rectifier=SoftAbsolute()))
    with pytest.raises(ValueError, match="belongs to recipe 'hessian-ema'") as caught:
        other.load_state_dict(saved)
    assert "averaging: EMA(bias_correction=True) there, NoAveraging() here" in str(caught.value)
    assert "rectifier: AbsoluteFloor() there, SoftAbsolute() here" in str(caught.value)
    assert "curvature" not in str(caught.value).split("differs")[1]
    with pytest.raises(ValueError, match=r"not one of sandbox.Optimizer"):
        other.load_state_dict(torch.optim.SGD(model.parameters(), lr=0.1).state_dict())
    with pytest.raises(ValueError, match="1 parameter groups, the optimizer 2"):
        halves = list(model.parameters())
        two = sandbox.Optimizer([{"params": halves[:1]}, {"params": halves[1:]}], "hessian-ema")
        two.load_state_dict(saved)
    with pytest.raises(ValueError, match="the checkpoint has 6 parameters, the optimizer 1"):
        sandbox.Optimizer(halves[:1], "hessian-ema").load_state_dict(saved)
    wider = [torch.ones(p.numel() + 1, requires_grad=True) for p in model.parameters()]
    with pytest.raises(
        ValueError, match=re.escape("state 'moment.m' of parameter 0 of group 0: shape (7, 5) there, (36,) here")
    ):
        sandbox.Optimizer(wider, "hessian-ema").load_state_dict(saved)


def test_old_checkpoints_keep_what_they_lack_and_numbers_come_from_them():
    model = network()
    saved = sandbox.Optimizer(model.parameters(), "apollo", lr=0.5, **{"rectifier.sigma": 0.3}).state_dict()
    del saved["param_groups"][0]["curvature.eps"]
    optimizer = sandbox.Optimizer(model.parameters(), "apollo", **{"curvature.eps": 0.7})
    tensor_rate = sandbox.Optimizer(model.parameters(), "apollo", lr=torch.tensor(0.1))
    held = tensor_rate.param_groups[0]["lr"]
    for o in (optimizer, tensor_rate):
        o.load_state_dict(saved)
    group = optimizer.param_groups[0]
    assert (group["lr"], group["rectifier.sigma"], group["curvature.eps"]) == (0.5, 0.3, 0.7)
    assert tensor_rate.param_groups[0]["lr"] is held
    assert float(held) == 0.5


def test_load_state_dict_hooks_run():
    model, seen = network(), []
    optimizer = sandbox.Optimizer(model.parameters(), "apollo")
    optimizer.register_load_state_dict_pre_hook(lambda o, s: seen.append("pre"))
    optimizer.register_load_state_dict_post_hook(lambda o: seen.append("post"))
    optimizer.load_state_dict(optimizer.state_dict())
    assert seen == ["pre", "post"]


# -- what spans tensors ----------------------------------------------------------------------------------------------


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


def test_optimizer_equals_the_pure_update():
    problem = Problem()
    for name in ("global-secant", "scale-invariant", "apollow"):
        params, recipe = problem.tensors(), variants.get(name)
        optimizer = sandbox.Optimizer(params, recipe, lr=0.003)
        theta = [p.detach().clone() for p in params]
        state = recipe.init(theta)
        for step in range(6):
            problem.set_gradients(step, params)
            state, theta = recipe.update(state, theta, [p.grad.clone() for p in params], lr=0.003)
            optimizer.step()
            for p, x in zip(params, theta, strict=True):
                torch.testing.assert_close(p.detach(), x, rtol=1e-12, atol=1e-14)  # β^t by math.pow or torch.pow


def test_empty_and_noncontiguous_tensors():
    problem = Problem()
    params, others = problem.tensors(), problem.tensors()
    turned = torch.tensor(problem.start[0]).t().contiguous().t().requires_grad_()
    assert not turned.is_contiguous()
    empty = torch.zeros(0, 3, dtype=torch.float64, requires_grad=True)
    for name in ("apollo", "global-secant", "channel-secant", "scale-invariant"):
        mine = sandbox.Optimizer([turned, empty, *params[1:]], name, lr=0.003)
        plain = sandbox.Optimizer(others, name, lr=0.003)
        for step in range(3):
            problem.set_gradients(step, others)
            for p, q in zip([turned, *params[1:]], others, strict=True):
                p.grad = q.grad.clone()
            empty.grad = torch.zeros_like(empty)
            mine.step()
            plain.step()
            for p, q in zip([turned, *params[1:]], others, strict=True):
                torch.testing.assert_close(p, q, rtol=1e-13, atol=0)
        assert SHAPES[0] == tuple(turned.shape)


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
        assert torch.equal(p, q)


def test_no_warnings_and_no_gradient_history():
    model = network()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer = sandbox.Optimizer(model.parameters(), "adahessian")
        train(optimizer, model, 2)
    assert all(p.grad.grad_fn is None and p.is_leaf for p in model.parameters())
    assert all(not v.requires_grad for s in optimizer.state.values() for v in s.values())


# -- found in review -------------------------------------------------------------------------------------------------


def test_huge_but_finite_gradients_pass():
    """1e200 is finite in float64, and so are entries whose sum overflows."""
    for values in ([1e200, 1.0], [1.7e308, 1.7e308]):
        p = torch.zeros(2, dtype=torch.float64, requires_grad=True)
        optimizer = sandbox.Optimizer([p], "sgd", lr=1e-300)
        p.grad = torch.tensor(values, dtype=torch.float64)
        optimizer.step()
        assert p.isfinite().all()
        assert p[0] != 0


def test_nonfinite_curvature_is_found_too():
    """Gradient 0, but Hz is NaN: |p|^1.5 at 0."""
    p = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    optimizer = sandbox.Optimizer([("p", p)], "adahessian")
    with pytest.raises(FloatingPointError, match="NaN or infinity in the Hessian-vector product of parameter 'p'"):
        optimizer.step(lambda: (p.abs() ** 1.5).sum())
    assert torch.equal(p, torch.zeros(2, dtype=torch.float64))
    assert int(optimizer.state[p]["step"]) == 0


def test_a_decay_of_exactly_one_leaves_no_nan():
    """γη/mean(D) = 1: θ holds no trace of the decay, and the next secant step goes without it."""
    p = torch.tensor([0.5, -1.0], dtype=torch.float64, requires_grad=True)
    optimizer = sandbox.Optimizer([p], "apollo-stable", lr=0.01, weight_decay=1.0)
    for _ in range(4):
        p.grad = torch.tensor([1e-5, 2e-5], dtype=torch.float64)
        optimizer.step()
        assert p.isfinite().all()


def test_a_step_is_whole_or_not_at_all():
    """A number that is wrong in the second group is found before the first group moves."""
    a, b = (torch.ones(2, requires_grad=True) for _ in range(2))
    optimizer = sandbox.Optimizer([{"params": [a]}, {"params": [b], "weight_decay": 50.0}], "apollow", lr=0.001)
    for group in optimizer.param_groups:
        group["lr"] = 0.5
    a.grad, b.grad = torch.ones(2), torch.ones(2)
    with pytest.raises(ValueError, match=re.escape("weight_decay * lr must be below 1, got 50 * 0.5")):
        optimizer.step()
    assert torch.equal(a, torch.ones(2))
    assert int(optimizer.state[a]["step"]) == 0


def test_torchs_own_numbers_set_later_are_not_ignored():
    p = torch.ones(2, requires_grad=True)
    p.grad = torch.ones(2)
    optimizer = sandbox.Optimizer([p], "apollo")
    optimizer.param_groups[0]["weight_decay"] = 0.5
    with pytest.raises(ValueError, match="has no weight decay"):
        optimizer.step()


@pytest.mark.parametrize("lr", ["0.1", True])
def test_a_rate_that_is_no_number(lr):
    with pytest.raises(TypeError, match="lr must be a number, a tensor or a function of t"):
        sandbox.Optimizer([torch.ones(2, requires_grad=True)], "apollo", lr=lr)


def test_checkpoints_know_functions_of_t():
    from sandbox.schedules import Geometric, InverseSquareRoot

    p = torch.ones(2, requires_grad=True)
    plain = variants.get("apollo")
    moving = plain.replace(moment=EMA(beta=Geometric(first=0.9, ratio=0.9), bias_correction=True))
    one, two = sandbox.Optimizer([p], plain), sandbox.Optimizer([p], moving)
    for a, b in ((one, two), (two, one)):
        with pytest.raises(ValueError, match="moment: EMA"):
            a.load_state_dict(b.state_dict())
    running = sandbox.Optimizer([p], plain, lr=InverseSquareRoot(first=0.1))
    with pytest.raises(ValueError, match="lr: function of t"):
        one.load_state_dict(running.state_dict())
    with pytest.raises(ValueError, match="lr: number there, function of t"):
        running.load_state_dict(one.state_dict())
    running.load_state_dict(through_a_file(running.state_dict()))
    with pytest.raises(ValueError, match="not a state_dict of an optimizer: it has nothing"):
        one.load_state_dict({})


def test_checkpoints_keep_direction_and_counts():
    p = torch.ones(2, requires_grad=True)
    climbing = sandbox.Optimizer([p], "apollo", maximize=True, nonfinite="skip")
    p.grad = torch.full((2,), math.nan)
    climbing.step()
    other = sandbox.Optimizer([p], "apollo")
    other.load_state_dict(climbing.state_dict())
    assert other.param_groups[0]["maximize"]
    assert other.skipped_steps == 1


# -- what others put in its place --------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["eager", "compiled", "scripted"])
def test_parameters_and_states_put_in_place_of_others_are_seen(backend):
    """Against torch's Adam, treated the same way: another parameter with the old one's state, states
    replaced by zeros, states set to zero where they are, "step" among them."""
    ends = []
    for make in (lambda p: sandbox.Optimizer(p, "adam", lr=0.1, backend=backend), lambda p: torch.optim.Adam(p, lr=0.1)):
        params = [
            torch.ones(3, dtype=torch.float64, requires_grad=True),
            torch.ones(2, dtype=torch.float64, requires_grad=True),
        ]
        optimizer = make(params)

        def step(factor, params=params, optimizer=optimizer):
            for p in params:
                p.grad = factor * torch.arange(1.0, 1 + p.numel(), dtype=torch.float64)
            optimizer.step()

        step(1.0)
        new = torch.full((3,), 5.0, dtype=torch.float64, requires_grad=True)
        optimizer.state[new] = optimizer.state.pop(params[0])
        optimizer.param_groups[0]["params"][0] = params[0] = new
        step(-2.0)
        for p in params:
            for name, value in optimizer.state[p].items():
                optimizer.state[p][name] = torch.zeros_like(value)
        step(3.0)
        for state in optimizer.state.values():
            for value in state.values():
                value.zero_()
        step(0.5)
        ends.append([p.detach().clone() for p in params])
    for p, q in zip(*ends, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-12, atol=0)


@pytest.mark.parametrize("backend", ["eager", "compiled", "scripted"])
def test_tensors_that_catch_up_share_a_scalar_again(backend):
    """Scope global: two tensors that have made as many steps at one rate are one vector, whether the run was resumed or not."""
    ends = []
    for resumed in (False, True):
        draw = torch.Generator().manual_seed(0)
        params = [torch.randn(3, dtype=torch.float64, generator=draw, requires_grad=True) for _ in range(2)]
        optimizer = sandbox.Optimizer(params, "global-secant", lr=0.1, backend=backend)
        for step in range(7):
            if resumed and step == 3:
                saved = copy.deepcopy(optimizer.state_dict())
                optimizer = sandbox.Optimizer(params, "global-secant", lr=0.1, backend=backend)
                optimizer.load_state_dict(saved)
            optimizer.param_groups[0]["lr"] = 0.1 * (step + 1)
            for i, p in enumerate(params):
                g = torch.randn(3, dtype=torch.float64, generator=draw)
                p.grad = None if step == 1 - i else g
            optimizer.step()
        ends.append([p.detach().clone() for p in params])
    for p, q in zip(*ends, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("then", [torch.float64, torch.float32])
def test_a_model_cast_between_steps(then):
    """Large tensors, compiled: as eager, in the parameter's new precision (1e-4: states rounded to float32 on the way)."""
    ends = []
    for backend in ("eager", "compiled"):
        draw = torch.Generator().manual_seed(0)
        first = torch.float32 if then == torch.float64 else torch.float64
        p = torch.nn.Parameter(torch.randn(2**17 + 5, generator=draw, dtype=first))
        optimizer = sandbox.Optimizer([p], "apollo", lr=0.01, backend=backend)
        for step in range(6):
            if step == 3:
                p.data, p.grad = p.data.to(then), None
            p.grad = torch.randn(len(p), generator=draw).to(p.dtype)
            optimizer.step()
        assert p.dtype == then
        ends.append(p.detach())
    torch.testing.assert_close(*ends, rtol=1e-4, atol=1e-4)


def test_flat_parameters_are_not_cast_back():
    p = torch.ones(4, requires_grad=True)
    optimizer = sandbox.Optimizer([p], "apollo", lr=0.01, backend="compiled", flat=True)
    p.grad = torch.ones(4)
    optimizer.step()
    p.data, p.grad = p.data.double(), None
    p.grad = torch.ones(4, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"flat=True: a parameter was torch.float32 on cpu and is torch.float64"):
        optimizer.step()


def test_global_scope_needs_one_precision():
    params = [torch.ones(2, dtype=d, requires_grad=True) for d in (torch.float32, torch.float64)]
    for p in params:
        p.grad = torch.ones_like(p)
    with pytest.raises(ValueError, match="scope 'global' needs all tensors of a group on one device and in one precision"):
        sandbox.Optimizer(params, "global-secant").step()


def test_pickles_of_a_compiled_optimizer_hold_its_states_once():
    params = [torch.zeros(100, requires_grad=True) for _ in range(50)]
    for p in params:
        p.grad = torch.ones(100)
    optimizer = sandbox.Optimizer(params, "apollo", backend="compiled")
    optimizer.step()
    numbers = 50 * 100 * 4 * 4  # θ, its gradient, m and B
    assert len(pickle.dumps(optimizer)) < 3 * numbers
    assert len(pickle.dumps(optimizer.state_dict())) < 3 * numbers


def test_a_frozen_parameter_makes_no_step_of_second_order():
    """Even with an old gradient; the others go on."""
    for backend in ("eager", "compiled", "scripted"):
        a, b = (torch.ones(3, dtype=torch.float64, requires_grad=True) for _ in range(2))
        optimizer = sandbox.Optimizer([a, b], "adahessian", lr=0.1, backend=backend)
        optimizer.step(lambda a=a, b=b: (a.square() + b.square()).sum())
        a.requires_grad_(False)
        kept = a.detach().clone()
        optimizer.step(lambda a=a, b=b: (a.square() + b.square()).sum())
        assert torch.equal(a, kept)
        assert float(b[0].detach()) < 0.85


def test_numbers_given_as_tensors_belong_to_one_group():
    sigma = torch.tensor(0.1)
    groups = [{"params": [torch.ones(2, requires_grad=True)]} for _ in range(2)]
    optimizer = sandbox.Optimizer(groups, "apollo", **{"rectifier.sigma": sigma})
    optimizer.param_groups[0]["rectifier.sigma"].fill_(0.5)
    assert float(optimizer.param_groups[1]["rectifier.sigma"]) == pytest.approx(0.1)
    assert float(sigma) == pytest.approx(0.1)


def test_a_warm_up_of_a_rate_that_is_a_function_of_t_is_refused():
    from sandbox.schedules import Geometric, warmup

    optimizer = sandbox.Optimizer([torch.ones(2, requires_grad=True)], "apollo", lr=Geometric(first=0.1, ratio=0.9))
    with pytest.raises(ValueError, match="the rate of group 0 is a function of t already"):
        warmup(optimizer, 5)

"""The elementwise methods against published code or literal recursions: six tensors in float64, 60 steps, the rate cut at 30.

Each is written out in NumPy from the paper or its authors' code; where pytorch_optimizer 4.1 (extra `bench`) is installed and
has the method with the published numbers, it is a second oracle.  Tolerance: the same numbers in another order of operations, 1e-16, of
which 60 steps of a stiff function make less than 1e-9.
"""

import collections
import functools
import math

import numpy as np
import pytest
import torch

import sandbox
import variants
from sandbox.blocks import AdamWDecay, L2Decay
from tests.problem import Problem, rate

TOLERANCE = dict(rtol=1e-9, atol=1e-11)


def peers():
    shrink, l2 = {"decay": AdamWDecay(weight_decay=0.1)}, {"gradient": (L2Decay(weight_decay=0.1),)}
    plain, mars = (
        {"rectifier.eps": 0.0},
        dict(optimize_1d=True, eps=0.0),
    )  # ε is corrected with v there, not in the authors' code
    bound = dict(betas=(0.9, 0.999), weight_decouple=False)
    return {
        "adabound": ("adabound", {}, "AdaBound", bound, 0.01),
        "adabound-closing": ("adabound", {"rectifier.gamma": 0.1}, "AdaBound", {**bound, "gamma": 0.1}, 0.001),
        "adabound-decay": ("adabound", l2, "AdaBound", {**bound, "weight_decay": 0.1}, 0.01),
        "amsbound": ("amsbound", {}, "AdaBound", {**bound, "ams_bound": True}, 0.05),
        "lion": ("lion", {}, "Lion", {}, 0.01),
        "lion-decay": ("lion", shrink, "Lion", dict(weight_decay=0.1), 0.01),
        "adan": ("adan", {}, "Adan", {}, 0.01),
        "adan-decay": ("adan", {"decay.weight_decay": 0.1}, "Adan", dict(weight_decay=0.1), 0.01),
        "ademamix": ("ademamix", {}, "AdEMAMix", dict(alpha=2.0), 0.01),
        "ademamix-decay": ("ademamix", shrink, "AdEMAMix", dict(alpha=2.0, weight_decay=0.1, weight_decouple=True), 0.01),
        "mars-adamw": ("mars-adamw", plain, "MARS", {**mars, "weight_decay": 0.0}, 0.01),
        "mars-adamw-decay": ("mars-adamw", {**shrink, **plain}, "MARS", {**mars, "weight_decay": 0.1}, 0.01),
    }


@pytest.mark.parametrize("case", peers())
def test_equal_to_published_code(case, monkeypatch):
    package = pytest.importorskip("pytorch_optimizer", reason="pytorch_optimizer (extra bench) is the oracle")
    name, change, peer, options, lr = peers()[case]
    # that package has √(v + 1e-15) for √v in its AMSBound and MARS, which is seen where a gradient passes through zero
    base = package.AdaBound.__mro__[1]
    plain = functools.partial(base.apply_ams_bound, exp_avg_sq_eps=0.0)
    monkeypatch.setattr(base, "apply_ams_bound", staticmethod(plain))
    ours, theirs = Problem(), Problem()
    params, others = ours.tensors(), theirs.tensors()
    recipe = variants.get(name).replace(**change)
    if name in ("adabound", "amsbound"):  # their final rate is final_lr at the rate at construction
        recipe = recipe.replace(**{"rectifier.ratio": 0.1 / lr})
    mine, other = sandbox.Optimizer(params, recipe, lr=lr), getattr(package, peer)(others, lr=lr, foreach=False, **options)
    schedulers = [torch.optim.lr_scheduler.MultiStepLR(o, [30], gamma=0.3) for o in (mine, other)]
    for step in range(60):
        ours.set_gradients(step, params)
        theirs.set_gradients(step, others)
        for optimizer, scheduler in zip((mine, other), schedulers, strict=True):
            optimizer.step()
            scheduler.step()
        for p, q in zip(params, others, strict=True):
            np.testing.assert_allclose(p.detach().numpy(), q.detach().numpy(), err_msg=f"step {step}", **TOLERANCE)


def test_sophia_equals_published_code_on_given_diagonals():
    """The same ĥ handed to both, at steps 1, 11, …; γ = 1 and the clip 0.01 at a hundred times the rate are theirs."""
    package = pytest.importorskip("pytorch_optimizer", reason="pytorch_optimizer (extra bench) is the oracle")
    recipe = variants.get("sophia-h").replace(**{"rectifier.gamma": 1.0, "solve.limit": 0.01, "decay.weight_decay": 0.1})
    ours, theirs = Problem(), Problem()
    params, others = [p.detach() for p in ours.tensors()], theirs.tensors()
    other = package.SophiaH(others, lr=0.06, betas=(0.96, 0.99), weight_decay=0.1, foreach=False)
    state, clipped = recipe.init(params), 0
    for step in range(60):
        diagonal = [torch.tensor(h - 0.3) for h in ours.h]  # some entries are negative
        grads = [torch.tensor(g) for g in ours.gradient(step, [p.numpy() for p in params])]
        seen = []
        given = dict(lr=0.06, hessian=diagonal, observe=lambda i, x: seen.append(x.d.abs() >= 0.01))  # noqa: B023
        state, params = recipe.update(state, params, grads, **given)
        clipped += sum(int(mask.sum()) for mask in seen)
        theirs.set_gradients(step, others)
        if step % 10 == 0:
            other.step(hessian=diagonal)
        else:
            _without_hessian(other)
        for p, q in zip(params, others, strict=True):
            np.testing.assert_allclose(p.numpy(), q.detach().numpy(), err_msg=f"step {step}", **TOLERANCE)
    assert 0 < clipped < 60 * sum(p.numel() for p in params)


def _without_hessian(optimizer):
    """A step between two looks at the Hessian."""
    optimizer.update_period = 10**9
    optimizer.step()


def follow(recipe, step_of, lr):
    """Beside a literal recursion step_of(t, θ, g, η) -> θ, which keeps its own state."""
    problem = Problem()
    params, theta = problem.tensors(), [x.copy() for x in problem.start]
    optimizer = sandbox.Optimizer(params, recipe, lr=lr)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [30], gamma=0.3)
    for step in range(60):
        problem.set_gradients(step, params)
        optimizer.step()
        scheduler.step()
        theta = step_of(step + 1, theta, problem.gradient(step, theta), rate(lr, step))
        for p, x in zip(params, theta, strict=True):
            np.testing.assert_allclose(p.detach().numpy(), x, err_msg=f"step {step}", **TOLERANCE)


def adan(s, t, x, g, lr):
    change = g - s["g"] if t > 1 else 0 * g
    s["g"] = g
    s["m"] = 0.98 * s["m"] + 0.02 * g
    s["w"] = 0.92 * s["w"] + 0.08 * change
    s["n"] = 0.99 * s["n"] + 0.01 * (g + 0.92 * change) ** 2
    u = s["m"] / (1 - 0.98**t) + 0.92 * s["w"] / (1 - 0.92**t)
    return (x - lr * u / (np.sqrt(s["n"] / (1 - 0.99**t)) + 1e-8)) / (1 + lr * 0.1)


def lion(s, t, x, g, lr):
    u = np.sign(0.9 * s["m"] + 0.1 * g)
    s["m"] = 0.99 * s["m"] + 0.01 * g
    return (1 - lr * 0.1) * x - lr * u


def ademamix(s, t, x, g, lr):
    s["m"] = 0.9 * s["m"] + 0.1 * g
    s["l"] = 0.99 * s["l"] + 0.01 * g
    s["v"] = 0.999 * s["v"] + 0.001 * g**2
    u = s["m"] / (1 - 0.9**t) + 2.0 * s["l"]
    return x - lr * u / (np.sqrt(s["v"] / (1 - 0.999**t)) + 1e-8)


def mars(s, t, x, g, lr):
    c = g + 0.025 * 0.95 / 0.05 * (g - s["g"])
    s["g"] = g
    c = c * min(1.0, 1 / np.linalg.norm(c))
    s["m"] = 0.95 * s["m"] + 0.05 * c
    s["v"] = 0.99 * s["v"] + 0.01 * c**2
    return (1 - lr * 0.1) * x - lr * s["m"] / (1 - 0.95**t) / (np.sqrt(s["v"] / (1 - 0.99**t)) + 1e-8)


def signum(s, t, x, g, lr):
    s["m"] = 0.9 * s["m"] + 0.1 * g
    return (1 - lr * 0.1) * x - lr * np.sign(s["m"])


def mars_lion(s, t, x, g, lr):
    c = g + 0.025 * 0.95 / 0.05 * (g - s["g"])
    s["g"] = g
    s["m"] = 0.95 * s["m"] + 0.05 * c * min(1.0, 1 / np.linalg.norm(c))
    return (1 - lr * 0.1) * x - lr * np.sign(s["m"])


def nadamw(s, t, x, g, lr):
    s["m"] = 0.9 * s["m"] + 0.1 * g
    s["v"] = 0.999 * s["v"] + 0.001 * g**2
    u = (0.9 * s["m"] + 0.1 * g) / (1 - 0.9**t)
    return (1 - lr * 0.1) * x - lr * u / (np.sqrt(s["v"] / (1 - 0.999**t)) + 1e-8)


def adabound(s, t, x, g, lr, largest=False):
    s["m"] = 0.9 * s["m"] + 0.1 * g
    s["v"] = 0.999 * s["v"] + 0.001 * g**2
    s["top"] = np.maximum(s["top"], s["v"]) if largest else s["v"]
    rate, final = lr * np.sqrt(1 - 0.999**t) / (1 - 0.9**t), 10.0 * lr
    each = rate / (np.sqrt(s["top"]) + 1e-8)
    return x - np.clip(each, final * (1 - 1 / (0.1 * t + 1)), final * (1 + 1 / (0.1 * t))) * s["m"]


def eadam(s, t, x, g, lr, eps=0.01):
    s["m"] = 0.9 * s["m"] + 0.1 * g
    s["v"] = 0.999 * s["v"] + 0.001 * g**2 + eps
    return x - lr * s["m"] / (1 - 0.9**t) / np.sqrt(s["v"] / (1 - 0.999**t))


def sophia(s, t, x, g, lr, hessian):
    s["m"] = 0.96 * s["m"] + 0.04 * g
    if t % 10 == 1:
        s["h"] = 0.99 * s["h"] + 0.01 * hessian
    return (1 - lr * 0.1) * x - lr * np.clip(s["m"] / np.maximum(0.05 * s["h"], 1e-12), -1, 1)


BOUND = {"rectifier.ratio": 10.0, "rectifier.gamma": 0.1}


@pytest.mark.parametrize(
    ("name", "change", "method", "lr"),
    [
        ("adan", {"decay.weight_decay": 0.1}, adan, 0.01),
        ("lion", {"decay.weight_decay": 0.1}, lion, 0.01),
        ("signum", {"decay.weight_decay": 0.1}, signum, 0.01),
        ("mars-lion", {"decay.weight_decay": 0.1}, mars_lion, 0.01),
        ("nadamw", {"decay.weight_decay": 0.1}, nadamw, 0.01),
        ("ademamix", {"moment.slow_beta": 0.99}, ademamix, 0.01),
        ("mars-adamw", {"decay.weight_decay": 0.1}, mars, 0.01),
        ("adabound", BOUND, adabound, 0.01),
        ("amsbound", BOUND, functools.partial(adabound, largest=True), 0.05),
        ("eadam", {}, functools.partial(eadam, eps=1e-8), 0.01),
        ("eadam", {"curvature.eps": 0.01}, eadam, 0.01),
    ],
)
def test_equal_to_the_recursion(name, change, method, lr):
    states = [collections.defaultdict(float) for _ in Problem().start]

    def step_of(t, theta, grads, lr):
        return [method(s, t, x, g, lr) for s, x, g in zip(states, theta, grads, strict=True)]

    follow(variants.get(name).replace(**change), step_of, lr)


def test_sophia_is_the_recursion_on_given_diagonals():
    """Some of them negative, some steps clipped and some not."""
    recipe = variants.get("sophia-h").replace(**{"rectifier.gamma": 0.05, "decay.weight_decay": 0.1})
    problem = Problem()
    params, theta = [p.detach() for p in problem.tensors()], [x.copy() for x in problem.start]
    states = [collections.defaultdict(float) for _ in theta]
    state = recipe.init(params)
    for step in range(60):
        diagonal = [(h - 0.3) * (1 + 0.5 * math.sin(step)) for h in problem.h]
        grads = [torch.tensor(g) for g in problem.gradient(step, [p.numpy() for p in params])]
        given = dict(lr=rate(0.01, step), hessian=[torch.tensor(h) for h in diagonal])
        state, params = recipe.update(state, params, grads, **given)
        rows = zip(states, theta, problem.gradient(step, theta), diagonal, strict=True)
        theta = [sophia(s, step + 1, x, g, given["lr"], h) for s, x, g, h in rows]
        for p, x in zip(params, theta, strict=True):
            np.testing.assert_allclose(p.numpy(), x, err_msg=f"step {step}", **TOLERANCE)


def test_adabound_lies_between_adam_and_sgd():
    """Bounds that are still open leave Adam; closed at once, they leave SGD at the final rate with the moment uncorrected."""
    base = variants.get("adabound").replace(**{"rectifier.inner.eps": 0.0})
    adam = variants.get("adam").replace(**{"rectifier.eps": 0.0})
    ends = []
    for recipe, lr in (
        (base.replace(**{"rectifier.gamma": 1e-12}), 0.01),
        (adam, 0.01),
        (base.replace(**{"rectifier.gamma": 1e12}), 0.001),
        (variants.get("sgd").replace(moment=sandbox.blocks.EMA(beta=0.9, bias_correction=False)), 0.1),
    ):
        problem = Problem()
        params = problem.tensors()
        optimizer = sandbox.Optimizer(params, recipe, lr=lr)
        for step in range(20):
            problem.set_gradients(step, params)
            optimizer.step()
        ends.append([p.detach().numpy() for p in params])
    for one, two in (ends[:2], ends[2:]):
        for p, q in zip(one, two, strict=True):
            np.testing.assert_allclose(p, q, rtol=1e-8, atol=1e-10)

"""Methods of 2016 to 2025 against torch.optim or recursions in NumPy: six tensors in float64, 60 steps, the rate cut at 30.

Tolerance: the same numbers in another order of operations, 1e-16, of which 60 steps of a stiff function make less than 1e-9.
"""

import collections

import numpy as np
import pytest
import torch
from torch import nn

import sandbox
import variants
from tests.problem import Problem, rate
from tests.variants.test_adaptive import TOLERANCE, follow


def adopt(s, t, x, g, lr):
    x = (1 - lr * 0.1) * x
    if t == 1:
        s["v"] = g**2
        return x
    u = np.clip(g / np.maximum(np.sqrt(s["v"]), 1e-6), -((t - 1) ** 0.25), (t - 1) ** 0.25)
    s["m"] = 0.9 * s["m"] + 0.1 * u
    s["v"] = 0.9999 * s["v"] + 0.0001 * g**2
    return x - lr * s["m"]


def grokfast(s, t, x, g, lr):
    s["h"] = 0.98 * s["h"] + 0.02 * g if t > 1 else g
    g = g + 2 * s["h"]
    s["m"], s["v"] = 0.9 * s["m"] + 0.1 * g, 0.999 * s["v"] + 0.001 * g**2
    return (1 - lr * 0.1) * x - lr * s["m"] / (1 - 0.9**t) / (np.sqrt(s["v"] / (1 - 0.999**t)) + 1e-8)


def tiger(s, t, x, g, lr):
    s["m"] = 0.965 * s["m"] + 0.035 * g
    if x.ndim < 2:
        return x - lr / 2 * np.sign(s["m"])
    return x - lr * np.sqrt(np.mean(x**2)) * (np.sign(s["m"]) + 0.01 * x)


def lars(s, t, x, g, lr):
    if x.ndim > 1:
        weights, size = np.linalg.norm(x), np.linalg.norm(g)
        g = (g + 0.1 * x) * 0.001 * weights / (size + 0.1 * weights)
    s["b"] = 0.9 * s["b"] + g
    return x - lr * s["b"]


def newton_schulz(X):
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = X.shape[0] > X.shape[1]
    X = X.T if tall else X
    X = X / max(np.linalg.norm(X), 1e-7)
    for _ in range(5):
        S = X @ X.T
        X = a * X + (b * S + c * S @ S) @ X
    return X.T if tall else X


def adam(s, t, x, g, lr, decay):
    s["m"], s["v"] = 0.9 * s["m"] + 0.1 * g, 0.95 * s["v"] + 0.05 * g**2
    return (1 - lr * decay) * x - lr * s["m"] / (1 - 0.9**t) / (np.sqrt(s["v"] / (1 - 0.95**t)) + 1e-10)


def nesterov(s, g):
    s["m"] = 0.95 * s["m"] + 0.05 * g
    return 0.05 * g + 0.95 * s["m"]


def normuon(s, t, x, g, lr):
    if x.ndim < 2:
        return adam(s, t, x, g, lr * 3e-4 / 0.02, 0.0)
    X = newton_schulz(nesterov(s, g).reshape(len(x), -1))
    s["r"] = 0.95 * s["r"] + 0.05 * np.mean(X**2, 1, keepdims=True)
    P = X / (np.sqrt(s["r"]) + 1e-10)
    P = P * np.linalg.norm(X) / (np.linalg.norm(P) + 1e-10)
    return (1 - lr * 0.1) * x - lr * np.sqrt(max(1, X.shape[0] / X.shape[1])) * P.reshape(x.shape)


def adamuon(s, t, x, g, lr):
    if x.ndim < 2:
        return adam(s, t, x, g, lr * 3e-4 / 0.02, 0.0)
    X = newton_schulz(nesterov(s, g).reshape(len(x), -1))
    s["v"] = 0.999 * s["v"] + 0.001 * X**2
    P = X / (np.sqrt(s["v"] / (1 - 0.999**t)) + 1e-8)
    P = P * np.sqrt(min(X.shape)) / (np.linalg.norm(P) + 1e-8)
    return (1 - lr * 0.1) * x - lr * 0.2 * np.sqrt(max(X.shape)) * P.reshape(x.shape)


def scion(s, t, x, g, lr):
    s["m"] = 0.9 * s["m"] + 0.1 * g
    m = s["m"]
    if x.ndim < 2:
        return (1 - lr) * x - lr * m / (np.sqrt(np.mean(m**2)) + 1e-8)
    X = newton_schulz(m.reshape(len(x), -1))
    return (1 - lr) * x - lr * 50 * np.sqrt(X.shape[0] / X.shape[1]) * X.reshape(x.shape)


def adam_mini(s, t, x, g, lr):
    s["m"] = 0.9 * s["m"] + 0.1 * g
    squares = g**2
    if x.ndim > 1:
        squares = np.mean(squares, axis=tuple(range(1, g.ndim)), keepdims=True)
    s["v"] = 0.999 * s["v"] + 0.001 * squares
    return (1 - lr * 0.1) * x - lr * s["m"] / (1 - 0.9**t) / (np.sqrt(s["v"] / (1 - 0.999**t)) + 1e-8)


DECAYED = {"decay.weight_decay": 0.1}


@pytest.mark.parametrize(
    ("name", "change", "method", "lr"),
    [
        ("adopt", DECAYED, adopt, 0.01),
        ("grokfast-adamw", DECAYED, grokfast, 0.01),
        ("tiger", {}, tiger, 0.01),
        ("lars", {"gradient.0.weight_decay": 0.1}, lars, 1.0),
        ("normuon", DECAYED, normuon, 0.02),
        ("adamuon", DECAYED, adamuon, 0.02),
        ("scion", {}, scion, 0.001),
        ("adam-mini", {**DECAYED, "vectors.decay.weight_decay": 0.1}, adam_mini, 0.01),
    ],
)
def test_equal_to_the_recursion(name, change, method, lr):
    states = [collections.defaultdict(float) for _ in Problem().start]

    def step_of(t, theta, grads, lr):
        return [method(s, t, x, g, lr) for s, x, g in zip(states, theta, grads, strict=True)]

    follow(variants.get(name).replace(**change), step_of, lr)


def test_lamb_is_its_formula():
    """timm's: gradients clipped together to norm 1, then m̂/(√v̂ + ε) + γθ at the length of θ."""
    states = [collections.defaultdict(float) for _ in Problem().start]

    def step_of(t, theta, grads, lr):
        whole, new = np.sqrt(sum(np.sum(g**2) for g in grads)), []
        for s, x, raw in zip(states, theta, grads, strict=True):
            g = raw / max(whole, 1.0)
            s["m"], s["v"] = 0.9 * s["m"] + 0.1 * g, 0.999 * s["v"] + 0.001 * g**2
            u = s["m"] / (1 - 0.9**t) / (np.sqrt(s["v"] / (1 - 0.999**t)) + 1e-6) + 0.01 * x
            new.append(x - lr * np.linalg.norm(x) / np.linalg.norm(u) * u)
        return new

    follow(variants.get("lamb"), step_of, 0.01)


def beside_torch(recipe, kind, lr, shapes, **options):
    """Sixty steps beside a torch optimizer on the same problem."""
    ours, theirs = Problem(shapes=shapes), Problem(shapes=shapes)
    params, others = ours.tensors(), theirs.tensors()
    mine, other = sandbox.Optimizer(params, recipe, lr=lr), kind(others, lr=lr, **options)
    for step in range(60):
        for optimizer, problem, tensors in ((mine, ours, params), (other, theirs, others)):
            optimizer.param_groups[0]["lr"] = rate(lr, step)
            problem.set_gradients(step, tensors)
            optimizer.step()
        for a, b in zip(params, others, strict=True):
            np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), err_msg=f"step {step}", **TOLERANCE)


def test_nadam_is_torchs():
    """Whose product of momenta has the default dtype, here float64."""
    torch.set_default_dtype(torch.float64)
    recipe = variants.get("nadam").replace(**DECAYED)
    try:
        beside_torch(recipe, torch.optim.NAdam, 0.01, Problem().shapes, weight_decay=0.1, decoupled_weight_decay=True)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("lr", [0.01, 0.5])
def test_adafactor_is_torchs(lr):
    """On matrices and vectors, where views are no matter; at .5 the rate is 1/√t from the fourth step on."""
    recipe = variants.get("adafactor").replace(**DECAYED, **{"curvature.floor": 1e-7, "rectifier.eps": 1e-7})
    shapes = [(4, 3), (7,), (3, 5), (1, 5)]
    beside_torch(recipe, torch.optim.Adafactor, lr, shapes, weight_decay=0.1, eps=(1e-7, 1e-3), foreach=False)


def test_a_weight_of_zeros():
    """LAMB and LARS take no factor where θ = 0; Tiger stands still; Adafactor moves by 1e-3 of its rate."""
    theta, g = torch.zeros(2, 3, dtype=torch.float64), torch.ones(2, 3, dtype=torch.float64)
    for name, expected in (("lamb", -1.0), ("lars", -1.0), ("tiger", 0.0), ("adafactor", -1e-3)):
        recipe = variants.get(name)
        recipe = recipe.replace(gradient=()) if name == "lamb" else recipe
        _, after = recipe.update(recipe.init(theta), theta, g, lr=1.0)
        torch.testing.assert_close(after, torch.full_like(theta, expected), rtol=1e-5, atol=0)


def test_tiger_scales_embeddings_by_row():
    """Each row of a table moves by η times its own RMS."""
    network = nn.Sequential(nn.Embedding(3, 2), nn.Flatten(), nn.Linear(6, 2)).double()
    table = network[0].weight
    with torch.no_grad():
        table.copy_(torch.tensor([[3.0, 4.0], [0.0, 0.0], [1.0, -1.0]]))
    optimizer = sandbox.Optimizer(network, "tiger", lr=0.1, roles={"2.weight": "head"}, weight_decay=0.0)
    before = table.detach().clone()
    table.grad = torch.ones_like(table)
    optimizer.step()
    rms = before.square().mean(1, keepdim=True).sqrt()
    torch.testing.assert_close(table.detach(), before - 0.1 * rms.expand_as(before), rtol=1e-12, atol=1e-14)


def test_muons_relatives_leave_embeddings_and_heads():
    for name in ("muon", "normuon", "adamuon"):
        recipe = variants.get(name)
        assert recipe.roles.given() == {"embedding": "vectors", "head": "vectors"}


def test_scion_and_adam_mini_by_role():
    """One step from zero state by hand: rows of embeddings, signs of heads, one v per norm."""
    network = nn.Sequential(nn.Embedding(3, 2), nn.Flatten(), nn.LayerNorm(6), nn.Linear(6, 2)).double()
    table, scale, head = network[0].weight, network[2].weight, network[3].weight
    before = {p: p.detach().clone() for p in network.parameters()}
    draw = torch.Generator().manual_seed(0)
    for p in network.parameters():
        p.grad = torch.randn(p.shape, generator=draw, dtype=torch.float64)
    sandbox.Optimizer(network, "scion", lr=0.1, roles={"3.weight": "head"}).step()
    g = table.grad
    expected = 0.9 * before[table] - 0.1 * g / g.square().mean(1, keepdim=True).sqrt()
    torch.testing.assert_close(table.detach(), expected, rtol=1e-6, atol=1e-7)  # 1e-8 beside 0.1 of g
    torch.testing.assert_close(head.detach(), 0.9 * before[head] - 0.1 * 3000 / 6 * head.grad.sign(), rtol=1e-12, atol=1e-12)
    with torch.no_grad():
        for p, value in before.items():
            p.copy_(value)
    mini = sandbox.Optimizer(network, "adam-mini", lr=0.1, weight_decay=0.0, roles={"3.weight": "head"})
    mini.step()
    g = scale.grad
    torch.testing.assert_close(scale.detach(), before[scale] - 0.1 * g / g.square().mean().sqrt(), rtol=1e-6, atol=1e-7)
    assert mini.state[scale]["curvature.v"].shape == ()
    assert mini.state[head]["curvature.v"].shape == (2, 1)

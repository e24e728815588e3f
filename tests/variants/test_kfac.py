"""K-FAC: the Gauss-Newton matrix where it is one, a literal recursion elsewhere."""

import functools

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import sandbox
import variants
from sandbox.blocks import EMA, AdamWDecay, SoftAbsolute, WeakSecant
from sandbox.curvature.factors import Seen
from sandbox.forms import toml

KFAC = variants.get("kfac")


def drawn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_one_linear_layer_with_squared_error_is_gauss_newton():
    """θ - η (H + δI)⁻¹ ∇f with the exact Hessian of the layer, which is G ⊗ A, G = 2/C I."""
    X, Y, W = drawn(20, 4), drawn(20, 3, seed=1), drawn(3, 4, seed=2).requires_grad_()

    def loss(W):
        return F.mse_loss(F.linear(X, W), Y)

    seen = Seen([W])
    with seen.watching():
        loss(W).backward()
    _, A = seen.pair(0)
    recipe = KFAC.replace(moment=EMA(beta=0.0), vectors=variants.get("sgd"))
    state = recipe.init(W.detach())
    _, after = recipe.update(state, W.detach(), W.grad, lr=0.5, A=A, G=2 / 3 * torch.eye(3, dtype=torch.float64))
    H = torch.func.hessian(loss)(W.detach()).reshape(12, 12)
    newton = torch.linalg.solve(H + 0.01 * torch.eye(12, dtype=torch.float64), W.grad.reshape(12)).reshape(3, 4)
    torch.testing.assert_close(after, W.detach() - 0.5 * newton, rtol=1e-10, atol=1e-12)


def test_labels_from_the_model_give_the_gauss_newton_factor():
    """Of 30,000 rows: 2/C I for squared errors, diag(p) - p pᵀ for a softmax, each to five standard errors (0.03)."""
    X, W = drawn(30_000, 2), drawn(3, 2, seed=1).requires_grad_()
    p = torch.nn.Parameter(torch.zeros(3, 2, dtype=torch.float64))
    for weight, loss, expected in (
        (W, lambda: F.mse_loss(F.linear(X, W), torch.zeros(30_000, 3, dtype=torch.float64)), 2 / 3 * torch.eye(3)),
        (p, lambda: F.cross_entropy(F.linear(X, p), torch.zeros(30_000, dtype=torch.int64)), torch.eye(3) / 3 - 1 / 9),
    ):
        optimizer = sandbox.Optimizer([weight], KFAC)

        def closure(loss=loss, optimizer=optimizer):
            optimizer.zero_grad()
            value = loss()
            value.backward()
            return value

        optimizer.step(closure)
        state = optimizer.state[weight]
        # the averages of a first step are its factors
        torch.testing.assert_close(state["basis.L"], expected.double(), rtol=0, atol=0.03)
        torch.testing.assert_close(state["basis.R"], X.T @ X / 30_000, rtol=1e-10, atol=1e-12)
        assert KFAC.analysis.evaluations == 2


def test_one_more_call_serves_factors_and_gradients_at_drawn_labels():
    """K-FAC's weight and Sophia-G's bias in two groups: both see the labels of one draw."""
    model, X, calls = nn.Linear(2, 3).double(), drawn(5, 2), []
    groups = [{"params": [model.weight], "recipe": KFAC}, {"params": [model.bias], "recipe": "sophia-g"}]
    optimizer = sandbox.Optimizer(groups, KFAC)

    def closure():
        calls.append(1)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(X), torch.zeros(5, dtype=torch.int64))
        loss.backward()
        return loss

    optimizer.step(closure)
    assert len(calls) == 2
    assert [group["draws"] for group in optimizer.param_groups] == [1, 1]


def network():
    model = nn.Sequential(nn.Conv2d(1, 2, 2, stride=2, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(18, 3)).double()
    for i, q in enumerate(model.parameters()):
        q.data = 0.3 * drawn(*q.shape, seed=i)
    return model


def trained(recipe, backend="eager", steps=5):
    model, X, y = network(), drawn(6, 1, 4, 4, seed=9), torch.arange(6) % 3
    optimizer = sandbox.Optimizer(model.named_parameters(), recipe, lr=0.05, backend=backend)

    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(X), y)
        loss.backward()
        return loss

    for _ in range(steps):
        optimizer.step(closure)
    return [q.detach().numpy() for q in model.parameters()], optimizer


def literal(steps=5, lr=0.05, delta=0.01, ekfac=False):
    """The same by NumPy: patches cut by hand, gradients of tanh and softmax written out, labels as given."""
    X, y = drawn(6, 1, 4, 4, seed=9).numpy(), np.arange(6) % 3
    K, k, W, w = [q.detach().numpy().copy() for q in network().parameters()]
    padded = np.pad(X, ((0, 0), (0, 0), (1, 1), (1, 1)))
    patches = np.array([[padded[n, 0, i : i + 2, j : j + 2].ravel() for i in (0, 2, 4) for j in (0, 2, 4)] for n in range(6)])
    kept = [np.zeros((2, 2)), np.zeros((4, 4)), np.zeros((3, 3)), np.zeros((18, 18))]
    m, v = [0, 0, 0, 0], [0, 0]
    for t in range(1, steps + 1):
        a = np.tanh(patches @ K.reshape(2, 4).T + k)  # (6, 9, 2)
        flat = a.transpose(0, 2, 1).reshape(6, 18)
        logits = flat @ W.T + w
        p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        h = (p - np.eye(3)[y]) / 6
        back = (h @ W).reshape(6, 2, 9).transpose(0, 2, 1) * (1 - a * a)
        rows, hs = patches.reshape(54, 4), back.reshape(54, 2)
        grads = [hs.T @ rows, hs.sum(0), h.T @ flat, h.sum(0)]
        b = min(1 - 1 / t, 0.95)
        now = [6 * hs.T @ hs, rows.T @ rows / 54, 6 * h.T @ h, flat.T @ flat / 6]
        kept = [b * old + (1 - b) * new for old, new in zip(kept, now, strict=True)]
        m = [0.9 * old + g for old, g in zip(m, grads, strict=True)]
        for place, (G, A) in ((0, kept[:2]), (2, kept[2:])):
            (lam, Q), (mu, P) = np.linalg.eigh(G), np.linalg.eigh(A)
            D = np.outer(lam.clip(0), mu.clip(0)) + delta
            inside = Q.T @ m[place] @ P
            if ekfac:
                v[place // 2] = 0.95 * v[place // 2] + 0.05 * (Q.T @ grads[place] @ P) ** 2
                D = v[place // 2] / (1 - 0.95**t) + delta
            step = Q @ (inside / D) @ P.T
            if place == 0:
                K = K - lr * step.reshape(K.shape)
            else:
                W = W - lr * step
        k, w = k - lr * m[1], w - lr * m[3]
    return [K, k, W, w]


@pytest.mark.parametrize("backend", ["eager", "scripted"])
def test_equal_to_a_literal_recursion(backend):
    """A convolution and a linear layer, biases by SGD; five steps of rounding."""
    recipe = KFAC.replace(basis=sandbox.blocks.KroneckerFactors(labels="given"))
    for p, x in zip(trained(recipe, backend)[0], literal(), strict=True):
        np.testing.assert_allclose(p, x, rtol=1e-8, atol=1e-10)


class Tokens(nn.Module):
    """Linear layers on (rows, 5 positions, features), and one label per row or per position."""

    def __init__(self, each):
        super().__init__()
        self.each, self.inner, self.out = each, nn.Linear(4, 6), nn.Linear(6, 3)
        for i, q in enumerate(self.parameters()):
            q.data = 0.5 * drawn(*q.shape, seed=i)

    def forward(self, x):
        out = self.out(torch.tanh(self.inner(x)))
        return out.flatten(0, 1) if self.each else out.mean(1)


def seen_factors(model, loss, weights):
    seen = Seen(weights)
    with seen.watching():
        loss(model).backward()
    return [seen.pair(place) for place in range(len(weights))]


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("kind", ["convolution", "rows", "positions", "squares"])
def test_given_factors_are_curvlinops(kind, reduction):
    """G ⊗ A of every weight against another implementation's empirical K-FAC, to rounding."""
    curvlinops = pytest.importorskip("curvlinops")
    model = Tokens(kind == "positions") if kind in ("rows", "positions") else network()
    X = drawn(6, 5, 4, seed=9) if kind in ("rows", "positions") else drawn(6, 1, 4, 4, seed=9)
    y = torch.arange(30 if kind == "positions" else 6) % 3 if kind != "squares" else drawn(6, 3, seed=3)
    criterion = (nn.MSELoss if kind == "squares" else nn.CrossEntropyLoss)(reduction=reduction)
    named = dict(model.named_parameters())
    weights = {name: p for name, p in named.items() if p.ndim > 1}
    factors = seen_factors(model, lambda model: criterion(model(X), y), list(weights.values()))
    options = {
        "fisher_type": "empirical",
        "kfac_approx": "expand",
        "num_per_example_loss_terms": 5 if kind == "positions" else 1,
    }
    operator = curvlinops.KFACLinearOperator(model, criterion, list(named.values()), [(X, y)], **options)
    dense = operator @ torch.eye(sum(p.numel() for p in named.values()), dtype=torch.float64)
    places = dict(zip(named, np.cumsum([0, *(p.numel() for p in named.values())]), strict=False))
    for (name, p), (G, A) in zip(weights.items(), factors, strict=True):
        block = slice(places[name], places[name] + p.numel())
        torch.testing.assert_close(torch.kron(G, A), dense[block, block], rtol=1e-12, atol=1e-14)


LABELS = torch.tensor([0, 2, -100, 1, -100, 2])


@pytest.mark.parametrize(
    ("loss", "terms"),
    [
        (lambda out: F.cross_entropy(out, LABELS), 4),
        (lambda out: F.cross_entropy(out, LABELS, reduction="sum"), 1),
        (lambda out: F.cross_entropy(out, LABELS, reduction="none").sum() / 4, 4),
        (lambda out: F.cross_entropy(out, LABELS) / 2, 8),
        (lambda out: F.cross_entropy(out[:3], LABELS[:3]) / 2 + F.cross_entropy(out[3:], LABELS[3:]) / 2, 4),
        (lambda out: F.cross_entropy(out, LABELS, 3 * torch.ones(3).double()), 4),
    ],
)
def test_given_factors_by_gradients_of_one_example_each(loss, terms):
    """G = 1/terms Σ_i Σ_t g_it g_itᵀ, with g_it from a run of the i-th example alone; ignored ones have none."""
    model, X = Tokens(False), drawn(6, 5, 4, seed=9)
    (G, A), (H, _) = seen_factors(model, lambda model: loss(model(X)), [model.inner.weight, model.out.weight])
    expected = [0.0, 0.0]
    for i in torch.nonzero(LABELS >= 0).flatten():
        inner = model.inner(X[i]).detach().requires_grad_()
        outer = model.out(torch.tanh(inner))
        g = torch.autograd.grad(F.cross_entropy(outer.mean(0), LABELS[i]), (inner, outer))
        expected = [e + x.T @ x / terms for e, x in zip(expected, g, strict=True)]
    torch.testing.assert_close(G, expected[0], rtol=1e-10, atol=1e-14)
    torch.testing.assert_close(H, expected[1], rtol=1e-10, atol=1e-14)
    rows = X.reshape(30, 4)
    torch.testing.assert_close(A, rows.T @ rows / 30, rtol=1e-12, atol=1e-14)


def test_a_loss_of_unknown_labels_has_no_factors():
    W = drawn(3, 4).requires_grad_()
    with pytest.raises(
        RuntimeError, match=r"over how many of them the loss is a mean, but it calls none of torch\.nn\.functional's"
    ):
        seen_factors(W, lambda W: F.linear(drawn(6, 4, seed=1), W).square().mean(), [W])


def test_ekfac_is_literal_where_eigenvectors_are_determined():
    """One step: later ones keep squares by eigenvector, and those of the eigenvalue 0 are the library's choice."""
    recipe = variants.get("ekfac").replace(
        lr=0.01, **{"basis": sandbox.blocks.KroneckerFactors(labels="given"), "rectifier.damping": 1e3}
    )
    for p, x in zip(trained(recipe, steps=1)[0], literal(1, delta=1e3, ekfac=True), strict=True):
        np.testing.assert_allclose(p, x, rtol=1e-8, atol=1e-10)


def test_the_weak_secant_in_the_basis_of_layers():
    """Apollo's B in K-FAC's eigenbasis: every part that a recipe has, in the backends; the direction's basis is orthogonal."""
    recipe = variants.get("apollo").replace(
        basis=sandbox.blocks.KroneckerFactors(labels="given"),
        curvature=WeakSecant(),
        rectifier=SoftAbsolute(sigma=0.1),
        decay=AdamWDecay(weight_decay=0.1),
    )
    assert recipe.analysis.stores_direction
    assert toml.loads(toml.dumps(recipe)) == recipe
    one, optimizer = trained(recipe)
    for p, q in zip(one, trained(recipe, "scripted")[0], strict=True):
        np.testing.assert_allclose(p, q, rtol=1e-9, atol=1e-11)
    for p, state in optimizer.state.items():
        if p.ndim > 1:
            Q = state["basis.QL"]
            torch.testing.assert_close(Q @ Q.mT, torch.eye(len(Q), dtype=Q.dtype), rtol=0, atol=1e-12)
        else:
            assert "basis.QL" not in state


@pytest.mark.parametrize("labels", ["sampled", "given"])
def test_a_grid_of_seeds_and_rates_is_what_the_optimizer_does(labels):
    """Under two vmaps, with labels of each seed's own, in float64 to rounding: eigenvectors' signs and order are not in a step."""
    recipe, model = KFAC.replace(basis=sandbox.blocks.KroneckerFactors(labels=labels, beta=0.8)), network()
    params = {name: p.detach() for name, p in model.named_parameters()}
    rates, seeds, y = [0.05, 0.2], [3, 5], torch.arange(6) % 3

    def loss(params, X):
        return F.cross_entropy(torch.func.functional_call(model, params, (X,)), y)

    def batches(seed):
        return [drawn(6, 1, 4, 4, seed=seed + t) for t in range(4)]

    def alone(lr, seed):
        own = {name: p.clone().requires_grad_() for name, p in params.items()}
        optimizer = sandbox.Optimizer(own.items(), recipe, lr=lr, seed=seed)

        def closure(X):
            optimizer.zero_grad()
            value = loss(own, X)
            value.backward()
            return value

        for X in batches(seed):
            optimizer.step(functools.partial(closure, X))
        return own

    grid = sandbox.ensemble.run(recipe, loss, lr=rates, seeds=seeds, steps=4, params=params, batches=batches)
    assert grid.looped == {}
    for member, (lr, seed) in enumerate((lr, seed) for lr in rates for seed in seeds):
        for name, p in alone(lr, seed).items():
            torch.testing.assert_close(grid.params[name][member], p.detach(), rtol=1e-9, atol=1e-11)


def test_closures_of_other_recipes_are_not_watched():
    p, modes = torch.ones(2, 3, requires_grad=True), []

    def closure():
        modes.append(torch._C._len_torch_function_stack())
        loss = F.mse_loss(F.linear(torch.ones(4, 3), p), torch.zeros(4, 2))
        loss.backward()
        return loss

    for recipe in ("apollo", KFAC.replace(basis=sandbox.blocks.KroneckerFactors(labels="given"))):
        sandbox.Optimizer([p], recipe).step(closure)
    assert modes == [0, 1]


def test_what_does_not_fit():
    p = torch.ones(2, 3, requires_grad=True)
    optimizer = sandbox.Optimizer([p], KFAC)
    p.grad = torch.ones(2, 3)
    with pytest.raises(RuntimeError, match=r"needs step\(closure\)"):
        optimizer.step()

    def closure():
        loss = F.mse_loss(p.sum(1), torch.zeros(2))
        loss.backward()
        return loss

    with pytest.raises(RuntimeError, match=r"no linear or conv2d layer .* has used the parameter of shape \(2, 3\)"):
        optimizer.step(closure)
    with pytest.raises(RuntimeError, match="has used the parameter"):
        sandbox.ensemble.run(
            KFAC, lambda params, _: F.mse_loss(params["w"].sum(1), torch.zeros(2)), params={"w": p.detach()}, steps=1
        )
    with pytest.raises(ValueError, match="KroneckerEigenvalues in slot 'curvature' takes eigenvalues of a basis"):
        KFAC.replace(basis=sandbox.blocks.Standard())
    with pytest.raises(ValueError, match="not known in a basis other than Standard"):
        variants.get("adahessian").replace(basis=sandbox.blocks.Kronecker())

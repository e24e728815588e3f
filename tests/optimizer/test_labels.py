"""Labels drawn from the model."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import sandbox
import variants
from sandbox.blocks import GaussNewtonEMA
from sandbox.curvature import labels


def splitmix64(x):
    """The published generator's output at the state x (Steele, Lea & Flood 2014), in whole numbers."""
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
    return x ^ x >> 31


def test_the_numbers_are_splitmix64s():
    """Numbers in (0, 1) from the upper 52 bits; a stream for each key and call."""
    gamma = 0x9E3779B97F4A7C15
    # from seed 0, as the authors' code prints them
    outputs = [splitmix64(k * gamma % 2**64) for k in (1, 2, 3)]
    assert outputs == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    for key in (0, 7):
        drawn = labels.Drawn(key)
        for call in (1, 2):
            stream = splitmix64((key * gamma + call) % 2**64)
            right = [((splitmix64((stream + k * gamma) % 2**64) >> 12) + 0.5) / 2**52 for k in range(6)]
            assert drawn.uniform(torch.empty(2, 3)).flatten().tolist() == right


def test_calls_and_keys_have_streams_of_their_own():
    """Uniform: 10,000 numbers in ten classes, χ² with nine degrees below its 0.9999 quantile; pairs of streams uncorrelated."""
    streams = []
    for key in (0, 1):
        drawn = labels.Drawn(key)
        streams += [drawn.uniform(torch.empty(100, 100)).flatten() for _ in range(2)]
    for u in streams:
        counts = torch.histc(u, 10, 0.0, 1.0)
        assert ((counts - 1000).square() / 1000).sum() < 33.7
    assert np.abs(np.corrcoef(torch.stack(streams).numpy()) - np.eye(4)).max() < 0.05  # five standard errors
    assert torch.equal(labels.Drawn(torch.tensor(1)).uniform(torch.empty(100, 100)).flatten(), streams[2])


def test_in_a_batch_of_keys_each_draws_as_alone():
    logits = torch.randn(3, 40, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    target = torch.arange(40) % 5
    target[:7] = -100

    def loss(logits, key):
        with labels.Drawn(key):
            return F.cross_entropy(logits, target)

    together = torch.func.vmap(loss)(logits, torch.tensor([4, 5, 6]))
    for k in range(3):
        alone = loss(logits[k], 4 + k)
        torch.testing.assert_close(together[k], alone, rtol=1e-14, atol=0)
        assert loss(logits[k], 7) != alone  # other keys, other labels


def test_sophia_g_runs_in_a_grid():
    """Two seeds and two rates together are four runs by themselves (float32: 1e-4 after eight steps).  Each step takes new labels
    and is clipped late, so that losses depend on them."""
    recipe = variants.get("sophia-g").replace(curvature=GaussNewtonEMA(beta=0.5, every=1), **{"solve.limit": 30.0})
    found = sandbox.ensemble.run(recipe, "digits-mlp", lr=[1e-4, 1e-3], seeds=2, steps=8)
    assert found.looped == {}
    for row, loss in zip(found.members.iter_rows(named=True), found.loss, strict=True):
        one = sandbox.ensemble.run(recipe, "digits-mlp", lr=[row["lr"]], seeds=[row["seed"]], steps=8)
        np.testing.assert_allclose(loss, one.loss[0], rtol=1e-4)


def test_drawn_labels_follow_the_model_and_ignored_ones_stay():
    logits = torch.tensor([[2.0, 0.0, -1.0]]).expand(20000, 3).clone().requires_grad_()
    target = torch.zeros(20000, dtype=torch.int64)
    target[:5000] = -100
    with labels.Drawn(0):
        loss = F.cross_entropy(logits, target)
    (g,) = torch.autograd.grad(loss, logits)
    assert not g[:5000].any()
    share = 1 - (g[5000:] < 0).double().mean(0)  # the drawn class has a negative gradient
    # five standard errors of a share of 15,000 draws, 0.02
    assert torch.allclose(1 - share, logits[0].detach().softmax(0).double(), atol=0.02)


def draw(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


CLASSES, BITS, SHARES = torch.tensor([0, 2, 1, 1, 0, 2]), draw(6, 3, seed=2).sign().relu(), draw(6, 3, seed=3).softmax(1)
IGNORING, WEIGHTS = torch.tensor([0, 2, -100, 1, -100, 2]), torch.tensor([0.2, 1.0, 3.0], dtype=torch.float64)
MASK = torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0, 1.0], dtype=torch.float64)
LOSSES = {
    "cross_entropy": lambda x: F.cross_entropy(x, CLASSES),
    "cross_entropy sum": lambda x: F.cross_entropy(x, CLASSES, reduction="sum"),
    "cross_entropy by old names": lambda x: F.cross_entropy(x, CLASSES, None, False),
    "cross_entropy ignoring": lambda x: F.cross_entropy(x, IGNORING),
    "cross_entropy ignoring sum": lambda x: F.cross_entropy(x, IGNORING, reduction="sum"),
    "cross_entropy masked by hand": lambda x: (F.cross_entropy(x, CLASSES, reduction="none") * MASK).sum() / MASK.sum(),
    "cross_entropy over two": lambda x: F.cross_entropy(x, CLASSES) / 2,
    "cross_entropy of classes": lambda x: F.cross_entropy(x, CLASSES, weight=WEIGHTS),
    "cross_entropy of classes sum": lambda x: F.cross_entropy(x, CLASSES, WEIGHTS, reduction="sum"),
    "cross_entropy smoothed": lambda x: F.cross_entropy(x, IGNORING, label_smoothing=0.3),
    "cross_entropy of classes smoothed": lambda x: F.cross_entropy(x, IGNORING, WEIGHTS, label_smoothing=0.3),
    "cross_entropy of shares": lambda x: F.cross_entropy(x, 2 * SHARES),
    "cross_entropy of shares, all": lambda x: F.cross_entropy(x, SHARES, weight=WEIGHTS, label_smoothing=0.3),
    "cross_entropy of tokens": lambda x: F.cross_entropy(x.reshape(2, 3, 3).mT, IGNORING.reshape(2, 3)),
    "cross_entropy in two calls": lambda x: (
        F.cross_entropy(x[:2], CLASSES[:2]) / 3 + F.cross_entropy(x[2:], CLASSES[2:]) * 2 / 3
    ),
    "nll_loss": lambda x: F.nll_loss(x.log_softmax(1), CLASSES),
    "nll_loss of classes": lambda x: F.nll_loss(x.log_softmax(1), IGNORING, WEIGHTS),
    "binary": lambda x: F.binary_cross_entropy_with_logits(x, BITS),
    "binary sum": lambda x: F.binary_cross_entropy_with_logits(x, BITS, reduction="sum"),
    "binary, all": lambda x: F.binary_cross_entropy_with_logits(x, BITS, MASK[:, None], pos_weight=WEIGHTS),
    "mse_loss": lambda x: F.mse_loss(x, BITS),
    "mse_loss sum": lambda x: F.mse_loss(x, BITS, reduction="sum") / 6,
    "mse_loss of weights": lambda x: F.mse_loss(x, BITS, weight=WEIGHTS.expand(6, 3)),
    "mse_loss of one": lambda x: F.mse_loss(x, BITS[:1].expand(6, 3)),
}


@pytest.mark.filterwarnings("ignore:size_average and reduce")
@pytest.mark.parametrize("kind", LOSSES)
def test_the_square_of_the_sampled_gradient_estimates_the_gauss_newton_diagonal(kind):
    """ĝ² over 8,000 draws against the GGN by functorch: 10 % is five standard errors."""
    X, W = draw(6, 4), draw(4, 3, seed=1)

    def sampled(key):
        def loss(W):
            with labels.Drawn(key):
                return LOSSES[kind](X @ W)

        return torch.func.grad(loss)(W).square()

    mean = torch.func.vmap(sampled)(torch.arange(8000)).mean(0)
    # these losses are convex in the outputs, and the outputs linear in W: the Hessian is the Gauss-Newton matrix
    H = torch.func.hessian(lambda W: LOSSES[kind](X @ W))(W).reshape(12, 12).diagonal().reshape(4, 3)
    torch.testing.assert_close(mean, H, rtol=0.1, atol=0.0)


@pytest.mark.parametrize("recipe", ["sophia-g", "kfac", "kfac at given labels"])
def test_the_curvature_of_a_sum_is_the_number_of_rows_times_that_of_the_mean(recipe):
    """32 rows: 32 times, and 1/32 of it where a sum is divided by hand; 1,024 came out."""
    X, y = draw(32, 4), torch.arange(32) % 3
    name, _, given = recipe.partition(" at ")
    recipe = variants.get(name)
    recipe = recipe.replace(basis=sandbox.blocks.KroneckerFactors(labels="given")) if given else recipe
    losses = {
        "mean": F.cross_entropy,
        "sum": lambda x, y: F.cross_entropy(x, y, reduction="sum"),
        "by hand": lambda x, y: F.cross_entropy(x, y, reduction="none").sum() / 32,
    }
    curvature = {}
    for kind, function in losses.items():
        W = draw(3, 4, seed=1).requires_grad_()
        optimizer = sandbox.Optimizer([W], recipe)

        def closure(W=W, optimizer=optimizer, function=function):
            optimizer.zero_grad()
            loss = function(F.linear(X, W), y)
            loss.backward()
            return loss

        optimizer.step(closure)
        state = optimizer.state[W]
        curvature[kind] = state["curvature.B" if name == "sophia-g" else "basis.L"]
    torch.testing.assert_close(curvature["sum"], 32 * curvature["mean"], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(curvature["by hand"], curvature["mean"], rtol=1e-10, atol=1e-12)


def test_no_label_to_draw():
    model = nn.Linear(3, 1)
    optimizer = sandbox.Optimizer(model.parameters(), "sophia-g")

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(2, 3)).square().sum()
        loss.backward()
        return loss

    with pytest.raises(RuntimeError, match="labels are to be drawn from the model, but the loss calls none"):
        optimizer.step(closure)

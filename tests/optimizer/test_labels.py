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
        with labels.Drawn(key) as drawn:
            return F.cross_entropy(logits, target), drawn.count

    together, counts = torch.func.vmap(loss)(logits, torch.tensor([4, 5, 6]))
    for k in range(3):
        alone, count = loss(logits[k], 4 + k)
        assert int(counts[k]) == int(count) == 33
        torch.testing.assert_close(together[k], alone, rtol=1e-14, atol=0)
        assert loss(logits[k], 7)[0] != alone  # other keys, other labels


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
    with labels.Drawn(0) as drawn:
        loss = F.cross_entropy(logits, target)
    assert drawn.count == 15000
    (g,) = torch.autograd.grad(loss, logits)
    assert not g[:5000].any()
    share = 1 - (g[5000:] < 0).double().mean(0)  # the drawn class has a negative gradient
    # five standard errors of a share of 15,000 draws, 0.02
    assert torch.allclose(1 - share, logits[0].detach().softmax(0).double(), atol=0.02)


@pytest.mark.parametrize("kind", ["cross_entropy", "nll_loss", "binary_cross_entropy_with_logits", "mse_loss"])
def test_the_square_of_the_sampled_gradient_estimates_the_gauss_newton_diagonal(kind):
    """n ĝ² over 4,000 draws against the GGN by functorch: 10 % is five standard errors."""
    draw = torch.Generator().manual_seed(0)
    X = torch.randn(6, 4, generator=draw, dtype=torch.float64)
    W = torch.randn(4, 3, generator=draw, dtype=torch.float64)
    if kind in ("cross_entropy", "nll_loss"):
        y = torch.randint(0, 3, (6,), generator=draw)
    else:
        y = torch.rand(6, 3, generator=draw, dtype=torch.float64).round()
    outputs = lambda W: (X @ W).log_softmax(1) if kind == "nll_loss" else X @ W  # noqa: E731
    total = torch.zeros_like(W)
    for key in range(4000):
        leaf = W.clone().requires_grad_()
        with labels.Drawn(key) as drawn:
            loss = getattr(F, kind)(outputs(leaf), y)
        total += drawn.count * torch.autograd.grad(loss, leaf)[0].square() / 4000
    # these losses are convex in the outputs, and the outputs linear in W: the Hessian is the Gauss-Newton matrix
    H = torch.func.hessian(lambda w: getattr(F, kind)(outputs(w), y))(W).reshape(12, 12).diagonal().reshape(4, 3)
    torch.testing.assert_close(total, H, rtol=0.1, atol=0.0)


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

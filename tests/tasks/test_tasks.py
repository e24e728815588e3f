"""Tasks: their data, their gradients, and random streams that depend on the seed alone."""

import itertools

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

import sandbox
import variants
from sandbox import tasks
from sandbox.tasks.base import stream


@pytest.mark.parametrize("name", [n for n in tasks.names() if issubclass(tasks.about(n), tasks.PureTask)])
def test_streams_depend_on_the_seed_and_never_on_the_optimizer(name):
    def trained(recipe):
        task = tasks.get(name)
        params = {k: v.clone().requires_grad_() for k, v in task.init(3).items()}
        start = {k: v.detach().clone() for k, v in params.items()}
        optimizer = sandbox.Optimizer(params.items(), recipe, lr=1e-4)
        seen = []
        for batch in itertools.islice(task.batches(3), 8):
            seen.append(batch)
            torch.rand(3)  # somebody else draws from torch's generator
            optimizer.zero_grad()
            task.loss(params, batch).backward()
            optimizer.step()
        return start, seen

    (start, seen), (other_start, other_seen) = trained("sgd"), trained("adam")
    assert all(torch.equal(start[k], other_start[k]) for k in start)
    for a, b in zip(seen, other_seen, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    task = tasks.get(name)
    if task.name not in ("logistic-breast-cancer", "softmax-digits", "ridge-diabetes"):
        assert any(not torch.equal(v, task.init(4)[k]) for k, v in start.items())
    first, second = next(task.batches(3)), next(task.batches(4))
    if name != "rosenbrock":  # which has no noise by default
        assert any(not torch.equal(x, y) for x, y in zip(first, second, strict=True))


def test_torchs_own_generator_is_left_alone():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    tasks.get("digits-mlp").init(5)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("name", ["logistic-breast-cancer", "softmax-digits", "ridge-diabetes", "digits-mlp", "digits-cnn"])
def test_splits_are_fixed_disjoint_and_standardised(name):
    a, b = tasks.get(name, dtype=torch.float64), tasks.get(name, dtype=torch.float64)
    rows = {split: a.full(split)[0] for split in ("train", "validation", "test")}
    sizes = {split: len(X) for split, X in rows.items()}
    total = sum(sizes.values())
    assert sizes["train"] == pytest.approx(0.6 * total, abs=1)
    assert sizes["validation"] == pytest.approx(0.2 * total, abs=1)
    for split in rows:
        assert all(torch.equal(x, y) for x, y in zip(a.full(split), b.full(split), strict=True))
    X = rows["train"]
    assert float(X.mean(0).abs().max()) < 1e-12
    deviation = X.std(0, correction=0)
    assert bool(((deviation - 1).abs() < 1e-12).logical_or(deviation == 0).all())
    # an epoch shows every row at most once
    batches = list(itertools.islice(a.batches(0), len(X) // a.batch_size))
    shown = torch.cat([batch[0] for batch in batches])
    assert len(torch.unique(shown, dim=0)) >= len(shown) - 5  # a few images occur twice in the data itself


@pytest.mark.parametrize("name", ["logistic-breast-cancer", "ridge-diabetes", "softmax-digits"])
def test_convex_tasks_are_convex_and_scipy_finds_their_minimum(name):
    """L-BFGS from two starts ends in the same loss, with a gradient at rounding; we never get below it."""
    task = tasks.get(name, dtype=torch.float64)
    shapes = {k: v.shape for k, v in task.init(0).items()}
    sizes = [v.numel() for v in shapes.values()]

    def unpack(x):
        return {k: part.reshape(s) for (k, s), part in zip(shapes.items(), x.split(sizes), strict=True)}

    def both(x):
        theta = torch.tensor(x, requires_grad=True)
        loss = task.loss(unpack(theta), task.full("train"))
        return float(loss.detach()), torch.autograd.grad(loss, theta)[0].numpy()

    n = sum(sizes)
    ends = [
        minimize(both, x0, jac=True, method="L-BFGS-B", options=dict(maxiter=20_000, maxfun=40_000, ftol=1e-16, gtol=1e-9))
        for x0 in (np.zeros(n), np.random.default_rng(0).standard_normal(n))
    ]
    assert ends[0].fun == pytest.approx(ends[1].fun, rel=1e-8)
    params = {k: v.clone().requires_grad_() for k, v in task.init(0).items()}
    optimizer = sandbox.Optimizer(params.items(), variants.get("adam"), lr=0.05)
    for _ in range(300):
        optimizer.zero_grad()
        loss = task.loss(params, task.full("train"))
        loss.backward()
        optimizer.step()
    assert ends[0].fun - 1e-12 <= float(loss.detach()) < 1.2 * ends[0].fun + 0.01


def test_quadratic_has_the_spectrum_asked_for():
    spectrum = [0.5, 2.0, 7.0]
    for rotated in (False, True):
        task = tasks.get("quadratic", dtype=torch.float64, spectrum=spectrum, rotated=rotated, noise=0.0)
        H = torch.func.hessian(lambda x, task=task: task.loss({"theta": x}, task.full("train")))(
            torch.zeros(3, dtype=torch.float64)
        )
        np.testing.assert_allclose(np.linalg.eigvalsh(H.numpy()), spectrum, rtol=1e-12)
        assert (float((H - torch.diag(H.diagonal())).abs().max()) > 0.1) == rotated
    noisy = tasks.get("quadratic", noise=0.5)
    draws = torch.stack(list(itertools.islice(noisy.batches(0), 500)))
    assert float(draws.std()) == pytest.approx(0.5, rel=0.03)  # 10,000 draws: one standard error is 0.7 %


def test_rosenbrock_minimum():
    task = tasks.get("rosenbrock", dtype=torch.float64)
    assert task.evaluate({"theta": torch.ones(10, dtype=torch.float64)}, "test") == (0.0, 0.0)


def test_bad_input():
    with pytest.raises(ValueError, match="did you mean 'digits-mlp'"):
        tasks.get("digit-mlp")
    with pytest.raises(ValueError, match="split must be one of train, validation, test, got 'tets'"):
        tasks.get("quadratic").evaluate({"theta": torch.ones(20)}, "tets")
    with pytest.raises(ValueError, match="spectrum must be a list of positive curvatures"):
        tasks.get("quadratic", spectrum=[1.0, -1.0])
    with pytest.raises(ValueError, match="noise must be at least 0"):
        tasks.get("quadratic", noise=-1.0)
    with pytest.raises(ValueError, match="dimension must be at least 2"):
        tasks.get("rosenbrock", dimension=1)


def test_streams_are_independent():
    draws = {
        (seed, use): tuple(stream(seed, use).integers(2**31, size=4)) for seed in (0, 1) for use in ("init", "order", "noise")
    }
    assert len(set(draws.values())) == 6


def test_losses_and_scores_by_hand():
    """Each formula once more in NumPy, on random parameters, so that no factor is off."""
    rng = np.random.default_rng(0)
    for name, l2 in (("logistic-breast-cancer", 1e-3), ("softmax-digits", 1e-3), ("ridge-diabetes", 1e-2)):
        task = tasks.get(name, dtype=torch.float64)
        params = {k: torch.tensor(0.3 * rng.standard_normal(v.shape)) for k, v in task.init(0).items()}
        X, y = (v.numpy() for v in task.full("validation"))
        out = X @ params["weight"].numpy() + params["bias"].numpy()
        if name.startswith("logistic"):
            fit, score = np.mean(np.log1p(np.exp(out)) - y * out), np.mean((out > 0) == (y == 1))
        elif name.startswith("softmax"):
            fit = np.mean(np.log(np.exp(out).sum(1)) - out[np.arange(len(y)), y])
            score = np.mean(out.argmax(1) == y)
        else:
            fit, score = 0.5 * np.mean((out - y) ** 2), 1 - np.mean((out - y) ** 2) / np.var(y)
        loss = fit + 0.5 * l2 * np.sum(params["weight"].numpy() ** 2)
        assert task.evaluate(params, "validation") == pytest.approx((loss, score), rel=1e-12)
    theta = rng.standard_normal(10)
    from scipy.optimize import rosen

    assert tasks.get("rosenbrock", dtype=torch.float64).evaluate({"theta": torch.tensor(theta)}, "train")[0] == pytest.approx(
        rosen(theta)
    )


def test_batches_are_of_one_size():
    task = tasks.get("logistic-breast-cancer")
    sizes = {len(X) for X, _ in itertools.islice(task.batches(0), 30)}
    assert sizes == {32}

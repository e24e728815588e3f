"""Stochastic diagonals: unbiased, with the variance that the formula gives and an error bar that covers."""

import numpy as np
import pytest
import torch

from sandbox import curvature
from sandbox.curvature import through_curvlinops
from tests.curvature.problem import N, batch, dense, flat, loss, params

H = dense(loss, params(), batch())
ALL = {"rademacher": (H**2).sum(1) - np.diag(H) ** 2, "gaussian": (H**2).sum(1) + np.diag(H) ** 2}
PROBES = 4000


@pytest.mark.parametrize("distribution", curvature.DISTRIBUTIONS)
def test_the_variance_formula(distribution):
    """The exact variance by the dense Hessian's entries, at rounding, however few rows are computed at a time."""
    for memory in (None, 60_000):
        found = curvature.hutchinson_variance(loss, params(), batch(), distribution=distribution, memory=memory)
        np.testing.assert_allclose(flat(found), ALL[distribution], rtol=1e-12)
    with pytest.raises(ValueError, match="did you mean 'rademacher'"):
        curvature.hutchinson_variance(loss, params(), batch(), distribution="rademacer")


@pytest.mark.parametrize("distribution", curvature.DISTRIBUTIONS)
def test_hutchinson(distribution):
    """Mean and variance of 4,000 probes against H, each within its sampling error.

    The mean: 5 standard errors in each of 43 coordinates (Bonferroni: 3e-5).  The variance s²: its standard deviation is
    σ² √((κ - 1)/PROBES) with κ the kurtosis of one sample; taken from 4,000 other samples drawn here in NumPy; again 5 of them.
    """
    found = curvature.diagonal(loss, params(), batch(), "hutchinson", num_vectors=PROBES, distribution=distribution, seed=5)
    assert (found.method, found.num_vectors) == ("hutchinson", PROBES)
    variance = ALL[distribution]
    assert (np.abs(flat(found.values) - np.diag(H)) < 5 * np.sqrt(variance / PROBES)).all()

    draw = np.random.default_rng(0)
    Z = draw.choice([-1.0, 1.0], (PROBES, N)) if distribution == "rademacher" else draw.standard_normal((PROBES, N))
    centred = Z * (Z @ H) - np.diag(H)
    kurtosis = (centred**4).mean(0) / (centred**2).mean(0) ** 2
    seen = flat(found.standard_error) ** 2 * PROBES
    assert (np.abs(seen / variance - 1) < 5 * np.sqrt((kurtosis - 1) / PROBES)).all()


def test_the_error_bar_covers():
    """200 independent estimates of 50 probes: the true value lies within 2 standard errors in 95 % of them for Student's t
    of 49 degrees (0.949); the mean over 43 correlated coordinates within 3 %."""
    operator = curvature.Hessian(loss, params(), batch())
    from sandbox.curvature.stochastic import hutchinson

    inside = []
    for seed in range(200):
        mean, error = hutchinson(operator, 50, seed=seed, chunk=50)
        inside.append(np.abs(mean.numpy() - np.diag(H)) < 2 * error.numpy())
    assert abs(np.mean(inside) - 0.949) < 0.03


@pytest.mark.parametrize("distribution", curvature.DISTRIBUTIONS)
def test_chunks_do_not_change_the_probes(distribution):
    """Same seed, same probes, so equal to rounding; another seed, another estimate."""
    one, seven, other = (
        curvature.diagonal(
            loss, params(), batch(), "hutchinson", num_vectors=20, chunk=chunk, seed=seed, distribution=distribution
        )
        for chunk, seed in ((1, 0), (7, 0), (20, 1))
    )
    for tree in ("values", "standard_error"):
        np.testing.assert_allclose(flat(getattr(one, tree)), flat(getattr(seven, tree)), rtol=1e-10, atol=1e-12)
        assert not np.allclose(flat(getattr(one, tree)), flat(getattr(other, tree)), rtol=1e-3)


def test_a_diagonal_hessian_needs_one_probe():
    """Rademacher's variance is Σ_{k≠j} H_jk² = 0 there."""
    x = torch.tensor([1.0, 2.0, 3.0]).double()
    found = curvature.diagonal(lambda p, _: (p**3).sum(), x, None, "hutchinson", num_vectors=2)
    assert torch.equal(found.values, 6 * x)
    assert torch.equal(found.standard_error, torch.zeros(3).double())


# -- curvlinops -----------------------------------------------------------------------------------------------------------


def test_curvlinops_hessian_is_ours():
    """Two implementations that share no code, on batches of unequal sizes: equal to some ten roundings."""
    X, y = batch(7)
    operator = curvature.Hessian(loss, params(), [(X[:5], y[:5]), (X[5:], y[5:])])
    theirs = through_curvlinops.operator(operator) @ torch.eye(N, dtype=torch.float64)
    scale = float(theirs.abs().max())
    assert float((operator.dense() - theirs).abs().max()) < 1e-13 * scale
    exact = curvature.diagonal(loss, params(), [(X[:5], y[:5]), (X[5:], y[5:])]).values
    assert np.abs(flat(exact) - theirs.diagonal().numpy()).max() < 1e-13 * scale


@pytest.mark.parametrize("estimator", ["hutchinson", "xdiag"])
def test_curvlinops_estimators(estimator):
    """Unbiased: within 6 standard errors in each coordinate (Student's t of 39 degrees: 5e-7 each); the state of torch's
    generator is as before; the seed decides."""
    state = torch.get_rng_state()
    options = {"method": f"curvlinops-{estimator}", "num_vectors": 400, "repeats": 40}
    found = curvature.diagonal(loss, params(), batch(), **options)
    assert torch.equal(torch.get_rng_state(), state)
    assert (np.abs(flat(found.values) - np.diag(H)) < 6 * flat(found.standard_error) + 1e-12).all()
    assert flat(found.standard_error).max() > 1e-6
    if estimator == "hutchinson":  # 400 probes in 40 groups: √(σ²/400), its own relative error 1/√78 a coordinate
        ratio = flat(found.standard_error) / np.sqrt(ALL["rademacher"] / 400)
        assert abs(ratio.mean() - 1) < 0.15
    again, other = (curvature.diagonal(loss, params(), batch(), **options, seed=seed) for seed in (0, 1))
    assert np.array_equal(flat(again.values), flat(found.values))
    assert not np.array_equal(flat(other.values), flat(found.values))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"method": "curvlinops-xdiag", "num_vectors": 30, "repeats": 10},
            "num_vectors must be `repeats` = 10 times an even number below",
        ),
        ({"method": "curvlinops-hutchinson", "num_vectors": 25, "repeats": 10}, "times a whole number below"),
        ({"method": "curvlinops-hutchinson", "num_vectors": 20 * N, "repeats": 20}, f"below n = {N}"),
        ({"method": "curvlinops-hutchinson", "repeats": 1}, "repeats must be a whole number, at least 2"),
        ({"method": "curvlinops-xdiag", "distribution": "gaussian"}, "distribution must be"),
        ({"method": "curvlinops-xdia"}, "did you mean 'curvlinops-xdiag'"),
    ],
)
def test_errors_of_curvlinops(change, says):
    with pytest.raises(ValueError, match=says):
        curvature.diagonal(loss, params(), batch(), **change)


def test_without_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "curvlinops", None)
    with pytest.raises(ImportError, match=r"pip install 'apollo-sandbox\[curvature\]'"):
        curvature.diagonal(loss, params(), batch(), "curvlinops-xdiag")

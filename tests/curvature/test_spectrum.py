"""Ends and density of the spectrum against numpy.linalg.eigvalsh of dense Hessians."""

import numpy as np
import pytest
import torch
from scipy.stats import norm

from sandbox import curvature, tasks
from tests.curvature.problem import SHAPES, N, batch, dense, loss, params

H = dense(loss, params(), batch())
EXACT = np.linalg.eigvalsh(H)
SCALE = np.abs(EXACT).max()


@pytest.mark.parametrize(
    ("which", "k"),
    [
        ("largest", 1),
        ("largest", 4),
        ("smallest", 3),
        ("both", 2),
        ("largest", N),
        ("largest", 25),
        ("smallest", 25),
        ("both", 12),
    ],
)
def test_against_numpy(which, k):
    """Both by ARPACK (few) and by the dense matrix (many).  An eigenvalue's error is quadratic in the vector's, so tol = 1e-10
    gives rounding; asserted 1e-9 of the largest."""
    found = curvature.extreme_eigenvalues(loss, params(), batch(), k, which, vectors=True)
    exact = {"largest": EXACT[-k:], "smallest": EXACT[:k], "both": np.r_[EXACT[:k], EXACT[-k:]]}[which]
    assert np.abs(found.values.numpy() - exact).max() < 1e-9 * SCALE
    assert {name: tuple(x.shape[1:]) for name, x in found.vectors.items()} == SHAPES
    V = np.concatenate([x.numpy().reshape(len(exact), -1) for x in found.vectors.values()], 1)
    np.testing.assert_allclose(V @ V.T, np.eye(len(exact)), atol=1e-8)
    residuals = np.linalg.norm(V @ H - exact[:, None] * V, axis=1)
    np.testing.assert_allclose(found.residuals.numpy(), residuals, atol=1e-8 * SCALE)
    assert residuals.max() < 1e-8 * SCALE


def test_residuals_tell_what_is_not_converged():
    """With a tolerance of 0.3 the reported residual is the true one, and not small."""
    task = tasks.get("quadratic", dtype=torch.float64, spectrum=np.linspace(1, 2, 200))
    p, data = task.init(seed=0), task.full("train")
    found = curvature.extreme_eigenvalues(task.loss, p, data, tol=0.3, vectors=True)
    v = found.vectors["theta"][0].numpy()
    true = np.linalg.norm(np.linspace(1, 2, 200) * v - float(found.values) * v)
    np.testing.assert_allclose(float(found.residuals), true, rtol=1e-8)
    assert true > 1e-4
    assert np.abs(np.linspace(1, 2, 200) - float(found.values)).min() <= true


def test_a_repeated_eigenvalue_and_a_rotated_basis():
    """Eigenvalue 10 three times among 60, in turned axes: found three times.  vectors=False gives none."""
    task = tasks.get("quadratic", dtype=torch.float64, spectrum=[*np.linspace(0.1, 5, 57), 10, 10, 10], rotated=True)
    found = curvature.extreme_eigenvalues(task.loss, task.init(seed=0), task.full("train"), 3)
    np.testing.assert_allclose(found.values.numpy(), [10, 10, 10], rtol=1e-9)
    assert found.vectors is None


def test_on_a_network_in_float32_and_by_batches():
    """digits-cnn in float32 against itself in float64: products carry 1e-6, tol is 1e-4."""
    wide, narrow = (tasks.get("digits-cnn", dtype=dtype) for dtype in (torch.float64, torch.float32))
    X, y = wide.full("validation")
    exact = curvature.extreme_eigenvalues(wide.loss, wide.init(0), (X, y), which="both")
    rows = [(X[:200].float(), y[:200]), (X[200:].float(), y[200:])]
    found = curvature.extreme_eigenvalues(narrow.loss, narrow.init(0), rows, which="both")
    assert float(exact.values[0]) < 0 < float(exact.values[1])
    assert float(exact.residuals.max()) < 1e-8
    assert float((found.values - exact.values).abs().max()) < 1e-3 * float(exact.values[1])


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"which": "larges"}, ValueError, "unknown end of the spectrum 'larges'; did you mean 'largest'"),
        ({"k": 0}, ValueError, "k must be a whole number, at least 1, got 0"),
        ({"k": N + 1}, ValueError, f"k must give at most n = {N} eigenvalues, got {N + 1}"),
        ({"k": N, "which": "both"}, ValueError, f"at most n = {N} eigenvalues, got {2 * N}"),
        ({"tol": -1.0}, ValueError, r"tol must lie in \[0, 1\), got -1"),
        ({"iterations": 0}, ValueError, "iterations must be a whole number, at least 1"),
    ],
)
def test_errors(change, error, says):
    with pytest.raises(error, match=says):
        curvature.extreme_eigenvalues(loss, params(), batch(), **change)


def test_no_convergence_is_an_error():
    task = tasks.get("quadratic", dtype=torch.float64, spectrum=np.linspace(1, 1.001, 500))
    with pytest.raises(RuntimeError, match="0 of 1 eigenvalues found to tol=1e-14; take a larger tol"):
        curvature.extreme_eigenvalues(task.loss, task.init(seed=0), task.full("train"), tol=1e-14, iterations=1)


# -- density ---------------------------------------------------------------------------------------------------------------


def test_density_of_a_known_spectrum():
    """Two clusters, 150 eigenvalues around 1 and 50 around 4: the density's mass near each is its share, 0.75 and 0.25.

    A quadrature's weight of a cluster of c in n is a Beta(c/2, (n-c)/2) draw: deviation √(2·.75·.25/200)/√repeats = 0.01
    for 20; asserted 5 of them."""
    spectrum = np.r_[np.linspace(0.9, 1.1, 150), np.linspace(3.9, 4.1, 50)]
    task = tasks.get("quadratic", dtype=torch.float64, spectrum=spectrum, rotated=True)
    state = torch.get_rng_state()
    found = curvature.spectral_density(task.loss, task.init(0), task.full("train"), nodes=16, repeats=20, margin=0.3)
    assert torch.equal(torch.get_rng_state(), state)
    grid, density = found.grid.numpy(), found.density.numpy()
    assert grid.shape == density.shape == (1024,)
    assert abs(np.trapezoid(density, grid) - 1) < 0.01
    lower = grid < 2.5
    assert abs(np.trapezoid(density[lower], grid[lower]) - 0.75) < 0.05


def test_density_against_all_eigenvalues():
    """The mean of Gaussians around all of numpy's eigenvalues, of the width in Papyan's algorithm: the two cumulative
    functions differ by less than 0.1 (sampling 1/√(n·repeats) = 0.05; the quadrature resolves no finer than one node)."""
    found = curvature.spectral_density(loss, params(), batch(), nodes=20, repeats=10)
    grid, density = found.grid.numpy(), found.density.numpy()
    range_ = EXACT[-1] - EXACT[0]  # widened by 5 % on both sides; its ends are taken to 1e-2
    assert np.abs(grid[[0, -1]] - (EXACT[0] - 0.05 * range_, EXACT[-1] + 0.05 * range_)).max() < 0.02 * range_
    width = (grid[-1] - grid[0]) / 19 / np.sqrt(8 * np.log(3.0))
    exact = norm.cdf((grid[:, None] - EXACT) / width).mean(1)
    seen = np.concatenate([[0], np.cumsum((density[1:] + density[:-1]) / 2 * np.diff(grid))]) + exact[0]
    assert np.abs(seen - exact).max() < 0.1
    again = curvature.spectral_density(loss, params(), batch(), nodes=20, repeats=10)
    assert torch.equal(again.density, found.density)
    assert not torch.equal(
        curvature.spectral_density(loss, params(), batch(), nodes=20, repeats=10, seed=1).density, found.density
    )


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"nodes": 1}, "nodes must be a whole number, at least 2"),
        ({"nodes": N}, f"nodes must be less than n = {N}, got {N}"),
        ({"nodes": 5, "repeats": 0}, "repeats must be"),
        ({"nodes": 5, "points": 1}, "points must be"),
        ({"nodes": 5, "kappa": 1.0}, "kappa must be greater than 1"),
        ({"nodes": 5, "margin": -0.1}, "margin must be at least 0"),
    ],
)
def test_errors_of_density(change, says):
    with pytest.raises(ValueError, match=says):
        curvature.spectral_density(loss, params(), batch(), **change)


def test_a_multiple_of_the_identity_has_no_density():
    with pytest.raises(ValueError, match="2 times the identity"):
        curvature.spectral_density(lambda p, _: p.square().sum(), torch.ones(30).double(), None, nodes=5)

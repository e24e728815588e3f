"""The compiled loop against the recursion in Python, bit for bit, and against itself without a compiler."""

import numpy as np
import pytest

from theory_checks.proofs import compiled, recursion
from theory_checks.proofs.recursion import Rule


@pytest.fixture(autouse=True)
def _always(monkeypatch):
    monkeypatch.setattr(compiled, "FEW", 0)


ROWS = np.random.default_rng(3).standard_normal((8, 3))
RULES = {
    "apollo": Rule(beta=0.2, eps=1e-4, correct=True, sigma=0.5),
    "relative floor": Rule(relative=True, tiny=1e-9, gamma=0.1, box=(-0.5, 0.5)),
    "averaged": Rule(beta=0.5, beta_averaging=0.9, ceiling=2.0, sigma=0.1),
    "same batch": Rule(same_batch=True, sigma=0.1),
}


def bowl(theta, row, kind):
    """∇ of Σ a_i √(1 + θ_i²) + max(θ_1, θ_2) a_1, of which only the form matters: division, roots, maxima, constants."""
    top = kind.largest(theta[0], theta[1])
    return [a * x / kind.sqrt(1 + x * x) - 2.0 * top for a, x in zip(row, theta, strict=True)]


@pytest.mark.parametrize("gradient", [compiled.linear, bowl])
@pytest.mark.parametrize("name", RULES)
def test_bits_of_the_recursion(name, gradient):
    def oracle(t, theta):
        return gradient(theta, ROWS[0 if t == 1 else 1 + (t - 2) % 7].tolist(), recursion.Floats)

    found = compiled.run(RULES[name], gradient, ROWS, [0.1, -0.2, 0.3], 300, eta=0.3)
    steps = list(recursion.walk(RULES[name], oracle, [0.1, -0.2, 0.3], 300, eta=0.3))[:300]
    for quantity in ("theta", "g", "D"):
        np.testing.assert_array_equal(getattr(found, quantity), [getattr(s, quantity) for s in steps])
    blind = name == "same batch" and gradient is compiled.linear
    assert (np.ptp(found.D) > 0.01) != blind  # the secant rule counts


def test_without_a_compiler(monkeypatch):
    run = [RULES["apollo"], compiled.linear, ROWS, [0.0] * 3, 40]
    expected = compiled.run(*run, eta=0.3)
    monkeypatch.setenv("CXX", "no-such-compiler")
    for a, b in zip(compiled.run(*run, eta=0.3), expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_one_step():
    (theta,), (g,), (D,) = compiled.run(Rule(), compiled.linear, ROWS, [0.0] * 3, 1, eta=0.3)
    np.testing.assert_array_equal([theta, g, D], [[0.0] * 3, ROWS[0], [1.0] * 3])


def test_a_compiler_that_fails_is_quoted(monkeypatch):
    with pytest.raises(RuntimeError, match="-ffp-contract=off"):
        compiled.build("this is no program")


@pytest.mark.parametrize(
    ("data", "T", "says"), [(ROWS[:1], 3, r"\(n, k\) with n ≥ 2, got \(1, 3\)"), (ROWS, 0, "T must be at least 1")]
)
def test_errors(data, T, says):
    with pytest.raises(ValueError, match=says):
        compiled.run(Rule(), compiled.linear, data, [0.0] * 3, T, eta=0.3)

"""Same-batch pairs on smooth losses in the plane: the losses are what they are said to be, and regret against 0 is linear."""

import numpy as np
import pytest
import torch

from theory_checks.open_questions import rotation
from theory_checks.proofs import certificates

T = 4000
ROUNDS = rotation.Rounds()


@pytest.fixture(scope="module")
def made():
    return ROUNDS.run(T)


def test_apollo_by_hand_goes_the_same_way(made):
    """The recursion in tensors, y by autograd from the losses: sixty steps, before rounding draws the runs apart."""
    losses, steps = made
    rows = torch.tensor(losses)

    def slope(row, x):
        g, h, p = row[:2], row[2], row[3:]
        x = x.clone().requires_grad_()
        value = g @ (x - p) + h * ((x - p) ** 2).sum() / 2
        return torch.autograd.grad(value, x)[0]

    theta = old = torch.zeros(2, dtype=torch.float64)
    B, d = torch.zeros_like(theta), torch.zeros_like(theta)
    for t in range(1, 61):
        row = rows[t - 1]
        np.testing.assert_allclose(theta, steps[t - 1].theta, atol=1e-6)
        g, y = slope(row, theta), slope(row, theta) - slope(row, old)
        if (d**4).sum() > 0:
            B = B - (d @ y + d @ (B * d)) / (d**4).sum() * d**2
        D = B.abs().clamp(min=1.0)
        np.testing.assert_allclose(D, steps[t - 1].D, rtol=1e-5)
        old, d = theta, g / D
        theta = theta - ROUNDS.eta / t**0.5 * d


def test_losses_are_smooth_convex_and_of_bounded_slope(made):
    losses, steps = made
    h, theta = losses[:, 2], np.array([s.theta for s in steps])
    assert set(h) == {0.0, ROUNDS.b / ROUNDS.eta}  # 0 ≤ ∇²f ≤ L
    assert np.abs(theta).max() < 1.0  # the projection onto [-1, 1]² has nothing to do
    # ‖∇f_t‖_∞ on the box
    assert (np.abs(losses[:, :2]) + h[:, None] * (1 + np.abs(losses[:, 3:]))).max() < 45


def test_regret_is_linear():
    """The second half costs as much as the first, within a round of each; B is held.  And regret is above what it is at most
    where D = σ: (‖θ_1 - θ*‖² / 2η + 2ηG²) √T, Zinkevich, with the G of the run."""
    losses, steps = ROUNDS.run(12_000)
    regrets = ROUNDS.regrets_of(losses, steps)
    halves = regrets[5999], regrets[-1] - regrets[5999]
    assert min(halves) > 0.8 * 6000
    assert 6 < max(max(s.D) for s in steps[-4000:]) < 12
    G = max(np.linalg.norm(s.g) for s in steps)
    assert regrets[-1] > (0.9**2 * 2 / (2 * ROUNDS.eta) + ROUNDS.eta * G**2) * np.sqrt(12_000)


def test_certificate():
    pytest.importorskip("flint")
    said = str(certificates.certify(lambda kind: ROUNDS.proof(kind, 1000, 0.25), "rounds"))
    assert said.startswith("rounds: proved")
    assert "not refuted" in str(certificates.certify(lambda kind: ROUNDS.proof(kind, 300, 5.0), "rounds"))

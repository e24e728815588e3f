"""A step inside backward: each parameter's optimizer steps as soon as its gradient is there, which is then dropped."""

import pytest
import torch

import sandbox
from sandbox.optimizer import Optimizer


@pytest.mark.parametrize("scope", ["parameter", "channel", "coordinate"])
def test_each_parameter_by_its_own_optimizer_equals_one_for_all(scope):
    """Where no scalar is shared between tensors.  Float64, ten steps: rounding of sums in another order, amplified to 1e-9."""
    recipe = sandbox.Recipe(name="apollo", scope=scope)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 2)).double()
    other = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 2)).double()
    other.load_state_dict(model.state_dict())
    x, y = torch.randn(9, 5, dtype=torch.float64), torch.randn(9, 2, dtype=torch.float64)
    together = Optimizer(model.parameters(), recipe, lr=0.05)
    each = {p: Optimizer([p], recipe, lr=0.05) for p in other.parameters()}

    def step(p):
        each[p].step()
        each[p].zero_grad()

    for p in other.parameters():
        p.register_post_accumulate_grad_hook(step)
    for _ in range(10):
        together.zero_grad()
        (model(x) - y).square().mean().backward()
        together.step()
        (other(x) - y).square().mean().backward()
        assert all(p.grad is None for p in other.parameters())
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-9, atol=1e-10)

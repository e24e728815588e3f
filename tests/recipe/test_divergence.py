"""A run that diverges goes on with numbers that are not finite: that is its result, and no exception."""

import pytest
import torch

import variants
from sandbox.blocks.decompositions import eigh, polar, solve
from tests.light import inputs_of, light


@pytest.mark.parametrize("value", [torch.inf, torch.nan])
@pytest.mark.parametrize("name", variants.names())
def test_gradients_that_are_not_finite(name, value):
    recipe = light(name)
    theta = torch.ones(4, 3, dtype=torch.float64)
    state = recipe.init(theta)
    for g in (torch.ones_like(theta), torch.full_like(theta, value), torch.ones_like(theta)):
        state, theta = recipe.update(state, theta, g, **inputs_of(recipe, g))
    assert theta.shape == (4, 3)


def test_one_matrix_of_a_batch():
    A = torch.stack([torch.eye(3), torch.full((3, 3), torch.nan), 2 * torch.eye(3)]).double()
    values, Q = eigh(A)
    assert values.isnan().all(1).tolist() == [False, True, False]
    assert torch.equal(values[2], torch.full((3,), 2.0, dtype=torch.float64))
    assert Q.isnan().flatten(1).all(1).tolist() == [False, True, False]
    assert polar(A).isnan().flatten(1).all(1).tolist() == [False, True, False]
    assert not solve(torch.zeros(2, 2), torch.ones(2, 1)).isfinite().any()
    assert torch.equal(solve(A[2], A[0]), torch.eye(3).double() / 2)

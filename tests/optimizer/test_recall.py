"""The direction that is not stored: computed again with the numbers it was made with."""

import io
import pickle

import pytest
import torch

import sandbox
import variants
from sandbox.blocks import Box, Decay, Decoupled, Number, block, number
from tests.light import BACKENDS
from tests.problem import Torchs

SHAPES = [(4, 3), (7,), (), (2, 3, 2), (5, 4), (3,)]
WIDE = {"decay": Decoupled(weight_decay=0.0), "projection": Box(low=-1e9, high=1e9)}  # Apollo, but d has to be stored


def trained(recipe, backend, change=None, gaps=False, resume=()):
    """12 steps; `change` sets numbers of the group; a tensor without gradient at two steps; checkpoints and pickles."""
    problem = Torchs(torch.float64, 0, SHAPES)
    params = problem.params
    optimizer = sandbox.Optimizer(params, recipe, lr=0.02, backend=backend)
    for step in range(12):
        if change is not None:
            change(step, optimizer.param_groups[0])
        if step in resume[:1]:
            file = io.BytesIO()
            torch.save(optimizer.state_dict(), file)
            file.seek(0)
            optimizer = sandbox.Optimizer(params, recipe, lr=0.02, backend=backend)
            optimizer.load_state_dict(torch.load(file, weights_only=True))
        if step in resume[1:]:
            optimizer = pickle.loads(pickle.dumps(optimizer))
            params = optimizer.param_groups[0]["params"]
        optimizer.zero_grad()
        problem.loss(step + 15, params).backward()
        if gaps and step in (4, 5):
            params[0].grad = None
        optimizer.step()
    return [p.detach().clone() for p in params]


def growing(t):
    return 0.05 * t


def by_hand(step, group):
    if step in (3, 7):
        group["rectifier.sigma"] = 0.02 * (step + 1)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("gaps", [False, True])
def test_a_floor_changed_by_hand(backend, gaps):
    """As if d were stored; saved between the change and the step as well."""
    apollo = variants.get("apollo")
    right = trained(apollo.replace(**WIDE), "reference", by_hand, gaps)
    constant = trained(apollo.replace(**WIDE), "reference", None, gaps)
    assert max(float((p - q).abs().max()) for p, q in zip(right, constant, strict=True)) > 1e-3
    for resume in ((), (3, 7), (5, 9)):
        for p, q in zip(right, trained(apollo, backend, by_hand, gaps, resume), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("backend", ["reference", "eager"])
def test_a_decay_changed_by_hand(backend):
    """As if d were stored: the decay that the last step applied is not the one that the group holds."""

    def decaying(step, group):
        if step in (3, 7):
            group["weight_decay"] = 0.5 * step

    apollo = variants.get("apollo").replace(decay=Decoupled(weight_decay=0.1))
    right = trained(apollo.replace(projection=WIDE["projection"]), "reference", decaying)
    for p, q in zip(right, trained(apollo, backend, decaying, resume=(3, 7)), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-9, atol=1e-10)


def test_a_direction_whose_step_the_box_cut_off():
    """d with a decay inside is not in the θ that a box has cut off: what the next step sees is d itself.  θ begins outside."""
    recipe = variants.get("apollo").replace(decay=Decoupled(weight_decay=0.1), projection=Box(low=-0.9, high=0.9))
    params, seen = [torch.tensor([2.0, -2.0, 0.1], dtype=torch.float64)], []
    state = recipe.init(params)
    for _ in range(4):
        state, params = recipe.update(state, params, [3 * params[0]], observe=lambda i, x: seen.append((x.d_old, x.d)))
    assert all(torch.equal(d_old, d) for (d_old, _), (_, d) in zip(seen[1:], seen[:-1], strict=True))


@pytest.mark.parametrize("backend", sandbox.backends.NAMES)
def test_a_floor_that_is_a_function_of_t(backend):
    moving = variants.get("apollo").replace(**{"rectifier.sigma": growing})
    right = trained(moving.replace(**WIDE), "reference")
    for p, q in zip(right, trained(moving, backend, resume=(5, 9)), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-9, atol=1e-10)


def test_the_pure_update_recalls_what_was_applied():
    made = variants.get("apollo").replace(**{"rectifier.sigma": lambda t: 0.1 / t})
    params = [torch.tensor([1.0, -2.0], dtype=torch.float64)]
    state, applied, seen = made.init(params), None, {}
    for _ in range(5):
        state, params = made.update(
            state, params, [2 * params[0]], lr=0.01, observe=lambda i, x: seen.update(d=x.d_old.clone(), new=x.d.clone())
        )
        if applied is not None:
            torch.testing.assert_close(seen["d"], applied, rtol=1e-14, atol=0)
        applied = seen["new"]
    other, right = made.replace(**{"rectifier.sigma": 3.0}), {}
    assert float(state[0]["rectifier.sigma"]) == float(0.1 / torch.tensor(5.0, dtype=torch.float64))
    other.update(state, params, params, observe=lambda i, x: right.update(d=x.d_old.clone()))
    torch.testing.assert_close(right["d"], applied, rtol=1e-14, atol=0)


@block
class SignDecay(Decay):
    """d = u + γ sign(θ), which θ does not say any more after the step."""

    weight_decay: Number = number(default=0.5, range="[0, inf)")
    in_direction = True
    recalls = False

    def add(self, u, theta):
        # d = u + γ sign(θ)
        return u + self.weight_decay * theta.sign()


def test_a_decay_that_cannot_be_recalled():
    made = variants.get("apollo").replace(decay=SignDecay())
    assert made.analysis.stores_direction
    assert made.analysis.state_elements == 3
    seen, params = [], [torch.tensor([1.0, -2.0], dtype=torch.float64)]
    state = made.init(params)
    for _ in range(2):
        state, params = made.update(state, params, params, observe=lambda i, x: seen.append((x.d_old, x.d)))
    assert torch.equal(seen[1][0], seen[0][1])

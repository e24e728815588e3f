"""Arenas and large tensors: storage, precisions, bits."""

import pytest
import torch

import sandbox
import variants
from tests.backends.trajectories import assert_backends_agree, trajectory
from tests.problem import Torchs

pytestmark = pytest.mark.usefixtures("both_ways")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["channel-secant", "apollo"])
def test_long_channels_and_tensors_beside_short_ones(name):
    """Sums on both sides of the size at which Inductor adds in chunks, float32 (1e-5: sums in another order)."""
    shapes = [(3, 5000), (40, 7), (6000,), (30,), (9000, 2), (64, 20)]
    paths = []
    for backend in ("eager", "compiled"):
        problem = Torchs(torch.float32, 0, shapes)
        optimizer = sandbox.Optimizer(problem.params, name, lr=0.002, backend=backend)
        for step in range(6):
            optimizer.zero_grad()
            problem.loss(step + 15, problem.params).backward()
            optimizer.step()
        paths.append([p.detach() for p in problem.params])
    for a, b in zip(*paths, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["apollo", "channel-secant", "global-secant"])
@pytest.mark.parametrize("backend", ["eager", "compiled", "scripted"])
def test_the_same_seed_gives_the_same_bits(name, backend):
    recipe = variants.get(name)
    one, two = (trajectory(recipe, torch.float64, backend) for _ in range(2))
    for a, b in zip(one[0], two[0], strict=True):
        assert all(torch.equal(p, q) for p, q in zip(a, b, strict=True))


def test_state_is_two_words_and_views_of_the_arena():
    problem = Torchs(torch.float32)
    optimizer = sandbox.Optimizer(problem.params, "apollo", backend="compiled")
    problem.loss(0, problem.params).backward()
    optimizer.step()
    for p in problem.params:
        state = optimizer.state[p]
        assert {k for k, v in state.items() if v.shape == p.shape and k not in variants.get("apollo").host_names} == {
            "moment.m",
            "curvature.B",
        }
        assert state["moment.m"].dtype == torch.float32
    small = [p for p in problem.params if 0 < p.numel() < 10]
    assert len({optimizer.state[p]["moment.m"].untyped_storage().data_ptr() for p in small}) == 1
    # written by hand, it is what the next step sees
    optimizer.state[small[0]]["moment.m"].fill_(1e4)
    plan = optimizer._cohorts[0].each[0].cache
    assert float(plan.small[0].states[0].max()) == 1e4


def test_parameters_changed_from_outside_are_seen():
    """Nothing of θ is kept between steps: weights loaded, clamped or averaged by others are what the next step starts from."""

    def clamp(step, problem, optimizer):
        for p in problem.params if step else ():
            p.data.clamp_(-0.5, 0.5)

    assert_backends_agree("adamw", 4, clamp)


def test_parameters_that_get_another_storage():
    """`p.data` moved, and transposed where it lies: what the next step starts from, as in eager."""

    def move(step, problem, optimizer):
        for p in problem.params if step == 3 else ():
            p.data = 0.5 * p.data
        if step == 5:
            problem.params[0].data = problem.params[0].data.t()

    assert_backends_agree("apollo", 8, move, first=15, shapes=[(5, 5), (4, 3), (2,), (1, 20), (3,), (6, 2)])


@pytest.mark.parametrize("backend", ["compiled", "scripted"])
def test_low_precision_parameters(backend):
    """bfloat16 parameters, float32 state: the same roundings as eager, up to the last bit of float32."""
    states = []
    for used in ("eager", backend):
        problem = Torchs(torch.bfloat16)
        optimizer = sandbox.Optimizer(problem.params, "apollo", lr=0.002, backend=used)
        for step in range(5):
            optimizer.zero_grad()
            problem.loss(step, problem.params).backward()
            optimizer.step()
        states.append([(p.detach().clone(), optimizer.state[p]["moment.m"].clone()) for p in problem.params])
    for (p, m), (q, n) in zip(*states, strict=True):
        assert p.dtype == q.dtype == torch.bfloat16
        assert n.dtype == torch.float32
        torch.testing.assert_close(p, q, rtol=2**-7, atol=1e-3)
        torch.testing.assert_close(m, n, rtol=0.02, atol=1e-2)

"""Every variant in every backend: the same trajectory as the reference, whatever happens to the optimizer on the way.

Graphs are shared by all cases of one recipe and dtype: a new model compiles nothing.  Backends run with LARGE = 10, so that
each case takes both ways, arena and large tensors, and in pieces of a row or eight entries.  `make test` takes the variants
that bring a block, in float64, and scripts or compiles one of each mechanism; `make test-all` does the rest.
"""

import pytest
import torch

import sandbox
import variants
from sandbox.blocks import ClipGlobalNorm, Decoupled, L2Decay, Stable
from tests.backends.trajectories import assert_alike, reference, trajectory
from tests.light import COVERING, MECHANISMS, NAMES, each_backend, light
from tests.outside_blocks import Halfway, MeanAbsolute, Remembering
from tests.problem import Torchs

pytestmark = pytest.mark.usefixtures("both_ways")


# Graphs that take Inductor long, or that ask nothing of it that others do not ask; `make test` compiles none of them here.
LONG = {
    "adan",
    "coordinate-secant",
    "sdlbfgs",
    "sdlbfgs-paper",
    "adaqn",
    "sqn",
    "olbfgs",
    "res",
    "ggt",
    "apollo-stable",
    "belief",
    "barzilai-borwein-diagonal",
}


# Rounding grows: one bit of one entry changed at the start moves zhu's trajectory by 1e-13 at step 9, by 1e-6 at step 29.
# Of these only the first steps are compared, and no states: sr1's hold s - Hy, which is nothing but rounding once H is exact.
CHAOTIC = {"no-stepsize-correction": 9, "zhu": 9, "bfgs": 4, "res": 5, "sr1": 24}


def cases():
    for name in NAMES:
        for backend in ("eager", "compiled", "scripted"):
            for dtype in (torch.float64, torch.float32):
                few = COVERING if backend == "eager" else MECHANISMS
                costly = name not in few or (backend == "compiled" and name in LONG)
                slow = [pytest.mark.slow] if costly or dtype == torch.float32 else []
                yield pytest.param(name, backend, dtype, id=f"{name}-{backend}-{str(dtype)[6:]}", marks=slow)


@pytest.mark.parametrize(("name", "backend", "dtype"), cases())
def test_equal_to_the_reference(name, backend, dtype):
    recipe = light(name)
    one, two = trajectory(recipe, dtype, backend), reference(recipe, dtype)
    if name in CHAOTIC:
        one, two = (one[0][: CHAOTIC[name]], []), (two[0][: CHAOTIC[name]], [])
    assert_alike(one, two, dtype)


CROSSED = [("compiled", "eager"), ("eager", "compiled"), ("scripted", "reference"), ("reference", "scripted")]


def crossings():
    """`make test` compiles only what the comparison above compiles, too."""
    for name in ("apollo", "scale-invariant", "apollow", "global-secant", "channel-secant", "adahessian", "adam"):
        for way in CROSSED:
            slow = "compiled" in way and name not in MECHANISMS
            yield pytest.param(name, *way, marks=[pytest.mark.slow] if slow else [])


@pytest.mark.parametrize(("name", "first", "then"), crossings())
def test_checkpoints_cross_backends(name, first, then):
    recipe = variants.get(name)
    assert_alike(trajectory(recipe, torch.float64, first, then), reference(recipe, torch.float64), torch.float64)


COMPOSED = {
    "outside": {"rectifier": Halfway(sigma=0.02)},
    "outside-curvature": {"curvature": MeanAbsolute(), "rectifier": Halfway(sigma=0.5)},
    "remembering": {"curvature": Remembering(), "rectifier": Halfway(sigma=0.5)},
    "clip": {"gradient": (ClipGlobalNorm(max_norm=2.0), L2Decay(weight_decay=0.1))},
    "channel-scale-invariant-stable": {
        "scope": "channel",
        "rectifier": variants.get("scale-invariant").rectifier,
        "decay": Stable(weight_decay=0.01),
    },
    "global-belief-decoupled": {
        "scope": "global",
        "rectifier": variants.get("belief").rectifier,
        "decay": Decoupled(weight_decay=0.1),
    },
}


@pytest.mark.filterwarnings("ignore:recipe .* has no graph")
@pytest.mark.parametrize(("change", "backend"), each_backend(COMPOSED))  # compiled blocks from outside: test_selfcheck
def test_compositions_and_blocks_from_outside(change, backend):
    recipe = variants.get("apollo").replace(**COMPOSED[change])
    assert_alike(trajectory(recipe, torch.float64, backend), reference(recipe, torch.float64), torch.float64)


@pytest.mark.filterwarnings("ignore:recipe .* has no graph")
def test_states_that_are_handed_on():
    """A block may return an old state or θ under another name, and write in place what it made itself: the optimizers, which
    write over old tensors, do as the pure update does."""
    recipe = variants.get("apollo").replace(**COMPOSED["remembering"])
    problem = Torchs(torch.float64)
    params = [p.detach() for p in problem.params]
    state, path = recipe.init(params), []
    draw = torch.Generator().manual_seed(0)
    grads = [[torch.randn(p.shape, generator=draw, dtype=torch.float64) for p in params] for _ in range(8)]
    for row in grads:
        state, params = recipe.update(state, params, row, lr=0.1)
        path.append(params)
    for backend in ("eager", "compiled", "scripted"):
        starts = [p.detach().clone().requires_grad_() for p in problem.params]
        optimizer = sandbox.Optimizer(starts, recipe, lr=0.1, backend=backend)
        for row, expected in zip(grads, path, strict=True):
            for p, g in zip(starts, row, strict=True):
                p.grad = g
            optimizer.step()
            for p, q in zip(starts, expected, strict=True):
                torch.testing.assert_close(p.detach(), q, rtol=1e-12, atol=1e-13)
        for i, p in enumerate(starts):
            if p.numel():
                assert torch.equal(optimizer.state[p]["curvature.g3"], grads[-3][i])
                torch.testing.assert_close(optimizer.state[p]["curvature.earlier"], path[-3][i], rtol=1e-12, atol=1e-13)

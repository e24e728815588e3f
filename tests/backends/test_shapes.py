"""States that are matrices: every backend against a literal recursion, and everything else that states have."""

import copy
import pickle

import numpy as np
import pytest
import torch
from torch.func import vmap

import sandbox
import variants
from sandbox.backends.inductor import kernels
from sandbox.blocks import Unit
from sandbox.forms import toml
from sandbox.recipe import analysis
from tests.outside_blocks import Both, Dense
from tests.problem import Problem

SHAPES = [(4, 3), (7,), (), (2, 3, 2), (3, 4), (1, 5), (6, 1), (3, 3)]
SGD = variants.get("sgd").replace(curvature=Unit())
RECIPES = {"both": SGD.replace(solve=Both()), "dense": SGD.replace(solve=Dense())}


def literal(kind, steps, lr):
    """θ after each step, by NumPy; a vector is one column of "dense", and "both" takes matrices only: d = u of a vector."""
    problem, path = Problem(shapes=SHAPES), []
    theta = [x.copy() for x in problem.start]
    shapes = [(x.shape[0] if x.ndim else 1, -1) for x in theta]
    zeros = [np.zeros(x.reshape(s).shape) for x, s in zip(theta, shapes, strict=True)]
    m = [0 * z for z in zeros]
    L, R = ([v * np.eye(z.shape[i]) for z in zeros] for i, v in enumerate((0.5, 0.25)))
    a, b = [np.full((len(z), 1), 0.125) for z in zeros], [np.zeros((1, z.shape[1])) for z in zeros]
    H = [0.5 * np.eye(z.size) for z in zeros]
    for step in range(steps):
        for i, g in enumerate(problem.gradient(step, theta)):
            m[i] = 0.9 * m[i] + g.reshape(shapes[i])
            u = m[i]
            if kind == "both" and theta[i].ndim < 2:
                d = u
            elif kind == "both":
                L[i], R[i] = L[i] + 0.1 * u @ u.T, R[i] + 0.1 * u.T @ u
                a[i], b[i] = a[i] + 0.1 * u.mean(1, keepdims=True), b[i] + 0.1 * u.sum(0, keepdims=True)
                d = u + L[i] @ u + u @ R[i] + a[i] + b[i]
            else:
                H[i] = H[i] + 0.1 * np.outer(u, u)
                d = H[i] @ u.ravel()
            theta[i] = theta[i] - lr * d.reshape(theta[i].shape)
        path.append([x.copy() for x in theta])
    return path


def tensors(problem):
    """With one whose entries lie column by column, as a convolution's do in channels_last."""
    made = problem.tensors()
    made[3] = made[3].detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()
    return made


def optimizer_for(recipe, backend="eager", lr=1e-3):
    problem = Problem(shapes=SHAPES)
    params = tensors(problem)
    return problem, params, sandbox.Optimizer(params, recipe, lr=lr, backend=backend)


@pytest.mark.parametrize("kind", RECIPES)
@pytest.mark.parametrize("backend", ["eager", "compiled", "scripted"])
def test_equal_to_a_literal_recursion(kind, backend):
    """Rounding alone, 1e-16, of which twelve steps with sums of squares make 1e-12."""
    expected = literal(kind, 12, 1e-3)
    problem, params, optimizer = optimizer_for(RECIPES[kind], backend)
    for step, row in enumerate(expected):
        problem.set_gradients(step, params)
        optimizer.step()
        for p, x in zip(params, row, strict=True):
            np.testing.assert_allclose(p.detach().numpy(), x, rtol=1e-10, atol=1e-12, err_msg=f"step {step}")
    assert not params[3].is_contiguous()


@pytest.mark.parametrize("kind", RECIPES)
def test_one_graph_for_all_sizes_of_a_kind(kind):
    recipe, before = RECIPES[kind].replace(gradient=(sandbox.blocks.ClipValue(max_value=1e6),)), len(kernels.compilations)
    for shapes in (SHAPES, [(9, 4), (5, 30), (2, 2), (8, 3, 3)]):
        params = [torch.ones(s, dtype=torch.float64) for s in shapes]
        for p in params:
            p.grad = torch.ones_like(p)
        sandbox.Optimizer(params, recipe, backend="compiled").step()
    assert len(kernels.compilations) - before == (3 if kind == "both" else 1)  # tall, wide, vectors; whole


@pytest.mark.parametrize("kind", RECIPES)
@pytest.mark.parametrize(("first", "then"), [("compiled", "scripted"), ("eager", "compiled"), ("scripted", "eager")])
def test_checkpoints(kind, first, then):
    expected = literal(kind, 8, 1e-3)
    problem, params, optimizer = optimizer_for(RECIPES[kind], first)
    for step, row in enumerate(expected):
        if step == 3:
            saved = pickle.loads(pickle.dumps(optimizer.state_dict()))
            optimizer = sandbox.Optimizer(params, RECIPES[kind], lr=1e-3, backend=then)
            optimizer.load_state_dict(saved)
        if step == 5:
            params, optimizer = copy.deepcopy((params, optimizer))
        problem.set_gradients(step, params)
        optimizer.step()
        for p, x in zip(params, row, strict=True):
            np.testing.assert_allclose(p.detach().numpy(), x, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", RECIPES)
def test_under_vmap(kind):
    """Three members of different starts are three runs."""
    recipe, draw = RECIPES[kind], torch.Generator().manual_seed(0)
    starts, grads = ([torch.randn(3, *s, generator=draw, dtype=torch.float64) for s in SHAPES] for _ in range(2))

    def run(params, grads):
        state = recipe.init(params)
        for _ in range(3):
            state, params = recipe.update(state, params, grads, lr=0.1)
        return params

    together = vmap(run)(starts, grads)
    for i in range(3):
        alone = run([p[i] for p in starts], [g[i] for g in grads])
        for p, q in zip(together, alone, strict=True):
            torch.testing.assert_close(p[i], q, rtol=1e-12, atol=1e-13)


def test_state_elements_depend_on_the_shape():
    both, dense = RECIPES["both"], RECIPES["dense"]
    assert analysis.state_elements(both, [(4, 3)]) == 1 + (16 + 9 + 4 + 3) / 12
    assert analysis.state_elements(both, [(2, 3, 2), (5,)]) == 1 + (4 + 36 + 2 + 6) / 17
    assert analysis.state_elements(dense, [(4, 3)]) == 13
    assert analysis.state_text(both) == "1 + m/n + n/m + 1/n + 1/m"
    assert str(both).startswith("sgd[solve=Both()]: 1 + m/n + n/m + 1/n + 1/m state elements per parameter of an (m, n) matrix")
    for recipe in RECIPES.values():
        _, params, optimizer = optimizer_for(recipe)
        held = sum(optimizer.state[p][name].numel() for p in params for name in recipe.of(p).analysis.state_kinds)
        assert analysis.state_elements(recipe, [p.shape for p in params]) == held / sum(p.numel() for p in params)
        assert toml.loads(toml.dumps(recipe)) == recipe


def test_what_does_not_fit():
    with pytest.raises(ValueError, match="scope 'global' makes one vector of all tensors"):
        RECIPES["dense"].replace(scope="global")
    with pytest.raises(ValueError, match="has no matrix of a tensor"):
        sandbox.export(RECIPES["both"])

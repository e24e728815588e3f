"""Products and exact diagonals against dense Hessians, on every task, every mode and every form of parameters."""

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from sandbox import curvature, tasks
from tests.curvature.problem import SHAPES, N, batch, dense, flat, loss, params, relative

H = dense(loss, params(), batch())

# Few enough parameters for a dense Hessian in a second
SMALL = [
    name for name in tasks.names() if issubclass(tasks.about(name), tasks.PureTask) and name not in ("digits-mlp", "digits-cnn")
]


@pytest.mark.parametrize("mode", curvature.MODES)
@given(seed=st.integers(0, 10**6))
@settings(max_examples=5, deadline=None)
def test_products(mode, seed):
    """Both orders of differentiation give H v, one v or many.  Tolerance: some ten roundings of 1e-16 a number."""
    draw = np.random.default_rng(seed)
    operator = curvature.Hessian(loss, params(), batch(), mode=mode)
    assert operator.mode == mode
    v = {name: torch.tensor(draw.standard_normal(shape)) for name, shape in SHAPES.items()}
    found = operator.product(v)
    assert {name: tuple(x.shape) for name, x in found.items()} == SHAPES
    assert relative(flat(found), H @ flat(v)) < 1e-13
    V = draw.standard_normal((N, 3))
    assert relative(operator.scipy() @ V, H @ V) < 1e-13
    assert relative(operator.scipy() @ V[:, 0], H @ V[:, 0]) < 1e-13


@pytest.mark.parametrize("mode", curvature.MODES)
def test_blocks_and_dense(mode):
    operator = curvature.Hessian(loss, params(), batch(), mode=mode)
    assert relative(operator.dense().numpy(), H) < 1e-13
    place = 0
    for i, shape in enumerate(SHAPES.values()):
        n = int(np.prod(shape))
        block = H[place : place + n, place : place + n]
        assert np.abs(operator.block(i, torch.eye(n, dtype=torch.float64)).numpy() - block).max() < 1e-13 * np.abs(H).max()
        place += n


@pytest.mark.parametrize("options", [{}, {"chunk": 1}, {"chunk": 7}, {"chunk": 10**6}, {"memory": 40_000}])
def test_exact_diagonal(options):
    """Relative error at most 1e-10 as promised; in fact at rounding, for any chunk."""
    found = curvature.diagonal(loss, params(), batch(), **options)
    assert relative(flat(found.values), np.diag(H)) < 1e-13
    assert (found.standard_error, found.method, found.num_vectors) == (None, "exact", 0)


@pytest.mark.parametrize(
    "name", [n for n in SMALL if n != "digits-mlp-scaled"] + [pytest.param("digits-mlp-scaled", marks=pytest.mark.slow)]
)
def test_every_small_task(name):
    """At a point that is no stationary one, on a minibatch and on the whole split."""
    task = tasks.get(name, dtype=torch.float64)
    draw = torch.Generator().manual_seed(3)
    p = {k: x + 0.3 * torch.randn(x.shape, generator=draw, dtype=x.dtype) for k, x in task.init(seed=1).items()}
    for data in (next(task.batches(seed=0)), task.full("validation")):
        exact = dense(task.loss, p, data)
        assert relative(flat(curvature.diagonal(task.loss, p, data).values), np.diag(exact)) < 1e-10


@pytest.mark.parametrize("name", ["digits-mlp", "digits-cnn"])
def test_every_network(name):
    """The dense Hessian would take a minute: twelve of its entries, each by two backward passes of its own."""
    task = tasks.get(name, dtype=torch.float64)
    p, data = task.init(seed=1), next(task.batches(seed=0))
    found = curvature.diagonal(task.loss, p, data)
    scale = max(float(x.abs().max()) for x in found.values.values())
    draw = np.random.default_rng(0)
    for key, x in p.items():
        theta = x.clone().requires_grad_()
        (g,) = torch.autograd.grad(task.loss({**p, key: theta}, data), theta, create_graph=True)
        for j in draw.integers(x.numel(), size=3):
            (row,) = torch.autograd.grad(g.reshape(-1)[j], theta, retain_graph=True)
            error = abs(float(row.reshape(-1)[j]) - float(found.values[key].reshape(-1)[j]))
            assert error < 1e-10 * scale, (key, j)


def test_a_list_of_batches_is_the_mean_over_all_rows():
    """Batches of 4, 2 and 1 rows: unequal weights.  The loss is a mean over rows, so the split makes no difference."""
    X, y = batch(7)
    parts = [(X[:4], y[:4]), (X[4:6], y[4:6]), (X[6:], y[6:])]
    whole, split = (flat(curvature.diagonal(loss, params(), b).values) for b in ((X, y), parts))
    assert relative(split, whole) < 1e-13
    assert relative(flat(curvature.diagonal(loss, params(), parts[:1]).values), whole) > 1e-3


def test_batches_as_a_data_loader_gives_them():
    """[X, y] is one batch; a list of such is several; what is neither is said."""
    X, y = batch(7)
    whole = flat(curvature.diagonal(loss, params(), (X, y)).values)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, y), batch_size=7)
    (one,) = loader
    assert isinstance(one, list)
    several = [[X[:4], y[:4]], [X[4:], y[4:]]]
    dicts = [{"X": X[:4], "y": y[:4]}, {"X": X[4:], "y": y[4:]}]
    for data, of in ((one, loss), ([one], loss), (several, loss), (dicts, lambda p, b: loss(p, (b["X"], b["y"])))):
        assert relative(flat(curvature.diagonal(of, params(), data).values), whole) < 1e-13
    for neither, says in (
        (loader, "got DataLoader; take some of it as a list"),
        ([X, (y, y)], "got one of Tensor, tuple. Give one batch as a tuple"),
        ([X.numpy(), y.numpy()], "got one of ndarray"),
        ([1.0, 2.0], "got one of float"),
    ):
        with pytest.raises(TypeError, match=says):
            curvature.diagonal(loss, params(), neither)


def test_float32():
    """In the parameters' own precision: 1e-7 a rounding, some ten of them."""
    found = curvature.diagonal(loss, params(torch.float32), batch(dtype=torch.float32))
    assert {x.dtype for x in found.values.values()} == {torch.float32}
    assert relative(flat(found.values), np.diag(H)) < 1e-5

"""Products and exact diagonals against dense Hessians, on every task, every mode and every form of parameters."""

import subprocess
import sys

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch import nn
from torch.nn import functional
from torch.utils import _pytree as pytree

import sandbox
import variants
from sandbox import curvature, tasks
from sandbox.memory import chunk, peak
from tests.curvature.problem import SHAPES, N, batch, dense, flat, loss, params

H = dense(loss, params(), batch())

# Few enough parameters for a dense Hessian in a second
SMALL = [
    name for name in tasks.names() if issubclass(tasks.about(name), tasks.PureTask) and name not in ("digits-mlp", "digits-cnn")
]


def relative(found, exact):
    """Largest error over the largest entry."""
    return np.abs(found - exact).max() / np.abs(exact).max()


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
    assert (found.standard_error, found.method, found.probes) == (None, "exact", 0)


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


def test_any_tree():
    """A tensor, a tuple and nested containers: values have the same tree."""
    x, y = torch.tensor([1.0, 2.0]).double(), torch.tensor(3.0).double()
    assert torch.equal(curvature.diagonal(lambda p, _: (p**3).sum(), x, None).values, 6 * x)
    tree = {"a": [x, (y,)]}
    found = curvature.diagonal(lambda p, _: (p["a"][0] ** 2).sum() * p["a"][1][0] ** 2, tree, None).values
    assert pytree.tree_structure(found) == pytree.tree_structure(tree)
    assert torch.equal(found["a"][0], torch.full((2,), 18.0).double())
    assert torch.equal(found["a"][1][0], torch.tensor(10.0).double())


@pytest.mark.parametrize("mode", curvature.MODES)
def test_parts_without_curvature(mode):
    """A tensor that enters linearly, and one that the loss does not use, have zeros."""
    p = {"curved": torch.ones(2), "linear": torch.ones(3), "idle": torch.ones(1)}
    operator = curvature.Hessian(lambda p, _: (p["curved"] ** 2).sum() + p["linear"].sum(), p, None, mode=mode)
    assert operator.dense().tolist() == np.diag([2.0, 2, 0, 0, 0, 0]).tolist()
    assert operator.block(1, torch.ones(1, 3)).tolist() == [[0.0] * 3]
    assert operator.block(2, torch.ones(1, 1)).tolist() == [[0.0]]


class Cubed(torch.autograd.Function):
    """x³ in the old form, which torch.func does not take."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * g


def test_the_mode_falls_back_where_forward_mode_is_not_supported():
    x = torch.tensor([1.0, 2.0, 3.0])
    operator = curvature.Hessian(lambda p, _: Cubed.apply(p).sum(), x, None)
    assert operator.mode == "reverse-over-reverse"
    assert torch.equal(curvature.diagonal(lambda p, _: Cubed.apply(p).sum(), x, None).values, 6 * x)


class Fused(torch.autograd.Function):
    """A kernel whose backward pass has no derivative."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * g


def test_no_mode_at_all_says_why():
    with pytest.raises(
        RuntimeError, match=r"no Hessian-vector products here.*MATH.*forward-over-reverse: .*once_differentiable"
    ):
        curvature.Hessian(lambda p, _: Fused.apply(p).square().sum(), torch.ones(2), None)


def test_a_module_and_an_optimizers_parameters():
    """of_module is the functional form; the diagonal lies beside B of the same parameter, and follows the training."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    X, y = torch.randn(8, 4).double(), torch.randint(0, 2, (8,))
    optimizer = sandbox.Optimizer(model[0].parameters(), variants.get("apollo"), lr=0.01)
    mine = [p for group in optimizer.param_groups for p in group["params"]]
    function, p = curvature.of_module(model, functional.cross_entropy, mine)
    assert {name: x.data_ptr() for name, x in p.items()} == {f"0.{k}": x.data_ptr() for k, x in model[0].named_parameters()}
    before = curvature.diagonal(function, p, (X, y)).values
    for _ in range(3):
        optimizer.zero_grad()
        functional.cross_entropy(model(X), y).backward()
        optimizer.step()
    after = curvature.diagonal(function, p, (X, y)).values
    assert relative(flat(after), np.diag(dense(function, p, (X, y)))) < 1e-13
    assert not torch.equal(before["0.weight"], after["0.weight"])
    for mode in curvature.MODES:  # the other layer's parameters require a gradient; no graph to them is kept
        assert not curvature.Hessian(function, p, (X, y), mode=mode).dense().requires_grad
    assert {k: x.shape for k, x in after.items()} == {
        f"0.{k}": optimizer.state[x]["curvature.B"].shape for k, x in model[0].named_parameters()
    }
    assert all(p.grad is not None and p.requires_grad for p in mine)  # untouched
    assert list(curvature.of_module(model, functional.cross_entropy)[1]) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    with pytest.raises(ValueError, match="parameters must be the model's own, got 1"):
        curvature.of_module(model, functional.cross_entropy, [*mine, torch.ones(1)])


def test_without_a_correction_of_the_stepsize_B_is_the_curvature():
    """What the package is for: on a diagonal quadratic without momentum, B/η tends to the Hessian's diagonal (one
    dimension: B_2 = ηh exactly, property 6; tolerance: two roundings)."""
    task = tasks.get("quadratic", dtype=torch.float64, spectrum=[3.0], noise=0.0)
    recipe = variants.get("apollo").replace(**{"moment.beta": 0.0, "curvature.eps": 0.0, "lr": 0.5, "rectifier.sigma": 1.0})
    p, data = task.init(seed=0), task.full("train")
    state = recipe.init(p)
    for _ in range(2):
        state, p = recipe.update(state, p, torch.func.grad(task.loss)(p, data))
    exact = curvature.diagonal(task.loss, p, data).values["theta"]
    assert float(exact) == 3.0
    assert abs(float(state["theta"]["curvature.B"]) / 0.5 - float(exact)) < 1e-14


# -- errors ---------------------------------------------------------------------------------------------------------------


def random_loss(p, data):
    return loss(p, data) + torch.rand((), dtype=torch.float64)


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"loss": lambda p, b: p["out"]}, ValueError, r"loss must return a 0-d tensor, got one of shape \(3, 2\)"),
        ({"loss": lambda p, b: 1.0}, ValueError, r"loss must return a 0-d tensor, got 1\.0"),
        ({"loss": lambda p, b: loss(p, b) * float("nan")}, ValueError, "loss must be finite at params, got nan"),
        ({"loss": lambda p, b: loss(p, b).detach()}, ValueError, "loss must depend on params"),
        ({"loss": random_loss}, ValueError, "two values for the same; is there dropout"),
        ({"loss": lambda p, b: (p["out"] * 0).sum().abs().sqrt()}, ValueError, "loss must be twice differentiable"),
        ({"params": {}}, TypeError, "params must be a tree of tensors.*an empty tree"),
        ({"params": {"a": torch.ones(1), "b": torch.ones(1).double()}}, TypeError, "all float32 or all float64"),
        ({"params": {"a": torch.ones(1, dtype=torch.int64)}}, TypeError, "got torch.int64"),
        ({"params": {"a": 1.0}}, TypeError, "got float"),
        ({"batch": iter([batch()])}, TypeError, "batch must be one batch or a list of batches, got list_iterator"),
        ({"batch": []}, ValueError, "batch must have at least one row"),
        ({"method": "exat"}, ValueError, "unknown method 'exat'; did you mean 'exact'"),
        ({"chunk": 0}, ValueError, "chunk must be a whole number, at least 1, got 0"),
        ({"memory": 0}, ValueError, r"memory \(in bytes\) must be a whole number, at least 1, got 0"),
        ({"memory": 10}, ValueError, r"memory must be at least [\d,]+ bytes, what one product takes here, got 10"),
        ({"method": "hutchinson", "probes": 1}, ValueError, "probes must be a whole number, at least 2, got 1"),
        ({"method": "hutchinson", "distribution": "gausian"}, ValueError, "did you mean 'gaussian'"),
        ({"method": "hutchinson", "memory": -1}, ValueError, "memory"),
    ],
)
def test_errors(change, error, says):
    arguments = {"loss": loss, "params": params(), "batch": batch()} | change
    with pytest.raises(error, match=says):
        curvature.diagonal(**arguments)


def test_errors_of_products():
    with pytest.raises(ValueError, match="unknown mode 'forward'"):
        curvature.Hessian(loss, params(), batch(), mode="forward")
    with pytest.raises(ValueError, match="v must be a tree of tensors as params"):
        curvature.product(loss, params(), batch(), {"kernel": torch.ones(1)})
    with pytest.raises(ValueError, match="v must be a tree of tensors as params"):
        curvature.product(loss, params(), batch(), params() | {"scale": torch.ones(1).double()})


def test_a_nan_in_a_later_batch_is_seen():
    X, y = batch()
    with pytest.raises(ValueError, match="loss must be finite"):
        curvature.Hessian(loss, params(), [(X, y), (X * float("nan"), y)])


# -- memory ---------------------------------------------------------------------------------------------------------------


def test_the_meter_counts_what_lives_at_once():
    """Ten tensors of 8,000 bytes one after the other hold two at once, in a list ten; a view holds nothing more."""

    def in_turn():
        x = torch.ones(1000, dtype=torch.float64)
        for _ in range(9):
            x = x + 1
            x.view(10, 100)

    assert peak(in_turn) == 16_000
    assert peak(lambda: [torch.ones(1000, dtype=torch.float64) for _ in range(10)]) == 80_000


@given(memory=st.integers(30_000, 300_000))
@settings(max_examples=20, deadline=None)
def test_a_chunk_fits_its_memory(memory):
    operator = curvature.Hessian(loss, params(), batch())

    def run(k):
        return operator.rows(torch.ones(k, N, dtype=torch.float64))

    k = chunk(run, memory, 10**6, 8 * N)
    assert peak(lambda: run(k)) <= memory  # every vector takes the same here, so the estimate is exact
    assert peak(lambda: run(2 * k)) > memory


BIG = """
import resource, torch
from torch.nn import functional
from sandbox import curvature
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(784, 126), torch.nn.Tanh(), torch.nn.Linear(126, 10)).double()
batch = torch.randn(2, 784).double(), torch.tensor([3, 7])
loss, params = curvature.of_module(model, functional.cross_entropy)
assert sum(x.numel() for x in params.values()) == 100_180
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found = curvature.diagonal(loss, params, batch, memory=10**8)
X, p = batch[0], torch.softmax(model(batch[0]), 1).detach()
a = torch.tanh(model[0](X)).detach()
exact = ((p - p * p).T @ (a * a)) / 2  # the last layer's diagonal in closed form: p_i (1 - p_i) a_j², mean over rows
assert (found.values["2.weight"] - exact).abs().max() <= 1e-10 * exact.abs().max()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
def test_a_hundred_thousand_parameters_fit_in_two_gigabytes():
    """With `memory` at 1e8 bytes; ru_maxrss is in KiB on Linux.  100,180 products take about two minutes."""
    done = subprocess.run([sys.executable, "-c", BIG], capture_output=True, text=True, check=True)
    assert int(done.stdout) * 1024 < 2 * 2**30

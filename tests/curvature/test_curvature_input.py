"""Functions and trees that products and diagonals take, the modes they fall back to, and their errors."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils import _pytree as pytree

import sandbox
import variants
from sandbox import curvature, tasks
from tests.curvature.problem import batch, dense, flat, loss, params, relative


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


class Fused(Cubed):
    """A kernel whose backward pass has no derivative."""

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
    """The diagonal lies beside B of the same parameter, and follows the training."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    X, y = torch.randn(8, 4).double(), torch.randint(0, 2, (8,))
    optimizer = sandbox.Optimizer(model[0].parameters(), variants.get("apollo"), lr=0.01)
    mine = [p for group in optimizer.param_groups for p in group["params"]]

    def criterion(model, batch):
        return functional.cross_entropy(model(batch[0]), batch[1])

    def function(p, batch):
        return criterion(lambda X: torch.func.functional_call(model, p, (X,)), batch)

    before = curvature.diagonal(criterion, model, (X, y), parameters=mine).values
    for _ in range(3):
        optimizer.zero_grad()
        functional.cross_entropy(model(X), y).backward()
        optimizer.step()
    p = {f"0.{k}": x.detach() for k, x in model[0].named_parameters()}
    after = curvature.diagonal(criterion, model, (X, y), parameters=mine).values
    assert relative(flat(after), np.diag(dense(function, p, (X, y)))) < 1e-13
    assert not torch.equal(before["0.weight"], after["0.weight"])
    for mode in curvature.MODES:  # the other layer's parameters require a gradient; no graph to them is kept
        assert not curvature.Hessian(criterion, model, (X, y), parameters=mine, mode=mode).dense().requires_grad
        assert not curvature.Hessian(function, p, (X, y), mode=mode).dense().requires_grad
    assert {k: x.shape for k, x in after.items()} == {
        f"0.{k}": optimizer.state[x]["curvature.B"].shape for k, x in model[0].named_parameters()
    }
    assert all(p.grad is not None and p.requires_grad for p in mine)  # untouched
    assert list(curvature.diagonal(criterion, model, (X, y)).values) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    with pytest.raises(ValueError, match="parameters must be the model's own, got 1"):
        curvature.diagonal(criterion, model, (X, y), parameters=[*mine, torch.ones(1)])
    with pytest.raises(TypeError, match="parameters= chooses among those of a module"):
        curvature.diagonal(function, p, (X, y), parameters=mine)


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
        ({"model": {}}, TypeError, "model must be a module, or params a tree of tensors.*an empty tree"),
        ({"model": {"a": torch.ones(1), "b": torch.ones(1).double()}}, TypeError, "all float32 or all float64"),
        ({"model": {"a": torch.ones(1, dtype=torch.int64)}}, TypeError, "got torch.int64"),
        ({"model": {"a": 1.0}}, TypeError, "got float"),
        ({"batch": iter([batch()])}, TypeError, "batch must be one batch or a list of batches, got list_iterator"),
        ({"batch": []}, ValueError, "batch must have at least one row"),
        ({"method": "exat"}, ValueError, "unknown method 'exat'; did you mean 'exact'"),
        ({"chunk": 0}, ValueError, "chunk must be a whole number, at least 1, got 0"),
        ({"memory": 0}, ValueError, r"memory \(in bytes\) must be a whole number, at least 1, got 0"),
        ({"memory": 10}, ValueError, r"memory must be at least [\d,]+ bytes, what one product takes here, got 10"),
        ({"method": "hutchinson", "num_vectors": 1}, ValueError, "num_vectors must be a whole number, at least 2, got 1"),
        ({"method": "hutchinson", "distribution": "gausian"}, ValueError, "did you mean 'gaussian'"),
        ({"method": "hutchinson", "memory": -1}, ValueError, "memory"),
    ],
)
def test_errors(change, error, says):
    arguments = {"loss": loss, "model": params(), "batch": batch()} | change
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

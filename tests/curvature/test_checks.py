"""Second derivatives that are cut off or wrong are refused, those that are truly zero are not, and looking changes nothing."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

import sandbox
from sandbox import curvature
from tests.curvature.problem import dense, flat, relative

X = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
Y = torch.arange(6) % 2
SECOND_ORDER = ["adahessian", "sophia-h"]


def loss(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


def network(*middle):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), *middle, nn.Tanh(), nn.Linear(4, 2)).double()


class Checkpointed(nn.Module):
    def __init__(self, inner, reentrant):
        super().__init__()
        self.inner, self.reentrant = inner, reentrant

    def forward(self, x):
        return checkpoint(self.inner, x.detach().requires_grad_() if self.reentrant else x, use_reentrant=self.reentrant)


class Cubed(torch.autograd.Function):
    """x³, in the form that torch.func does not take."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * g


class InNumPy(Cubed):
    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return torch.from_numpy(3 * x.detach().numpy() ** 2 * g.detach().numpy())


class Once(Cubed):
    backward = staticmethod(torch.autograd.function.once_differentiable(Cubed.backward))


class Doubled(torch.autograd.Function):
    """2 x: its second derivative is truly zero."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return 2 * g


def stepped(recipe, function, *params):
    optimizer = sandbox.Optimizer(params, recipe, lr=0.01)
    optimizer.step(function)
    return optimizer


@pytest.mark.parametrize("recipe", SECOND_ORDER)
def test_a_reentrant_checkpoint_is_refused_and_the_other_is_right(recipe):
    """Reentrant, backward() reaches the inner weights and torch.autograd.grad does not, so that they would stand still."""
    plain, other = network(), network()
    other[0] = Checkpointed(other[0], reentrant=False)
    stepped(recipe, lambda: loss(plain, (X, Y)), *plain.parameters())
    stepped(recipe, lambda: loss(other, (X, Y)), *other.parameters())
    for p, q in zip(plain.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-12, atol=0)
    assert (
        relative(flat(curvature.diagonal(loss, other, (X, Y)).values), flat(curvature.diagonal(loss, plain, (X, Y)).values))
        < 1e-12
    )

    reentrant = network()
    reentrant[0] = Checkpointed(reentrant[0], reentrant=True)
    before = [p.detach().clone() for p in reentrant.parameters()]
    with pytest.raises(RuntimeError, match=r"reaches a parameter of shape \(4, 3\) and .*use_reentrant=False"):
        stepped(recipe, lambda: loss(reentrant, (X, Y)), *reentrant.parameters())
    with pytest.raises(RuntimeError, match=r"depends on a parameter of shape \(4, 3\) that its gradient does not reach"):
        curvature.diagonal(loss, reentrant, (X, Y))
    for p, old in zip(reentrant.parameters(), before, strict=True):
        assert torch.equal(p, old)
        assert p.grad is None


@pytest.mark.parametrize("function", [InNumPy, Once])
@pytest.mark.parametrize("outer", [torch.sum, lambda x: x.square().sum()], ids=["last", "inside"])
def test_functions_without_second_derivatives_are_refused(function, outer):
    """Also where the function comes last, where autograd has nothing to complain of: H = diag 6x came out as 0."""
    x = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64, requires_grad=True)
    for recipe in SECOND_ORDER:
        with pytest.raises(RuntimeError, match=f"backward pass of an autograd.Function has no derivative.*{function.__name__}"):
            stepped(recipe, lambda: outer(function.apply(x)), x)
    with pytest.raises(RuntimeError, match=f"no derivative.*{function.__name__}"):
        curvature.diagonal(lambda p, _: outer(function.apply(p)), x, None)
    # on a part of the way alone: x enters once more by a path that has a derivative
    with pytest.raises(RuntimeError, match=f"no derivative.*{function.__name__}"):
        curvature.diagonal(lambda p, _: outer(function.apply(p)) + (p**4).sum(), x, None)


def test_zero_blocks_are_not_refused():
    """Linear parameters, linear custom functions, idle parameters beside custom functions, and a loss without curvature."""
    x, linear, idle = (torch.ones(3, dtype=torch.float64, requires_grad=True) for _ in range(3))
    closure = lambda: Cubed.apply(x).sum() + Doubled.apply(linear).sum()  # noqa: E731
    optimizer = stepped("adahessian", closure, x, linear, idle)
    assert [float(optimizer.state[p]["curvature.v"].sum()) > 0 for p in (x, linear, idle)] == [True, False, False]

    def parts(p, _):
        return Cubed.apply(p["x"]).sum() + Doubled.apply(p["linear"]).sum()

    params = {name: torch.ones(3, dtype=torch.float64) for name in ("x", "linear", "idle")}
    found = curvature.diagonal(parts, params, None).values
    assert {name: h.tolist() for name, h in found.items()} == {"x": [6.0] * 3, "linear": [0.0] * 3, "idle": [0.0] * 3}
    assert curvature.diagonal(lambda p, _: p.sum(), linear, None).values.tolist() == [0.0] * 3


def test_a_wrong_second_derivative_is_refused():
    """torch's second derivative of _weight_norm has an error of 40 % of the largest entry here, by its own first derivatives."""
    model = network(parametrizations.weight_norm(nn.Linear(4, 4)))
    for mode in (None, *curvature.MODES[1:]):
        with pytest.raises(RuntimeError, match="the Hessian is not symmetric"):
            curvature.Hessian(loss, model, (X, Y), mode=mode)
    for recipe in SECOND_ORDER:
        with pytest.raises(RuntimeError, match="the Hessian is not symmetric"):
            stepped(recipe, lambda: loss(model, (X, Y)), *model.parameters())


def test_the_other_mode_where_one_is_not_symmetric():
    """A tied embedding with padding: forward over reverse is not symmetric; reverse over reverse is the Hessian in which the
    padding's vector, of which no gradient is taken, is a constant."""
    tokens = torch.tensor([[0, 1, 2], [3, 0, 4]])
    E = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def tied(E, _):
        return F.cross_entropy(torch.tanh(F.embedding(tokens, E, padding_idx=0).sum(1)) @ E.T, torch.tensor([1, 2]))

    def constant(params, _):
        E = params["E"]
        vectors = torch.cat([E[:1].detach(), E[1:]])
        return F.cross_entropy(torch.tanh(vectors[tokens].sum(1)) @ E.T, torch.tensor([1, 2]))

    operator = curvature.Hessian(tied, E, None)
    assert operator.mode == "reverse-over-reverse"
    assert relative(operator.dense().numpy(), dense(constant, {"E": E}, None)) < 1e-12
    with pytest.raises(RuntimeError, match="the Hessian is not symmetric"):
        curvature.Hessian(tied, E, None, mode="forward-over-reverse")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_is_no_asymmetry(dtype):
    """A network that has learned its rows by heart: of curvature 1e-6, softmax leaves rounding as large as 1e-2 of it in float32."""
    model = network(nn.BatchNorm1d(4)).to(dtype)
    rows, optimizer = X.to(dtype), torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(400):
        optimizer.zero_grad()
        loss(model, (rows, Y)).backward()
        optimizer.step()
    curvature.Hessian(loss, model, (rows, Y))
    stepped("adahessian", lambda: loss(model, (rows, Y)), *model.parameters())


def test_looking_changes_nothing():
    """Running statistics, a power iteration's vectors, gradients, modes and random generators are as before."""
    model = network(nn.BatchNorm1d(4), parametrizations.spectral_norm(nn.Linear(4, 4)))
    loss(model, (X, Y)).backward()
    before = {name: x.clone() for name, x in model.state_dict().items()}
    gradients = [p.grad.clone() for p in model.parameters()]
    draws = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002

    def noisy(model, batch):  # what it draws does not count
        return loss(model, batch) + 0 * torch.rand(()) * np.random.rand() * random.random()  # noqa: NPY002

    for function in (loss, noisy):
        curvature.diagonal(function, model, (X, Y))
        curvature.product(function, model, (X, Y), {name: torch.ones_like(p) for name, p in model.named_parameters()})
    with pytest.raises(ValueError, match="is there dropout"):
        curvature.diagonal(loss, network(nn.Dropout()), (X, Y))
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), gradients, strict=True))
    assert torch.equal(torch.get_rng_state(), draws[0])
    assert np.array_equal(np.random.get_state()[1], draws[1])  # noqa: NPY002
    assert random.getstate() == draws[2]
    assert all(module.training for module in model.modules())

    # and the numbers are those of a loss that is called with buffers of its own
    def pure(params, batch):
        buffers = {name: x.clone() for name, x in model.named_buffers()}
        return F.cross_entropy(torch.func.functional_call(model, {**params, **buffers}, (batch[0],)), batch[1])

    params = {name: p.detach() for name, p in model.named_parameters()}
    assert relative(flat(curvature.diagonal(loss, model, (X, Y)).values), np.diag(dense(pure, params, (X, Y)))) < 1e-12


def test_one_form_of_loss():
    """A loss of a module, a criterion, and a loss of tensors: each says what it needs where it gets another."""
    model = network()
    params = {name: p.detach() for name, p in model.named_parameters()}
    for function, given in (
        (loss, params),
        (F.cross_entropy, model),
        (lambda p, batch: (batch[0] @ p["0.weight"].T).sum(), model),
        (lambda model, batch: F.cross_entropy(model.forward(batch[0]), batch[1]), params),
    ):
        with pytest.raises(TypeError, match=r"loss is called as loss\(model, batch\), here with .* and failed: "):
            curvature.diagonal(function, given, (X, Y))
    with pytest.raises(TypeError, match=r"model must be a module, or params a tree of tensors.*got function"):
        curvature.diagonal(loss, lambda x: x, (X, Y))
    # a penalty on the module's own parameters, and a task's loss of its own network
    penalised = lambda model, batch: loss(model, batch) + model[0].weight.square().sum()  # noqa: E731
    difference = (
        curvature.diagonal(penalised, model, (X, Y)).values["0.weight"]
        - curvature.diagonal(loss, model, (X, Y)).values["0.weight"]
    )
    torch.testing.assert_close(difference, torch.full((4, 3), 2.0, dtype=torch.float64), rtol=1e-12, atol=0)
    task = sandbox.Task(name="own", model=network, train=(X, Y), validation=(X, Y), batch_size=6, loss=loss, steps=1)
    torch.testing.assert_close(
        curvature.diagonal(task.loss, task.start(0), (X, Y)).values["0.weight"],
        curvature.diagonal(loss, network(), (X, Y)).values["0.weight"],
    )

"""A second look at each batch, products with a vector asked for, drawn labels: what the closure is called for, and what comes of it."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import sandbox
import variants
from sandbox import tasks
from sandbox.blocks import (
    EMA,
    ClipValue,
    L2Decay,
    Product,
    SameBatch,
)
from sandbox.experiments.runs.methods import method
from sandbox.experiments.runs.run import Run
from sandbox.experiments.runs.training import train
from tests.light import each_backend
from tests.problem import Torchs

APOLLO = variants.get("apollo")
AGAIN, EXACT = (APOLLO.replace(pairs=pairs, name=name) for pairs, name in ((SameBatch(), "again"), (Product(), "exact")))


class Network(nn.Module):
    """With dropout: a second look must drop the same units."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.one, self.drop, self.two = nn.Linear(5, 6), nn.Dropout(0.3), nn.Linear(6, 3)
        self.double()

    def forward(self, x):
        return self.two(self.drop(torch.tanh(self.one(x))))


def batch(step):
    draw = torch.Generator().manual_seed(100 + step)
    return torch.randn(8, 5, generator=draw, dtype=torch.float64), torch.randint(0, 3, (8,), generator=draw)


def loss_of(model, step):
    x, y = batch(step)
    return F.cross_entropy(model(x), y)


def run(model, optimizer, steps, start=0, after=None):
    """Steps with a closure; at each a dict with the gradient that the step used and the state after it."""
    seen = []
    for step in range(start, start + steps):

        def closure(step=step):
            optimizer.zero_grad(set_to_none=step % 2 == 0)
            loss = loss_of(model, step)
            if not optimizer.param_groups[0]["recipe"].analysis.second_order:
                loss.backward()
            return loss

        torch.manual_seed(step)
        optimizer.step(closure)
        drawn = torch.rand(())
        seen.append({"g": [p.grad.clone() for p in model.parameters()], "drawn": drawn})
        seen[-1]["again"] = [optimizer.state[p].get("gradient.again") for p in model.parameters()]
        seen[-1] = copy.deepcopy(seen[-1])
    return seen


def gradient(model, step, seed):
    """∇f of a batch with the dropout of a seed, where the model stands."""
    torch.manual_seed(seed)
    return torch.autograd.grad(loss_of(model, step), list(model.parameters()))


@pytest.mark.parametrize("nesting", ["eager", "scripted"])
def test_again_is_the_same_batch_at_the_new_point_with_the_same_dropout(nesting):
    model = Network()
    optimizer = sandbox.Optimizer(model.parameters(), AGAIN, lr=0.05, backend=nesting)
    for step in range(4):
        before = gradient(model, step, step)
        (seen,) = run(model, optimizer, 1, step)
        for g, expected in zip(seen["g"], before, strict=True):
            torch.testing.assert_close(g, expected, rtol=0, atol=0)
        for g, expected in zip(seen["again"], gradient(model, step, step), strict=True):
            torch.testing.assert_close(g, expected, rtol=0, atol=0)
        # the generator stands where one call of the closure has left it
        torch.manual_seed(step)
        loss_of(model, step)
        assert torch.equal(seen["drawn"], torch.rand(()))


def test_generators_stand_where_the_first_call_left_them():
    """Also where the second one draws more."""
    p, calls = torch.ones(2, requires_grad=True), []
    optimizer = sandbox.Optimizer([p], AGAIN, lr=0.1)

    def closure():
        calls.append(torch.rand(1 + 5 * len(calls)))
        optimizer.zero_grad()
        loss = p.square().sum()
        loss.backward()
        return loss

    torch.manual_seed(3)
    optimizer.step(closure)
    drawn = torch.rand(4)
    assert [len(x) for x in calls] == [1, 6]
    assert calls[0] == calls[1][0]
    torch.manual_seed(3)
    torch.rand(1)
    assert torch.equal(drawn, torch.rand(4))


def quadratic(seed=0, n=6):
    draw = np.random.default_rng(seed)
    half = draw.standard_normal((n, n))
    return torch.tensor(half @ half.T + np.eye(n)), torch.tensor(draw.standard_normal(n))


@pytest.mark.parametrize("base", ["apollo", "lbfgs", "scale-invariant"])
def test_on_a_full_batch_all_pairs_are_one(base):
    """Without noise the second look at the last batch is the gradient that comes, so y is that of successive gradients, bitwise;
    and of a quadratic H s is y to rounding (1e-12: cancellation in the difference of gradients)."""
    H, b = quadratic()
    recipe = variants.get(base)
    recipe = recipe.replace(moment=EMA(beta=0.0))
    ends = []
    for pairs in (recipe.pairs, SameBatch(), Product()):
        p = torch.ones(6, dtype=torch.float64, requires_grad=True)
        optimizer = sandbox.Optimizer([p], recipe.replace(pairs=pairs), lr=0.02)

        def closure(p=p, optimizer=optimizer):
            optimizer.zero_grad()
            loss = 0.5 * p @ H @ p - b @ p
            if not optimizer.param_groups[0]["recipe"].analysis.second_order:
                loss.backward()
            return loss

        for _ in range(6):
            optimizer.step(closure)
        ends.append(p.detach().clone())
    assert torch.equal(ends[0], ends[1])
    torch.testing.assert_close(ends[0], ends[2], rtol=1e-9, atol=1e-11)


def test_pairs_of_one_batch_have_no_noise():
    """f = ½θᵀHθ - ξᵀθ: y = H s whatever ξ was, where successive batches add ξ_{t-1} - ξ_t."""
    H, _ = quadratic()
    for pairs, exact in ((SameBatch(), True), (Product(), True), (APOLLO.pairs, False)):
        recipe = APOLLO.replace(pairs=pairs, moment=EMA(beta=0.0))
        theta, found = torch.ones(6, dtype=torch.float64), []
        state = recipe.init(theta)
        draw = torch.Generator().manual_seed(0)
        for _ in range(5):
            xi = torch.randn(6, generator=draw, dtype=torch.float64)
            given = {"product": H @ recipe.product_vector(state, theta)} if recipe.analysis.inputs else {}
            state, theta = recipe.update(state, theta, H @ theta - xi, lr=0.1, observe=lambda i, x: found.append(x), **given)  # noqa: B023
            if recipe.analysis.second_gradient:
                state = recipe.with_second_gradient(state, H @ theta - xi)
        x = found[-1]
        assert torch.allclose(x.y, H @ (-x.lr_old * x.d_old), rtol=1e-10, atol=1e-12) == exact


def test_l2_decay_is_part_of_the_pair():
    H, _ = quadratic()
    recipe = APOLLO.replace(pairs=SameBatch(), gradient=(L2Decay(weight_decay=0.5),))
    theta, found = torch.ones(6, dtype=torch.float64), []
    state = recipe.init(theta)
    for _ in range(4):
        state, theta = recipe.update(state, theta, H @ theta, lr=0.1, observe=lambda i, x: found.append(x))
        state = recipe.with_second_gradient(state, H @ theta)
    x = found[-1]
    s = -x.lr_old * x.d_old
    torch.testing.assert_close(x.y, H @ s + 0.5 * s, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("name", "backend"), each_backend(["again", "exact", "sophia-g"]))
def test_backends_and_checkpoints(name, backend):
    """The eager path of an uninterrupted run; at the fifth step the run goes on from a checkpoint (1e-9: 10 steps of rounding)."""
    recipe, ends = {"again": AGAIN, "exact": EXACT}.get(name) or variants.get(name), []
    for where in ("eager", backend):
        model = Network()
        optimizer = sandbox.Optimizer(model.parameters(), recipe, lr=0.05, backend=where)
        run(model, optimizer, 5)
        if where == backend and ends:
            saved, optimizer = optimizer.state_dict(), sandbox.Optimizer(model.parameters(), recipe, lr=0.05, backend=backend)
            optimizer.load_state_dict(saved)
        run(model, optimizer, 5, 5)
        ends.append(model.state_dict())
    for name in ends[0]:
        torch.testing.assert_close(ends[0][name], ends[1][name], rtol=1e-9, atol=1e-10)


def test_maximize_is_the_negated_loss():
    ends = []
    for sign, maximize in ((1, False), (-1, True)):
        problem = Torchs(torch.float64)
        optimizer = sandbox.Optimizer(problem.params, AGAIN, lr=0.01, maximize=maximize)
        for step in range(6):

            def closure(step=step, problem=problem, optimizer=optimizer, sign=sign):
                optimizer.zero_grad()
                loss = sign * problem.loss(step, problem.params)
                loss.backward()
                return loss

            optimizer.step(closure)
        ends.append([p.detach() for p in problem.params])
    for p, q in zip(*ends, strict=True):
        assert torch.equal(p, q)


def test_what_is_refused():
    p = torch.ones(3, requires_grad=True)
    for recipe, said in (
        (AGAIN, "recipe 'again' needs step\\(closure\\): .* calls it twice"),
        (EXACT, "a second-order recipe needs step\\(closure\\)"),
        (variants.get("sophia-g"), "recipe 'sophia-g' needs step\\(closure\\)"),
    ):
        with pytest.raises(RuntimeError, match=said):
            sandbox.Optimizer([p], recipe).step()
    with pytest.raises(ValueError, match="SameBatch compares one batch's gradients at two points: it allows no gradient block"):
        AGAIN.replace(gradient=(ClipValue(),))
    with pytest.raises(ValueError, match="Product sees the Hessian of the loss alone"):
        EXACT.replace(gradient=(L2Decay(),))
    with pytest.raises(ValueError, match="needs `product`"):
        EXACT.update(EXACT.init(p), p, p)
    with pytest.raises(TypeError, match="did you mean 'hessian'"):
        APOLLO.update(APOLLO.init(p), p, p, hesian=p)


def test_a_second_look_that_is_not_finite():
    """The step was made; "skip" takes the pair for one without change, "raise" says so."""
    for nonfinite in ("raise", "skip"):
        p = torch.tensor([1.0], dtype=torch.float64, requires_grad=True)
        optimizer = sandbox.Optimizer([p], AGAIN, lr=1.0, nonfinite=nonfinite)

        def closure(p=p, optimizer=optimizer):
            optimizer.zero_grad()
            loss = p.sqrt().sum() * 10
            loss.backward()
            return loss

        if nonfinite == "raise":
            with pytest.raises(FloatingPointError, match="at the point that the step has led to"):
                optimizer.step(closure)
        else:
            optimizer.step(closure)
            assert torch.equal(optimizer.state[p]["gradient.again"], p.grad)
        assert float(p.detach()) < 0


def test_runs_count_gradients_and_batched_runs_equal_single_ones():
    task = tasks.get("digits-mlp")
    for recipe, a_step in ((AGAIN, 2), (EXACT, 2), (variants.get("sophia-g"), 2), (APOLLO, 1)):
        assert recipe.analysis.evaluations == a_step
        rows = train(task, method(recipe), Run(task="", method="", lr=0.01, steps=4, at=(4,), seed=1, role="tuning"))
        assert rows[-1]["gradients"] == 4 * a_step
        assert np.isfinite(rows[-1]["train_loss"])

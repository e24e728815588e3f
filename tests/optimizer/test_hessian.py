"""Second-order recipes: probes, products, and AdaHessian against a literal recursion with dense Hessians."""

import gc
import weakref

import numpy as np
import pytest
import torch
from torch.func import functional_call, hessian

import sandbox
import variants
from sandbox.blocks import AbsoluteFloor, AdamWDecay
from sandbox.curvature.hessian import generator, hutchinson, rademacher
from sandbox.recipe import Recipe
from tests.literal import AdaHessian
from tests.outside_blocks import RawProbe


def test_rademacher_draws_both_signs_equally():
    """One published implementation draws only -1.  10,000 draws: the mean lies within 5 standard deviations, 0.05, of 0."""
    z = rademacher(torch.zeros(10_000), torch.Generator().manual_seed(0))
    assert set(z.tolist()) == {-1.0, 1.0}
    assert abs(float(z.mean())) < 0.05


class Small(torch.nn.Module):
    """Five tensors, one of them a convolution kernel, one a scalar."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = torch.nn.Conv2d(1, 2, 2)
        self.scale = torch.nn.Parameter(torch.tensor(0.7))
        self.out = torch.nn.Linear(8, 2)

    def forward(self, x):
        return self.out(torch.tanh(self.scale * self.conv(x)).flatten(1))


X = torch.randn(6, 1, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
Y = torch.randn(6, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def loss_of(model):
    return (model(X) - Y).square().mean()


@pytest.mark.parametrize("name", ["adahessian", "adahessian-spatial"])
@pytest.mark.parametrize("power", [1.0, 0.5])
@pytest.mark.parametrize("gamma", [0.0, 0.1])
def test_adahessian(name, power, gamma):
    """50 steps; the reference takes Hz from the dense Hessian, and draws the same z.  Tolerance: two ways to Hz, 1e-14 apart,
    amplified by division by small √v: seen 1e-11."""
    model = Small().double()
    recipe = variants.get(name).replace(**{"rectifier.exponent": power}, decay=AdamWDecay(weight_decay=gamma))
    optimizer = sandbox.Optimizer(model.parameters(), recipe, lr=0.02, seed=7)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [25], gamma=0.3)
    names = [n for n, _ in model.named_parameters()]
    start = [p.detach().numpy().copy() for p in model.parameters()]
    reference = AdaHessian(start, power=power, spatial=name.endswith("spatial"), gamma=gamma)

    def by_name(params):
        return (functional_call(model, params, (X,)) - Y).square().mean()

    for step in range(50):
        draws = generator(7, step)
        params = {n: torch.tensor(x) for n, x in zip(names, reference.theta, strict=True)}
        grads = torch.func.grad(by_name)(params)
        H = hessian(by_name)(params)
        z = {n: rademacher(params[n], draws) for n in names}
        diagonals = []
        for n in names:
            Hz = sum((H[n][k].reshape(params[n].numel(), -1) @ z[k].reshape(-1)).reshape(params[n].shape) for k in names)
            diagonals.append((z[n] * Hz).numpy())
        reference.step([grads[n].numpy() for n in names], diagonals, 0.02 if step < 25 else 0.006)
        optimizer.step(lambda: loss_of(model))
        schedule.step()
        for p, x in zip(model.parameters(), reference.theta, strict=True):
            np.testing.assert_allclose(p.detach().numpy(), x, rtol=1e-8, atol=1e-10, err_msg=f"step {step}")


def test_a_step_without_what_it_needs_says_how():
    model = Small().double()
    optimizer = sandbox.Optimizer(model.parameters(), "adahessian")
    with pytest.raises(RuntimeError, match=r"needs step\(closure\) with a closure that computes the loss and returns it"):
        optimizer.step()

    def eager_closure():
        loss = loss_of(model)
        loss.backward()
        return loss

    for closure, says in (
        (eager_closure, r"has already called backward\(\)"),
        (lambda: loss_of(model).detach(), "returned a loss without a graph"),
        (lambda: None, "returned None"),
        (lambda: loss_of(model).expand(3), r"loss has shape \(3,\) and must be one number"),
    ):
        with pytest.raises(RuntimeError, match=says):
            optimizer.step(closure)


def test_parameters_that_the_loss_does_not_use_keep_their_state():
    model, idle = Small().double(), torch.ones(3, dtype=torch.float64, requires_grad=True)
    linear = torch.ones(2, dtype=torch.float64, requires_grad=True)
    optimizer = sandbox.Optimizer([*model.parameters(), idle, linear], "adahessian", lr=0.01)
    optimizer.step(lambda: loss_of(model) + linear.sum())
    assert torch.equal(idle, torch.ones(3, dtype=torch.float64))
    assert int(optimizer.state[idle]["step"]) == 0
    assert torch.equal(optimizer.state[linear]["curvature.v"], torch.zeros(2, dtype=torch.float64))  # no curvature there
    assert not torch.equal(linear, torch.ones(2, dtype=torch.float64))


def test_mixed_orders_in_one_optimizer():
    """A first-order group beside a second-order one gets its gradient from the same closure."""
    model, twin = Small().double(), Small().double()
    mixed = sandbox.Optimizer(
        [{"params": model.conv.parameters(), "recipe": "adahessian"}, {"params": [model.scale, *model.out.parameters()]}],
        "adam",
        lr=0.01,
    )
    plain = sandbox.Optimizer([twin.scale, *twin.out.parameters()], "adam", lr=0.01)
    mixed.step(lambda: loss_of(model))
    loss_of(twin).backward()
    plain.step()
    torch.testing.assert_close(model.out.weight, twin.out.weight, rtol=1e-12, atol=0)
    torch.testing.assert_close(model.scale, twin.scale, rtol=1e-12, atol=0)


class Marker:
    """Lives as long as the graph that holds it."""


class Marked(torch.autograd.Function):
    """The square, with a marker in its node of the graph."""

    @staticmethod
    def forward(ctx, x, marker):
        ctx.save_for_backward(x)
        ctx.marker = marker
        return x.square()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x * g, None


def test_no_leak_of_graphs():
    """backward(create_graph=True) would keep every step's graph alive through p.grad; ours is gone after the step."""
    p = torch.ones(3, dtype=torch.float64, requires_grad=True)
    optimizer = sandbox.Optimizer([p], "adahessian", lr=0.01)
    alive = []

    def closure():
        marker = Marker()
        alive.append(weakref.ref(marker))
        return Marked.apply(p, marker).sum()

    for _ in range(3):
        optimizer.step(closure)
    gc.collect()
    assert [ref() for ref in alive] == [None] * 3


def test_maximize_turns_both_gradient_and_curvature():
    up, down = Small().double(), Small().double()
    climb = sandbox.Optimizer(up.parameters(), "adahessian", lr=0.01, maximize=True)
    descend = sandbox.Optimizer(down.parameters(), "adahessian", lr=0.01)
    for _ in range(3):
        climb.step(lambda: -loss_of(up))
        descend.step(lambda: loss_of(down))
    for p, q in zip(up.parameters(), down.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-10, atol=1e-12)


def test_hutchinson_is_unbiased():
    """Mean of z ⊙ Hz over 4,000 probes against the diagonal: within 5 standard errors, √(Σ_{k≠j} H_jk²/4000) each."""
    generator = torch.Generator().manual_seed(0)
    A = torch.randn(5, 5, dtype=torch.float64, generator=generator)
    H = A @ A.T
    theta = torch.randn(5, dtype=torch.float64, generator=generator, requires_grad=True)
    total = torch.zeros(5, dtype=torch.float64)
    for _ in range(4000):
        _, z, Hz = hutchinson(0.5 * theta @ H @ theta, [theta], generator)
        total += z[0] * Hz[0]
    error = (total / 4000 - H.diagonal()).abs()
    spread = ((H.square().sum(1) - H.diagonal().square()) / 4000).sqrt()
    assert bool((error < 5 * spread).all())


def test_every_draw_has_a_stream_of_its_own():
    """By seed and count; rounds of ±1 that repeat would make Hutchinson's average a single draw."""
    draws = {(s, k): tuple(rademacher(torch.zeros(64), generator(s, k)).tolist()) for s in range(4) for k in range(8)}
    assert len(set(draws.values())) == 32
    assert draws[2, 5] == tuple(rademacher(torch.zeros(64), generator(2, 5)).tolist())
    assert set(draws[0, 0]) == {-1.0, 1.0}


def test_no_draw_comes_twice_though_a_group_goes():
    """z ⊙ Hz = z Σz of H = 11ᵀ tells each z, up to its sign, from every other; 63 entries never add up to 0."""
    p, q = (torch.zeros(63, requires_grad=True) for _ in range(2))
    recipe = Recipe(curvature=RawProbe(), rectifier=AbsoluteFloor(sigma=1.0))
    optimizer = sandbox.Optimizer([{"params": [p]}, {"params": [q]}], recipe)
    draws = []
    for step in range(4):
        if step == 3:
            optimizer.param_groups.pop(0)
        optimizer.step(lambda: (p.sum() ** 2 + q.sum() ** 2) / 2)
        draws += [optimizer.state[x]["curvature.h"].tolist() for x in ((p, q) if step < 3 else (q,))]
    assert len(set(map(tuple, draws))) == len(draws) == 7


@pytest.mark.parametrize("name", ["adahessian", "sophia-h"])
def test_attention_without_second_derivatives(name):
    """Refused at the first step with what to do; and that helps: the first products equal those of attention by hand."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    draw = torch.Generator().manual_seed(0)
    x, start = torch.randn(2, 2, 5, 8, generator=draw), torch.randn(8, 8, generator=draw)
    ends = []

    def attend(q, fused):
        if fused:
            return torch.nn.functional.scaled_dot_product_attention(q, x, x)
        return (q @ x.mT / 8**0.5).softmax(-1) @ x

    for fused in (True, False):
        w = start.clone().requires_grad_()
        optimizer = sandbox.Optimizer([w], name, lr=0.01)
        with sdpa_kernel(SDPBackend.MATH):
            optimizer.step(lambda w=w, fused=fused: attend(x @ w, fused).square().sum())
        ends.append(w.detach())
    torch.testing.assert_close(*ends, rtol=1e-4, atol=1e-6)  # float32
    w = start.clone().requires_grad_()
    with pytest.raises(RuntimeError, match=r"no Hessian-vector products .*sdpa_kernel\(SDPBackend.MATH\)"):
        sandbox.Optimizer([w], name, lr=0.01).step(lambda: attend(x @ w, True).square().sum())
    assert torch.equal(w.detach(), start)

"""Blocks at their edges: zero gradients and rates, linear losses, limits of clips, floors and boxes; float64 where not said."""

import math

import numpy as np
import pytest
import torch

import sandbox
import variants
from sandbox.blocks import (
    EMA,
    SCOPE,
    AbsoluteFloor,
    BarzilaiBorwein,
    BeliefFloor,
    Box,
    ClipGlobalNorm,
    ClipParameterNorm,
    ClipValue,
    Curvature,
    L2Decay,
    Monotone,
    NoRectifier,
    RunningMaximum,
    ScaleInvariantFloor,
    Stable,
    WeakSecant,
    block,
)
from sandbox.recipe import Recipe
from tests.blocks.paths import run
from tests.light import KINDS, MATRIX, each, inputs_of, light
from tests.outside_blocks import RawProbe
from tests.problem import SHAPES, Problem


@pytest.mark.parametrize("name", each((n for n in variants.names() if variants.get(n).analysis.evaluations == 1), few=KINDS))
@pytest.mark.parametrize("maximize", [False, True])
def test_step_leaves_gradients_alone_and_late_parameters_count_for_themselves(name, maximize):
    problem = Problem()
    params = problem.tensors()
    recipe = light(name)
    decayed = recipe.replace(gradient=(*recipe.gradient, L2Decay(weight_decay=0.1)))
    optimizer = sandbox.Optimizer(params, decayed, lr=0.01, maximize=maximize)
    for step in range(4):
        problem.set_gradients(step, params)
        if step < 2:
            params[1].grad = None
        before = [None if p.grad is None else p.grad.clone() for p in params]
        kept = {k: v.clone() for k, v in optimizer.state[params[1]].items()}, params[1].detach().clone()
        optimizer.step()
        for p, g in zip(params, before, strict=True):
            assert (p.grad is None) == (g is None)
            assert g is None or torch.equal(p.grad, g)
        if step < 2:
            assert torch.equal(params[1], kept[1])
            assert all(torch.equal(v, optimizer.state[params[1]][k]) for k, v in kept[0].items())
    assert int(optimizer.state[params[0]]["step"]) == 4
    assert int(optimizer.state[params[1]]["step"]) == 2
    # a late tensor is as far as one that started alone, two steps ago
    alone = Problem()
    other = alone.tensors()[1]
    second = sandbox.Optimizer([other], decayed, lr=0.01, maximize=maximize)
    for step in (2, 3):
        other.grad = torch.tensor(
            alone.gradient(step, [other.detach().numpy() if s == SHAPES[1] else np.zeros(s) for s in SHAPES])[1]
        )
        second.step()
    if recipe.scope != "global" and not recipe.analysis.needs_norm:
        torch.testing.assert_close(other, params[1], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", variants.names())
def test_zero_gradients_change_nothing_and_give_no_nan(name):
    """d = 0: α = 0, also at ε = 0, where the author's code gives NaN."""
    recipe = light(name)
    if isinstance(recipe.curvature, WeakSecant):
        recipe = recipe.replace(**{"curvature.eps": 0.0})
    theta = [torch.full(s, 0.5, dtype=torch.float64) for s in SHAPES]
    state = recipe.init(theta)
    start = theta
    for _ in range(3):
        zeros = [torch.zeros_like(x) for x in theta]
        state, theta = recipe.update(state, theta, zeros, **inputs_of(recipe, zeros))
    for x, s in zip(theta, state, strict=True):
        assert x.isfinite().all()
        assert all(v.isfinite().all() for v in s.values())
    decays = any(value for path, value in recipe.hyperparameters().items() if path.endswith("weight_decay"))
    if not decays and not recipe.gradient:
        assert all(torch.equal(x, y) for x, y in zip(theta, start, strict=True))


def test_linear_loss_under_the_scale_invariant_floor():
    """g = (1, 2) for ever, η = 1: the unguarded rule gives D = (2, 2), then (0, 0), then θ = -inf."""
    g = torch.tensor([1.0, 2.0], dtype=torch.float64)
    for rectifier in (ScaleInvariantFloor(sigma=1.0), ScaleInvariantFloor(sigma=1.0, tiny=0.5)):
        recipe = Recipe(moment=EMA(beta=0.0), curvature=WeakSecant(eps=0.0), rectifier=rectifier)
        theta = torch.zeros(2, dtype=torch.float64)
        state = recipe.init(theta)
        state, theta = recipe.update(state, theta, g, lr=1.0)
        assert torch.equal(theta, -g / 2)
        for _ in range(3):
            state, theta = recipe.update(state, theta, g, lr=1.0)
            assert float(state["rectifier.floor"]) == rectifier.tiny
            assert theta.isfinite().all()
    # where m = 0 too, 0/tiny is 0
    recipe = Recipe(moment=EMA(beta=0.0), rectifier=ScaleInvariantFloor(sigma=1.0))
    state, theta = recipe.update(recipe.init(g), g, torch.zeros(2, dtype=torch.float64))
    assert torch.equal(theta, g)


def test_a_rate_of_zero_is_no_step():
    """Warm-ups may start at 0; what divides by the old rate must not fail then."""
    for name in ("no-stepsize-correction", "monotone", "apollow", "apollo-stable"):
        recipe = variants.get(name)
        path, state = run(recipe, 5, lr_of=lambda j: 0.01 * j)
        assert all(x.isfinite().all() for x in path[-1]), name
        assert all(v.isfinite().all() for s in state for v in s.values()), name


def test_monotone_keeps_its_promise():
    """D_t/η_t never decreases, in any coordinate, while rates fall and |B| moves; rounding of one product: 4e-16."""
    recipe, last = variants.get("monotone"), None
    moved = 0
    problem = Problem()
    theta = [torch.tensor(x) for x in problem.start]
    state = recipe.init(theta)
    for step in range(40):
        lr = 0.01 / math.sqrt(step + 1)
        grads = [torch.tensor(g) for g in problem.gradient(step, [x.numpy() for x in theta])]
        state, theta = recipe.update(state, theta, grads, lr=lr)
        u = [s["rectifier.D"] / lr for s in state]
        if last is not None:
            assert all(bool((a >= b * (1 - 4e-16)).all()) for a, b in zip(u, last, strict=True))
            moved += sum(int((a > 1.01 * b).sum()) for a, b in zip(u, last, strict=True))
        last = u
    assert moved > 0


def one_step(recipe, g, steps=1, start=0.0, dtype=torch.float64, lr=1.0):
    theta = torch.full((len(g),), start, dtype=dtype)
    state = recipe.init(theta)
    for _ in range(steps):
        state, theta = recipe.update(state, theta, torch.tensor(g, dtype=dtype), lr=lr)
    return theta, state


def test_linear_loss_under_the_scale_invariant_floor_in_float32():
    """d = m/1e-30 overflows when squared; θ and B stay finite."""
    theta, state = one_step(variants.get("scale-invariant"), [1.0, 2.0], steps=6, dtype=torch.float32)
    assert theta.isfinite().all()
    assert state["curvature.B"].isfinite().all()


@pytest.mark.parametrize("corrected", [True, False])
def test_a_direction_whose_fourth_power_overflows_leaves_B_alone(corrected):
    """d = (1e20, …) in float32, from a coordinate that had no gradient before: ‖d‖₄⁴ and dᵀy are infinite, their ratio NaN."""
    secant = WeakSecant(stepsize_correction=corrected)
    recipe = Recipe(moment=EMA(beta=0.0), curvature=secant, rectifier=AbsoluteFloor(sigma=1.0))
    theta = torch.zeros(2)
    state = recipe.init(theta)
    for g in ([0.0, 1.0], [0.0, 3.0], [1e20, 5.0]):
        state, theta = recipe.update(state, theta, torch.tensor(g), lr=0.5)
    assert theta[0] == -0.5e20
    B = state["curvature.B"]
    state, theta = recipe.update(state, theta, torch.tensor([-1.0, 3.0]), lr=0.5)  # y = (-1e20, -2)
    assert torch.equal(state["curvature.B"], B)
    state, theta = recipe.update(state, theta, torch.tensor([-1.0, 4.0]), lr=0.5)
    assert state["curvature.B"].isfinite().all()
    assert not torch.equal(state["curvature.B"], B)


def test_belief_floor_has_a_smallest_value():
    """A constant gradient with β = 0 and ε = 0: g = m, so the floor would be 0."""
    recipe = Recipe(moment=EMA(beta=0.0), curvature=WeakSecant(eps=0.0), rectifier=BeliefFloor(eps=0.0, tiny=0.25))
    theta, state = one_step(recipe, [1.0, 2.0], steps=3)
    assert float(state["rectifier.floor"]) == 0.25
    assert theta.isfinite().all()


def test_clips_and_boxes_have_two_sides():
    sgd = variants.get("sgd").replace(gradient=(ClipValue(max_value=0.5),))
    assert one_step(sgd, [3.0, -3.0, 0.25])[0].tolist() == [-0.5, 0.5, -0.25]
    boxed = variants.get("sgd").replace(projection=Box(low=-0.5, high=2.0))
    assert one_step(boxed, [3.0, -3.0, 0.25])[0].tolist() == [-0.5, 2.0, -0.25]


def test_parameter_clip_is_over_the_tensor_whatever_the_scope():
    g = torch.tensor([[3.0, 4.0], [0.0, 12.0]], dtype=torch.float64)  # norm 13
    for scope in ("parameter", "channel", "coordinate"):
        recipe = variants.get("sgd").replace(gradient=(ClipParameterNorm(max_norm=6.5),), scope=scope)
        state, theta = recipe.update(recipe.init(g), torch.zeros_like(g), g, lr=1.0)
        torch.testing.assert_close(theta, -g / 2, rtol=1e-15, atol=0)
        state, theta = recipe.update(recipe.init(g), torch.zeros_like(g), g / 10, lr=1.0)
        assert torch.equal(theta, -g / 10)


def test_global_norm_of_half_precision_gradients():
    """90,000 entries of 300 have a norm of 90,000, which float16 has no number for."""
    g = torch.full((300, 300), 300.0, dtype=torch.float16)
    recipe = variants.get("sgd").replace(gradient=(ClipGlobalNorm(max_norm=60.0),), scope="parameter")
    state, theta = recipe.update(recipe.init([g, g]), [torch.zeros_like(g)] * 2, [g, 0 * g], lr=1.0)
    torch.testing.assert_close(theta, [torch.full_like(g, -300 * 60 / 90_000), 0 * g], rtol=1e-3, atol=0)


def test_running_maximum():
    recipe = Recipe(averaging=RunningMaximum())
    theta = torch.ones(3, dtype=torch.float64)
    state = recipe.init(theta)
    largest = torch.zeros(3, dtype=torch.float64)
    fell = False
    for step in range(12):
        g = torch.tensor(np.random.default_rng(step).standard_normal(3))
        state, theta = recipe.update(state, theta, g, lr=0.01)
        largest = torch.maximum(largest, state["curvature.B"])
        fell = fell or bool((state["curvature.B"] < largest).any())
        assert torch.equal(state["averaging.B"], largest)
    assert fell


def test_monotone_holds_from_the_second_step():
    """η halves at once and |B| stays under the floor: D must stay as it was over η, so doubling D/η is not lowered."""
    recipe = Recipe(rectifier=Monotone(inner=AbsoluteFloor(sigma=1.0), ceiling=10.0))
    theta = torch.ones(2, dtype=torch.float64)
    state = recipe.init(theta)
    state, theta = recipe.update(state, theta, theta * 1e-3, lr=1.0)
    assert state["rectifier.D"].tolist() == [1.0, 1.0]
    state, theta = recipe.update(state, theta, theta * 1e-3, lr=4.0)
    assert state["rectifier.D"].tolist() == [4.0, 4.0]


def test_what_monotone_holds_above_the_floor_is_not_on_it():
    """|B| stays under the floor; a rate that grows fourfold holds D at four times it, one that falls lets it down again."""
    p = torch.full((2,), 1e-3, dtype=torch.float64, requires_grad=True)
    optimizer = sandbox.Optimizer([p], Recipe(rectifier=Monotone(inner=AbsoluteFloor(sigma=1.0), ceiling=10.0)))
    optimizer.watch = sandbox.probes.Watch(["floor_occupancy"])
    for lr in (1.0, 1.0, 4.0, 4.0, 0.5):
        optimizer.param_groups[0]["lr"] = lr
        p.grad = torch.full_like(p, 1e-3)
        optimizer.step()
    rows = optimizer.watch.frame().filter(tensor=sandbox.probes.EVERYTHING)
    assert rows["value"].to_list() == [1.0, 1.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize(("floored", "expected"), [(True, 0.5), (False, 3.0)])
def test_barzilai_borwein_at_negative_curvature(floored, expected):
    """Curvature 3, then -2: δ = ½ where every pair counts, else the last positive one."""
    recipe = Recipe(
        moment=EMA(beta=0.0),
        curvature=BarzilaiBorwein(floored=floored, lower=0.5, tiny=0.0),
        rectifier=AbsoluteFloor(sigma=1e-3),
    )
    theta = torch.tensor([1.0, 2.0], dtype=torch.float64)
    state = recipe.init(theta)
    for curvature in (3.0, 3.0):
        g = curvature * theta
        before = theta
        state, theta = recipe.update(state, theta, g, lr=0.1)
    assert float(state["curvature.B"]) == pytest.approx(3.0)
    state, theta = recipe.update(state, theta, g - 2.0 * (theta - before), lr=0.1)
    assert float(state["curvature.B"]) == pytest.approx(expected)


@block
class Level(Curvature):
    """B = Σ g² over the scope, one number for all of it."""

    state = {"B": SCOPE}

    def update(self, x, *, B):
        # B = Σ g²
        return {"B": x.scope.sum(x.g.square())}


@pytest.mark.parametrize("scope", ["parameter", "global", "channel", "coordinate"])
def test_a_mean_of_what_is_one_number_a_scope(scope):
    """γ/mean(D) where D is one number for each scope: the mean over the coordinates, each scope by its size."""
    recipe = Recipe(
        moment=EMA(beta=0.0), curvature=Level(), rectifier=NoRectifier(), decay=Stable(weight_decay=0.1), scope=scope
    )
    draw = np.random.default_rng(0)
    start, grads = ([draw.normal(size=s) for s in ((3, 2), (4,))] for _ in range(2))
    state, theta = recipe.update(
        recipe.init(list(map(torch.tensor, start))), *(list(map(torch.tensor, x)) for x in (start, grads)), lr=0.5
    )
    for x, g, new in zip(start, grads, theta, strict=True):
        channels = {"channel": np.square(g).reshape(len(g), -1).sum(1).reshape(-1, *[1] * (g.ndim - 1)), "coordinate": g**2}
        everything = sum(np.square(h).sum() for h in grads) if scope == "global" else np.square(g).sum()
        D = np.broadcast_to(channels.get(scope, everything), g.shape)
        np.testing.assert_allclose(new.numpy(), x - 0.5 * (g / D + 0.1 / D.mean() * x), rtol=1e-12)


@pytest.mark.parametrize("name", MATRIX)
def test_empty_matrices(name):
    theta = [torch.zeros(0, 3), torch.zeros(3, 0), torch.ones(2, 2)]
    recipe = variants.get(name)
    state = recipe.init(theta)
    for _ in range(2):
        state, theta = recipe.update(state, theta, theta)
    assert [tuple(x.shape) for x in theta] == [(0, 3), (3, 0), (2, 2)]
    assert theta[2].isfinite().all()


def test_uncorrected_secant_learns_nothing_from_a_step_of_rate_zero():
    recipe = variants.get("no-stepsize-correction").replace(**{"curvature.eps": 0.0})
    theta = torch.ones(3, dtype=torch.float64)
    state = recipe.init(theta)
    for lr, learns in ((0.0, False), (0.0, False), (0.1, False), (0.1, True)):
        state, theta = recipe.update(state, theta, theta * torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64), lr=lr)
        assert bool(state["curvature.B"].any()) == learns


@pytest.mark.parametrize(("lr", "says"), [(-1.0, "lr must lie in"), (math.nan, "lr must lie in")])
def test_pure_update_checks_its_rate(lr, says):
    with pytest.raises(ValueError, match=says):
        one_step(variants.get("apollo"), [1.0], lr=lr)


def test_pure_update_checks_its_tensors():
    with pytest.raises(TypeError, match=r"floating-point tensors, got one of torch.int64"):
        variants.get("apollo").init(torch.ones(2, dtype=torch.int64))
    theta = torch.ones(2)
    with pytest.raises(ValueError, match=r"not one of recipe 'hessian-ema': it lacks averaging.m"):
        variants.get("hessian-ema").update(variants.get("apollo").init(theta), theta, theta)


def test_the_sign_of_the_curvature_reaches_a_block():
    """Hutchinson squares it; a block that does not sees -h under maximize."""
    p = torch.ones(2, dtype=torch.float64, requires_grad=True)
    recipe = Recipe(curvature=RawProbe(), rectifier=AbsoluteFloor(sigma=1.0))
    for maximize, sign in ((False, 1.0), (True, -1.0)):
        optimizer = sandbox.Optimizer([p], recipe, maximize=maximize)
        optimizer.step(lambda: (p.square() * torch.tensor([1.0, 2.0], dtype=torch.float64)).sum())
        assert optimizer.state[p]["curvature.h"].tolist() == [sign * 2.0, sign * 4.0]

"""The exact properties and edge cases of mathematics, section 3, on the pure update in float64."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import sandbox
import variants
from sandbox.blocks import (
    EMA,
    AbsoluteFloor,
    BeliefFloor,
    Box,
    ClipParameterNorm,
    ClipValue,
    Decoupled,
    L2Decay,
    Monotone,
    RunningMaximum,
    ScaleInvariantFloor,
    Stable,
    WeakSecant,
)
from sandbox.recipe import Recipe
from tests.light import light
from tests.outside_blocks import RawProbe
from tests.problem import SHAPES, Problem

quick = settings(max_examples=25, deadline=None)
seeds = st.integers(0, 2**31)
powers = st.integers(-6, 6)


def run(recipe, steps, seed=0, lr=None, scale=1.0, noise=0.3, lr_of=None, watch=None):
    """Trajectory of the pure update on `Problem`, the loss multiplied by `scale`; lists of θ and final state."""
    problem = Problem(seed, noise=noise)
    theta = [torch.tensor(x) for x in problem.start]
    state = recipe.init(theta)
    path = []
    for step in range(steps):
        grads = [torch.tensor(scale * g) for g in problem.gradient(step, [x.numpy() for x in theta])]
        before = state, theta
        rate = lr if lr_of is None else lr_of(step)
        state, theta = recipe.update(state, theta, grads, lr=rate)
        if watch is not None:
            watch(before, (state, theta), grads)
        path.append(theta)
    return path, state


def over_floor(state, floor):
    return sum(int((s["curvature.B"].abs() > floor).sum()) for s in state)


def assert_same_path(a, b):
    for x, y in zip(a, b, strict=True):
        for p, q in zip(x, y, strict=True):
            assert torch.equal(p, q)


# -- 2: coupling -----------------------------------------------------------------------------------------------------


def coupled(base, k):
    """(cη, cσ, ε/c) and γ as the decay asks, c = 2^k."""
    c = 2.0**k
    changes = {"curvature.eps": base.curvature.eps / c, "rectifier.sigma": base.rectifier.sigma * c}
    if type(base.decay) is Decoupled:
        changes["decay.weight_decay"] = base.decay.weight_decay / c
    return base.with_hyperparameters(changes), c


@quick
@given(
    seed=seeds, k=powers, eps=st.sampled_from([0.0, 1e-4, 0.5]), decay=st.sampled_from(["none", "decoupled", "l2", "stable"])
)
def test_coupling_is_bitwise_for_powers_of_two(seed, k, eps, decay):
    """Theorem 1: θ is the same, B is multiplied by c.  Bitwise: only multiplications by powers of two differ."""
    change = {
        "none": {},
        "decoupled": {"decay": Decoupled(weight_decay=0.25)},
        "l2": {"gradient": (L2Decay(weight_decay=0.1),)},
        "stable": {"decay": Stable(weight_decay=0.02)},
    }[decay]
    base = Recipe(curvature=WeakSecant(eps=eps)).replace(**change)
    other, c = coupled(base, k)
    rates = [0.003 * (j + 1) / 5 for j in range(5)]  # a warm-up, every rate of which scales
    one, state = run(base, 12, seed, lr_of=lambda j: rates[min(j, 4)])
    two, scaled = run(other, 12, seed, lr_of=lambda j: c * rates[min(j, 4)])
    assert_same_path(one, two)
    for s, q in zip(state, scaled, strict=True):
        assert torch.equal(s["curvature.B"] * c, q["curvature.B"])


def test_coupling_leaves_the_floor_somewhere():
    _, state = run(Recipe(), 12, lr=0.003)
    assert over_floor(state, 0.01) > 0


def test_coupling_is_false_with_the_same_epsilon():
    base = Recipe(curvature=WeakSecant(eps=0.5))
    other = base.replace(**{"rectifier.sigma": 4 * 0.01})
    one, state = run(base, 12, lr=0.003)
    two, _ = run(other, 12, lr=4 * 0.003)
    assert over_floor(state, 0.01) > 0
    assert max(float((p - q).abs().max()) for p, q in zip(one[-1], two[-1], strict=True)) > 1e-6


def third_iterate(eta, sigma, eps, gamma):
    """CE3: f = ½(θ₁² + 4θ₂²) from (1, 1), β = .5."""
    decay = {"decay": Decoupled(weight_decay=gamma)} if gamma else {}
    recipe = Recipe(moment=EMA(beta=0.5), curvature=WeakSecant(eps=eps), rectifier=AbsoluteFloor(sigma=sigma), **decay)
    theta = torch.ones(2, dtype=torch.float64)
    state = recipe.init(theta)
    for _ in range(3):
        state, theta = recipe.update(state, theta, theta * torch.tensor([1.0, 4.0], dtype=torch.float64), lr=eta)
    return theta


def test_counterexample_3():
    """The numbers of mathematics, section 5, given to six decimals."""
    close = dict(rtol=0, atol=6e-7)
    expected = torch.tensor([-0.285714, 1.379917], dtype=torch.float64)
    torch.testing.assert_close(third_iterate(1, 1, 0.5, 0), expected, **close)
    torch.testing.assert_close(third_iterate(4, 4, 0.5, 0), torch.tensor([-0.285714, -1.857143], dtype=torch.float64), **close)
    assert torch.equal(third_iterate(1, 1, 0.0, 0), third_iterate(4, 4, 0.0, 0))
    assert torch.equal(third_iterate(1, 1, 0.5, 0), third_iterate(4, 4, 0.125, 0))
    torch.testing.assert_close(third_iterate(1, 1, 0, 0.1), torch.tensor([-0.231476, 2.676910], dtype=torch.float64), **close)
    torch.testing.assert_close(third_iterate(4, 4, 0, 0.1), torch.tensor([-0.037333, 1.461150], dtype=torch.float64), **close)
    assert torch.equal(third_iterate(1, 1, 0, 0.1), third_iterate(4, 4, 0, 0.025))


# -- 3: scale invariance ---------------------------------------------------------------------------------------------


@quick
@given(seed=seeds, k=st.integers(-20, 20), eps=st.sampled_from([0.0, 1e-4]), gamma=st.sampled_from([0.0, 0.1]))
def test_scale_invariance_is_bitwise_for_powers_of_two(seed, k, eps, gamma):
    recipe = variants.get("scale-invariant").replace(curvature=WeakSecant(eps=eps), decay=Decoupled(weight_decay=gamma))
    one, state = run(recipe, 12, seed, lr=0.01)
    two, _ = run(recipe, 12, seed, lr=0.01, scale=2.0**k)
    assert_same_path(one, two)


def test_scale_invariance_fails_where_it_must():
    for recipe in (
        variants.get("belief"),
        variants.get("scale-invariant").replace(gradient=(L2Decay(weight_decay=0.1),)),
        variants.get("apollo"),
    ):
        one, _ = run(recipe, 12, lr=0.01)
        two, _ = run(recipe, 12, lr=0.01, scale=1024.0)
        assert any(not torch.equal(p, q) for p, q in zip(one[-1], two[-1], strict=True)), recipe.name


def test_counterexample_4():
    """The published θ after three steps, to all digits printed (1e-15)."""
    H = torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=torch.float64)
    expected = torch.tensor([0.0728498148691841, -0.6496150930532144], dtype=torch.float64)
    recipe, ends = variants.get("scale-invariant"), []
    for scale in (1.0, 1024.0):
        theta = torch.tensor([1.0, -1.0], dtype=torch.float64)
        state = recipe.init(theta)
        for _ in range(3):
            state, theta = recipe.update(state, theta, scale * (H @ theta), lr=0.1)
        ends.append(theta)
    assert torch.equal(*ends)
    torch.testing.assert_close(ends[0], expected, rtol=1e-14, atol=0)


# -- 4: the weak secant equation -------------------------------------------------------------------------------------


@pytest.mark.parametrize("scope", ["parameter", "global", "channel", "coordinate"])
@quick
@given(seed=seeds)
def test_weak_secant_equation(scope, seed):
    """ε = 0: dᵀB'd = -dᵀy per scope.  Residual at rounding: 1e-12 of the terms summed, each of which has its error."""
    recipe = Recipe(curvature=WeakSecant(eps=0.0), scope=scope)
    checked = 0

    def watch(before, after, grads):
        nonlocal checked
        (state, _), (new, _) = before, after
        sums, sizes = [], []
        for s, n in zip(state, new, strict=True):
            d = s["moment.m"] / s["curvature.B"].abs().clamp(min=0.01)
            y = n["moment.m"] - s["moment.m"]
            residual = d * n["curvature.B"] * d + d * y
            size = (d * n["curvature.B"] * d).abs() + (d * y).abs() + (d * s["curvature.B"] * d).abs()
            if scope == "coordinate" or (scope == "channel" and d.ndim < 2):
                pass
            elif scope == "channel":
                residual, size = residual.reshape(len(d), -1).sum(1), size.reshape(len(d), -1).sum(1)
            else:
                residual, size = residual.sum(), size.sum()
            sums.append(residual.reshape(-1))
            sizes.append(size.reshape(-1))
        if scope == "global":
            sums, sizes = [torch.cat(sums).sum()], [torch.cat(sizes).sum()]
        for residual, size in zip(sums, sizes, strict=True):
            assert bool((residual.abs() <= 1e-12 * size + 1e-300).all())
            checked += 1

    run(recipe, 8, seed, lr=0.003, watch=watch)
    assert checked


# -- 5, 6, 7: quadratics ---------------------------------------------------------------------------------------------


@quick
@given(seed=seeds, eps=st.sampled_from([0.0, 1e-4, 0.1]), eta=st.sampled_from([1e-3, 1e-2, 0.1]))
def test_distance_to_the_curvature_never_grows(seed, eps, eta):
    """Diagonal quadratic, β = 0, fixed η: ‖B - ηh‖₂ never increases (a Kaczmarz projection).  Tolerance: rounding of y,
    which is a difference of gradients and is divided by ‖d‖."""
    rng = np.random.default_rng(seed)
    h = torch.tensor(np.exp(rng.uniform(np.log(0.01), np.log(10), 12)))
    theta = torch.tensor(rng.standard_normal(12))
    recipe = Recipe(moment=EMA(beta=0.0), curvature=WeakSecant(eps=eps), rectifier=AbsoluteFloor(sigma=0.5))
    state = recipe.init(theta)
    distance = math.inf
    for _ in range(40):
        state, theta = recipe.update(state, theta, h * theta, lr=eta)
        now = float(torch.linalg.vector_norm(state["curvature.B"] - eta * h))
        assert now <= distance * (1 + 1e-9)
        distance = now
    assert distance < float(torch.linalg.vector_norm(eta * h))  # it did move


def test_one_dimension_second_step_lands_on_the_minimiser():
    """h = 3, η = .5, σ = 1, β = 0: 1 → -.5 → 0, B₂ = ηh."""
    recipe = Recipe(moment=EMA(beta=0.0), curvature=WeakSecant(eps=0.0), rectifier=AbsoluteFloor(sigma=1.0))
    theta = torch.tensor(1.0, dtype=torch.float64)
    state, path = recipe.init(theta), []
    for _ in range(2):
        state, theta = recipe.update(state, theta, 3 * theta, lr=0.5)
        path.append(float(theta))
    assert path == [-0.5, 0.0]
    assert float(state["curvature.B"]) == 1.5


def test_one_dimension_on_the_floor_with_momentum():
    """B_∞ = σ(1-r), r the larger root of r² - (1+β-c(1-β)h) r + β = 0.  β = .5, η = .01, h = 3, σ = 1: B/η → 3.0991."""
    recipe = Recipe(
        moment=EMA(beta=0.5, bias_correction=False), curvature=WeakSecant(eps=0.0), rectifier=AbsoluteFloor(sigma=1.0)
    )
    theta = torch.tensor(1.0, dtype=torch.float64)
    state = recipe.init(theta)
    for _ in range(200):
        state, theta = recipe.update(state, theta, 3 * theta, lr=0.01)
    r = max(np.roots([1, -(1 + 0.5 - 0.01 * 0.5 * 3), 0.5]))
    assert float(state["curvature.B"]) == pytest.approx(1 - r, rel=1e-8)  # the other root decays as (β/r²)^t: far below 1e-8
    assert float(state["curvature.B"]) / 0.01 == pytest.approx(3.0991, abs=5e-5)


# -- 8: what a step leaves alone -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n in variants.names() if variants.get(n).evaluations == 1])
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
    if recipe.scope != "global":
        torch.testing.assert_close(other, params[1], rtol=1e-12, atol=1e-14)


# -- edge cases ------------------------------------------------------------------------------------------------------


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
        state, theta = recipe.update(state, theta, zeros, **dict.fromkeys(recipe.inputs, zeros))
    for x, s in zip(theta, state, strict=True):
        assert x.isfinite().all()
        assert all(v.isfinite().all() for v in s.values())
    if recipe.hyperparameters().get("decay.weight_decay", 0) == 0 and not recipe.gradient:
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


# -- found in review -------------------------------------------------------------------------------------------------


def one_step(recipe, g, steps=1, start=0.0, dtype=torch.float64, lr=1.0):
    theta = torch.full((len(g),), start, dtype=dtype)
    state = recipe.init(theta)
    for _ in range(steps):
        state, theta = recipe.update(state, theta, torch.tensor(g, dtype=dtype), lr=lr)
    return theta, state


def test_linear_loss_under_the_scale_invariant_floor_in_float32():
    """d = m/1e-30 overflows when squared: B then stays, and θ finite."""
    theta, state = one_step(variants.get("scale-invariant"), [1.0, 2.0], steps=6, dtype=torch.float32)
    assert theta.isfinite().all()
    assert state["curvature.B"].isfinite().all()


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

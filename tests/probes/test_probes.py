"""Probes: right numbers against an independent recursion, and a trajectory that they leave bitwise as it is in every backend."""

import dataclasses
import math

import numpy as np
import pytest
import scipy.stats
import torch

import sandbox
import variants
from sandbox import probes
from sandbox.backends.arena import leaves
from tests.problem import Torchs

SHAPES = [(4, 3), (5,), (), (2, 3, 2), (1, 6), (40, 3)]


def trained(recipe, backend, watch=None, steps=12, dtype=torch.float64, **options):
    problem = Torchs(dtype, 0, SHAPES)
    optimizer = sandbox.Optimizer(problem.params, recipe, lr=0.02, backend=backend, **options)
    optimizer.watch = watch
    second = optimizer.param_groups[0]["recipe"].analysis.second_order
    for step in range(steps):

        def closure(step=step):
            optimizer.zero_grad()
            loss = problem.loss(step, problem.params)
            if not second:
                loss.backward()
            return loss

        optimizer.step(closure)
    return problem.params


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        pytest.param(
            name, backend, marks=[pytest.mark.slow] if backend == "compiled" and name in ("scale-invariant", "sgd") else []
        )
        for name in ("apollo", "scale-invariant", "global-secant", "adahessian", "sgd")
        for backend in sandbox.backends.NAMES
    ],
)
def test_the_trajectory_is_bitwise_unchanged(name, backend, monkeypatch):
    monkeypatch.setattr(leaves, "LARGE", {"cpu": 100, "cuda": 100})
    watch = probes.Watch(every=3, truth=lambda params: {n: torch.ones_like(p) for n, p in params.items()})
    with_probes, without = trained(name, backend, watch), trained(name, backend)
    assert all(torch.equal(a, b) for a, b in zip(with_probes, without, strict=True))
    assert sorted({row["step"] for row in watch.rows}) == [3, 6, 9, 12]
    assert {row["tensor"] for row in watch.rows} == {probes.EVERYTHING, *(f"0.{i}" for i in range(len(SHAPES)))}


def test_what_a_view_holds_is_what_the_step_computes():
    """The views of each step against the optimizer's own state before and after it: bitwise."""
    problem = Torchs(torch.float64, 0, SHAPES)
    # bitwise: a probe's own step is the reference's
    optimizer = sandbox.Optimizer(problem.params, "apollo", lr=0.02, backend="reference")
    seen = {}

    def keep(v):
        fields = {f.name: getattr(v, f.name) for f in dataclasses.fields(v)}
        copied = {name: x.clone() for name, x in fields.items() if isinstance(x, torch.Tensor)}
        seen.setdefault(optimizer.watch.steps, []).append(dataclasses.replace(v, **copied))
        return 0.0

    optimizer.watch = probes.Watch([keep])
    for step in range(5):  # all of which have all gradients
        optimizer.zero_grad()
        problem.loss(step, problem.params).backward()
        before = [(p.detach().clone(), {k: v.clone() for k, v in optimizer.state[p].items()}) for p in problem.params]
        optimizer.step()
        for (theta, state), p, v in zip(before, problem.params, seen[step + 1][1:], strict=True):
            after = optimizer.state[p]
            assert torch.equal(v.theta, theta.reshape(-1))
            assert torch.equal(v.theta_new, p.detach().reshape(-1))
            assert torch.equal(v.g, p.grad.reshape(-1))
            assert torch.equal(v.m_old, state["moment.m"].reshape(-1))
            assert torch.equal(v.m, after["moment.m"].reshape(-1))
            assert torch.equal(v.B, after["curvature.B"].reshape(-1))
            assert torch.equal(v.D, after["curvature.B"].abs().clamp(min=0.01).reshape(-1))
            assert torch.equal(v.d, v.m / v.D)
            place = [id(q) for q in problem.params].index(id(p))
            if step:
                assert torch.equal(v.d_old, seen[step][1 + place].d)
            assert torch.equal(v.estimate, v.B / 0.02)
    assert any(bool((v.B.abs() > 0.01).any()) for v in seen[5])  # not everything sits on the floor


def value(rows, step, probe, tensor=probes.EVERYTHING):
    found = [r["value"] for r in rows if (r["step"], r["probe"], r["tensor"]) == (step, probe, tensor)]
    assert len(found) <= 1
    return found[0] if found else None


def test_numbers_against_numpy_and_scipy():
    """Every probe that comes with the package, on values that a reference computes in NumPy and SciPy; 1e-12 is rounding."""
    draw = np.random.default_rng(0)
    n = 60
    numbers = {name: draw.normal(size=n) for name in ("theta", "theta_new", "g", "d", "d_old", "y", "B", "u", "truth")}
    numbers["estimate"] = np.round(draw.normal(size=n), 1)  # with ties
    D, D_old = np.abs(draw.normal(size=n)) + 0.1, np.abs(draw.normal(size=n)) + 0.1
    vectors = {name: torch.tensor(x) for name, x in numbers.items()}
    v = probes.View(
        recipe=variants.get("apollo"), t=3, lr=0.1, lr_old=0.2, lr_before=0.2, D=torch.tensor(D), D_old=torch.tensor(D_old),
        floor=torch.tensor(D < 0.5), residual=torch.tensor(0.25, dtype=torch.float64), **vectors,
    )  # fmt: skip
    x = numbers
    fails = D_old / 0.2 > D / 0.1
    h = np.maximum(np.abs(x["truth"]), 1e-6 * np.abs(x["truth"]).max())
    newton = x["u"] / h
    expected = {
        "floor_occupancy": np.mean(D < 0.5),
        "secant_residual": 0.25,
        "curvature_sign": np.sign(np.sum(x["B"] * x["d_old"] ** 2)),
        "direction_norm": np.linalg.norm(x["d"]),
        "path_length": np.abs(0.1 / D - 0.2 / D_old).sum(),
        "condition_failures": fails.mean(),
        "first_failure": np.flatnonzero(fails)[0],
        "correlation": scipy.stats.pearsonr(np.abs(x["estimate"]), np.abs(x["truth"]))[0],
        "rank_correlation": scipy.stats.spearmanr(np.abs(x["estimate"]), np.abs(x["truth"]))[0],
        "relative_error": np.linalg.norm(np.abs(x["estimate"]) - np.abs(x["truth"])) / np.linalg.norm(x["truth"]),
        "sign_agreement": np.mean(np.sign(x["estimate"]) == np.sign(x["truth"])),
        "newton_cosine": x["d"] @ newton / np.linalg.norm(x["d"]) / np.linalg.norm(newton),
    }
    assert set(expected) == set(probes.ALL)
    for name, number in expected.items():
        assert float(probes.ALL[name](v)) == pytest.approx(number, abs=1e-12), name


def test_secant_residual_is_rounding_without_eps_and_not_with():
    for eps, most in ((0.0, 1e-12), (1e-1, 2.0)):
        watch = probes.Watch(["secant_residual"], every=4)
        trained(variants.get("apollo").replace(**{"curvature.eps": eps}), "eager", watch)
        values = [r["value"] for r in watch.rows]
        assert len(values) == 3 * (1 + len(SHAPES)) - 1  # at step 8 one tensor has no gradient
        assert max(values) <= most
        for step in (4, 8, 12):  # over all tensors: the largest
            each = [r["value"] for r in watch.rows if r["step"] == step and r["tensor"] != probes.EVERYTHING]
            assert value(watch.rows, step, "secant_residual") == max(each)
    assert max(values) > 1e-3


@pytest.mark.parametrize("corrected", [True, False])
def test_residual_and_estimate_where_the_rate_changes(corrected):
    """With ε = 0 the equation holds exactly, dᵀBd + dᵀy/η = 0 without the correction, η the rate of the last displacement; and
    B estimates ηH with it, H without."""
    recipe = variants.get("apollo" if corrected else "no-stepsize-correction").replace(**{"curvature.eps": 0.0})
    problem, views = Torchs(torch.float64, 0, SHAPES), []
    optimizer = sandbox.Optimizer(problem.params, recipe, backend="reference")

    def estimate(v):
        views.append((None if v.estimate is None else v.estimate.clone(), v.B.clone()))
        return 0.0

    optimizer.watch = probes.Watch(["secant_residual", estimate])
    for step in range(5):
        optimizer.param_groups[0]["lr"] = 0.02 * 3**step
        optimizer.zero_grad()
        problem.loss(step, problem.params).backward()
        optimizer.step()
        last = 0.02 * 3 ** max(step - 1, 0)  # before the first step there is no older rate
        assert all(torch.equal(e, B / last if corrected else B) for e, B in views)
        views.clear()
    assert max(row["value"] for row in optimizer.watch.rows if row["probe"] == "secant_residual") < 1e-12


def test_the_step_before_is_seen_however_seldom_one_samples():
    """path_length and the condition at step 6 are the same whether every step is sampled or each sixth."""
    often, seldom = probes.Watch(every=1), probes.Watch(every=6)
    trained("apollo", "eager", often)
    trained("apollo", "eager", seldom)
    for probe in ("path_length", "condition_failures", "first_failure"):
        for step in (6, 12):
            assert value(often.rows, step, probe) == value(seldom.rows, step, probe) is not None
    assert value(often.rows, 1, "path_length") is None  # nothing came before


def test_monotone_never_fails_its_condition_and_apollo_does():
    failures = {}
    for name in ("monotone", "apollo"):
        watch = probes.Watch(["condition_failures", "first_failure"])
        trained(name, "eager", watch, steps=30)
        failures[name] = [r["value"] for r in watch.rows if r["probe"] == "condition_failures"]
        firsts = [r["value"] for r in watch.rows if r["probe"] == "first_failure"]
        assert (max(firsts) == -1) == (name == "monotone")
    assert max(failures["monotone"]) == 0 < max(failures["apollo"])


def test_a_probe_of_ones_own_and_named_parameters():
    def step_length(v):
        return (v.theta_new - v.theta).norm()

    model = torch.nn.Linear(3, 2, dtype=torch.float64)
    optimizer = sandbox.Optimizer(model.named_parameters(), "sgd", lr=0.5)
    optimizer.watch = probes.Watch([step_length, "floor_occupancy"])
    before = [p.detach().clone() for p in model.parameters()]
    model(torch.ones(4, 3, dtype=torch.float64)).sum().backward()
    optimizer.step()
    frame = optimizer.watch.frame
    assert frame["tensor"].to_list() == [probes.EVERYTHING, "weight", "bias"]  # SGD has no floor
    moved = [float((a - b.detach()).norm()) for a, b in zip(before, model.parameters(), strict=True)]
    assert frame["value"].to_list() == pytest.approx([math.hypot(*moved), *moved])


def test_clear_errors():
    with pytest.raises(ValueError, match="floor_occupancy"):
        probes.Watch(["floor_ocupancy"])
    with pytest.raises(TypeError, match="function of a View"):
        probes.Watch([3])
    with pytest.raises(ValueError, match="two probes"):
        probes.Watch(["direction_norm", "direction_norm"])
    for every in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match="every"):
            probes.Watch(every=every)
    with pytest.raises(ValueError, match=r"no diagonal for 0\.0"):
        trained("apollo", "eager", probes.Watch(["correlation"], truth=lambda params: {}))

"""Premises that fail where they should, with the worst place named; vacuous bounds that say what would make them not so."""

import math

import numpy as np
import pytest
import torch
from scipy import optimize

import variants
from sandbox.blocks import AbsoluteFloor, ClipEach, HeavyBall, Monotone, Sign
from sandbox.schedules import InverseSquareRoot
from theory_checks import comparators, problems, record
from theory_checks.claims import coupling, nonconvex, premises, regret, regret_bounds, scale_invariance
from theory_checks.proofs import counterexamples
from theory_checks.report import VACUOUS, VERIFIED, VIOLATED, judge

APOLLO = counterexamples.theory_apollo()


def checked(loss, start, T=40, eta=0.3, **options):
    run = record(APOLLO, problems.from_losses(loss, start, **options), T, lr=InverseSquareRoot(first=eta))
    return run, regret.check(run, points=4)


def test_a_cosine_is_not_convex():
    run, report = checked(lambda t, x: x.cos().sum(), [0.5])
    found = report.assumption(premises.CONVEX)
    assert not found.holds
    # cos is concave on [0.5, π/2], and the run goes from 0.5 towards π
    assert found.detail.startswith("worst: f_1 at θ_")
    assert found.detail.endswith("against its tangent at θ_1")
    assert found.margin < -0.05
    assert all(premises.CONVEX in b.verdict for b in report.bounds)
    assert not report.news
    point = int(found.detail.split("θ_")[1].split()[0])
    x, p = run.theta[0, 0], run.theta[point - 1, 0]
    gap = math.cos(p) - (math.cos(x) - math.sin(x) * (p - x))
    assert gap / (abs(math.cos(p)) + abs(math.cos(x)) + abs(math.sin(x) * (p - x))) == pytest.approx(found.margin, rel=1e-9)


def test_what_is_convex_passes():
    """Quadratics, their θ* the mean centre, and the absolute value's smooth form."""
    run, report = checked(lambda t, x: (x - t % 3).square().sum() / 2, [2.0, -1.0])
    assert report.assumption(premises.CONVEX).holds
    assert report.assumption(premises.LOWEST).holds
    star = run.problem.comparator(39, torch.zeros(0)).theta
    assert star.numpy() == pytest.approx([1.0, 1.0], abs=1e-8)
    _, report = checked(lambda t, x: (1 + x.square()).sqrt().sum(), [3.0])
    assert report.assumption(premises.CONVEX).holds


def test_a_local_minimum_is_not_taken_for_the_global_one():
    """A double well: from 0.2 the local minimum near 0.96, while that near -1.04 is lower."""
    run, report = checked(lambda t, x: (x.square() - 1).square().sum() + 0.3 * x.sum(), [0.2], eta=0.05)
    assert run.problem.best(40, torch.tensor(run.theta)).excess < 1e-6
    found = report.assumption(premises.LOWEST)
    assert not found.holds
    assert "from 3θ_1 - 2θ*" in found.detail


def test_the_box_binds_comparator_and_iterates():
    """f = (θ - 3)² on [-1, 1]: θ* = 1 is stationary in the box; an iterate outside of it is seen."""
    run, report = checked(lambda t, x: (x - 3).square().sum(), [0.0], box=(-1.0, 1.0))
    assert run.problem.comparator(5, torch.zeros(0)).theta.item() == 1
    assert run.problem.best(5, torch.tensor(run.theta)).excess < 1e-6
    assert report.assumption(premises.INSIDE).holds
    run.theta[7], run.loss[7] = 1.5, 2.25
    found = next(a for a in premises.check(run, run.problem.comparator(5, torch.zeros(0))) if a.name == premises.INSIDE)
    assert (found.holds, found.first, found.margin) == (False, (8, 1), pytest.approx(-0.5))


def test_gradients_say_where_the_largest_is():
    run, report = checked(lambda t, x: (5.0 if t == 7 else 1.0) * (x - 1).square().sum() / 2, [0.0], T=20, eta=0.01)
    assert f"G = ‖g_7‖ = {abs(run.g[6, 0]):.6g}" in report.assumption(premises.GRADIENTS).detail
    run.g[3] = np.inf
    assert not premises.check_gradients(run).holds


def test_the_failing_step_is_named_only_where_it_fails():
    says = "the step of the paper's proof that fails"
    assert says in str(regret.check(counterexamples.cycle_run(60), points=2))
    _, report = checked(lambda t, x: (x - t % 3).square().sum() / 2, [2.0])
    assert says not in str(report)


def test_a_vacuous_bound_says_what_would_make_it_not_so():
    """β = 0, D = 1, G = 1, trace 1: D²√T/(2η) + ηG²(2√T-1) ≤ GDT, solved here by hand for T and for η."""
    numbers = dict(T=4, trace=1.0, G=1.0, diameter=1.0, radius=1.0, sigma=1.0, eta=0.05, beta=0.0, betas=0.0, squares=0.0)
    says = regret_bounds.remedy(regret.STATED, numbers, 4.0)
    value = 2 / 0.1 + 0.05 * 3
    assert says.startswith(f"{value / 4:.3g} times the trivial bound GDT")
    # (10 + .1)√T - .05 ≤ T
    from_T = ((10.1 + math.sqrt(10.1**2 - 0.2)) / 2) ** 2
    assert float(says.split("T ≈ ")[1].split()[0]) == pytest.approx(from_T, rel=0.06)
    # 3η² - 4η + 1 ≤ 0: η in [1/3, 1]
    low, high = says.split("η in [")[1].split("]")[0].split(", ")
    assert (float(low), float(high)) == (pytest.approx(1 / 3, rel=0.03), pytest.approx(1, rel=0.03))
    # 2GDβT is above GDT for β > 1/2 at every T and η
    stuck = regret_bounds.remedy("repaired 1", numbers | {"beta": 0.9, "betas": 3.6}, 4.0)
    assert "so up to T = 4e+12" in stuck
    assert "here for every η" in stuck


def test_the_remedy_is_in_the_report():
    run = record(variants.get("apollo"), "random-quadratic", 10, lr=InverseSquareRoot(first=1e-4))
    report = regret.check(run, points=3)
    vacuous = [b for b in report.bounds if b.verdict == VACUOUS]
    assert all("times the trivial bound" in b.remedy for b in vacuous)
    assert all(b.remedy == "" for b in report.bounds if b.verdict != VACUOUS)
    assert (
        len(vacuous) == str(report).count("times the trivial bound") == report._repr_markdown_().count("times the trivial") > 0
    )


@pytest.mark.parametrize(
    ("start", "box", "says"),
    [
        (1.0, None, "start must have shape"),
        ([[1.0]], None, "start must have shape"),
        ([2.0], (-1.0, 1.0), "must lie in the box"),
    ],
)
def test_bad_problems(start, box, says):
    with pytest.raises(ValueError, match=says):
        problems.from_losses(lambda t, x: x.sum(), start, box=box)


def test_what_is_no_problem():
    with pytest.raises(TypeError, match="a problem is a theory_checks Problem, a sandbox Task"):
        problems.get(3)
    assert problems.get(problems.cycle).name == "cycle"


MONOTONE = APOLLO.replace(rectifier=Monotone(inner=AbsoluteFloor(sigma=1.0), ceiling=4.0), name="monotone")


def test_a_double_well_that_the_run_does_not_leave_is_not_verified():
    """The run stays where the loss is convex; θ* and regret are SciPy's all the same, and no bound applies."""

    def well(x):
        return (x * x - 1) ** 2 + 0.3 * x

    problem = problems.from_losses(lambda t, x: well(x).sum(), [0.8], box=(-2.0, 2.0))
    run = record(MONOTONE, problem, 300, lr=InverseSquareRoot(first=0.2))
    assert (np.abs(run.theta) > 1 / math.sqrt(3)).all()
    report = regret.check(run, points=4)
    star = optimize.brute(lambda x: well(x[0]), [(-2.0, 2.0)], Ns=101)[0]
    assert report.measured == pytest.approx((well(run.theta[:-1]) - well(star)).sum(), rel=1e-9)
    assert not report.assumption(premises.LOWEST).holds
    assert not report.assumption(premises.CONVEX_ELSEWHERE).holds
    assert all(b.verdict.startswith("not applicable") for b in report.bounds)


@pytest.mark.parametrize("box", [(-2.0, 2.0), None])
def test_convexity_is_tested_where_the_run_was_not(box):
    """cos(3θ) + θ² from 1: convex along the run and at θ*, but not in between the two minima at ± the same height."""
    problem = problems.from_losses(lambda t, x: ((3 * x).cos() + x * x).sum(), [1.0], box=box)
    report = regret.check(record(MONOTONE, problem, 30, lr=InverseSquareRoot(first=0.02)), points=2)
    assert report.assumption(premises.CONVEX).holds
    assert not report.assumption(premises.CONVEX_ELSEWHERE).holds
    assert "not applicable" in report.bound("repaired 1").verdict


def hinges(d, T, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((T, d))
    return X * np.sign(X @ rng.standard_normal(d) + 0.5 * rng.standard_normal(T))[:, None]


def test_losses_with_kinks_are_not_refused():
    """Hinge losses in a box: regret is that of a linear program, Σ s_t, s_t ≥ 1 - x_t·θ, s_t ≥ 0."""
    d, T = 4, 120
    X = hinges(d, T)
    rows = torch.tensor(X)
    problem = problems.from_losses(lambda t, x: (1 - rows[t - 1] @ x).clamp(min=0), [0.0] * d, box=(-1.0, 1.0))
    run = record(MONOTONE, problem, T, lr=InverseSquareRoot(first=1.0))
    report = regret.check(run, points=3)
    program = optimize.linprog(
        [0.0] * d + [1.0] * T, A_ub=np.hstack([-X, -np.eye(T)]), b_ub=-np.ones(T), bounds=[(-1, 1)] * d + [(0, None)] * T
    )
    assert report.measured == pytest.approx(run.loss.sum() - program.fun, rel=1e-6)
    assert report.bound("repaired 1").verdict == VERIFIED
    assert report.assumption(premises.LOWEST).holds


@pytest.mark.parametrize("box", [None, (-0.1, 0.4)])
@pytest.mark.parametrize("d", [1, 3, 8])
def test_comparators_of_absolute_values(d, box):
    """Mean |x_t·θ - y_t|: SciPy's linear program; and the excess is no smaller than the true one."""
    rng = np.random.default_rng(d)
    X, y = rng.standard_normal((60, d)), rng.standard_normal(60)
    rows, targets = torch.tensor(X), torch.tensor(y)
    problem = problems.from_losses(lambda t, x: (rows[t - 1] @ x - targets[t - 1]).abs(), [0.0] * d, box=box)
    best = problem.best(60, torch.zeros(1, d, dtype=torch.float64))
    A = np.vstack([np.hstack([X, -np.eye(60)]), np.hstack([-X, -np.eye(60)])])
    free = [(None, None) if box is None else box] * d + [(0, None)] * 60
    exact = optimize.linprog([0.0] * d + [1 / 60] * 60, A_ub=A, b_ub=np.append(y, -y), bounds=free).fun
    found = float(np.abs(X @ best.theta.numpy() - y).mean())
    assert exact - 1e-12 <= found <= exact + best.excess + 1e-12
    assert best.excess < 1e-5


@pytest.mark.parametrize("cuts", [0, 2, 300])
def test_the_excess_is_no_smaller_than_the_true_one(cuts, monkeypatch):
    """Twenty dimensions, where two cutting planes are too few: the distance to SciPy's minimum lies below the excess."""
    monkeypatch.setattr(comparators, "CUTS", cuts)
    d, n = 20, 80
    rng = np.random.default_rng(d)
    X, y = rng.standard_normal((n, d)), rng.standard_normal(n)
    rows, targets = torch.tensor(X), torch.tensor(y)
    search = comparators.Search(lambda x: (rows @ x - targets).abs().mean(), (-0.2, 0.2))
    best = search.global_comparator(np.zeros(d), np.zeros((1, d)))
    A = np.vstack([np.hstack([X, -np.eye(n)]), np.hstack([-X, -np.eye(n)])])
    limits = [(-0.2, 0.2)] * d + [(0, None)] * n
    exact = optimize.linprog([0.0] * d + [1 / n] * n, A_ub=A, b_ub=np.append(y, -y), bounds=limits).fun
    above = float(np.abs(X @ best.theta.numpy() - y).mean()) - exact
    assert -1e-12 <= above <= best.excess + 1e-12
    assert (above > 1e-4) == (cuts < 300)
    assert best.excess < {0: 0.2, 2: 0.002, 300: 1e-9}[cuts]


def test_a_run_that_diverges_is_reported():
    """Steps of a hundred times the distance: θ grows beyond what is finite, and no bound is verified."""
    problem = problems.from_losses(lambda t, x: x.square().square().sum(), [2.0])
    report = regret.check(record(APOLLO, problem, 12, lr=InverseSquareRoot(first=100.0)), points=2)
    assert all(b.verdict != VERIFIED for b in report.bounds)


def test_a_comparator_that_is_not_known_decides_nothing():
    """Regret below the bound, and above it with what a better θ* could add."""
    options = dict(terms={"x": 1.0}, measured=0.9, needs={}, trivial=2.0, repaired=True)
    assert judge("b", **options).verdict == VERIFIED
    assert judge("b", **options, excess=0.05).verdict == VERIFIED
    assert judge("b", **options, excess=0.2).verdict.startswith("not decided")
    assert judge("b", **options | {"measured": 1.1}, excess=0.2).verdict == VIOLATED


@pytest.mark.parametrize("size", [1e-12, 1e12])
def test_scale_of_the_losses_decides_nothing(size):
    """Small losses do not end the search for θ* at its start; and what is not a moving average is not one for being small."""
    problem = problems.from_losses(lambda t, x: size * (x - t % 3).square().sum() / 2, [2.0, -1.0])
    rate = InverseSquareRoot(first=0.3 / size)
    run = record(MONOTONE, problem, 39, lr=rate)
    assert problem.best(39, torch.tensor(run.theta)).theta.numpy() == pytest.approx([1.0, 1.0], abs=1e-6)
    report = regret.check(run, points=2)
    assert report.assumption(premises.LOWEST).holds
    assert report.assumption(premises.AVERAGE).holds
    doubled = record(MONOTONE.replace(moment=HeavyBall(momentum=0.9)), problem, 39, lr=rate)
    assert not regret.check(doubled, points=2).assumption(premises.AVERAGE).holds


def test_a_direction_that_is_not_m_over_D_is_seen():
    """Sign, and a clip: no decay is in them."""
    for solve in (Sign(), ClipEach(limit=0.01)):
        report = regret.check(record(MONOTONE.replace(solve=solve), "cycle-box", 20, lr=InverseSquareRoot(first=0.1)), points=2)
        assert not report.assumption(premises.DIRECTION).holds
        assert premises.DIRECTION in report.bound("repaired 1").verdict
    assert regret.check(record(MONOTONE, "cycle-box", 20, lr=0.1), points=2).assumption(premises.DIRECTION).holds


RATE = InverseSquareRoot(first=0.1)
CHECKS = {
    "regret": lambda loss: regret.check(record(APOLLO, problems.from_losses(loss, [0.0, 0.0]), 5, lr=RATE)),
    "coupling": lambda loss: coupling.check(APOLLO, problems.from_losses(loss, [0.0, 0.0]), 5, lr=RATE),
    "scale invariance": lambda loss: scale_invariance.check(APOLLO, problems.from_losses(loss, [0.0, 0.0]), 5, lr=RATE),
    "Theorem 3": lambda loss: nonconvex.check(
        APOLLO, lambda x: loss(1, x), torch.zeros(2, dtype=torch.float64), T=5, eta=0.1, L=1.0, H=9.0, gap=9.0, L_D=9.0
    ),
}


@pytest.mark.parametrize("check", CHECKS)
def test_a_loss_that_draws_is_said_to_draw(check):
    """Dropout, in every check that would otherwise blame the theorem."""
    draw = torch.Generator().manual_seed(0)
    with pytest.raises(ValueError, match=r"(loss\(1, θ\)|f\(θ_1\)) gave .* and then .* at the same θ: it draws"):
        CHECKS[check](lambda t, x: ((x - 1) * torch.rand(2, generator=draw, dtype=torch.float64)).square().sum())


def test_a_loss_that_changes_later_is_seen():
    """A loss that counts its calls gives the same number twice in a row, and another one after the run."""
    calls = iter(range(10**6))
    problem = problems.from_losses(lambda t, x: (1 + next(calls) // 90) * x.square().sum(), [1.0])
    run = record(MONOTONE, problem, 20, lr=InverseSquareRoot(first=0.1))
    with pytest.raises(ValueError, match="it draws, or remembers"):
        regret.check(run, points=2)


@pytest.mark.parametrize(
    ("loss", "error", "says"),
    [
        (lambda t, x: 1.0, TypeError, r"loss\(t, θ\) must return a 0-d float64 tensor, and loss\(1, θ\) is a float"),
        (lambda t, x: None, TypeError, r"loss\(1, θ\) is a NoneType"),
        (lambda t, x: x.square(), ValueError, r"loss\(1, θ\) is a float64 tensor of shape \(2,\)"),
        (lambda t, x: x.float().square().sum(), ValueError, "is a float32 tensor of shape .*: θ is float64"),
        (lambda t, x: torch.ones(2) @ x, ValueError, r"loss\(1, θ\) failed for θ of shape \(2,\), float64: .*dtype"),
        (lambda t, x: x.detach().square().sum(), ValueError, r"loss\(1, θ\) has no gradient"),
    ],
)
def test_losses_that_are_none(loss, error, says):
    with pytest.raises(error, match=says):
        record(MONOTONE, problems.from_losses(loss, [0.0, 0.0]), 3, lr=0.1)


# -- Theorem 3 ---------------------------------------------------------------------------------------------------------


def of_theorem_3(L=1.0, gap=9.1, **options):
    start = torch.tensor([10.0], dtype=torch.float64)
    numbers = dict(T=60, eta=0.5, L=L, H=2.0, gap=gap, L_D=1.5) | options
    return nonconvex.check(APOLLO, lambda x: (1 + x.square()).sqrt().sum(), start, **numbers)


def test_theorem_3_asks_for_smoothness_and_a_lower_bound():
    """f'' ≤ 1 = L on the way down from 10; with L = 0.01 it fails, as the gap does where D_f is too small."""
    names = [a.name for a in of_theorem_3().assumptions if not a.holds]
    assert "‖∇f(x) - ∇f(y)‖ ≤ L‖x - y‖ between points of the run" not in names
    assert "f(x_1) - f(θ_t) ≤ D_f" not in names
    found = of_theorem_3(L=0.01).assumption("‖∇f(x) - ∇f(y)‖ ≤ L‖x - y‖ between points of the run")
    assert not found.holds
    assert found.detail.startswith("worst: θ_")
    low = of_theorem_3(gap=0.1).assumption("f(x_1) - f(θ_t) ≤ D_f")
    assert not low.holds
    assert low.first is not None


def test_the_noise_is_unbiased_and_uncorrelated():
    """All 2⁸ sequences: exactly; a sample: within four deviations; ten equal sequences: not."""
    exact = of_theorem_3(T=8, noise=0.3)
    sampled = of_theorem_3(T=14, noise=0.3, samples=50)
    for name in ("the noise is unbiased", "the noise of successive steps is uncorrelated"):
        assert exact.assumption(name).holds
        assert sampled.assumption(name).holds
    assert not any(a.holds for a in nonconvex.check_noise(np.ones((100, 5)), False))

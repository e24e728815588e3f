"""Open questions: the runs against the recipes' own updates, the arguments against numbers, the commands that give rows again."""

import dataclasses
import json
import math

import numpy as np
import pytest
import torch

import variants
from sandbox import cli
from sandbox.blocks import EMA, AbsoluteFloor, Monotone, ScaleInvariantFloor
from sandbox.schedules import InverseSquareRoot
from theory_checks import problems, record
from theory_checks.claims import regret
from theory_checks.open_questions import drift, questions, rates, same_batch, tightness
from theory_checks.proofs import counterexamples, recursion

BASE = counterexamples.theory_apollo(beta=0.0)
MOMENTUM = counterexamples.theory_apollo(beta=0.9, eps=1e-4).replace(moment=EMA(beta=0.9))  # with bias correction
RECIPES = {
    "apollo": BASE,
    "scale-invariant": BASE.replace(rectifier=ScaleInvariantFloor(sigma=1.0)),
    "scale-invariant, β = 0.9": counterexamples.theory_apollo(beta=0.9).replace(rectifier=ScaleInvariantFloor(sigma=1.0)),
    "hessian-ema": BASE.replace(averaging=EMA(beta=0.9)),
    "apollo, β = 0.9": MOMENTUM,
    "hessian-ema, β = 0.9": MOMENTUM.replace(averaging=EMA(beta=0.9)),
}


def online(g, start=0.0):
    """Linear losses in one dimension with gradients g, repeated, on [-1, 1]."""
    rows = torch.tensor(np.asarray(g, dtype=float))[:, None]
    start = torch.tensor([start], dtype=torch.float64)
    return problems.linear("own", "given", lambda t: rows[(t - 1) % len(rows)], (-1.0, 1.0), start)


@pytest.mark.parametrize("name", drift.CYCLES)
def test_the_recipe_itself_has_linear_regret(name):
    """Recorded from the recipe: the same iterates, and a regret that `regret.check` measures as well."""
    cycle = drift.CYCLES[name]
    assert drift.Rule.from_recipe(RECIPES[name]) == cycle.rule
    run = record(RECIPES[name], online(cycle.g), 600, lr=InverseSquareRoot(first=cycle.eta))
    # 1e-7: D behind two equal gradients is rounding alone, and θ is clamped
    np.testing.assert_allclose(cycle.run(600).theta, run.theta[:-1], atol=1e-7)
    assert regret.check(run, points=2).measured == pytest.approx(cycle.regrets(600)[-1], abs=1e-4)


@pytest.mark.parametrize("name", drift.CYCLES)
def test_regret_goes_to_the_rate(name):
    """R_T/T against 2|Σg|/P: less a term that falls with 1/√T; the iterates are at the wrong end."""
    cycle = drift.CYCLES[name]
    regrets = cycle.regrets(80_000)
    shares = regrets[[19_999, 79_999]] / np.array([20_000, 80_000]) / cycle.rate
    assert shares[1] < 1
    assert 1 - shares[1] < 0.62 * (1 - shares[0])  # halved, up to what the first steps cost
    assert cycle.run(20_000).theta[-len(cycle.g) :].mean() > 0.7


def test_momentum_does_not_help_the_scale_invariant_floor():
    """β = 0.99: a hundred and more equal gradients turn m, and the good block is longer."""
    rule = dataclasses.replace(drift.CYCLES["scale-invariant"].rule, beta=0.99)
    cycle = drift.Cycle(rule, (1.0, 0.9) * 500 + (-0.1,) * 280, eta=0.001)
    regrets = cycle.regrets(15_000)
    assert regrets[-1] - regrets[7499] > 0.7 * cycle.rate * 7500


def test_shares_measure_the_drift():
    """Apollo's cycle, by the update under vmap; a cycle that pulls the right way has none; a search finds one from nothing."""
    good, bad = drift.CYCLES["apollo"].g, [1.0] * 86
    found = drift.shares(BASE, np.array([good, bad]))
    assert found[0] == pytest.approx(drift.CYCLES["apollo"].share)
    assert found[1] <= 0
    cycle, share = drift.search(BASE, period=4, generations=12)
    assert share > 0.05
    made = drift.Cycle(drift.Rule(), tuple(cycle))
    regrets = made.regrets(8000)
    assert regrets[-1] - regrets[3999] > 0.5 * made.rate * 4000
    again, _ = drift.search(BASE, period=4, generations=12)
    np.testing.assert_array_equal(cycle, again)


@pytest.mark.parametrize("beta", [0.0, 0.5, 0.875])
def test_the_tight_family_stays_on_the_floor(beta):
    """D = σ = 1 and m as the recipe has them; the ratio is the one that `regret.check` reports, and grows with T."""
    T = 900
    g = np.concatenate([tightness.waiting(T - 30, beta, 8), np.ones(30)])
    recipe = counterexamples.theory_apollo(beta=beta)
    theta, m = tightness.trajectory(g, beta, 1.0)
    made = dataclasses.replace(online(g), box=None)
    star = torch.tensor(theta[-1:])
    made = dataclasses.replace(made, comparator=lambda T, x: problems.Comparator(star, "given", 0.0))
    run = record(recipe, made, T, lr=InverseSquareRoot(first=1.0))
    # |y| = |d| where m falls to 0, so |B| = 1 up to rounding
    np.testing.assert_allclose(run.D, 1.0, rtol=1e-13)
    np.testing.assert_allclose(run.m[:, 0], m, rtol=0, atol=1e-15)
    np.testing.assert_allclose(run.theta[:, 0], theta, atol=1e-12)
    found = tightness.attained(T, beta, 8)
    assert regret.check(run, points=2).bound("repaired 3").ratio == pytest.approx(found.ratio, rel=1e-9)
    small, large = (tightness.attained(t, beta, eta=0.05).ratio for t in (20_000, 400_000))
    assert 0.85 < small < large < 1
    assert large > 0.92
    with pytest.raises(ValueError, match="T must exceed"):
        tightness.attained(3, beta)


def test_the_ceiling_counts_to_its_order():
    """R η/(Λ√T) about the same over two decades of Λ, and below the bound's 2 + O(1/Λ²); the recipe's own run agrees."""
    ends = [tightness.ceiling(size) for size in (10.0, 30.0, 100.0)]
    assert [T for T, _, _ in ends] == [100, 900, 10_000]
    assert all(0.6 < c < 0.75 for _, _, c in ends)
    recipe = BASE.replace(rectifier=Monotone(inner=AbsoluteFloor(sigma=1.0), ceiling=10.0))
    g = [0.05, *[1.0] * 7] * 13
    run = record(recipe, online(g, 1.0), 100, lr=InverseSquareRoot(first=1.0))
    assert float((run.g * (run.theta[:-1] + 1)).sum()) == pytest.approx(ends[0][1], rel=1e-9)
    report = regret.check(run, points=2)
    assert 0.25 < report.bound("repaired 1").ratio < 1


def test_kinks_defeat_same_batch_pairs():
    """Losses are convex, gradients bounded, the iterates stay at 1, and regret is linear; a literal recursion agrees."""
    problem = same_batch.Kinked()
    steps = problem.steps(3000)
    x = np.array([s.theta[0] for s in steps])
    assert x[-300:].min() > 0.9
    regrets = problem.regrets(3000)
    assert regrets[-1] - regrets[1499] == pytest.approx(problem.rate * 1500, rel=0.05)

    def loss(t, x):
        k = problem.kinks.get(t)
        return -x if k is None else max(6.0 * (x - k), 2.5 * (x - k))

    def slope(t, x):
        k = problem.kinks.get(t)
        return -1.0 if k is None else 6.0 if x > k else 2.5

    theta, old, g_old, D, B, total = 0.0, 0.0, 0.0, 1.0, 0.0, 0.0
    for t in range(1, 301):
        assert theta == pytest.approx(x[t - 1], abs=1e-12)
        g = slope(t, theta)
        total += loss(t, theta) - loss(t, -1.0)
        if g_old:
            B = -(g - slope(t, old)) * D / g_old  # one dimension: B = -y/d
        D, g_old, old = max(abs(B), 1.0), g, theta
        theta = min(max(theta - 0.5 / math.sqrt(t) * g / D, -1.0), 1.0)
    assert total == pytest.approx(regrets[299], abs=1e-9)


def regrets_by_hand(g, T):
    """R_t of Algorithm 1 on g_t θ, [-1, 1]: β = .9, ε = 1e-4, σ = 1, bias correction, η_t = 3/√t."""
    g = np.resize(g, T)
    theta, m, B, d, paid, R = 0.0, 0.0, 0.0, 0.0, 0.0, np.empty(T)
    for t, slope in enumerate(g, 1):
        paid += slope * theta
        new = (0.9 * (1 - 0.9 ** (t - 1)) * m + 0.1 * slope) / (1 - 0.9**t)
        alpha = (d * (new - m) + d * d * B) / (abs(d) + 1e-4) ** 4 if d else 0.0
        B -= alpha * d * d
        m, d = new, new / max(abs(B), 1.0)
        theta = min(max(theta - 3.0 / math.sqrt(t) * d, -1.0), 1.0)
        R[t - 1] = paid + abs(g[:t].sum())
    return R


def test_momentum_does_not_end_the_drift():
    """On the cycle that makes regret linear at β = 0, R/T falls; on the one whose average that is, it does not."""
    harmless = regrets_by_hand(drift.CYCLES["apollo"].g, 20_000)
    assert harmless[-1] / 20_000 < harmless[1999] / 2000 / 4 < 1e-3
    # a period of averages and their gradients: m_1 = .9 m_P + .1 g_1 and so on
    m = np.array(drift.CYCLES["apollo"].g)
    g = (m - 0.9 * np.roll(m, 1)) / 0.1
    harmful = regrets_by_hand(g, 20_000)
    assert harmful[[1999, 19_999]] / [2000, 20_000] == pytest.approx([0.904, 1.035], abs=1e-3)
    np.testing.assert_allclose(harmful, drift.CYCLES["apollo, β = 0.9"].regrets(20_000), rtol=1e-9, atol=1e-9)
    assert f"R = {harmful[1999]:.5g} at" in questions.answer("apollo-momentum", T=2000).evidence


def test_the_default_recipe_has_linear_regret():
    """`apollo` as it comes, σ = .01, at a hundredth of the gradients (at most .19): the same directions, so the same θ."""
    cycle = drift.CYCLES["apollo, β = 0.9"]
    g = np.array(cycle.g) / 100
    assert np.abs(g).max() == pytest.approx(0.19)
    run = record(variants.get("apollo"), online(g), 900, lr=InverseSquareRoot(first=cycle.eta))
    # 1e-4: ε is in the scale of d, which is the same
    np.testing.assert_allclose(run.theta[:-1], cycle.run(900).theta, atol=1e-4)
    late = np.arange(450, 900)
    assert run.theta[late].mean() > 0.7
    assert (run.g[late, 0] * (run.theta[late, 0] + 1)).mean() == pytest.approx(cycle.rate / 100, rel=0.1)


def test_answers_and_their_commands(capsys):
    """Every row's command runs; what has a certificate is proved by it (on the runs of 2,000 steps)."""
    pytest.importorskip("flint", reason="the extra `theory` is not installed")
    found = questions.answer("same-batch", T=2000, certify=True)
    assert ": proved: " in found.certificate
    assert found.command == "apollo-sandbox check questions same-batch --certify"
    assert found.row()[0] == found.question
    assert cli.main(["check", "questions", "scale-invariant", "--steps", "2000", "--certify"]) == 0
    out = capsys.readouterr().out
    assert "scale-invariant: proved: " in out
    assert out.strip().endswith("apollo-sandbox check questions scale-invariant --certify")
    assert cli.main(["check", "questions", "hessian-emma"]) == 2
    assert "did you mean 'hessian-ema'" in capsys.readouterr().err
    assert cli.main(["check", "questions", "tight", "--steps", "10"]) == 2


def test_rates(tmp_path, capsys):
    assert cli.main(["check", "rates", "--steps", "3000", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "apollo on CE1: slope " in out
    rows = {row["name"]: row for row in json.loads((tmp_path / "rates.json").read_text())}
    ce1 = rows["apollo on CE1"]
    assert ce1["slope"]["value"] == pytest.approx(1, abs=0.01)
    assert ce1["values"][-1] > ce1["bound"][-1]
    monotone = rows["monotone, Λ = 4"]
    assert all(v <= b for v, b in zip(monotone["values"], monotone["bound"], strict=True))
    family = rows["a function for each T"]
    assert family["slope"]["value"] == pytest.approx(-0.5, abs=0.03)
    assert all(v <= b for v, b in zip(family["values"], family["bound"], strict=True))
    assert (tmp_path / "rates.png").stat().st_size > 0


def test_the_bound_on_ce1_is_no_smaller_than_the_checks():
    """The box's diagonal for the diameter: between the exact bound and 1.3 times it."""
    curve = rates.of_regret(601)[0]
    exact = regret.check(counterexamples.cycle_run(601), points=2)
    assert curve.values[-1] == pytest.approx(exact.measured, rel=1e-9)
    assert 1 <= curve.bound[-1] / exact.bound(regret.STATED).value < 1.3


def test_scalar_runs_are_what_the_questions_use():
    assert recursion.Rule.from_recipe(RECIPES["hessian-ema"]).beta_averaging == 0.9

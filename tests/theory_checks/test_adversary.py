"""The adversary: its population against recorded runs, its cycles against what they are meant to do, what it finds and reports."""

import dataclasses
import itertools
import json
import math
import types

import numpy as np
import pytest
import torch

from sandbox import cli
from sandbox.schedules import InverseSquareRoot
from theory_checks import problems, record
from theory_checks.claims import regret, regret_bounds
from theory_checks.proofs import counterexamples
from theory_checks.search import adversary, attacks, batched_runs, stationary_cycles
from theory_checks.search.session import Candidate, Over, Session

SOUND = [name for name, target in adversary.TARGETS.items() if target.sound]


def never() -> None:
    """A clock that does not end."""


def random_candidates(seed, n, P=6):
    rng = np.random.default_rng(seed)
    angles, parts = rng.uniform(0, 2 * np.pi, n), (rng.standard_normal((n, 2)), rng.standard_normal((n, P, 2)))
    star = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return *parts, star, rng.uniform(0.1, 2.0, n), np.append(1e-9, rng.uniform(0, 0.9, n - 1))


def session(theorem, **changes):
    found = Session(adversary.TARGETS[theorem], 600.0, np.random.default_rng(0), 3000, 6, math.inf, None)
    return dataclasses.replace(found, **changes)


# -- the population --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("theorem", ["regret", "monotone"])
def test_a_population_is_many_recorded_runs(theorem):
    """θ_t = η θ_t(1), D_t and measured/bound of 12 runs at once against `record` and `regret.check`, one by one.

    1e-9: other kernels, and B feeds back through 40 steps; a diameter by 45 directions is at most 0.061 % too small.
    """
    target, T = adversary.TARGETS[theorem], 40
    first, cycle, star, eta, beta = random_candidates(1, 12)
    h = batched_runs.replay(target.recipe, batched_runs.table(first, cycle, T), beta)
    floor, applied = 0, 0
    for i in range(len(eta)):
        c = Candidate(first[i], cycle[i], star[i], float(eta[i]), float(beta[i]), T, 0.0)
        for at in (1, 2, 5, T):
            report = c.report(target, at, points=2)
            for name in (regret.STATED, "repaired 1", "repaired 2", "repaired 3"):
                found = batched_runs.ratios(
                    h, eta, star, [name], target.coordinatewise if name == regret.STATED else True, np.array([at])
                )[i, 0]
                bound = report.bound(name)
                applies = not bound.verdict.startswith("not applicable")
                assert np.isfinite(found) == applies, (name, at, bound.verdict)
                if applies:
                    applied += 1
                    assert found == pytest.approx(bound.ratio, rel=1.3e-3 if name == regret.STATED else 1e-9)
        run = recorded(c, target, T)
        np.testing.assert_allclose(h.theta[i] * c.eta, run.theta, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(h.D[i], run.D, rtol=1e-9)
        floor += (run.D > 1).sum()
    assert floor > 50  # the secant rule counts
    assert applied > 40


def recorded(c, target, T):
    return record(
        target.recipe.with_hyperparameters({"moment.beta": c.beta}), c.problem(), T, lr=InverseSquareRoot(first=c.eta)
    )


def test_ce1_in_a_population():
    """Regret/bound of the certified case at the published T, and its first T above 1."""
    first, cycle = np.array([problems.CYCLE_FIRST]), np.array([problems.CYCLE])
    h = batched_runs.replay(counterexamples.theory_apollo(), batched_runs.table(first, cycle, 1201), np.array([1e-9]))
    Ts = np.array([300, 571, 572, 1201])
    star = np.array([problems.CYCLE_COMPARATOR])
    found = batched_runs.ratios(h, np.array([0.38]), star, [regret.STATED], False, Ts)[0]
    assert found[[0, 3]] == pytest.approx([143.460 / 196.962, 567.415 / 396.615], rel=1e-3)
    assert found[1] < 1 < found[2]
    assert not np.isfinite(batched_runs.ratios(h, np.array([0.38]), star, ["repaired 1"], True, Ts)).any()


# -- the cycles ------------------------------------------------------------------------------------------------------


def test_a_jump_keeps_the_trace():
    rng = np.random.default_rng(0)
    moved = 0
    for _ in range(200):
        B, d = torch.tensor(rng.uniform(-5, 5, 2)), torch.tensor(rng.standard_normal(2))
        tau = stationary_cycles.rectify(B).sum()
        alpha = stationary_cycles.jump(B, d, tau)
        assert float(stationary_cycles.rectify(B - alpha * d * d).sum()) == pytest.approx(float(tau), rel=1e-12)
        moved += abs(float(alpha)) > 1e-6
    assert moved > 150


def test_cycles_stand_still_when_recorded():
    """Good cycles from random starts, entered from B = 0 and recorded: constant trace, the designed D, and an iterate that
    comes back, from the second step on.  1e-6: what is left of the residual, 1e-12 squared."""
    found = stationary_cycles.rank(
        [stationary_cycles.cycles(stationary_cycles.draw(np.random.default_rng(0), 1024, 6), never, 25)]
    )
    first, cycle = attacks.entries(found, 6)
    assert len(first) >= 2
    for g_1, g in zip(first, cycle, strict=True):
        c = Candidate(g_1, g, np.array([1.0, 0.0]), 1.0, 1e-9, 0, 0.0)
        run = recorded(c, adversary.TARGETS["regret"], 61)
        trace = run.D[1:].sum(axis=1)
        assert np.ptp(trace) < 1e-6 * trace[0]
        assert abs(run.D[1:55] - run.D[7:61]).max() < 1e-5 * trace[0]
        assert np.linalg.norm((g / run.D[1:7]).sum(axis=0)) < 1e-5
    rho = np.linalg.norm(cycle[0].sum(axis=0)) / (12 * np.linalg.norm(cycle[0], axis=1).max() * trace_root(first[0], cycle[0]))
    assert rho == pytest.approx(float(found.rho[0]), rel=1e-6)


def trace_root(g_1, g):
    run = recorded(Candidate(g_1, g, np.zeros(2), 1.0, 1e-9, 0, 0.0), adversary.TARGETS["regret"], 2)
    return math.sqrt(run.D[1].sum())


@pytest.mark.slow
def test_from_ce1_to_a_violation():
    """CE1's cycle without its g_1, η and θ*: the way in is found again (four digits were published), and a better η and θ*."""
    run = counterexamples.cycle_run(68)
    rows = [torch.tensor(x[None, 61:67]) for x in (run.g, run.B, run.D)]
    found = stationary_cycles.Cycles(torch.zeros(1, 14), *rows, *torch.zeros(3, 1))
    first, _ = attacks.entries(found, 12)
    assert np.abs(first - problems.CYCLE_FIRST).max(axis=1).min() < 1e-3
    under = session("regret", T=1201)
    attacks.choose_rate_and_comparator(under, found)
    outcome = adversary.conclude(under, "regret", 0, False)
    assert outcome.refuted
    assert not outcome.news
    assert outcome.ratio >= 567.415 / 396.615
    assert outcome.report.assumption("‖D_t‖₁/η_t non-decreasing").holds
    assert outcome.first <= 572
    below = outcome.candidate.report(under.target, outcome.first - 1, points=2)
    assert below.bound(regret.STATED).ratio <= 1


# -- the search ------------------------------------------------------------------------------------------------------


def set_clock(monkeypatch, step):
    """A clock that advances by `step` seconds each time it is read, whatever the machine; one that stands still for 0."""
    readings = itertools.count()
    monkeypatch.setattr("theory_checks.search.session.time", types.SimpleNamespace(monotonic=lambda: step * next(readings)))


@pytest.mark.parametrize("theorem", ["regret", "monotone"])
def test_the_clock_is_kept(theorem, monkeypatch):
    """1.2 s of search, and not more than a few readings of the clock beyond."""
    set_clock(monkeypatch, 0.1)
    outcome = adversary.search(theorem, minutes=0.02, T=200)
    assert 1.2 <= outcome.seconds <= 1.6
    assert not outcome.interrupted
    assert json.loads(outcome.to_json())["theorem"] == theorem


@pytest.mark.slow
def test_the_same_seed_goes_the_same_way(monkeypatch):
    set_clock(monkeypatch, 0)
    one, two = (adversary.search("repaired-1", seed=1, stop_at=0.6) for _ in range(2))
    assert 0.6 < one.ratio < 1
    assert one.ratio == two.ratio
    np.testing.assert_array_equal(one.candidate.cycle, two.candidate.cycle)


def stub(ratio, then):
    """An attack that offers one candidate, for T = 1, and ends by `then`."""

    def attack(under):
        c = Candidate(np.array([1.0, 0.0]), np.ones((2, 2)), np.array([-1.0, 0.0]), 1.4, 1e-9, 1, ratio)
        under.offer(c)
        raise then

    return attack


def test_an_interrupted_search_keeps_its_best(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(attacks, "evolve", stub(0.7, KeyboardInterrupt()))
    assert cli.main(["check", "adversary", "--theorem", "repaired-1", "--out", str(tmp_path)]) == cli.INTERRUPTED
    out = capsys.readouterr().out
    assert "interrupted" in out
    assert "largest regret/bound 0.707" in out
    written = json.loads((tmp_path / "adversary-repaired-1-0.json").read_text())
    assert written["interrupted"]
    assert written["ratio"] == pytest.approx(math.sqrt(0.5), rel=1e-3)  # d = 2: GD/min(D²/η + ηG²/2)
    assert (tmp_path / "adversary-repaired-1-0.png").stat().st_size > 0


def test_interrupted_before_anything_was_found(monkeypatch):
    def attack(under):
        raise KeyboardInterrupt

    monkeypatch.setattr(attacks, "stand_still", attack)
    outcome = adversary.search("regret")
    assert outcome.interrupted
    assert outcome.candidate is None
    assert "no violation found" in str(outcome)
    assert json.loads(outcome.to_json())["ratio"] is None


def test_a_candidate_that_breaks_an_assumption_is_no_violation(monkeypatch):
    """The verdict comes from the record: whatever ratio an attack claims."""

    def attack(under):
        c = Candidate(np.array(problems.CYCLE_FIRST), np.array(problems.CYCLE), np.array([0.97, -0.24]), 0.38, 1e-9, 900, 9.0)
        under.offer(c)
        raise KeyboardInterrupt

    monkeypatch.setattr(attacks, "evolve", attack)
    outcome = adversary.search("repaired-1")
    assert outcome.candidate is None
    assert not outcome.refuted


def test_a_bound_five_times_too_small_is_caught(monkeypatch, tmp_path, capsys):
    """Repaired bound 1 times 0.2: a violation is found from a random start, is news, and is exit code 1."""
    exact = regret_bounds.terms

    def broken(**numbers):
        terms = exact(**numbers)
        return terms | {"repaired 1": {name: 0.2 * value for name, value in terms["repaired 1"].items()}}

    monkeypatch.setattr(regret_bounds, "terms", broken)
    set_clock(monkeypatch, 0)
    search = adversary.search
    monkeypatch.setattr(adversary, "search", lambda *a, **k: search(*a, **k, stop_at=1.0))
    arguments = ["check", "adversary", "--theorem", "repaired-1", "--minutes", "1", "--out", str(tmp_path)]
    assert cli.main(arguments) == 1
    assert "REFUTED" in capsys.readouterr().out
    assert json.loads((tmp_path / "adversary-repaired-1-0.json").read_text())["news"]


def test_all_statements_in_one_table(monkeypatch, tmp_path, capsys):
    for name in ("stand_still", "evolve"):
        monkeypatch.setattr(attacks, name, stub(0.7, Over()))
    assert cli.main(["check", "adversary", "--theorem", "all", "--out", str(tmp_path)]) == 0
    table = capsys.readouterr().out.split("above 1 from T")[-1]
    assert all(target.about in table for target in adversary.TARGETS.values())
    assert len(list(tmp_path.glob("*.json"))) == len(adversary.TARGETS)
    # an end by Ctrl-C ends all
    monkeypatch.setattr(attacks, "stand_still", stub(0.7, KeyboardInterrupt()))
    assert cli.main(["check", "adversary", "--theorem", "all", "--out", str(tmp_path)]) == cli.INTERRUPTED
    assert "repaired 1 of Theorem 2" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--theorem", "regrets"], "unknown theorem 'regrets'; did you mean 'regret'?"),
        (["--minutes", "0"], "minutes must lie in (0, inf), got 0"),
        (["--minutes", "inf"], "minutes must lie in (0, inf), got inf"),
    ],
)
def test_bad_usage(options, says, capsys):
    assert cli.main(["check", "adversary", *options]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(("name", "value"), [("T", 1), ("period", 1)])
def test_bad_arguments(name, value):
    with pytest.raises(ValueError, match=f"{name} must be at least 2, got {value}"):
        adversary.search("regret", **{name: value})


# -- the long ones ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_theorem_2_is_refuted_from_a_random_start(seed, monkeypatch):
    set_clock(monkeypatch, 0)
    outcome = adversary.search("regret", minutes=10, seed=seed, stop_at=1.0)
    assert outcome.refuted, str(outcome)
    assert outcome.candidate.T <= 3000
    needed = outcome.report.bound(regret.STATED).needs
    assert all(outcome.report.assumption(name).holds for name in needed)


@pytest.mark.slow
@pytest.mark.parametrize("theorem", SOUND)
def test_what_is_proved_stands(theorem, monkeypatch):
    """A minute each; the largest ratio is that of one step in two dimensions, GD/min_η(D²/η + cηG²)."""
    outcome = adversary.search(theorem, minutes=1.0)
    assert not outcome.refuted, str(outcome)
    exact = {"repaired-2": math.sqrt(0.1)}.get(theorem, math.sqrt(0.5))
    assert outcome.ratio < 1.002 * exact
    set_clock(monkeypatch, 0)
    assert adversary.search(theorem, stop_at=0.98 * exact).ratio > 0.98 * exact

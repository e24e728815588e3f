"""For which numbers linear regret is claimed, and what the losses of `rotation` are: measured where it is written."""

import dataclasses

import numpy as np
import pytest

from theory_checks import problems
from theory_checks.open_questions import drift, rotation
from theory_checks.proofs import compiled
from theory_checks.proofs.ball_arithmetic import precision

DEFAULTS = {"beta": 0.9, "eps": 1e-4, "correct": True}


@pytest.mark.parametrize(
    ("name", "changes", "low", "high"),
    [
        ("apollo", {}, 1.0, 1.05),
        ("apollo", {"eps": 1e-4}, 1.0, 1.05),
        ("apollo", DEFAULTS, 0.0, 2e-4),
        ("apollo, β = 0.9", {}, 1.0, 1.07),
        ("hessian-ema", {}, 0.25, 0.3),
        ("hessian-ema", DEFAULTS, 0.0, 0.04),
        ("hessian-ema, β = 0.9", {}, 0.31, 0.33),
        ("scale-invariant, β = 0.9", DEFAULTS, 1.4, 1.6),
    ],
)
def test_regret_per_step_at_20000(name, changes, low, high):
    cycle = drift.CYCLES[name]
    cycle = dataclasses.replace(cycle, rule=dataclasses.replace(cycle.rule, **changes))
    assert low <= cycle.regrets(20_000)[-1] / 20_000 <= high


@pytest.mark.parametrize(("changes", "per_step"), [({"beta": 1e-9}, 0.703), (DEFAULTS, 0.000986)])
def test_ce1_on_the_box(changes, per_step):
    """.703 a step with β = 1e-9, ε = 0, and R/T falls like 1/T with the default numbers."""
    rule = drift.Rule(box=(-1.0, 1.0), **changes)
    rows = [problems.CYCLE_FIRST, *problems.CYCLE]
    theta, g, _ = compiled.run(rule, compiled.linear, rows, [0.0, 0.0], 20_000, eta=0.38)
    assert ((g * theta).sum() + np.abs(g.sum(axis=0)).sum()) / 20_000 == pytest.approx(per_step, rel=2e-3)


def test_losses_of_the_exact_run_do_not_depend_on_the_precision():
    """300 steps: equal float64 numbers at two precisions, others than those along the float64 run, and nearly equal regret."""
    pytest.importorskip("flint", reason="the extra `theory` is not installed")
    rounds, T = rotation.Rounds(), 300
    regrets, losses = [], []
    for bits in (1500, 3000):
        with precision(bits) as kind:
            made, steps = rounds.run(T, kind)
            losses.append(made)
            rows = [[kind.number(x) for x in row] for row in made.tolist()]
            regrets.append(float(sum(rotation.excess(row, s.theta) for row, s in zip(rows, steps, strict=True)).mid()))
    np.testing.assert_array_equal(losses[0], losses[1])
    along, steps = rounds.run(T)
    assert (along != losses[0]).any()
    assert rounds.regrets_of(along, steps)[-1] == pytest.approx(regrets[0], rel=1e-7)

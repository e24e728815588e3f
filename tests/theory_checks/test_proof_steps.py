"""Each step of the written proofs holds on runs that keep its premises, and has the name under which docs/theory.md quotes it."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from sandbox.blocks import EMA, AbsoluteFloor, Monotone
from sandbox.schedules import InverseSquareRoot
from tests.theory_checks.test_random_problems import RANDOM, random_run
from theory_checks import record
from theory_checks.claims import nonconvex, regret
from theory_checks.proofs import counterexamples

DOCS = Path(__file__).parents[2] / "docs/theory.md"
MONOTONE = Monotone(inner=AbsoluteFloor(sigma=1.0), ceiling=4.0)


def theorem_3(recipe, T=6, noise=0.3, **options):
    def f(x):
        return ((1 + x.square()).sqrt() + 0.3 * x.cos()).sum()

    start = torch.tensor([1.5, -0.4], dtype=torch.float64)
    numbers = dict(eta=0.4, L=1.3, H=3.0, gap=3.0, L_D=4.0) | options
    return nonconvex.check(recipe, f, start, T=T, noise=noise, **numbers)


def shown():
    free = record(counterexamples.theory_apollo(), "random-quadratic", 5, lr=InverseSquareRoot(first=0.1))
    return {
        s.name for report in (regret.check(free, points=2), theorem_3(counterexamples.theory_apollo())) for s in report.steps
    }


def test_the_docs_quote_every_step_by_its_name():
    quoted = set(re.findall(r"^\[(.+)\]$", DOCS.read_text(), flags=re.MULTILINE))
    assert quoted == shown()


@settings(max_examples=30, deadline=None)
@given(**RANDOM)
def test_steps_hold_where_their_premises_do(seed, d, T, sigma, kind):
    """Projected (an even seed) and free; all steps apply but those for another kind of β."""
    report = regret.check(random_run(seed, d, T, sigma, kind, repaired=True), points=2)
    paper = "Σ_t Σ_j (u_t - u_{t-1}) a_t² ≤ Σ_t"
    assert all(s.holds for s in report.steps if not s.name.startswith(paper)), str(report)
    silent = {s.inapplicable for s in report.steps} - {""}
    assert silent <= {"β_t constant", "β_t monotone"}
    assert kind != "constant" or not silent


@pytest.mark.parametrize("moment", [EMA(beta=0.8, bias_correction=False), EMA(beta=0.8), EMA(beta=0.0)])
def test_steps_of_bound_5(moment):
    """Every one applies and holds, with exact expectations; with bias correction β_t increases, and bound 5 applies as well."""
    report = theorem_3(counterexamples.theory_apollo().replace(rectifier=MONOTONE, moment=moment), eta=0.2)
    assert report.bound(nonconvex.REPAIRED).verdict == "verified on this run"
    assert all(s.holds and not s.inapplicable for s in report.steps), str(report)
    rises = moment.bias_correction and moment.beta > 0
    assert report.assumption("β_t non-increasing").holds != rises


def test_steps_of_bound_5_add_up_to_it():
    """The right sides in a row: the smaller constants of the proof are below those of the bound."""
    recipe = counterexamples.theory_apollo(beta=0.8).replace(rectifier=MONOTONE)
    report = theorem_3(recipe, eta=0.2)
    rights = {s.name: s.right for s in report.steps}
    L, H, eta, sigma, kappa, T, gap, L_D = 1.3, 3.0, 0.2, report.facts["σ"], 0.8 / (1 - 0.8), 6, 3.0, 4.0
    sums = rights["E Σ ‖p_t g_t‖² ≤ η²H²(1 + ln T)/σ²"]
    total = (L + 0.5 + L**2 * kappa**2 / 2) * sums + (1 + kappa) * H**2 * rights["E Σ ‖p_t - p_{t-1}‖₁ ≤ dη/σ"]
    total += L * kappa**2 * H**2 * rights["E Σ ‖p_t - p_{t-1}‖² ≤ dη²/σ²"] + kappa * H * eta * H / sigma + gap
    assert report.measured <= L_D / (eta * np.sqrt(T)) * total <= report.bound(nonconvex.REPAIRED).value


def test_a_sampled_expectation_does_not_show_the_noise_step():
    report = theorem_3(counterexamples.theory_apollo().replace(rectifier=MONOTONE), T=14, samples=20, eta=0.2)
    assert [s.inapplicable for s in report.steps if s.name.startswith("noise")] == ["the expectation is a mean of samples"]


@pytest.mark.parametrize("name", ["apollow", "nesterov", "adamw"])
def test_theorem_3_is_about_steps_along_m_over_d(name):
    """Decoupled decay, look-ahead, and a D_1 that depends on the noise: no premise that was tested said so."""
    report = theorem_3(name)
    assert all(b.verdict.startswith("not applicable") for b in report.bounds)
    assert any(not report.assumption(n).holds for n in ("d_t = m_t/D_t", "m_t = β_t m_{t-1} + (1-β_t) g_t"))
    assert report.assumption("D_1 is the same for every noise").holds == (name != "adamw")


def test_long_samples_of_unbiased_noise_are_not_called_biased():
    """A thousand steps of signs from a fair coin, twenty times: four deviations would refuse most of them."""
    for seed in range(20):
        signs = np.random.default_rng(seed).choice((-1.0, 1.0), (50, 1000))
        assert all(a.holds for a in nonconvex.check_noise(signs, False))

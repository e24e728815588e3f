"""Studies as data: what they may hold, and what their arms and schedules mean."""

from __future__ import annotations

import math

import pytest
import torch

import sandbox
from sandbox import studies, tasks
from sandbox.studies.arms import floor_sgd
from sandbox.studies.claims import CLAIMS, Better, Open, Same
from sandbox.studies.rates import COSINE, Rate, milestones
from sandbox.studies.study import TIERS, Arm, Part


def rates_of(rate, steps, warmup=0):
    """η_t/η of a run."""
    from sandbox import schedules

    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    schedule = rate.schedule(steps, warmup)
    scheduler = schedules.of_run(optimizer, steps, warmup, schedule)
    found = []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
    return found


def test_milestones_count_from_the_start_of_the_run():
    for warmup in (0, 3):
        found = rates_of(milestones(0.5, 0.75), 8, warmup)
        assert found[warmup:] == pytest.approx([1.0, 1.0, 1.0, 1.0, 0.1, 0.1, 0.01, 0.01][warmup:])


def test_exponential_falls_once_an_epoch():
    assert rates_of(Rate("exponential", factor=0.5, pieces=3), 6) == pytest.approx([1, 1, 0.5, 0.5, 0.25, 0.25])


def test_inverse_root_goes_on_from_the_warm_up():
    found = rates_of(Rate("inverse-sqrt"), 16, warmup=4)
    assert found[4:] == pytest.approx([math.sqrt(4 / max(t, 4)) for t in range(4, 16)])
    assert max(found) == pytest.approx(1)


def test_cosine_ends_near_zero():
    found = rates_of(COSINE, 10)
    assert found == pytest.approx([(1 + math.cos(math.pi * t / 10)) / 2 for t in range(10)])


def test_schedules_that_differ_have_different_names():
    made = [milestones(0.5).schedule(10, 0), milestones(0.5).schedule(10, 2), milestones(0.6).schedule(10, 0)]
    assert len({schedule.__qualname__ for schedule in made}) == 3


def test_an_arm_is_its_recipe():
    arm = Arm(name="mine", method="apollo", lr=0.2, weight_decay=0.1, clip=("parameter", 0.3), numbers={"rectifier.sigma": 0.5})
    recipe = arm.recipe()
    held = recipe.hyperparameters()
    assert (recipe.name, recipe.lr) == ("mine", 0.2)
    assert (held["gradient.0.max_norm"], held["gradient.1.weight_decay"], held["rectifier.sigma"]) == (0.3, 0.1, 0.5)
    assert [type(block).__name__ for block in recipe.gradient] == ["ClipParameterNorm", "L2Decay"]
    kinds = {
        m: type(arm.but(method=m, decay="decoupled", numbers={}).recipe().decay).__name__ for m in ("apollo", "adam", "sgd")
    }
    assert kinds == {"apollo": "Decoupled", "adam": "AdamWDecay", "sgd": "AdamWDecay"}
    with pytest.raises(ValueError, match="decay must be"):
        arm.but(decay="L2")
    with pytest.raises(ValueError, match="clip must be"):
        arm.but(clip=("norm", 1.0))


def test_where_everything_is_on_the_floor_sgd_w_is_apollo():
    # With |B| ≤ σ everywhere d = m/σ, and m = (1-β) times SGD's sum where it is not corrected for its start.  Here the floor is
    # far above any B, at the same η/σ.
    apollo = Arm(name="apollo", method="no-bias-correction", lr=0.01)
    sgd = floor_sgd(apollo).recipe()
    high = apollo.but(lr=1e4, numbers={"rectifier.sigma": 1e4}).recipe()
    ends = []
    for recipe in (sgd, high):
        p = torch.tensor([1.0, -2.0], dtype=torch.float64, requires_grad=True)
        optimizer = sandbox.Optimizer([p], recipe)
        for _ in range(50):
            optimizer.zero_grad()
            (0.5 * torch.tensor([0.3, 0.05], dtype=torch.float64) * p.square()).sum().backward()
            optimizer.step()
        ends.append(p.detach().clone())
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-9, atol=1e-12)  # roundings of 50 steps in float64


@pytest.mark.parametrize("study", studies.all_studies(), ids=lambda s: s.key)
def test_studies_are_well_formed(study):
    assert set(study.tiers) <= set(TIERS)
    assert {"smoke", "cpu"} <= set(study.tiers)
    assert studies.get(study.name) is studies.get(study.key) is study
    for tier in study.tiers:
        for part in study.parts(tier):
            assert part.task in tasks.names()
            for arm in part.arms:
                arm.recipe()
    assert study.note
    with pytest.raises(ValueError, match="tier must be one of"):
        study.parts("huge")


def test_what_there_is_not():
    with pytest.raises(ValueError, match="unknown study 'langage'; did you mean 'language'"):
        studies.get("langage")
    with pytest.raises(ValueError, match="F10 has no gpu tier"):
        studies.get("F10").parts("gpu")
    with pytest.raises(ValueError, match="two arms of one name"):
        Part(name="p", task="digits-mlp", arms=(Arm(name="a", method="sgd", lr=1.0),) * 2, seeds=1)
    with pytest.raises(ValueError, match="kind must be one of"):
        Rate("linear")


def test_there_are_41_claims_and_each_is_decided_by_arms_that_exist():
    assert [claim.number for claim in CLAIMS] == list(range(1, 42))
    for claim in CLAIMS:
        by = claim.by
        if isinstance(by, Open):
            assert by.why
            continue
        parts = {part.name: {arm.name for arm in part.arms} for part in studies.get(by.study).parts("cpu")}
        if isinstance(by, Same):
            assert all(set(by.arms) <= parts[name] for name in by.parts)
        else:
            assert isinstance(by, Better)
            assert {by.arm, *by.than} <= parts[by.part], claim
    stated = {number for study in studies.all_studies() for number in study.claims}
    assert {claim.number for claim in CLAIMS if not isinstance(claim.by, Open)} <= stated

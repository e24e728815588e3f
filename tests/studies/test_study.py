"""Studies as data: what they may hold, and what their arms and schedules mean."""

from __future__ import annotations

import math

import pytest
import torch

import sandbox
from sandbox import studies, tasks
from sandbox.studies.arms import floor_sgd
from sandbox.studies.extra import ContiguousLBFGS, SignedFloor
from sandbox.studies.rates import COSINE, RateSchedule, milestones
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
    assert rates_of(RateSchedule("exponential", factor=0.5, pieces=3), 6) == pytest.approx([1, 1, 0.5, 0.5, 0.25, 0.25])


def test_inverse_root_goes_on_from_the_warm_up():
    found = rates_of(RateSchedule("inverse-sqrt"), 16, warmup=4)
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
            assert part.task in tasks.names() or part.task == "sandbox.studies.extra:Parabola"
            for arm in part.arms:
                assert arm.build().name == arm.name
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
    with pytest.raises(ValueError, match="rate_of must be an arm with a search of its own, got 'b'"):
        Part(name="p", task="digits-mlp", arms=(Arm(name="a", method="sgd", lr=1.0, rate_of="b"),), seeds=1)
    with pytest.raises(ValueError, match="kind must be one of"):
        RateSchedule("linear")


def test_an_arm_may_be_an_optimizer_that_is_no_recipe():
    arm = Arm(name="mine", method="torch.optim:LBFGS", lr=0.5, numbers={"max_iter": 1, "history_size": 7})
    (optimizer,) = arm.build().make([{"params": [torch.zeros(2, requires_grad=True)]}], arm.lr, {"backend": "eager"})
    assert type(optimizer) is torch.optim.LBFGS
    assert (optimizer.defaults["lr"], optimizer.defaults["history_size"]) == (0.5, 7)
    with pytest.raises(ValueError, match="arm 'mine': decay and clipping are a recipe's"):
        arm.but(weight_decay=0.1)


def test_lbfgs_takes_channels_last_gradients_to_the_same_parameters():
    ends = []
    for kind in (torch.optim.LBFGS, ContiguousLBFGS):
        torch.manual_seed(0)
        p = torch.randn(2, 3, 2, 2, dtype=torch.float64)
        p = (p if kind is torch.optim.LBFGS else p.to(memory_format=torch.channels_last)).requires_grad_()
        optimizer = kind([p], lr=0.1, max_iter=1, history_size=4)
        for _ in range(12):

            def closure(p=p, optimizer=optimizer):
                optimizer.zero_grad()
                loss = (p.square() * torch.arange(1, 25, dtype=torch.float64).reshape(2, 3, 2, 2)).sum()
                loss.backward()
                return loss

            optimizer.step(closure)
        ends.append(p.detach().contiguous())
    assert torch.equal(*ends)


def test_the_parabola_is_what_it_says():
    task = tasks.get("sandbox.studies.extra:Parabola", size=5)
    params = task.init(0)
    first, second = (float(task.loss(params, x)) for x, _ in zip(task.batches(0), range(2), strict=False))
    assert (first, second) == (0.5, 2.0)  # ½ 1² and ½ 2²
    with pytest.raises(ValueError, match="size must be at least 1, got 0"):
        tasks.get("sandbox.studies.extra:Parabola", size=0)


def test_the_signed_floor_lets_negative_curvature_fall_on_it():
    B = torch.tensor([-3.0, -0.001, 0.001, 3.0])
    floor = SignedFloor(sigma=0.01)
    assert floor.read(B).tolist() == pytest.approx([0.01, 0.01, 0.01, 3.0])
    assert floor.on_floor(B).tolist() == [True, True, True, False]

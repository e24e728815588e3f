"""What a comparison makes of its runs: the chosen rate, summaries, divergence, schedules, occupancy of the floor."""

import math

import polars as pl
import pytest
import torch

import sandbox
import variants
from sandbox import tasks
from sandbox.experiments.compare import compare
from sandbox.experiments.reports.comparison_data import summarise
from sandbox.experiments.runs import training
from sandbox.experiments.runs.methods import RecipeMethod
from sandbox.experiments.runs.run import Run
from sandbox.experiments.selection.axes import Trial
from sandbox.experiments.selection.plan import plan as comparison_plan
from sandbox.experiments.selection.search import Chosen, Tuner
from sandbox.experiments.selection.tuning import choose
from sandbox.experiments.settings import ComparisonSettings
from tests.experiments.plans import SMALL


def settings(**changes):
    return Run(**{**dict(task="", method="", lr=0.01, seed=0, role="final", steps=10, at=(10,)), **changes})


@pytest.mark.usefixtures("drawn")
def test_divergence_is_an_outcome(tmp_path):
    """A rate grid far above what is stable: infinite losses, counted, in the table and the pictures, no crash."""
    wild = variants.get("sgd").replace(lr=1e4, name="wild")
    huge = variants.get("sgd").replace(lr=1e30, name="huge")
    result = compare(["sgd", wild, huge], "digits-mlp", out=tmp_path, **SMALL)
    calm, *others = result.summaries
    assert calm.diverged == 0
    for summary in others:
        assert summary.diverged == 2
        assert summary.train_loss == math.inf
        assert summary.test_metric == -math.inf
        assert summary.train_difference.mean is None
    assert "some infinite" in str(result)
    assert "2 of 2" in str(result)
    lost = result.runs.filter((pl.col("variant") == "huge") & (pl.col("step") > 0) & (pl.col("role") == "final"))
    assert set(lost["train_loss"]) == {math.inf}
    assert len(lost) == 2 * 4
    assert (tmp_path / "curves.png").exists()


def test_floor_occupancy_is_the_share_of_small_curvatures():
    params = [torch.zeros(4, requires_grad=True)]
    optimizer = sandbox.Optimizer(params, "apollo")
    assert sandbox.probes.floor_occupancy(optimizer) is None  # no step yet
    params[0].grad = torch.ones(4)
    optimizer.step()
    optimizer.state[params[0]]["curvature.B"].copy_(torch.tensor([0.0, 0.5, -0.5, 0.005]))
    assert sandbox.probes.floor_occupancy(optimizer) == 0.5
    plain = sandbox.Optimizer([torch.zeros(2, requires_grad=True)], "adam")
    assert sandbox.probes.floor_occupancy(plain) is None


def rows_of(plan, losses):
    """A results frame as `compare` makes it, from {(role, lr, seed): (train losses by step, validation loss, metric, diverged)}."""
    found = []
    for (role, lr, seed), (train, validation, metric, diverged) in losses.items():
        for step, loss in zip((0, plan.steps // 2, plan.steps), train, strict=True):
            last = step == plan.steps
            found.append(
                {
                    "run": f"{role} {lr} {seed}",
                    "variant": "adam",
                    "role": role,
                    "lr": lr,
                    "seed": seed,
                    "step": step,
                    "train_loss": loss,
                    "sample_loss": None,
                    "validation_loss": validation if last else 9.0,
                    "diverged": diverged,
                    "test_metric": metric if last else None,
                    "seconds_a_step": 0.001,
                    "floor_occupancy": None,
                    "gradients": float(step),
                    "state_words": 2.0,
                }
            )
    return pl.DataFrame(found)


def plan_of(task, **changes):
    options = dict(
        seeds=2,
        tuning_seeds=1,
        rates=3,
        tuner="grid",
        spacing=10.0,
        steps=10,
        warmup=0,
        evaluations=2,
        vectorised=False,
        every=1,
    )
    return comparison_plan(["adam"], task, ComparisonSettings(**{**options, **changes}))


def test_rates_are_chosen_on_validation_loss_and_edges_of_both_sides_flagged():
    plan = plan_of("quadratic")
    method = plan.methods[0]
    grid = plan.grid(method)

    def chosen(validation):
        tuner = Tuner(plan.axes(method), "grid", 3, 0)
        tuner.tell([Trial(n, (loss,)) for n, loss in zip(tuner.ask(), validation, strict=True)])
        found = choose(method, tuner)
        return found.numbers["lr"], found.on_edge, found.tuned

    assert chosen([0.3, 0.1, 0.2]) == (grid[1], False, True)
    assert chosen([0.1, 0.2, 0.3]) == (grid[0], True, True)
    assert chosen([0.3, 0.2, 0.1]) == (grid[2], True, True)
    assert chosen([0.2, 0.2, 0.2]) == (grid[1], False, True)  # of equal ones, the nearest to the default
    assert chosen([math.inf] * 3) == (grid[1], False, False)


def test_summaries_take_the_best_validation_and_the_final_training_loss():
    plan = plan_of("digits-mlp", rates=1)
    losses = {("final", 0.1, seed): ([1.0, 0.2, 0.4 + seed], 0.5, 0.9, False) for seed in (0, 1)}
    chosen = {"adam": Chosen({"lr": 0.1}, False, True, [])}
    summary = summarise(plan, plan.methods, rows_of(plan, losses), chosen)[0]
    assert (summary.best_loss, summary.train_loss) == (pytest.approx(0.5), pytest.approx(0.9))


def test_the_test_split_is_seen_once_a_final_run(monkeypatch):
    task, seen = tasks.get("quadratic"), []
    original = task.evaluate
    task.evaluate = lambda params, split: seen.append(split) or original(params, split)
    for role, count in (("tuning", 0), ("final", 1)):
        seen.clear()
        training.train(task, RecipeMethod(variants.get("adam")), settings(role=role, steps=10, at=(2, 4, 6, 8, 10)))
        assert seen.count("test") == count


def test_what_counts_as_diverged():
    """Finite, but far above the start: nine times the loss's size there, or nine."""

    class Climb(tasks.PureTask):
        name, about, convex, metric, higher_is_better, steps = "climb", "", True, "x", False, 10

        def __init__(self, start, slope):
            self.height, self.slope = start, slope

        def init(self, seed):
            return {"x": torch.tensor([0.0])}

        def batches(self, seed):
            while True:
                yield None

        def full(self, split):
            return None

        def loss(self, params, batch):
            # the gradient is -slope, so each step of SGD at rate 1 adds slope to x; the loss shown rises with x
            x = params["x"].sum()
            return self.height - self.slope * x if torch.is_grad_enabled() else self.height + x

        def score(self, params, batch):
            return params["x"].sum()

    sgd = variants.get("sgd").replace(**{"moment.momentum": 0.0}, name="sgd")
    for start, rise, diverged in (
        (0.0, 8.0, False),
        (0.0, 10.0, True),
        (-5.0, 40.0, False),
        (-5.0, 50.0, True),
        (2.0, 17.0, False),
        (2.0, 19.0, True),
    ):
        task = Climb(start, rise / 10)
        rows = training.train(task, RecipeMethod(sgd), settings(lr=1.0, steps=10, at=(5, 10)))
        assert rows[-1]["diverged"] == diverged, (start, rise)
        assert math.isinf(rows[-1]["train_loss"]) == diverged


def test_schedules_of_runs():
    """Rates after the warm-up: cosine reaches 0 at the last step; inverse-sqrt is 1/√k."""
    for name, expected in (("cosine", [1.0, 0.75, 0.25]), ("inverse-sqrt", [1.0, 2**-0.5, 3**-0.5]), ("constant", [1.0] * 3)):
        optimizer = sandbox.Optimizer([torch.ones(1, requires_grad=True)], "sgd", lr=1.0)
        schedule = sandbox.schedules.of_run(optimizer, 5, 2, name)
        rates = []
        for _ in range(5):
            rates.append(float(optimizer.param_groups[0]["lr"]))
            optimizer.step()
            if schedule is not None:
                schedule.step()
        assert rates == pytest.approx([0.001, 0.5005, *expected])


def test_floor_occupancy_of_moving_floors():
    """A floor that is a function of t is taken as it is now; a D that `monotone` holds up is not on the floor."""
    p = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    moving = variants.get("apollo").replace(**{"rectifier.sigma": lambda t: 0.01 * t**3})
    optimizer = sandbox.Optimizer([p], moving)
    for _ in range(2):
        p.grad = torch.ones(4, dtype=torch.float64)
        optimizer.step()
    optimizer.state[p]["curvature.B"].copy_(torch.tensor([0.005, 0.05, 0.07, 0.09]))
    assert sandbox.probes.floor_occupancy(optimizer) == 0.75  # σ = 0.08
    held = sandbox.Optimizer([p], "monotone")
    p.grad = torch.ones(4, dtype=torch.float64)
    held.step()
    held.state[p]["curvature.B"].zero_()
    held.state[p]["rectifier.D"].copy_(torch.tensor([0.01, 0.01, 0.5, 1.0]))
    assert sandbox.probes.floor_occupancy(held) == 0.5

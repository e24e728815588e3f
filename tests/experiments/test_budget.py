"""Equal budgets of steps, gradient evaluations or seconds."""

import polars as pl
import pytest
import torch

import sandbox
from sandbox.experiments.compare import compare
from sandbox.experiments.selection import costs

OPTIONS = dict(seeds=2, rates=1, steps=20, evaluations=2)


class Thrice(torch.optim.SGD):
    """Evaluates its closure three times per step, and counts."""

    calls = 0

    def step(self, closure):
        for _ in range(3):
            Thrice.calls += 1
            loss = closure()
        super().step()
        return loss


def test_two_gradients_per_step_halve_the_steps(tmp_path):
    """AdaHessian takes a product with the Hessian too (Yao et al. 2021); each variant's warm-up is a tenth of its own length."""
    thrice = sandbox.TorchOptimizer(Thrice, lr=0.01)
    Thrice.calls = 0
    result = compare(["sgd", "adahessian", thrice], "quadratic", budget="gradients", out=tmp_path, **OPTIONS)
    assert result.plan.lengths == {"sgd": 20, "adahessian": 10, "Thrice": 6}
    assert Thrice.calls == 3 * (costs.PILOT + OPTIONS["seeds"] * 6)
    ends = result.runs.group_by("variant").agg(pl.col("step").max(), pl.col("warmup").max(), pl.col("gradients").max())
    found = {name: tuple(row) for name, *row in ends.iter_rows()}
    assert found == {"sgd": (20, 2, 20), "adahessian": (10, 1, 20), "Thrice": (6, 0, 18)}
    assert "equal gradient evaluations: steps of adahessian 10, Thrice 6" in str(result)
    assert sandbox.load(tmp_path).plan.lengths == result.plan.lengths
    worst = float(result.runs["validation_metric"].max())
    table = result.to_target(worst)  # which every run meets at its start
    assert all(set(row.times) == {0.0} for row in table.rows)
    never = result.to_target(-1.0)
    assert [row.restricted_mean for row in never.rows] == [18.0] * 3  # gradients of the variant that ends first
    assert "median gradient evaluations" in str(never)


def test_accumulated_batches_are_one_gradient(tmp_path):
    """Each update of each variant sees two batches: steps are those without accumulation."""
    result = compare(
        ["sgd", sandbox.TorchOptimizer(Thrice, lr=0.01)], "quadratic", budget="gradients", accumulate=2, out=tmp_path, **OPTIONS
    )
    assert result.plan.lengths == {"sgd": 20, "Thrice": 6}


def test_seconds_are_measured_once_per_folder(tmp_path, monkeypatch):
    """Of made-up speeds; the second call takes them from the folder, so that its runs are the stored ones."""
    speeds, original, measured = {"sgd": 0.5, "adamw": 2.0, "adam": 0.25}, costs.train, []

    def train(task, method, run):
        measured.append(method.name)
        return [{**row, "seconds_a_step": speeds[method.name]} for row in original(task, method, run)]

    monkeypatch.setattr(costs, "train", train)
    first = compare(["sgd", "adamw", "adam"], "quadratic", budget="seconds", out=tmp_path, **OPTIONS)
    assert first.plan.lengths == {"sgd": 20, "adamw": 5, "adam": 40}
    assert measured == ["sgd", "adamw", "adam"]
    speeds["adamw"] = 1.0
    again = compare(["sgd", "adamw", "adam"], "quadratic", budget="seconds", out=tmp_path, **OPTIONS)
    assert len(measured) == 3
    assert again.runs.equals(first.runs)
    other = compare(["sgd", "adamw"], "quadratic", budget="seconds", threads=2, out=tmp_path, **OPTIONS)
    assert other.plan.lengths == {"sgd": 20, "adamw": 10}


def test_bad_input(tmp_path):
    with pytest.raises(ValueError, match="budget must be one of steps, gradients, seconds, got 'time'"):
        compare(["sgd"], "quadratic", budget="time", out=tmp_path, **OPTIONS)
    wild = sandbox.TorchOptimizer("torch.optim:SGD", lr=1e30)
    with pytest.raises(ValueError, match=r"budget='seconds': SGD diverges at its own rate 1e\+30"):
        compare([wild], "quadratic", budget="seconds", out=tmp_path, **OPTIONS)

"""What F15 measures of B: against a literal recursion on a quadratic."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
import torch

import variants
from sandbox import studies, tasks
from sandbox.studies.f15_estimates import estimates
from sandbox.studies.run import run
from sandbox.tasks.convex import Quadratic


class Quiet(Quadratic):
    """½ θᵀHθ with all of its data in `full`."""

    def full(self, split):
        return torch.zeros(len(self.H), dtype=self.dtype)


@pytest.mark.parametrize("corrected", [True, False])
def test_estimates_are_those_of_a_literal_recursion(corrected):
    task, lr, steps = Quiet(dtype=torch.float64, noise=0.0), 0.01, 40
    recipe = variants.get("apollo" if corrected else "no-stepsize-correction").replace(**{"moment.beta": 0.0}, lr=lr)
    h, theta = np.diag(task.H.numpy()), task.init(3)["theta"].numpy()
    B, d, g, sizes = np.zeros_like(h), np.zeros_like(h), np.zeros_like(h), []
    for _ in range(steps):
        new = h * theta
        if d.any():
            along = d @ (new - g) / (1 if corrected else lr)
            B = B - (along + d @ (B * d)) / ((d**4).sum() ** 0.25 + 1e-4) ** 4 * d**2
        g, d = new, new / np.maximum(np.abs(B), 0.01)
        theta = theta - lr * d
        sizes.append(np.abs(B).mean())
    found = estimates(recipe, task, 3, steps)
    B = B / (lr if corrected else 1)
    assert found["first_B"] == pytest.approx(np.mean(sizes[1:10]), rel=1e-9)
    assert found["last_B"] == pytest.approx(np.mean(sizes[-10:]), rel=1e-9)
    assert found["relative_error"] == pytest.approx(np.linalg.norm(np.abs(B) - h) / np.linalg.norm(h), rel=1e-9)
    assert found["variance"] == pytest.approx(0, abs=1e-20)  # every batch is the same


def test_the_variance_is_that_of_the_next_estimate_over_batches():
    """After ten updates on their batches, B takes its eleventh step from each of the twenty batches that follow."""
    task, lr = Quiet(dtype=torch.float64, noise=1.0), 0.01
    recipe = variants.get("apollo").replace(**{"moment.beta": 0.0}, lr=lr)
    h, theta, noise = np.diag(task.H.numpy()), task.init(0)["theta"].numpy(), task.batches(0)
    B, d, g = np.zeros_like(h), np.zeros_like(h), np.zeros_like(h)

    def following(new):
        return B - (d @ (new - g) + d @ (B * d)) / ((d**4).sum() ** 0.25 + 1e-4) ** 4 * d**2 if d.any() else B

    for _ in range(10):
        new = h * theta + next(noise).numpy()
        B = following(new)
        g, d = new, new / np.maximum(np.abs(B), 0.01)
        theta = theta - lr * d
    several = np.stack([following(h * theta + next(noise).numpy()) for _ in range(20)])
    expected = several.var(axis=0, ddof=1).sum() / (several.mean(axis=0) ** 2).sum()
    assert expected > 1e-6
    assert estimates(recipe, task, 0, 10)["variance"] == pytest.approx(expected, rel=1e-7)


def test_what_a_part_measures_stands_in_its_rows(tmp_path):
    study = studies.get("F15")
    rows = pl.read_parquet(run(study, "smoke", tmp_path))
    (part,) = study.parts("smoke")
    expected = estimates(part.arms[0].recipe(), tasks.get(part.task, **part.options), 0, 12)
    end = rows.filter((pl.col("arm") == "apollo") & (pl.col("step") == 12)).row(0, named=True)
    assert {name: end[name] for name in expected} == expected

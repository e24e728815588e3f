"""A whole grid in one vectorised run, against a loop of optimizers in the same process:  make bench

The loop is measured on LOOPED of its members, in turns with the vectorised run, and scaled: every member costs the same.
"""

import statistics
import time

import numpy as np
import pytest
import torch

import sandbox
from sandbox import ensemble, tasks

# task -> (rates, seeds, steps, threads of the vectorised run); the loop runs on one thread, its fastest
GRIDS = {
    "logistic-breast-cancer": (np.geomspace(1e-4, 1, 1024), 1, 100, 1),
    "digits-mlp": (np.geomspace(1e-3, 1e-1, 8), 32, 100, 2),
    "digits-cnn": (np.geomspace(1e-3, 1e-1, 8), 16, 100, 2),
    "lenet-fashion": (np.geomspace(1e-3, 1e-1, 4), 8, 60, 2),
}
LOOPED = 8


def alone(task, recipe, lr, steps):
    params = {name: p.clone().requires_grad_() for name, p in task.init(0).items()}
    optimizer, batches = sandbox.Optimizer(params.items(), recipe, lr=lr, nonfinite="pass"), task.batches(0)
    for _ in range(steps):
        optimizer.zero_grad()
        task.apply(task.loss, params, next(batches)).backward()
        optimizer.step()


@pytest.mark.parametrize("name", GRIDS)
def test_grid(name, benchmark, capsys):
    rates, seeds, steps, threads = GRIDS[name]
    task, members = tasks.get(name), len(rates) * seeds
    seconds = {"loop": [], "vectorised": [], "compiled": []}

    def grid(compiled):
        torch.set_num_threads(threads)
        return ensemble.run("apollo", task, lr=rates, seeds=seeds, steps=steps, compiled=compiled).seconds

    first = grid(True)

    def turn():
        torch.set_num_threads(1)
        start = time.perf_counter()
        for lr in rates[:LOOPED]:
            alone(task, "apollo", float(lr), steps)
        seconds["loop"].append((time.perf_counter() - start) / LOOPED * members)
        seconds["vectorised"].append(grid(False))
        seconds["compiled"].append(grid(True))

    benchmark.pedantic(turn, rounds=5)
    medians = {way: statistics.median(times) for way, times in seconds.items()}
    ratios = {way: medians["loop"] / medians[way] for way in ("vectorised", "compiled")}
    benchmark.extra_info["grid"] = {
        "task": name, "members": members, "steps": steps, "threads": threads, "seconds": medians, "times_faster": ratios,
        "compilation_s": first - medians["compiled"],
    }  # fmt: skip
    with capsys.disabled():
        said = ", ".join(f"{way} {seconds:.3g} s" for way, seconds in medians.items())
        print(
            f"\n\n{name}, {members} members × {steps} steps: {said}; {ratios['vectorised']:.3g} and {ratios['compiled']:.3g} "
            f"times faster than the loop; compilation {first - medians['compiled']:.1f} s"
        )

"""How much of the error of Apollo's B is noise between two batches: with y of one batch, and with y = Hs exactly.

    python notebooks/noise_in_pairs.py digits-mlp --seeds 8
    python notebooks/noise_in_pairs.py lenet-fashion --seeds 4 --rows 1000 --vectors 100

Each arm is Apollo at its own rate from the same starts on the same batches, and differs in where y comes from.  The truth is the
Hessian's diagonal on training rows by Hutchinson's estimator.  Printed: the error ‖|B/η| - |diag H|‖/‖diag H‖ and the correlation of
both, means over the seeds; and the share of the error that is gone against Apollo's own pairs, 1 - ratio of errors, with the
95 % interval of Student's t on the logarithm of the ratio, paired by seed.
"""

from __future__ import annotations

import argparse
import json

import numpy as np
import torch
from scipy import stats

import sandbox
import variants
from sandbox import curvature, tasks
from sandbox.blocks import Product, SameBatch
from sandbox.probes.measures import ALL
from sandbox.probes.view import View

APOLLO = variants.get("apollo")
ARMS = {"two batches": APOLLO, "one batch": APOLLO.replace(pairs=SameBatch()), "y = Hs": APOLLO.replace(pairs=Product())}
PROBES = ("relative_error", "correlation")


def run(task: tasks.Task, recipe: sandbox.Recipe, seed: int, at: list[int], rows: int, vectors: int) -> list[dict[str, float]]:
    """What the probes say of B at some steps of one run."""
    params = {name: p.detach().clone().requires_grad_() for name, p in task.init(seed).items()}
    optimizer = sandbox.Optimizer(params.items(), recipe, seed=seed)
    batches, some = task.batches(seed), tuple(x[:rows] for x in task.full("train"))

    def loss(p: dict[str, torch.Tensor], batch: object) -> torch.Tensor:
        return task.apply(task.loss, p, batch)

    found = []
    for step in range(1, at[-1] + 1):
        batch = next(batches)

        def closure(batch: object = batch) -> torch.Tensor:
            optimizer.zero_grad()
            value = loss(params, batch)
            if not recipe.analysis.second_order:
                value.backward()
            return value

        optimizer.step(closure)
        if step in at:
            here = {name: p.detach() for name, p in params.items()}
            truth = curvature.diagonal(loss, here, some, "hutchinson", num_vectors=vectors, seed=seed, progress=False).values
            h = torch.cat([truth[name].flatten() for name in params])
            B = torch.cat([optimizer.state[p]["curvature.B"].flatten() for p in params.values()])
            view = View.__new__(View)
            object.__setattr__(view, "estimate", B / optimizer.param_groups[0]["lr"])
            object.__setattr__(view, "truth", h)
            found.append({name: float(ALL[name](view)) for name in PROBES})
    return found


def main() -> None:
    """Runs all arms and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--steps", type=int, nargs="*", default=[40, 80, 160])
    parser.add_argument("--rows", type=int, default=10**9, help="training rows of the truth")
    parser.add_argument("--vectors", type=int, default=400, help="random vectors of the truth")
    parser.add_argument("--out", help="a JSON file for every number")
    parser.add_argument("--beta", type=float, default=0.9, help="of the moment; 0: no averaging of y")
    given = parser.parse_args()
    torch.set_num_threads(1)
    task = tasks.get(given.task)
    results: dict[str, list[list[dict[str, float]]]] = {name: [] for name in ARMS}
    for seed in range(given.seeds):
        for name, arm in ARMS.items():
            recipe = arm.replace(**{"moment.beta": given.beta})
            results[name].append(run(task, recipe, seed, given.steps, given.rows, given.vectors))
            print(seed, name, results[name][-1], flush=True)
        if given.out:
            with open(given.out, "w") as file:
                json.dump(results, file)
    for k, step in enumerate(given.steps):
        base = np.array([row[k]["relative_error"] for row in results["two batches"]])
        for name, rows in results.items():
            error = np.array([row[k]["relative_error"] for row in rows])
            r = np.mean([row[k]["correlation"] for row in rows])
            logs = np.log(error / base)
            half = stats.t.ppf(0.975, len(logs) - 1) * logs.std(ddof=1) / len(logs) ** 0.5
            low, mid, high = 1 - np.exp(np.array([logs.mean() + half, logs.mean(), logs.mean() - half]))
            gone = "" if name == "two batches" else f"{mid:7.1%} of it gone, {low:.1%} to {high:.1%}"
            print(f"step {step:4}  {name:12} error {error.mean():8.3g}  correlation {r:5.2f}  {gone}")


if __name__ == "__main__":
    main()

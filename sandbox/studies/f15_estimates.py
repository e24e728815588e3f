"""F15: Apollo's B itself, its size, its error and its variance over minibatches; the paper states these and measures none."""

from typing import Any

import torch

from sandbox import curvature
from sandbox.recipe import Recipe
from sandbox.studies.study import Arm, Part, Study

FIRST = 10  # updates that count as the first ones
BATCHES = 20  # by which a variance is taken
PROBES = 200  # random vectors of Hutchinson's unbiased estimate of diag H

_APOLLO = Arm(name="apollo", method="apollo", lr=0.01)
ARMS = (
    _APOLLO,
    _APOLLO.but(name="apollo β=0", numbers={"moment.beta": 0.0}),
    _APOLLO.but(name="no-stepsize-correction", method="no-stepsize-correction"),
)


def estimates(recipe: Recipe, task: Any, seed: int, steps: int) -> dict[str, float]:
    """Trains a recipe at its constant rate and returns what is to be said of its B.

    first_B, last_B: mean |B| over updates 2 to `FIRST`, and over the last `FIRST`.
    relative_error: ‖ |B̂| - |diag H| ‖ / ‖diag H‖ at the end, B̂ on the scale of H; diag H of the whole training
        split, by Hutchinson.
    variance: Σ_j Var B_j / Σ_j (E B_j)² of the next B, over `BATCHES` next minibatches from one state.
    """
    params, batches, gradient = dict(task.init(seed)), task.batches(seed), torch.func.grad(task.loss)
    state, sizes = recipe.init(params), []
    for _ in range(steps):
        state, params = recipe.update(state, params, gradient(params, next(batches)), lr=recipe.lr)
        sizes.append(float(_flat(state).abs().mean()))
    everything = task.full("train")
    H = curvature.diagonal(task.loss, params, everything, "hutchinson", num_vectors=PROBES, seed=seed, progress=False).values
    truth = torch.cat([H[name].flatten() for name in params]).double()
    B = _flat(state) / (recipe.lr if recipe.curvature.stepsize_correction else 1.0)  # type: ignore[attr-defined]
    following = torch.stack(
        [_flat(recipe.update(state, params, gradient(params, next(batches)), lr=recipe.lr)[0]) for _ in range(BATCHES)]
    )
    return {
        "first_B": sum(sizes[1:FIRST]) / (FIRST - 1),
        "last_B": sum(sizes[-FIRST:]) / FIRST,
        "relative_error": float((B.abs() - truth.abs()).norm() / truth.norm()),
        "variance": float(following.var(dim=0).sum() / following.mean(dim=0).square().sum()),
    }


def _flat(state: dict[str, dict[str, torch.Tensor]]) -> torch.Tensor:
    """Returns B of all tensors as one vector in float64."""
    return torch.cat([held["curvature.B"].flatten() for held in state.values()]).double()


def _parts(steps: int, seeds: int, **sizes: int) -> list[Part]:
    return [
        Part(
            name=name.replace("_", " "), task="digits-mlp", options={"batch_size": size}, arms=ARMS, seeds=seeds, steps=steps,
            evaluations=1, measure=estimates,
        )
        for name, size in sizes.items()
    ]  # fmt: skip


STUDY = Study(
    key="F15",
    name="estimates",
    question="How wrong is B with minibatches, how much does it vary over them, and is it too small at first?",
    note="Rates are given and constant, without warm-up, so that B, which estimates η H, is at one scale throughout.",
    tiers={"smoke": _parts(12, 1, batches_of_64=64), "cpu": _parts(100, 10, full_batches=1078, batches_of_64=64)},
)

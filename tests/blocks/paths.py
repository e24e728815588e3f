"""A run of the pure update on the noisy problem."""

import torch

from tests.problem import Problem


def run(recipe, steps, seed=0, lr=None, scale=1.0, noise=0.3, lr_of=None, watch=None):
    """Trajectory of the pure update on `Problem`, the loss multiplied by `scale`; lists of θ and final state."""
    problem = Problem(seed, noise=noise)
    theta = [torch.tensor(x) for x in problem.start]
    state = recipe.init(theta)
    path = []
    for step in range(steps):
        grads = [torch.tensor(scale * g) for g in problem.gradient(step, [x.numpy() for x in theta])]
        before = state, theta
        rate = lr if lr_of is None else lr_of(step)
        state, theta = recipe.update(state, theta, grads, lr=rate)
        if watch is not None:
            watch(before, (state, theta), grads)
        path.append(theta)
    return path, state

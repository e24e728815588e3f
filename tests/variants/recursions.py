"""A path of a recipe."""

import numpy as np
import torch

from tests.blocks import dense
from tests.problem import Problem


def curvature(problem, theta):
    """The diagonal of the Hessian at a flat θ."""
    parts = dense.shaped(theta, problem.start)
    return dense.flat([h + w * np.cos(x) for h, w, x in zip(problem.h, problem.w, parts, strict=True)])


def path(recipe, lr, steps):
    """Flat θ after each step of the pure update."""
    problem = Problem()
    params = [torch.tensor(x) for x in problem.start]
    state = recipe.init(params)
    for t in range(steps):
        grads = [torch.tensor(g) for g in problem.gradient(t, [p.numpy() for p in params])]
        given = {}
        if recipe.analysis.inputs:
            v = dense.flat([v.numpy() for v in recipe.product_vector(state, params)])
            Hv = curvature(problem, dense.flat([p.numpy() for p in params])) * v
            given["product"] = [torch.tensor(x) for x in dense.shaped(Hv, problem.start)]
        state, params = recipe.update(state, params, grads, lr=lr, **given)
        if recipe.analysis.second_gradient:
            grads = problem.gradient(t, [p.numpy() for p in params])
            state = recipe.with_second_gradient(state, [torch.tensor(g) for g in grads])
        yield dense.flat([p.numpy() for p in params])


class Literal:
    """θ ← θ - η direction(t, θ, g): what the methods have in common."""

    def __init__(self, memory=10):
        self.problem, self.theta = dense.problem_and_start()
        self.memory, self.pairs, self.last = memory, [], None

    def g(self, t, theta):
        return dense.gradient(self.problem, t - 1, theta)

    def step(self, t, lr):
        old = self.theta
        self.theta = old - lr * self.direction(t, old, self.g(t, old))
        self.last = old
        return self.theta

    def same_batch(self, t, theta):
        """s and y of the last step, on its batch."""
        return theta - self.last, self.g(t - 1, theta) - self.g(t - 1, self.last)

    def keep(self, s, y):
        self.pairs = [*self.pairs, (s, y)][-self.memory :]

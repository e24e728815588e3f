"""A task of every shape with a known run alone."""

import torch

import sandbox
from sandbox import tasks

SHAPES = {"a": (4, 3), "b": (5,), "c": (), "d": (2, 3, 2), "e": (3, 2, 2, 2), "f": (20, 4)}


class Bowl(tasks.PureTask):
    """Σ ½ h θ² + w (1 - cos θ) + ξᵀθ + .05 (Σθ)² over six tensors, in float64."""

    name, about, convex, metric, higher_is_better, steps = "bowl", "", False, "loss", False, 12
    dtype = torch.float64

    def __init__(self, shapes=None):
        draw, self.shapes = torch.Generator().manual_seed(0), shapes or SHAPES
        self.h = {n: 5 * torch.rand(s, generator=draw, dtype=torch.float64) + 0.1 for n, s in self.shapes.items()}
        self.w = {n: torch.randn(s, generator=draw, dtype=torch.float64) for n, s in self.shapes.items()}

    def _draw(self, seed, scale):
        draw = torch.Generator().manual_seed(seed)
        while True:
            yield {n: scale * torch.randn(s, generator=draw, dtype=torch.float64) for n, s in self.shapes.items()}

    def init(self, seed):
        return next(self._draw(seed, 1.0))

    def batches(self, seed):
        return self._draw(seed + 100, 0.3)

    def full(self, split):
        return {n: torch.zeros(s, dtype=torch.float64) for n, s in self.shapes.items()}

    def loss(self, params, batch):
        return sum(
            (0.5 * self.h[n] * p.square() + self.w[n] * (1 - p.cos()) + batch[n] * p).sum() + 0.05 * p.sum().square()
            for n, p in params.items()
        )

    score = loss


TASK = Bowl()


def alone(recipe, lr, seed, steps, watch=None, rates=None):
    """The run of one member by the optimizer: (parameters, loss at each step)."""
    params = {n: p.clone().requires_grad_() for n, p in TASK.init(seed).items()}
    optimizer = sandbox.Optimizer(params.items(), recipe, lr=lr, seed=seed, nonfinite="pass")
    optimizer.watch = watch
    batches, losses = TASK.batches(seed), []
    for step in range(steps):
        batch = next(batches)
        if rates is not None:
            optimizer.param_groups[0]["lr"] = rates[step]

        def closure(batch=batch):
            optimizer.zero_grad()
            loss = TASK.loss(params, batch)
            if not optimizer.param_groups[0]["recipe"].analysis.second_order:
                loss.backward()
            return loss

        losses.append(float(optimizer.step(closure).detach()))
    return {n: p.detach() for n, p in params.items()}, losses


def close(a, b):
    """Other kernels, 12 steps: 1e-10 relative, and absolute where entries pass through zero."""
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-11)

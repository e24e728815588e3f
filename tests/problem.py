"""Six tensors of different shapes and a smooth nonconvex function with noise, in NumPy and torch alike."""

from __future__ import annotations

import numpy as np
import torch

SHAPES = [(4, 3), (7,), (), (2, 3, 2), (3, 2, 3, 3), (1, 5)]


class Problem:
    """f_t(θ) = Σ ½ h θ² + w (1 - cos θ) + ξ_t θ: curvatures from 0.05 to 10, so that ηH passes any floor somewhere."""

    def __init__(self, seed: int = 0, noise: float = 0.3, shapes=SHAPES) -> None:
        rng = np.random.default_rng(seed)
        self.start = [rng.standard_normal(s) for s in shapes]
        self.h = [np.exp(rng.uniform(np.log(0.05), np.log(10), s)) for s in shapes]
        self.w = [rng.standard_normal(s) for s in shapes]
        self.noise, self.rng, self.shapes = noise, rng, shapes
        self.xi: list[list[np.ndarray]] = []

    def gradient(self, step: int, theta: list[np.ndarray]) -> list[np.ndarray]:
        """∇f at update `step`, counted from 0."""
        while len(self.xi) <= step:
            self.xi.append([self.noise * self.rng.standard_normal(s) for s in self.shapes])
        return [h * x + w * np.sin(x) + xi for h, x, w, xi in zip(self.h, theta, self.w, self.xi[step], strict=True)]

    def tensors(self, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
        return [torch.tensor(x, dtype=dtype, requires_grad=True) for x in self.start]

    def set_gradients(self, step: int, params: list[torch.Tensor]) -> None:
        for p, g in zip(params, self.gradient(step, [p.detach().double().numpy() for p in params]), strict=True):
            p.grad = torch.tensor(g, dtype=p.dtype)


def rate(lr: float, step: int) -> float:
    """The tests' schedule: η, and 0.3 η from step 30 on."""
    return lr if step < 30 else lr * 0.3

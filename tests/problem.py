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


MIXED = [(4, 3), (7,), (), (2, 3, 2, 2), (0, 2), (5, 4), (3,), (6, 2)]
STEPS = 24  # of most trajectories, 30 at most


class Torchs:
    """f_t(θ) = Σ ½ h θ² + w (1 - cos θ) + ξ_t θ in torch, with a tensor that is not contiguous and one that is empty."""

    def __init__(self, dtype, seed=0, shapes=MIXED):
        draw = torch.Generator().manual_seed(seed)
        self.h = [torch.rand(s, generator=draw, dtype=torch.float64).mul(5).exp().mul(0.05).to(dtype) for s in shapes]
        self.w = [torch.randn(s, generator=draw, dtype=torch.float64).to(dtype) for s in shapes]
        start = [torch.randn(s, generator=draw, dtype=torch.float64).to(dtype) for s in shapes]
        start[5] = start[5].t().contiguous().t() if len(start) > 5 else None
        self.params = [x.requires_grad_() for x in start if x is not None]
        self.xi = [[0.3 * torch.randn(s, generator=draw, dtype=torch.float64).to(dtype) for s in shapes] for _ in range(30)]

    def loss(self, step, params):
        """Some tensors have no gradient in some steps."""
        used = [i for i, p in enumerate(params) if not (i == 1 and 5 <= step < 9) and not (i == 3 and step == 14)]
        terms = zip(*([row[i] for i in used] for row in (params, self.h, self.w, self.xi[step])), strict=True)
        return sum((0.5 * h * p.square() + w * (1 - p.cos()) + xi * p).sum() for p, h, w, xi in terms)

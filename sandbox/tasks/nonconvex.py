"""Small networks on digits, and Rosenbrock's valley."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from sandbox.recipe import find_roles
from sandbox.recipe.find_roles import Role
from sandbox.tasks.base import DataTask, Params, PureTask, stream


class _Digits(DataTask):
    convex, metric, higher_is_better, steps = False, "accuracy", True, 400

    def __init__(self, dtype: torch.dtype = torch.float32, batch_size: int = 64) -> None:
        from sklearn.datasets import load_digits

        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        self.batch_size = batch_size
        data = load_digits()
        super().__init__(data.data, data.target, stratify=True, dtype=dtype)
        with torch.device("meta"):  # the form without numbers; draws nothing from torch's generator
            self.module = self.build().to(dtype)

    def build(self) -> nn.Module:
        """Returns the network, initialised by torch's global generator."""
        raise TypeError(f"{type(self).__name__} must define build")

    def init(self, seed: int) -> Params:
        """Returns torch's default initialisation of each layer."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(stream(seed, "init").integers(2**31)))
            module = self.build().to(self.dtype)
        return {name: p.detach() for name, p in module.named_parameters()}

    def _find_roles(self) -> dict[str, Role]:
        images = torch.empty(2, 64, dtype=self.dtype, device="meta")
        return find_roles.find(self.module, lambda module: module(images), given=self.roles)

    def predict(self, params: Params, X: Tensor) -> Tensor:
        """Returns logits."""
        return functional_call(self.module, params, (X,))

    def output(self, params: Params, batch: Any) -> Tensor:
        """Returns logits."""
        return self.predict(params, batch[0])

    def criterion(self, output: Tensor, batch: Any) -> Tensor:
        """Returns the mean cross-entropy."""
        return functional.cross_entropy(output, batch[1])

    def grade(self, output: Tensor, batch: Any) -> Tensor:
        """Returns the accuracy."""
        return (output.argmax(-1) == batch[1]).to(self.dtype).mean()


class DigitsMLP(_Digits):
    """A 64-64-10 network with ReLU on digits (1,797 images of 8×8)."""

    name, about = "digits-mlp", __doc__ or ""

    def build(self) -> nn.Module:
        """Linear, ReLU, linear."""
        return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


class DigitsCNN(_Digits):
    """A convolutional network (8 and 16 channels, 1,898 parameters) with tanh on digits."""

    name, about = "digits-cnn", __doc__ or ""

    def build(self) -> nn.Module:
        """Two convolutions with pooling, one linear layer."""
        return nn.Sequential(
            nn.Unflatten(1, (1, 8, 8)),
            nn.Conv2d(1, 8, 3, padding=1),
            nn.Tanh(),
            nn.AvgPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1),
            nn.Tanh(),
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.Linear(64, 10),
        )


class Rosenbrock(PureTask):
    """Σ 100 (θ_{i+1} - θ_i²)² + (1 - θ_i)² in 10 dimensions, from around (-1.2, 1, -1.2, 1, …)."""

    name, about, metric, higher_is_better, steps = "rosenbrock", __doc__ or "", "distance", False, 2000
    convex = False

    def __init__(self, dtype: torch.dtype = torch.float32, dimension: int = 10, noise: float = 0.0) -> None:
        if dimension < 2:
            raise ValueError(f"dimension must be at least 2, got {dimension}")
        if not 0 <= noise < float("inf"):
            raise ValueError(f"noise must be at least 0, got {noise}")
        self.dtype, self.dimension, self.noise = dtype, dimension, noise

    def init(self, seed: int) -> Params:
        """Returns (-1.2, 1, -1.2, 1, …) plus normal noise of deviation 0.1."""
        start = torch.tensor([-1.2, 1.0], dtype=self.dtype).repeat(self.dimension)[: self.dimension]
        shift = stream(seed, "init").standard_normal(self.dimension)
        return {"theta": start + 0.1 * torch.as_tensor(shift, dtype=self.dtype)}

    def batches(self, seed: int) -> Iterator[Tensor]:
        """Yields the noise of each gradient."""
        draw = stream(seed, "noise")
        while True:
            yield torch.as_tensor(self.noise * draw.standard_normal(self.dimension), dtype=self.dtype)

    def full(self, split: str) -> Tensor:
        """Returns no noise, whatever the split."""
        return torch.zeros(self.dimension, dtype=self.dtype)

    def loss(self, params: Params, batch: Tensor, /) -> Tensor:
        """Returns Rosenbrock's function plus ξᵀθ."""
        theta = params["theta"]
        valley = 100 * (theta[1:] - theta[:-1].square()).square() + (1 - theta[:-1]).square()
        return valley.sum() + batch @ theta

    def score(self, params: Params, batch: Tensor) -> Tensor:
        """Returns the distance to the minimiser (1, …, 1)."""
        return torch.linalg.vector_norm(params["theta"] - 1)

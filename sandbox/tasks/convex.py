"""Convex problems on real data, and quadratics with a given spectrum."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from sandbox.tasks.base import DataTask, Params, PureTask, stream


class _Linear(DataTask):
    """X w + b under a convex loss plus λ/2 ‖w‖²; zero start, so that seeds differ in the order of rows alone."""

    convex = True
    outputs: int
    l2: float

    def init(self, seed: int) -> Params:
        """Returns zeros."""
        features = self.splits["train"][0].shape[1]
        shape = (features, self.outputs) if self.outputs > 1 else (features,)
        return {"weight": torch.zeros(shape, dtype=self.dtype), "bias": torch.zeros(shape[1:], dtype=self.dtype)}

    def predict(self, params: Params, X: Tensor) -> Tensor:
        """Returns X w + b."""
        return X @ params["weight"] + params["bias"]

    def fit(self, output: Tensor, y: Tensor) -> Tensor:
        """Returns the mean loss of outputs."""
        raise TypeError(f"{type(self).__name__} must define fit")

    def output(self, params: Params, batch: Any) -> tuple[Tensor, Tensor]:
        """Returns the predictions and λ/2 ‖w‖²."""
        return self.predict(params, batch[0]), 0.5 * self.l2 * params["weight"].square().sum()

    def criterion(self, output: Any, batch: Any) -> Tensor:
        """Returns the mean loss of the batch plus λ/2 ‖w‖²."""
        prediction, penalty = output
        return self.fit(prediction, batch[1]) + penalty


class LogisticBreastCancer(_Linear):
    """Logistic regression, λ = 1e-3, on breast_cancer (569 rows of 30 features)."""

    name, about, metric, higher_is_better, steps = "logistic-breast-cancer", __doc__ or "", "accuracy", True, 500
    outputs, l2, batch_size = 1, 1e-3, 32

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        from sklearn.datasets import load_breast_cancer

        data = load_breast_cancer()
        super().__init__(data.data, data.target, stratify=True, dtype=dtype)

    def fit(self, output: Tensor, y: Tensor) -> Tensor:
        """Returns the mean logistic loss."""
        return functional.binary_cross_entropy_with_logits(output, y.to(output.dtype))

    def grade(self, output: Any, batch: Any) -> Tensor:
        """Returns the share of rows that are classified correctly."""
        return ((output[0] > 0) == (batch[1] > 0)).to(self.dtype).mean()


class SoftmaxDigits(_Linear):
    """Softmax regression, λ = 1e-3, on digits (1,797 images of 8×8, 10 classes)."""

    name, about, metric, higher_is_better, steps = "softmax-digits", __doc__ or "", "accuracy", True, 500
    outputs, l2, roles = 10, 1e-3, {"weight": "head"}

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        from sklearn.datasets import load_digits

        data = load_digits()
        super().__init__(data.data, data.target, stratify=True, dtype=dtype)

    def fit(self, output: Tensor, y: Tensor) -> Tensor:
        """Returns the mean cross-entropy."""
        return functional.cross_entropy(output, y)

    def grade(self, output: Any, batch: Any) -> Tensor:
        """Returns the accuracy."""
        return (output[0].argmax(-1) == batch[1]).to(self.dtype).mean()


class RidgeDiabetes(_Linear):
    """Ridge regression, λ = 1e-2, on diabetes (442 rows of 10 features), standardised target."""

    name, about, metric, higher_is_better, steps = "ridge-diabetes", __doc__ or "", "R²", True, 500
    outputs, l2, batch_size = 1, 1e-2, 32

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        from sklearn.datasets import load_diabetes

        data = load_diabetes()
        super().__init__(data.data, data.target, stratify=False, dtype=dtype)
        mean, deviation = self.splits["train"][1].mean(), self.splits["train"][1].std()
        self.splits = {name: (X, (y - mean) / deviation) for name, (X, y) in self.splits.items()}

    def fit(self, output: Tensor, y: Tensor) -> Tensor:
        """Returns half the mean squared error."""
        return 0.5 * (output - y).square().mean()

    def grade(self, output: Any, batch: Any) -> Tensor:
        """Returns the share of the variance explained."""
        y = batch[1]
        return 1 - (output[0] - y).square().mean() / (y - y.mean()).square().mean()


class Quadratic(PureTask):
    """½ θᵀHθ with a given spectrum, 20 curvatures from 0.01 to 10 by default, and gradient noise.

    spectrum: the eigenvalues of H, > 0.  rotated: turn the axes at random (seed 0 always); else H is diagonal.
    noise: standard deviation of each coordinate of the gradient's noise, ≥ 0.
    """

    name, about, metric, higher_is_better, steps = (
        "quadratic",
        "½ θᵀHθ with a given spectrum (20 curvatures from 0.01 to 10) and gradient noise.",
        "distance",
        False,
        500,
    )
    convex = True

    def __init__(
        self,
        dtype: torch.dtype = torch.float32,
        spectrum: Sequence[float] | None = None,
        rotated: bool = False,
        noise: float = 0.01,
    ) -> None:
        values = np.geomspace(0.01, 10.0, 20) if spectrum is None else np.asarray(spectrum, dtype=float)
        if values.ndim != 1 or not len(values) or not ((values > 0) & np.isfinite(values)).all():
            raise ValueError(f"spectrum must be a list of positive curvatures, got {spectrum!r}")
        if not 0 <= noise < np.inf:
            raise ValueError(f"noise must be at least 0, got {noise}")
        self.dtype, self.noise = dtype, noise
        H = np.diag(values)
        if rotated:
            Q = np.linalg.qr(np.random.default_rng(0).standard_normal(H.shape))[0]
            H = Q @ H @ Q.T
        self.H = torch.as_tensor(H, dtype=dtype)

    def init(self, seed: int) -> Params:
        """Returns standard normal parameters."""
        return {"theta": torch.as_tensor(stream(seed, "init").standard_normal(len(self.H)), dtype=self.dtype)}

    def batches(self, seed: int) -> Iterator[Tensor]:
        """Yields the noise of each gradient."""
        draw = stream(seed, "noise")
        while True:
            yield torch.as_tensor(self.noise * draw.standard_normal(len(self.H)), dtype=self.dtype)

    def full(self, split: str) -> Tensor:
        """Returns no noise, whatever the split."""
        return torch.zeros(len(self.H), dtype=self.dtype)

    def loss(self, params: Params, batch: Tensor, /) -> Tensor:
        """Returns ½ θᵀHθ + ξᵀθ."""
        theta = params["theta"]
        return 0.5 * theta @ (self.H @ theta) + batch @ theta

    def score(self, params: Params, batch: Tensor) -> Tensor:
        """Returns ‖θ‖₂, the distance to the minimiser."""
        return torch.linalg.vector_norm(params["theta"])

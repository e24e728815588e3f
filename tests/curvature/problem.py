"""A small network of five tensors of different shapes, one a scalar, one a kernel, and its dense Hessian by torch.autograd."""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

SHAPES = {"kernel": (2, 1, 2, 2), "scale": (), "hidden": (3, 8), "shift": (3,), "out": (3, 2)}
N = sum(int(np.prod(shape)) for shape in SHAPES.values())


def params(dtype: torch.dtype = torch.float64, seed: int = 0) -> dict[str, Tensor]:
    draw = np.random.default_rng(seed)
    return {name: torch.tensor(0.7 * draw.standard_normal(shape), dtype=dtype) for name, shape in SHAPES.items()}


def batch(rows: int = 6, dtype: torch.dtype = torch.float64, seed: int = 1) -> tuple[Tensor, Tensor]:
    draw = np.random.default_rng(seed)
    X = torch.tensor(draw.standard_normal((rows, 1, 3, 3)), dtype=dtype)
    return X, torch.tensor(draw.standard_normal((rows, 2)), dtype=dtype)


def loss(p: dict[str, Tensor], data: tuple[Tensor, Tensor]) -> Tensor:
    X, y = data
    h = torch.tanh(p["scale"] * functional.conv2d(X, p["kernel"])).flatten(1)
    return (torch.tanh(h @ p["hidden"].T + p["shift"]) @ p["out"] - y).square().mean()


def flat(tree: dict[str, Tensor]) -> np.ndarray:
    return np.concatenate([np.asarray(x, dtype=float).reshape(-1) for x in tree.values()])


def dense(loss, p: dict[str, Tensor], data) -> np.ndarray:
    """The whole Hessian by torch.autograd.functional.hessian, which takes one backward pass a row and no torch.func."""
    sizes = [x.numel() for x in p.values()]

    def of(theta: Tensor) -> Tensor:
        parts = theta.split(sizes)
        return loss({name: part.reshape(x.shape) for (name, x), part in zip(p.items(), parts, strict=True)}, data)

    return torch.autograd.functional.hessian(of, torch.cat([x.reshape(-1) for x in p.values()])).numpy()


def relative(found, exact):
    """Largest error over the largest entry."""
    return np.abs(found - exact).max() / np.abs(exact).max()

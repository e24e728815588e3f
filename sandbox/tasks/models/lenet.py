"""The convolutional network of PyTorch's first image tutorial, after LeCun et al. 1989."""

from __future__ import annotations

from torch import nn


class LeNet(nn.Sequential):
    """Two 5×5 convolutions with ReLU and 2×2 max-pooling, then linear layers of 120, 84 and `classes`.

    Input (n, channels, side, side), side ≥ 16; output (n, classes).  62,006 parameters for (3, 32), 44,426 for (1, 28).
    """

    def __init__(self, channels: int = 1, side: int = 28, classes: int = 10) -> None:
        if side < 16:
            raise ValueError(f"side must be at least 16, got {side}")
        left = ((side - 4) // 2 - 4) // 2
        super().__init__(
            nn.Conv2d(channels, 6, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(16 * left**2, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Linear(84, classes),
        )

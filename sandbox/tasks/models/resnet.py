"""Residual networks for small images (He et al. 2016, section 4.2), with 1×1 projections where the width changes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional


def convolution(inputs: int, outputs: int, size: int, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    """A convolution without bias that keeps the side (divided by `stride`), weights from N(0, 2/(size² outputs))."""
    layer = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, groups=groups, bias=False)
    nn.init.normal_(layer.weight, std=math.sqrt(2 / (size**2 * outputs)))
    return layer


class Block(nn.Module):
    """Two 3×3 convolutions with batch normalisation beside an identity, or a 1×1 projection where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = convolution(inputs, outputs, 3, stride), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = convolution(outputs, outputs, 3), nn.BatchNorm2d(outputs)
        self.shortcut = (
            nn.Identity()
            if inputs == outputs and stride == 1
            else nn.Sequential(convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))
        )

    def forward(self, x: Tensor) -> Tensor:
        """(n, inputs, h, w) -> (n, outputs, h/stride, w/stride)."""
        out = functional.relu(self.bn1(self.conv1(x)))
        return functional.relu(self.bn2(self.conv2(out)) + self.shortcut(x))


class ResNet(nn.Module):
    """6n + 2 layers: a 3×3 convolution, three stages of n blocks, the later two at half the side each, a mean, a linear layer.

    Input (n, channels, side, side); output (n, classes).  Depth 110 on three channels: 1,730,714 parameters in 335 tensors.
    """

    def __init__(self, depth: int, channels: int = 3, widths: Sequence[int] = (16, 32, 64), classes: int = 10) -> None:
        super().__init__()
        if depth < 8 or depth % 6 != 2:
            raise ValueError(f"depth must be 6n + 2 with n ≥ 1 (8, 14, 20, …), got {depth}")
        if len(widths) != 3:
            raise ValueError(f"widths must be three numbers of channels, got {widths!r}")
        self.conv, self.bn = convolution(channels, widths[0], 3), nn.BatchNorm2d(widths[0])
        blocks: list[nn.Module] = []
        inputs = widths[0]
        for stage, outputs in enumerate(widths):
            for k in range((depth - 2) // 6):
                blocks.append(Block(inputs, outputs, stride=2 if stage and not k else 1))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.linear = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        x = functional.relu(self.bn(self.conv(x)))
        return self.linear(self.blocks(x).mean(dim=(2, 3)))

"""ResNeXt-50 with 32 groups of width 4 (Xie et al. 2017), for images of 224×224."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from sandbox.tasks.models.resnet import convolution

GROUPS, STAGES = 32, ((128, 256, 3), (256, 512, 4), (512, 1024, 6), (1024, 2048, 3))  # (inner width, outer width, blocks)


class Bottleneck(nn.Module):
    """1×1, grouped 3×3 and 1×1 convolutions with batch normalisation beside an identity or a 1×1 projection."""

    def __init__(self, inputs: int, inner: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            convolution(inputs, inner, 1),
            nn.BatchNorm2d(inner),
            nn.ReLU(),
            convolution(inner, inner, 3, stride, GROUPS),
            nn.BatchNorm2d(inner),
            nn.ReLU(),
            convolution(inner, outputs, 1),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = (
            nn.Identity()
            if inputs == outputs
            else nn.Sequential(convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))
        )

    def forward(self, x: Tensor) -> Tensor:
        """(n, inputs, h, w) -> (n, outputs, h/stride, w/stride)."""
        return functional.relu(self.layers(x) + self.shortcut(x))


class ResNeXt50(nn.Module):
    """A 7×7 convolution, max-pooling, four stages of 3, 4, 6 and 3 bottlenecks, a mean, a linear layer: 25,028,904 parameters.

    Input (n, 3, 224, 224); output (n, classes).
    """

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Sequential(convolution(3, 64, 7, 2), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1))
        blocks, inputs = [], 64
        for stage, (inner, outputs, count) in enumerate(STAGES):
            for k in range(count):
                blocks.append(Bottleneck(inputs, inner, outputs, stride=2 if stage and not k else 1))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.linear = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.linear(self.blocks(self.stem(x)).mean(dim=(2, 3)))

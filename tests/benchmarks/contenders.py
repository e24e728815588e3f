"""What is measured, and on which shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import sandbox


def resnet110() -> list[tuple[int, ...]]:
    """ResNet-110 for CIFAR-10: 335 tensors, 1.73 M entries."""
    shapes: list[tuple[int, ...]] = [(16, 3, 3, 3), (16,), (16,)]
    before = 16
    for channels in (16, 32, 64):
        for _ in range(18):
            shapes += [(channels, before, 3, 3), (channels,), (channels,), (channels, channels, 3, 3), (channels,), (channels,)]
            before = channels
    shapes += [(32, 16, 1, 1), (32,), (32,), (64, 32, 1, 1), (64,), (64,)]
    return [*shapes, (10, 64), (10,)]


def transformer() -> list[tuple[int, ...]]:
    """Six layers, width 512, feed-forward 2048, vocabulary 8000: 73 tensors, 23.0 M entries."""
    layer = [(1536, 512), (1536,), (512, 512), (512,), (2048, 512), (2048,), (512, 2048), *[(512,)] * 5]
    return [(8000, 512), *layer * 6]


SHAPES: dict[str, list[tuple[int, ...]]] = {
    "resnet110": resnet110(),
    "transformer": transformer(),
    "one-16M": [(4096, 4096)],
    "2000-of-100": [(100,)] * 2000,
}


class PlainApollo(torch.optim.Optimizer):
    """Apollo (paper, Algorithm 1) as one writes it first: a loop over tensors, m, B and d kept; the published style."""

    def __init__(self, params: Any, lr: float = 0.01, beta: float = 0.9, eps: float = 1e-4, sigma: float = 0.01) -> None:
        super().__init__(params, {"lr": lr, "beta": beta, "eps": eps, "sigma": sigma})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state.update(step=0, m=torch.zeros_like(p), B=torch.zeros_like(p), d=torch.zeros_like(p))
                m, B, d = state["m"], state["B"], state["d"]
                state["step"] += 1
                a = (1 - group["beta"]) / (1 - group["beta"] ** state["step"])
                y = (p.grad - m) * a
                m.add_(y)
                norm = d.norm(p=4).add(group["eps"])
                d.div_(norm)
                square = d * d
                alpha = -(y.div_(norm).mul_(d).sum() + B.mul(square).sum())
                B.addcmul_(square, alpha)
                d.copy_(m / B.abs().clamp_(min=group["sigma"]))
                p.add_(d, alpha=-group["lr"])


Make = Callable[[list[torch.Tensor]], torch.optim.Optimizer]


def ours(recipe: str | sandbox.Recipe, **options: Any) -> Make:
    """Our optimizer without the check for NaN, which torch's have not either."""
    return lambda params: sandbox.Optimizer(params, recipe, nonfinite="pass", **options)


class CompiledStep:
    """torch.compile on the step of a torch optimizer."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.run = torch.compile(optimizer.step)

    def step(self) -> None:
        """The compiled step."""
        self.run()


def contenders(shape: str) -> dict[str, Make]:
    """Name -> how to make it.  torch.compile of AdamW.step is left out where tensors are 2,000: it compiles for each."""
    o = torch.optim
    made: dict[str, Make] = {"torch AdamW fused": lambda p: o.AdamW(p, fused=True)}
    for recipe in ("apollo", "scale-invariant", "apollow", "adamw"):
        made[f"{recipe} compiled"] = ours(recipe, backend="compiled")
        made[f"{recipe} compiled flat"] = ours(recipe, backend="compiled", flat=True)
        made[f"{recipe} scripted"] = ours(recipe, backend="scripted")
        made[f"{recipe} eager"] = ours(recipe)
        made[f"{recipe} reference"] = ours(recipe, backend="reference")
    made["apollo compiled, state bfloat16"] = ours("apollo", backend="compiled", state_dtype=torch.bfloat16)
    made["apollo eager, state bfloat16"] = ours("apollo", state_dtype=torch.bfloat16)
    made["apollo compiled, checked"] = lambda p: sandbox.Optimizer(p, "apollo", backend="compiled")
    made["plain Apollo (a loop)"] = PlainApollo
    made["torch AdamW foreach"] = lambda p: o.AdamW(p, foreach=True)
    made["torch SGD momentum"] = lambda p: o.SGD(p, lr=0.01, momentum=0.9)
    if shape != "2000-of-100":
        made["torch AdamW.step compiled"] = lambda p: CompiledStep(o.AdamW(p))  # type: ignore[assignment,return-value]
    return made | _installed(shape)


def _installed(shape: str) -> dict[str, Make]:
    """Peers from the index, where `make bench` has installed them."""
    found: dict[str, Make] = {}
    try:
        from pytorch_optimizer import ApolloDQN

        found["pytorch_optimizer ApolloDQN"] = lambda p: ApolloDQN(p, lr=0.01)
    except ImportError:
        pass
    try:
        import heavyball

        if shape != "2000-of-100":
            found["heavyball AdamW"] = lambda p: heavyball.AdamW(p, lr=0.001)
    except ImportError:
        pass
    return found


def parameters(
    shape: str | list[tuple[int, ...]], device: str = "cpu", dtype: torch.dtype = torch.float32
) -> list[torch.Tensor]:
    """Parameters with gradients."""
    torch.manual_seed(0)
    sizes = SHAPES[shape] if isinstance(shape, str) else shape
    params = [(0.1 * torch.randn(s, device=device)).to(dtype).requires_grad_() for s in sizes]
    for p in params:
        p.grad = 0.01 * torch.randn_like(p)
    return params

"""The leaves of a cohort, each of which a kernel runs on: a large tensor where it is, or small ones together in an arena."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sandbox.backends.tracing import layout

BoundKernel = Callable[[list[Tensor]], Any]  # makes a step on one leaf, from the inputs of its graph

# From this size on, a call of its own costs less than copying gradient and step (a GPU copies faster and waits longer).
LARGE = {"cpu": 2**17, "cuda": 2**22}


@dataclasses.dataclass
class Large:
    """A tensor that is a leaf of its own.  Its views are made once, since each would cost a microsecond or two per step."""

    index: int
    kind: str
    p: Tensor
    grad: torch.dtype
    states: list[Tensor]  # in the layout `kind`, views of the optimizer's
    numbers: Tensor
    norm: list[Tensor]
    places: list[Tensor]  # of `layout.counter`, where states are rounded
    kernel: BoundKernel
    copied: bool  # whether θ may lie otherwise than in rows, and goes through a copy

    def __post_init__(self) -> None:
        self.theta_as = self.p.dtype, self.p.device
        self.locate()

    def locate(self) -> None:
        """Looks up where θ lies now."""
        self.address = self.p.data_ptr()
        self.theta = layout.flatten(self.kind, self.p.detach().contiguous())

    def fits(self, g: Tensor) -> bool:
        """Whether parameter and gradient are still what the graph was made for."""
        return (
            (self.p.dtype, self.p.device) == self.theta_as
            and g.dtype == self.grad
            and g.shape == self.p.shape
            and (self.copied or self.p.is_contiguous())
        )

    def step(self, g: Tensor, given: list[Tensor]) -> None:
        """Makes the step whose numbers have been loaded."""
        self.kernel(self.inputs(g, given))
        if self.copied and not self.p.is_contiguous():
            self.p.copy_(self.theta.view(self.p.shape))

    def inputs(self, g: Tensor, given: list[Tensor]) -> list[Tensor]:
        """Returns the inputs of the graph."""
        if self.copied or self.p.data_ptr() != self.address:
            self.locate()
        extra = [*self.norm, *(layout.flatten(self.kind, v.contiguous()) for v in given), *self.places]
        return [self.numbers, self.theta, layout.flatten(self.kind, g.contiguous()), *extra, *self.states]


@dataclasses.dataclass
class Small:
    """Tensors of one dtype and device in one arena."""

    indices: list[int]
    rows: list[Tensor]
    theta: Tensor  # θ, or the step
    theta_views: list[Tensor]
    addresses: list[int]  # of theta_views
    g: Tensor
    g_views: list[Tensor]
    inputs: dict[str, tuple[Tensor, list[Tensor]]]  # buffer and views
    states: list[Tensor]
    numbers: Tensor
    norm: list[Tensor]
    places: list[Tensor]  # of `layout.counter`, where states are rounded
    kernel: BoundKernel
    steps_only: bool
    params: list[Tensor]


def make_views(small: Small) -> None:
    """Makes parameters contiguous views of the arena's buffer, with the values that they have now.

    Raises ValueError where a parameter has got another dtype or device since: it is not cast back.
    """
    for p, view in zip(small.params, small.theta_views, strict=True):
        if (p.dtype, p.device) != (view.dtype, view.device):
            raise ValueError(
                f"flat=True: a parameter was {view.dtype} on {view.device} and is {p.dtype} on {p.device} now; "
                "make a new optimizer and load the old one's state_dict"
            )
    for p, view in zip(small.params, small.theta_views, strict=True):
        view.copy_(p.detach())
        p.data = view

"""Pairs (s, y): a step and the change of the gradient along it, from which secant equations H s = y are made."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from sandbox.blocks.base import Flow, block
from sandbox.blocks.slots import Pairs


@block
class Successive(Pairs):
    """s = -η d, the last step;  y = m_t - m_{t-1}   (Apollo; with EMA(beta=0) gradients of successive batches are compared)"""

    successive = True

    def step(self, x: Flow, **state: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """The change of the moment's average, where it keeps one."""
        # y = m_t - m_{t-1}
        return (None, None if x.m is None or x.m_old is None else x.m - x.m_old), state

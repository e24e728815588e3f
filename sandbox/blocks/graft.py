"""A solver around another: its direction, as long as that of a method whose rates are known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sandbox.blocks.base import ELEMENT, Flow, block
from sandbox.blocks.number import Number, number
from sandbox.blocks.slots import Solve
from sandbox.blocks.solve import Divide
from sandbox.blocks.wrapper import Wrapper
from sandbox.utils import suggest

METHODS = ("sgd", "adagrad", "rmsprop")


@block
class Graft(Wrapper, Solve):
    """p ← p ‖q‖/‖p‖, q the step of SGD, Adagrad or RMSprop, over each tensor   (Agarwal et al. 2020, grafting).

    inner: the solver whose direction is taken.  method: whose length: "sgd" q = m, "adagrad" q = m/(√Σg² + ε), "rmsprop"
    q = m/(√v + ε) with v = β v + (1-β) g², all in the coordinates of the parameters.
    beta: β in [0, 1).  eps: ε > 0, in units of the gradient.
    """

    inner: Solve = Divide()
    method: str = "sgd"
    beta: Number = number(default=0.99, range="[0, 1)")
    eps: Number = number(default=1e-8, range="(0, inf)")
    recalls = False
    own_latex = r"p_t \leftarrow p_t\, \lVert q_t \rVert / \lVert p_t \rVert"

    @property
    def own_state(self) -> Mapping[str, str]:
        """v of the method."""
        return {} if self.method == "sgd" else {"v": ELEMENT}

    @property
    def text(self) -> str:
        """The equation around the inner one."""
        q = {"sgd": "m", "adagrad": "m/(√Σg² + ε)", "rmsprop": "m/(√v + ε), v = β v + (1-β) g²"}[self.method]
        return f"{self.inner.text};  p = p ‖q‖/‖p‖, q = {q}"

    def check(self) -> None:
        """A known method, and another solver inside."""
        if self.method not in METHODS:
            raise ValueError(f"Graft: {suggest.unknown('method', str(self.method), METHODS)}")
        super().check()

    def initial(self, name: str) -> Any:
        """v = 0, and the inner solver's."""
        return 0.0 if name in self.own_state else super().initial(name)

    def step(self, x: Flow, **state: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """The inner direction at the method's length, and both states."""
        v = state.pop("v", None)
        p, new = self.inner_step(x, **state)
        q, g = x.outside["u"], x.outside["g"]
        if v is not None:
            # v ← v + g², or β v + (1-β) g²
            v = v + g.square() if self.method == "adagrad" else self.beta * v + (1 - self.beta) * g.square()
            q, new = q / (v.sqrt() + self.eps), {**new, "v": v}
        # p ← p ‖q‖/‖p‖, 0 where p = 0
        length, wanted = (x.tensor.sum(w.square()).sqrt() for w in (p, q))
        ratio = torch.where(length > 0, wanted / torch.where(length > 0, length, 1.0), 0.0)
        return p * x.tensor.spread(ratio), new

"""A solver round another: its direction, as long as that of a method whose rates are known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sandbox import suggest
from sandbox.blocks.base import ELEMENT, Flow, block
from sandbox.blocks.number import Number, number
from sandbox.blocks.slots import Solve
from sandbox.blocks.solve import Divide

METHODS = ("sgd", "adagrad", "rmsprop")


@block
class Graft(Solve):
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
    latex = r"p_t \leftarrow p_t\, \lVert q_t \rVert / \lVert p_t \rVert"

    def check(self) -> None:
        """A known method, and another solver inside."""
        if self.method not in METHODS:
            raise ValueError(f"Graft: {suggest.unknown('method', str(self.method), METHODS)}")
        if not isinstance(self.inner, Solve) or isinstance(self.inner, Graft) or "v" in self.inner.state:
            raise TypeError(f"Graft: inner must be a solver other than Graft that keeps no state named v, got {self.inner}")

    @property
    def matrix(self) -> bool:
        """As the inner solver."""
        return self.inner.matrix

    @property
    def needs(self) -> tuple[str, ...]:
        """What the inner solver needs."""
        return self.inner.needs

    @property
    def state(self) -> Mapping[str, str]:
        """The inner solver's, and v of the method."""
        return {**self.inner.state, **({} if self.method == "sgd" else {"v": ELEMENT})}

    @property
    def text(self) -> str:
        """The equation round the inner one."""
        q = {"sgd": "m", "adagrad": "m/(√Σg² + ε)", "rmsprop": "m/(√v + ε), v = β v + (1-β) g²"}[self.method]
        return f"{self.inner.text};  p = p ‖q‖/‖p‖, q = {q}"

    def initial(self, name: str) -> Any:
        """The inner solver's, and v = 0."""
        return 0.0 if name == "v" else self.inner.initial(name)

    def coefficients(self, t: Any) -> dict[str, Any]:
        """The inner solver's."""
        return self.inner.coefficients(t)

    def step(self, x: Flow, **state: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """The inner direction at the method's length, and both states."""
        v = state.pop("v", None)
        p, new = self.inner.step(x, **state)
        q, g = x.outside["u"], x.outside["g"]
        if v is not None:
            # v ← v + g², or β v + (1-β) g²
            v = v + g.square() if self.method == "adagrad" else self.beta * v + (1 - self.beta) * g.square()
            q, new = q / (v.sqrt() + self.eps), {**new, "v": v}
        # p ← p ‖q‖/‖p‖, 0 where p = 0
        length, wanted = (x.tensor.sum(w.square()).sqrt() for w in (p, q))
        ratio = torch.where(length > 0, wanted / torch.where(length > 0, length, 1.0), 0.0)
        return p * x.tensor.spread(ratio), new

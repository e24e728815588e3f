"""Divisions by a second moment elsewhere than in D: of the gradient before its average (ADOPT), of a direction that was made
orthogonal (NorMuon, AdaMuon)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sandbox.blocks.base import ELEMENT, ROWS, Flow, block
from sandbox.blocks.number import Number, number
from sandbox.blocks.orthogonal import Orthogonalize
from sandbox.blocks.scope import sides
from sandbox.blocks.slots import Gradient, Solve
from sandbox.blocks.wrapper import Wrapper


@block
class PastNormalized(Gradient):
    """g ← clip(g/max(√v, ε), ±(t-1)^(1/4)), then v = β v + (1-β) g²; 0 and v = g² at t = 1   (Taniguchi et al. 2024, ADOPT)

    The v that divides a gradient does not contain it.  beta: β in [0, 1).  eps: ε > 0, in units of the gradient.
    """

    beta: Number = number(default=0.9999, range="[0, 1)")
    eps: Number = number(default=1e-6, range="(0, inf)")
    state = {"v": ELEMENT}
    latex = (
        r"g_t \leftarrow \mathrm{clip}(g_t/\max(\sqrt{v_{t-1}}, \epsilon), \pm(t-1)^{1/4}),"
        r"\quad v_t = \beta v_{t-1} + (1-\beta) g_t^2"
    )

    def coefficients(self, t: Any) -> dict[str, Any]:
        """(t-1)^(1/4)."""
        return {"clip": (t - 1) ** 0.25}

    def step(self, x: Flow, *, v: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """The gradient in units of its past, and v."""
        g = x.value
        # u = clip(g/max(√v, ε), ±(t-1)^(1/4))
        u = g / v.sqrt().clamp(min=self.eps)
        u = torch.minimum(torch.maximum(u, -x.c.clip * torch.ones_like(u)), x.c.clip * torch.ones_like(u))
        # v = β v + (1-β) g²
        return torch.where(x.t > 1, u, 0.0), {
            "v": torch.where(x.t > 1, self.beta * v + (1 - self.beta) * g.square(), g.square())
        }


@block
class NeuronNormalized(Wrapper, Solve):
    """p ← p/(√r + ε), as long as before; r = β r + (1-β) ⟨p²⟩ per row   (Li et al. 2025, NorMuon)

    inner: the solver whose direction is taken.  beta: β in [0, 1).  eps: ε > 0.
    """

    inner: Solve = Orthogonalize()
    beta: Number = number(default=0.95, range="[0, 1)")
    eps: Number = number(default=1e-10, range="(0, inf)")
    matrix = True
    recalls = False
    own_state = {"r": ROWS}
    own_latex = (
        r"p_t \leftarrow p_t/(\sqrt{r_t} + \epsilon) \text{ at the same norm},"
        r"\quad r_t = \beta r_{t-1} + (1-\beta)\langle p_t^2 \rangle"
    )

    @property
    def text(self) -> str:
        """The equation around the inner one."""
        return f"{self.inner.text};  r = β r + (1-β) ⟨p²⟩ per row,  p ← p/(√r + ε) at the same norm"

    def initial(self, name: str) -> Any:
        """r = 0, and the inner solver's."""
        return 0.0 if name == "r" else super().initial(name)

    def step(self, x: Flow, **state: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """The direction with rows of like size, and r."""
        r = state.pop("r")
        p, new = self.inner_step(x, **state)
        # r = β r + (1-β) ⟨p²⟩
        r = self.beta * r + (1 - self.beta) * p.square().mean(1, keepdim=True)
        # q = p/(√r + ε);  p ← q ‖p‖/(‖q‖ + ε)
        q = p / (r.sqrt() + self.eps)
        return q * (p.square().sum().sqrt() / (q.square().sum().sqrt() + self.eps)), {"r": r, **new}


@block
class ElementNormalized(Wrapper, Solve):
    """p ← p/(√v̂ + ε), then RMS(p) = c; v = β v + (1-β) p²   (Si et al. 2025, AdaMuon)

    inner: the solver whose direction is taken.  beta: β in [0, 1).  eps: ε > 0.  rms: c > 0, of the step at η = 1.
    """

    inner: Solve = Orthogonalize()
    beta: Number = number(default=0.999, range="[0, 1)")
    eps: Number = number(default=1e-8, range="(0, inf)")
    rms: Number = number(default=0.2, range="(0, inf)")
    matrix = True
    recalls = False
    own_state = {"v": ELEMENT}
    own_latex = r"p_t \leftarrow p_t/(\sqrt{\hat v_t} + \epsilon) \text{ at RMS } c,\quad v_t = \beta v_{t-1} + (1-\beta) p_t^2"

    @property
    def text(self) -> str:
        """The equation around the inner one."""
        return f"{self.inner.text};  v = β v + (1-β) p²,  p ← p/(√v̂ + ε) at RMS c"

    def initial(self, name: str) -> Any:
        """v = 0, and the inner solver's."""
        return 0.0 if name == "v" else super().initial(name)

    def coefficients(self, t: Any) -> dict[str, Any]:
        """1/(1-β^t), and the inner solver's."""
        return {"unbias": 1 / (1 - self.beta**t), **super().coefficients(t)}

    def step(self, x: Flow, **state: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """The direction in units of its own root mean square, and v."""
        v = state.pop("v")
        p, new = self.inner_step(x, **state)
        # v = β v + (1-β) p²
        v = self.beta * v + (1 - self.beta) * p.square()
        # q = p/(√v̂ + ε);  p ← c √(mn) q/(‖q‖ + ε)
        q = p / ((v * x.c.unbias).sqrt() + self.eps)
        m, n = sides(p)
        return q * (self.rms * (m * n).sqrt() / (q.square().sum().sqrt() + self.eps)), {"v": v, **new}

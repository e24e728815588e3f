"""Hessian-free optimisation (Martens 2010): Newton's step by conjugate gradients, with a damping that follows how
well the model fits; and saddle-free Newton (Dauphin et al. 2014) in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from sandbox.blocks.number import Interval
from sandbox.closure_optimizers.krylov import conjugate_gradients, lanczos
from sandbox.closure_optimizers.one_vector import OneVector
from sandbox.curvature import hessian
from sandbox.utils import generators


class HessianFree(OneVector):
    """θ ← θ + η p,  p = argmin gᵀp + ½pᵀ(A + λI)p by conjugate gradients.

    A is the Gauss-Newton matrix where the closure returns (loss, outputs), loss a function of outputs alone; the Hessian where
    it returns the loss.  λ ← 1.5 λ where ρ = (f(θ+p) - f(θ))/q(p) < ¼, and λ/1.5 where ρ > ¾.  η is halved until
    f(θ + ηp) ≤ f(θ) + 0.01 η gᵀp, at most 30 times; then θ stays and λ grows.

    params: tensors that need gradients, in one group.  lr: the first η tried.  damping: λ ≥ 0 at first, in units of curvature.
    iterations: of conjugate gradients (or Lanczos) per step, at most.  tolerance: see `krylov.conjugate_gradients`.
    memory: share of the last p from which conjugate gradients start, in [0, 1).
    saddle_free: p = -V (|T| + λ)⁻¹ Vᵀg in the Krylov space V of H and g, T = VᵀHV: of negative curvature the size counts.

    The closure is called with the random state of its first call in the step each time, so f is one function.  A step costs a
    gradient, a product for each iteration, and one or more losses.  Vectors held: p, θ, g and those of conjugate gradients, 7
    (with Lanczos as many as iterations).
    State: "step", "damping" and "p" of the first parameter, so checkpoints hold everything.
    Raises ValueError for several groups and numbers out of range, RuntimeError for a closure whose loss has no graph.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1.0,
        *,
        damping: float = 1.0,
        iterations: int = 50,
        tolerance: float = 5e-4,
        memory: float = 0.95,
        saddle_free: bool = False,
    ) -> None:
        ranges = {"lr": (lr, "(0, inf)"), "damping": (damping, "[0, inf)"), "tolerance": (tolerance, "[0, inf)")}
        for name, (value, text) in {**ranges, "memory": (memory, "[0, 1)"), "iterations": (iterations, "[1, inf)")}.items():
            if isinstance(value, bool) or value not in Interval(text):
                raise ValueError(f"HessianFree: {name} must lie in {text}, got {value!r}")
        numbers = {"iterations": int(iterations), "tolerance": tolerance, "memory": memory, "saddle_free": bool(saddle_free)}
        super().__init__(params, {"lr": lr, **numbers})
        size = sum(p.numel() for p in self._params)
        first = self._params[0]
        self.state[first] = {"step": torch.zeros(()), "damping": first.new_tensor(float(damping)), "p": first.new_zeros(size)}

    @property
    def damping(self) -> float:
        """λ."""
        return float(self.state[self._params[0]]["damping"])

    @torch.no_grad()
    def step(self, closure: Callable[[], Any]) -> Tensor:  # type: ignore[override]
        """Makes one step; returns the loss before it."""
        group, state, mark = self.param_groups[0], self.state[self._params[0]], generators.states()
        with torch.enable_grad():
            result = closure()
        after = generators.states()
        loss, outputs = result if isinstance(result, tuple) else (result, None)
        grads = hessian.gradients(loss, self._params)
        g = self._flat([None if v is None else v.detach() for v in grads])
        if outputs is None:
            product = lambda v: self._flat(hessian.product(grads, self._params, self._apart(v), keep=True))  # noqa: E731
        else:
            product = _gauss_newton(loss, outputs, self._params, self._apart, self._flat)
        if not bool(g.isfinite().all()):
            raise FloatingPointError("NaN or infinity in the gradient; nothing was changed")
        for p, v in zip(self._params, self._apart(g), strict=True):
            p.grad = v.clone()
        direction, q = self._direction(product, g, group, state)
        f, theta = float(loss.detach()), [p.clone() for p in self._params]

        def value(eta: float) -> float:
            """Returns f(θ + η p)."""
            for p, x, v in zip(self._params, theta, self._apart(direction), strict=True):
                p.copy_(x + eta * v)
            generators.put(mark)
            again = closure()
            return float((again[0] if isinstance(again, tuple) else again).detach())

        full = value(1.0)
        # ρ = (f(θ+p) - f(θ)) / q(p)
        rho = (full - f) / q if q < 0 else -1.0
        eta, slope, tried = float(group["lr"]), float(g @ direction), 0
        new = full if eta == 1 else value(eta)
        while not new <= f + 0.01 * eta * slope and tried < 30:
            eta, tried = eta / 2, tried + 1
            new = value(eta)
        if not new <= f + 0.01 * eta * slope:
            for p, x in zip(self._params, theta, strict=True):
                p.copy_(x)
            direction = torch.zeros_like(direction)
        factor = 1.5 if not rho >= 0.25 else 1 / 1.5 if rho > 0.75 else 1.0
        state["damping"].mul_(factor)
        state["p"].copy_(direction)
        state["step"].add_(1)
        generators.put(after)
        return loss.detach()

    def _direction(self, product: Any, g: Tensor, group: dict[str, Any], state: dict[str, Any]) -> tuple[Tensor, float]:
        """Returns p and q(p)."""
        damping = float(state["damping"])
        if not bool(g.any()):
            return torch.zeros_like(g), 0.0
        if not group["saddle_free"]:
            return conjugate_gradients(
                lambda v: product(v) + damping * v, g, group["memory"] * state["p"], group["iterations"], group["tolerance"]
            )
        V, T = lanczos(product, g, group["iterations"])
        values, vectors = torch.linalg.eigh(T)
        # p = -V (|T| + λ)⁻¹ Vᵀg;  directions without any curvature are left out
        sizes = values.abs() + damping
        c = vectors.T @ (V.T @ g)
        c = torch.where(sizes > 1e-12 * sizes.amax(), c / sizes.clamp(min=1e-300), 0.0)
        p = -(V @ (vectors @ c))
        return p, float(g @ p + 0.5 * (sizes * c.square()).sum())


def _gauss_newton(loss: Tensor, outputs: Tensor, params: list[Tensor], apart: Any, flat: Any) -> Callable[[Tensor], Tensor]:
    """Returns v -> JᵀLJv, J the outputs' Jacobian, L the loss's Hessian in the outputs (Schraudolph 2002)."""
    with torch.enable_grad():
        slope = torch.autograd.grad(loss, outputs, create_graph=True)[0]
        w = torch.zeros_like(outputs, requires_grad=True)
        # Jᵀw, linear in w: its derivative along v is Jv
        back = torch.autograd.grad(outputs, params, w, create_graph=True, allow_unused=True, materialize_grads=True)

    def product(v: Tensor) -> Tensor:
        Jv = torch.autograd.grad(back, w, apart(v), retain_graph=True)[0]
        LJv = torch.autograd.grad(slope, outputs, Jv, retain_graph=True, materialize_grads=True)[0]
        return flat(list(torch.autograd.grad(outputs, params, LJv, retain_graph=True, allow_unused=True)))

    return product

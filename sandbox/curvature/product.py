"""Computes H v for H = ∇²L(θ), the gradient's derivative along v, for many v at a time.

    forward over reverse    H v = d/dε ∇L(θ + ε v) at ε = 0: one tangent through the gradient's program (torch.func.jvp)
    reverse over reverse    H v = ∇(vᵀ∇L(θ)): a second backward pass (torch.autograd.grad)

The second serves operations without forward-mode derivatives, functions that torch.func does not take, and those whose forward
mode is not symmetric.
Source: Pearlmutter, "Fast exact multiplication by the Hessian", Neural Computation 6(1), 1994.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, jvp, vmap

from sandbox.curvature import checks
from sandbox.curvature.hessian import rademacher
from sandbox.curvature.mean_loss import Loss, MeanLoss
from sandbox.utils import generators, interrupts, suggest

MODES = ("forward-over-reverse", "reverse-over-reverse", "reverse-over-reverse, one by one")


class Hessian:
    """The Hessian of a loss at a point, an n×n symmetric matrix known by its products.

    loss: (model, batch) -> 0-d tensor, a function of these alone.
    model: a module, float32 or float64, in the mode (train or eval) that it is in; or any tree of tensors that the loss takes
        in its place.  parameters: those of the module to differentiate in, by default all that require a gradient.
    batch: one batch, or a list of batches whose losses are averaged by size; a list of tensors, [X, y], is one batch.
    mode: one of MODES; default the first that computes products of a symmetric matrix at this point.
    Vectors are rows of n numbers, the tree's tensors one after the other, each in row-major order.
    Raises what MeanLoss raises; ValueError for an unknown mode or products that are not finite; RuntimeError, with every
    mode's reason, where none works.
    """

    def __init__(
        self,
        loss: Loss,
        model: Any,
        batch: Any,
        *,
        parameters: Iterable[Tensor] | None = None,
        mode: str | None = None,
    ) -> None:
        if mode is not None and mode not in MODES:
            raise ValueError(suggest.unknown("mode", mode, MODES))
        f = self.function = MeanLoss(loss, model, batch, parameters)
        self.shape, self.dtype, self.device = (f.n, f.n), f.dtype, f.device
        self.mode = self._choose(MODES if mode is None else (mode,))

    def _choose(self, modes: Sequence[str]) -> str:
        draws = torch.Generator().manual_seed(0)
        u, v = (rademacher(torch.empty(self.function.n, dtype=self.dtype, device=self.device), draws) for _ in range(2))
        reasons: dict[str, str] = {}  # reason -> the first mode that has it
        for mode in modes:
            self.mode = mode
            try:
                self.function.check_graph()
                products = self.rows(torch.stack([u, v, u + v]))
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:  # also NotImplementedError
                reasons.setdefault(str(error).strip().splitlines()[0], mode)
                continue
            if not torch.isfinite(products).all():
                raise ValueError(
                    "loss must be twice differentiable at params: its Hessian-vector products are not finite there"
                )
            if (asymmetry := checks.asymmetry(u, v, list(products))) is None:
                return mode
            reasons.setdefault(asymmetry, mode)
        raise RuntimeError(
            f"this loss has no Hessian-vector products here ({checks.HINT}): "
            + "; ".join(f"{mode}: {reason}" for reason, mode in reasons.items())
        )

    def product(self, v: Any) -> Any:
        """Returns H v, for a tree v as params.  Raises ValueError where v is of another form."""
        return self.function.unflatten(self.rows(self.function.flatten(v, "v")[None])[0])

    def rows(self, V: Tensor) -> Tensor:
        """Returns H v for each row v of V: [k, n] -> [k, n]."""
        products = self._apply(list(range(len(self.function.leaves))), self.function.split(V))
        return torch.cat([x.reshape(len(V), size) for x, size in zip(products, self.function.sizes, strict=True)], -1)

    def block(self, i: int, V: Tensor) -> Tensor:
        """Returns H_ii v for each row v of V, H_ii the diagonal block of the i-th tensor of size n_i: [k, n_i] -> [k, n_i]."""
        return self._apply([i], [V.reshape(V.shape[:1] + self.function.leaves[i].shape)])[0].reshape(V.shape)

    def dense(self) -> Tensor:
        """Returns H, [n, n], for small n."""
        return self.rows(torch.eye(self.function.n, dtype=self.dtype, device=self.device))

    def scipy(self) -> Any:
        """Returns H as a scipy.sparse.linalg.LinearOperator on NumPy vectors [n] and matrices [n, k]; symmetric."""
        from scipy.sparse.linalg import LinearOperator

        def columns(V: Any) -> Any:
            rows = torch.as_tensor(V.reshape(self.function.n, -1)).to(self.device, self.dtype).T
            return self.rows(rows).T.cpu().numpy().reshape(V.shape)

        kind = torch.empty(0, dtype=self.dtype).numpy().dtype
        return LinearOperator(self.shape, matvec=columns, rmatvec=columns, matmat=columns, rmatmat=columns, dtype=kind)

    @interrupts.postponed()
    def _apply(self, which: list[int], V: list[Tensor]) -> list[Tensor]:
        """Multiplies by the block of H that the tensors `which` share: [k, *shape] per tensor -> the same."""
        total = [torch.zeros_like(v) for v in V]
        one = _forward_over_reverse if self.mode == MODES[0] else _reverse_over_reverse
        for weight, batch in self.function.batches:

            def restricted(*moved: Tensor, batch: Any = batch) -> Tensor:
                leaves = list(self.function.leaves)
                for i, x in zip(which, moved, strict=True):
                    leaves[i] = x
                return self.function.at(leaves, batch)

            forward = self.mode == MODES[0]  # torch.func then keeps its own account; a graph around it would only take memory
            with torch.set_grad_enabled(not forward), generators.restored():
                products = one(restricted, [self.function.leaves[i] for i in which], V, self.mode != MODES[2])
            for t, x in zip(total, products, strict=True):
                t.add_(x, alpha=weight)
        return total


def _forward_over_reverse(f: Any, theta: list[Tensor], V: list[Tensor], batched: bool) -> Sequence[Tensor]:
    gradient = grad(f, argnums=tuple(range(len(theta))))
    return vmap(lambda *v: jvp(gradient, tuple(theta), v)[1])(*V)


def _reverse_over_reverse(f: Any, theta: list[Tensor], V: list[Tensor], batched: bool) -> Sequence[Tensor]:
    theta = [x.detach().requires_grad_() for x in theta]
    value = f(*theta)
    if not value.requires_grad:
        return [torch.zeros_like(v) for v in V]
    g = torch.autograd.grad(value, theta, create_graph=True, allow_unused=True)
    # where ∇L does not depend on θ at all, that part of vᵀ∇L adds nothing
    curved = [i for i, x in enumerate(g) if x is not None and x.requires_grad]
    if not curved:
        return [torch.zeros_like(v) for v in V]

    def second(v: list[Tensor], is_grads_batched: bool) -> Sequence[Tensor]:
        return torch.autograd.grad(
            [g[i] for i in curved],
            theta,
            v,
            retain_graph=True,
            materialize_grads=True,
            is_grads_batched=is_grads_batched,
        )

    if batched:
        return second([V[i] for i in curved], True)
    rows = [second([V[i][r] for i in curved], False) for r in range(len(V[0]))]
    return [torch.stack(column) for column in zip(*rows, strict=True)]


def product(loss: Loss, model: Any, batch: Any, v: Any, *, parameters: Iterable[Tensor] | None = None) -> Any:
    """Returns H v, a tree of the parameters, for such a tree v; H is the Hessian of the (mean) loss.

    loss, model, batch, parameters: as for `Hessian`.
    Raises ValueError or TypeError for what `Hessian` does not take.  For many products keep a `Hessian`: it checks once.
    """
    return Hessian(loss, model, batch, parameters=parameters).product(v)

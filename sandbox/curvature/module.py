"""An nn.Module in the form loss(params, batch)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import Tensor, nn
from torch.func import functional_call

from sandbox.curvature.mean_loss import Loss


def of_module(
    model: nn.Module, criterion: Callable[[Tensor, Tensor], Tensor], parameters: Iterable[Tensor] | None = None
) -> tuple[Loss, dict[str, Tensor]]:
    """(loss, params) with loss(params, (X, y)) = criterion(model(X), y) and params by name, sharing the model's memory.

    parameters: those that the curvature is taken in, an optimizer's for example; default all that require a gradient.
    The rest of the model is held as it is.

        loss, params = curvature.of_module(model, cross_entropy, [p for g in optimizer.param_groups for p in g["params"]])
        curvature.diagonal(loss, params, (X, y))

    Raises ValueError where `parameters` has one that is not the model's.
    """
    own = dict(model.named_parameters())
    wanted = {id(p) for p in (own.values() if parameters is None else parameters) if parameters is not None or p.requires_grad}
    params = {name: p.detach() for name, p in own.items() if id(p) in wanted}
    if len(params) != len(wanted):
        raise ValueError(f"parameters must be the model's own, got {len(wanted) - len(params)} that it does not have")

    def loss(params: dict[str, Tensor], batch: tuple[Tensor, Tensor]) -> Tensor:
        X, y = batch
        return criterion(functional_call(model, params, (X,)), y)

    return loss, params

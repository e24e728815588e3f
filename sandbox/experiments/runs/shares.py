"""A run made by several ranks as replicas: each sees its share of every batch, and all make the same step.

With ranks r = 1 … R, rows n_r of a batch in the share of rank r and n in all,

    ∇f = Σ_r (n_r/n) ∇f_r

which holds where the loss of a batch is the mean over its rows; `check` verifies it on a first batch.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from sandbox.distributed import replicas
from sandbox.tasks import Task
from sandbox.tasks.streams import Generators
from sandbox.utils import suggest
from sandbox.utils.private_torch import pytree

TOLERANCE = 1e-3  # of ∇f, relative; a sum of shares differs by its rounding from the whole, 1e-6 in float32


class Shares:
    """This rank's part in a run; without a group, the whole run."""

    def __init__(self, task: Task, group: ProcessGroup | None) -> None:
        self.task, self.group = task, group
        self.rank, self.size = (0, 1) if group is None else (dist.get_rank(group), dist.get_world_size(group))

    def share(self, batch: Any) -> tuple[Any, float]:
        """Returns this rank's share of a batch, and its weight w_r = R n_r/n in the mean over the ranks."""
        if self.group is None:
            return batch, 1.0
        mine, part = cut(self.task, batch, self.size)[self.rank]
        return mine, self.size * part

    def average(self, params: list[Tensor], loss: Tensor) -> Tensor:
        """Averages the gradients over the ranks in place; returns the mean of the loss."""
        if self.group is None:
            return loss
        *grads, total = replicas.average([*(p.grad for p in params), loss], [*params, loss], self.group)
        for p, g in zip(params, grads, strict=True):
            p.grad = g
        assert total is not None
        return total

    def any(self, flag: bool) -> bool:
        """Whether the flag is true on one of the ranks."""
        if self.group is None:
            return flag
        return bool(self.average([], torch.tensor(float(flag))) > 0)


def cut(task: Task, batch: Any, size: int) -> list[tuple[Any, float]]:
    """Returns the shares of a batch along the leading index, each with n_r/n.  Raises ValueError where one would be empty."""
    leaves, spec = pytree.tree_flatten(batch)
    parts = [x.tensor_split(size) if isinstance(x, Tensor) and x.ndim else (x,) * size for x in leaves]
    shares = [pytree.tree_unflatten([part[r] for part in parts], spec) for r in range(size)]
    rows, whole = [float(task.rows(share)) for share in shares], float(task.rows(batch))
    if min(rows) <= 0 or abs(sum(rows) - whole) > 1e-6 * whole:
        raise ValueError(f"a batch of {whole:g} rows is cut into {', '.join(f'{n:g}' for n in rows)}")
    return [(share, n / whole) for share, n in zip(shares, rows, strict=True)]


def check(task: Task, size: int) -> None:
    """Raises ValueError where `size` ranks would not make the steps that one process makes."""
    whole, unchanged = _gradient(task, 1)
    if not unchanged:
        raise ValueError(
            f"ranks={size}: a step of task {task.name!r} changes its network's buffers, on each rank in another way"
        )
    try:
        shared, _ = _gradient(task, size)
    except Exception as error:
        raise ValueError(f"ranks={size}: task {task.name!r} cannot be shared out: {suggest.short(error)}") from error
    if bool(torch.linalg.vector_norm(whole - shared) > TOLERANCE * torch.linalg.vector_norm(whole)):
        raise ValueError(
            f"ranks={size}: the gradient of task {task.name!r} on a batch is not the mean of those on its shares: its network "
            "looks at whole batches (batch norm) or draws random numbers (dropout), or its loss is no mean over rows"
        )


def _gradient(task: Task, size: int) -> tuple[Tensor, bool]:
    """Returns ∇f of a first batch, from `size` shares, and whether that left all buffers unchanged."""
    model = task.start(0)
    batch = next(task.stream(0, model))
    params = [p for group in task.groups(model) for p in _tensors(group["params"])]
    buffers = dict(model.named_buffers()) if isinstance(model, torch.nn.Module) else {}
    before = copy.deepcopy(buffers)
    total = torch.zeros(sum(p.numel() for p in params), dtype=torch.float64)
    for share, weight in cut(task, batch, size):
        with Generators(0, "noise"), torch.enable_grad():
            loss = task.loss(model, share)
            grads = torch.autograd.grad(loss, params, allow_unused=True)
            flat = [torch.zeros_like(p) if g is None else g for p, g in zip(params, grads, strict=True)]
            total += weight * torch.cat([g.reshape(-1).to(torch.float64) for g in flat])
    after = dict(model.named_buffers()) if isinstance(model, torch.nn.Module) else {}
    return total, all(torch.equal(before[name], value) for name, value in after.items())


def _tensors(params: Iterable[Any]) -> Iterable[Tensor]:
    return (p for each in params if (p := each[1] if isinstance(each, tuple) else each).requires_grad)

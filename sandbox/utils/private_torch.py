"""Private names of torch that every part of the package may need; they are taken from torch here and nowhere else.

Three subsystems have such a file of their own: `sandbox.backends.inductor.private` for the compiler,
`sandbox.distributed.private` for DTensors and process groups, and `sandbox.optimizer.torch_base` for torch.optim.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["TorchDispatchMode", "copy_each", "is_concrete", "norm_each", "pytree", "schema", "storages", "subtract_each"]
__all__ += ["storage_id", "version", "without_overrides"]

without_overrides: Any = torch._C.DisableTorchFunction  # a context in which torch's functions ignore __torch_function__
# one call for many tensors
copy_each, subtract_each, norm_each = torch._foreach_copy_, torch._foreach_sub_, torch._foreach_norm


def is_concrete(value: Tensor) -> bool:
    """Whether a tensor holds numbers that can be read, so that it is neither being traced nor a batch of vmap."""
    traced = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None
    plain = type(value) in (Tensor, torch.nn.Parameter) and not torch._C._functorch.is_functorch_wrapped_tensor(value)
    return plain and not traced


def schema(operator: Any) -> Any:
    """Returns the schema of an operator of `torch.ops`, None for any other function."""
    return getattr(operator, "_schema", None)


def version(tensor: Tensor) -> int:
    """Returns how often torch has written to the memory of a tensor."""
    return tensor._version


def storage_id(tensor: Tensor) -> int:
    """Returns a number that is equal for tensors that share memory."""
    return tensor.untyped_storage()._cdata


def storages(tree: Any) -> dict[int, Any]:
    """Returns the storages of the tensors in a tree, by `storage_id`; the symbolic zeros of forward mode have none."""
    tensors = [x for x in pytree.tree_leaves(tree) if isinstance(x, Tensor) and not x._is_zerotensor()]
    return {storage_id(x): x.untyped_storage() for x in tensors if torch._C._has_storage(x)}

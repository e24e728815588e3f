"""Finds the role of each parameter of a model: by the module that holds it, and by running for the output layer.

    for name, found in sandbox.roles(model, batch).items():
        print(name, found.role, found.why)

What no rule covers is "other" and never guessed.  The output layer ("head") is the last linear or convolutional layer whose
result reaches an output of the model past no other such layer; without a batch it is what the model itself says
(get_output_embeddings of transformers), or the last nn.Linear in the order of registration, and `why` says so.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sandbox.recipe.roles import ROLES
from sandbox.utils import suggest
from sandbox.utils.frame import untouched
from sandbox.utils.private_torch import pytree

_NORMS = (
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
)
_CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_RECURRENT = (nn.RNNBase, nn.RNNCellBase)
_WRAPPERS = re.compile(r"^(_orig_mod\.|module\.)+")  # torch.compile's and DistributedDataParallel's
_TELLING = re.compile(r"(^|[._])(head|lm_head|fc|classifier|logits|output|out|decoder|score)$")

Found = tuple[str, str]  # role, why


@dataclasses.dataclass(frozen=True)
class Role:
    """What a parameter does.  why: how that was found.  tied: its other names in the model.  certain: False for a head that was
    only taken to be one, since the model was not run."""

    role: str
    why: str
    tied: tuple[str, ...] = ()
    certain: bool = True

    def __str__(self) -> str:
        return f"{self.role} ({self.why}{''.join(f'; tied: {name}' for name in self.tied)})"


def roles(
    model: nn.Module, batch: Any = None, *, given: Mapping[str, str | Role] | None = None, head: str | None = None
) -> dict[str, Role]:
    """Returns name -> `Role` of every parameter of a model, the names as in model.named_parameters().

    batch: arguments of the model (a tuple of positional ones, a dict of keywords, or one tensor), on which it runs once, in
        evaluation mode and without a change to the model, to find the output layer.
    given: name, or regular expression searched in names -> role, before any rule; the first that matches counts.
    head: the name of the module that is the output layer.
    Raises ValueError for an unknown role or head and for an entry of `given` that no name matches, TypeError for a lazy module.
    """
    return find(model, None if batch is None else lambda m: _called(m, batch), given=given, head=head)


def _called(model: nn.Module, batch: Any) -> Any:
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(*batch) if isinstance(batch, tuple) else model(batch)


def find(
    model: nn.Module,
    run: Callable[[nn.Module], Any] | None = None,
    *,
    given: Mapping[str, str | Role] | None = None,
    head: str | None = None,
) -> dict[str, Role]:
    """Returns what `roles` does; run: the model -> its output, or a loss of it."""
    for name, p in model.named_parameters():
        if nn.parameter.is_lazy(p):
            raise TypeError(f"parameter {name!r} has no shape yet: call the model once on a batch before its roles are found")
    names: dict[int, list[str]] = {}
    found: dict[int, list[Found]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        for attribute, p in module.named_parameters(recurse=False, remove_duplicate=False):
            names.setdefault(id(p), []).append(f"{path}.{attribute}" if path else attribute)
            found.setdefault(id(p), []).append(_by_module(model, path, module, attribute, p))
    heads, certain, how = _heads(model, run, head)
    chosen = match([name for name, _ in model.named_parameters()], given or {})
    result = {}
    for name, p in model.named_parameters():
        every, places = names[id(p)], found[id(p)]
        role, why = min(places, key=lambda place: ROLES.index(place[0]) if place[0] != "embedding" else -1)
        sure = True
        if id(p) in heads and role in ("hidden", "conv"):
            role, why, sure = "head", how, certain
        if name in chosen:
            role, why, sure = chosen[name], "given", True
        result[name] = Role(role, why, tuple(n for n in every if n != name), sure)
    return result


def of_parameters(params: Any, recipe: Any, given: Mapping[str, str | Role] | None) -> dict[str, str] | None:
    """Returns name -> role for an optimizer of `params`, a model or whatever else; None where nothing is said of them.

    Warns where the output layer was only taken to be one.
    """
    if not isinstance(params, nn.Module) or not recipe.roles:
        return given if given is None else {n: role.role if isinstance(role, Role) else role for n, role in given.items()}
    found = find(params, given=given)
    for name, role in found.items():
        if not role.certain:
            warnings.warn(
                f"{name} is taken to be the output layer, {role.why}: give roles=sandbox.roles(model, batch), or say it, "
                f'roles={{"{name}": "head"}}',
                stacklevel=3,
            )
    return {name: role.role for name, role in found.items()}


def match(names: Iterable[str], given: Mapping[str, str | Role]) -> dict[str, str]:
    """Returns name -> role for the names that an entry matches; see `roles`."""
    chosen: dict[str, str] = {}
    plain = {_WRAPPERS.sub("", name): name for name in names}
    for pattern, role in given.items():
        role = role.role if isinstance(role, Role) else role
        if role not in ROLES:
            raise ValueError(suggest.unknown("role", str(role), ROLES))
        exact = plain.get(_WRAPPERS.sub("", pattern))
        matching = [exact] if exact else [name for short, name in plain.items() if re.search(pattern, short)]
        if not matching:
            raise ValueError(f"roles: no parameter's name matches {pattern!r}; there are {', '.join(list(plain)[:8])}, …")
        chosen |= {name: role for name in matching if name not in chosen}
    return chosen


def _by_module(model: nn.Module, path: str, module: nn.Module, attribute: str, p: Tensor) -> Found:
    """The role of one parameter at one of its places."""
    kind, parent = type(module).__name__, model.get_submodule(path.rpartition(".")[0]) if path else model
    if isinstance(module, nn.ParameterList | nn.ParameterDict):
        return _of_unknown(path.rpartition(".")[2], p, kind)
    if path and isinstance(module, nn.utils.parametrize.ParametrizationList):
        owner = path.rpartition(".parametrizations.")
        inside = model.get_submodule(owner[0]) if owner[1] else model
        if attribute == "original0":
            return "norm", f"scale of a parametrized {owner[2]}"
        role, why = _by_module(model, owner[0], inside, owner[2], p)
        return role, f"parametrized {why}"
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        return "embedding", f"nn.{kind}"
    if isinstance(module, _NORMS):
        return "norm", f"nn.{kind}"
    if attribute.endswith("bias") or attribute in ("bias_k", "bias_v"):
        return "bias", f"{kind}.{attribute}"
    if isinstance(module, nn.MultiheadAttention) and attribute.endswith("proj_weight"):
        return "attention_in", f"nn.MultiheadAttention.{attribute}"
    if isinstance(module, _RECURRENT):
        if attribute.startswith("bias"):
            return "bias", f"nn.{kind}.{attribute}"
        return ("hidden" if attribute.startswith("weight_hr") else "recurrent"), f"nn.{kind}.{attribute}"
    if isinstance(module, _CONVS):
        if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d) and module.groups == module.in_channels > 1:
            return "scalar", f"depthwise nn.{kind}, which mixes no channels"
        return "conv", f"nn.{kind}"
    if isinstance(module, nn.Linear):
        softmax = model.get_submodule(path.rpartition(".tail.")[0]) if ".tail." in f".{path}" else parent
        if isinstance(softmax, nn.AdaptiveLogSoftmaxWithLoss):
            projects = ".tail." in f".{path}" and path.endswith(".0")
            return ("hidden" if projects else "head"), "nn.AdaptiveLogSoftmaxWithLoss"
        if isinstance(parent, nn.MultiheadAttention):
            return "attention_out", "nn.MultiheadAttention.out_proj"
        return "hidden", f"nn.{kind}"
    return _of_unknown(attribute, p, kind)


def _of_unknown(attribute: str, p: Tensor, kind: str) -> Found:
    if p.ndim < 2:
        return ("bias" if attribute.endswith("bias") else "scalar"), f"{kind}.{attribute}, {p.ndim} axes"
    return "other", f"{kind}.{attribute}, a module of unknown kind"


def _heads(model: nn.Module, run: Callable[[nn.Module], Any] | None, head: str | None) -> tuple[set[int], bool, str]:
    """The ids of the weights of output layers, whether that is certain, and how they were found."""
    layers = {name: m for name, m in model.named_modules() if isinstance(m, (nn.Linear, *_CONVS))}
    if head is not None:
        if head not in layers:
            raise ValueError(suggest.unknown("output layer", head, layers))
        return _weights(layers[head]), True, "given as head"
    if run is not None:
        found = _reached(model, layers.values(), run)
        return set().union(*map(_weights, found)), True, "its output is the model's"
    own: Any = getattr(model, "get_output_embeddings", None)
    layer = own() if callable(own) else None
    if isinstance(layer, nn.Module):
        return _weights(layer), True, "get_output_embeddings()"
    linear = [name for name, m in layers.items() if isinstance(m, nn.Linear)]
    if not linear:
        return set(), True, ""
    certain = _TELLING.search(linear[-1]) is not None
    return _weights(layers[linear[-1]]), certain, "the last nn.Linear in order of registration; the model was not run"


def _weights(module: nn.Module) -> set[int]:
    return {id(p) for name, p in module.named_parameters() if p.ndim >= 2 and not name.endswith("original0")}


def _reached(model: nn.Module, layers: Iterable[nn.Module], run: Callable[[nn.Module], Any]) -> list[nn.Module]:
    """The layers whose result reaches an output of the model past no other layer; for an output that several such layers reach,
    one of them through another (the sum of a residual stream), none."""
    made: dict[Any, nn.Module] = {}
    hooks = [m.register_forward_hook(lambda m, _, y: made.__setitem__(y.grad_fn, m)) for m in layers]
    with untouched(model), _requiring(model), torch.enable_grad(), torch.random.fork_rng(devices=[]):
        try:
            outputs = pytree.tree_leaves(_as_tree(run(model)))
        finally:
            for hook in hooks:
                hook.remove()
    made.pop(None, None)
    found: list[nn.Module] = []
    for output in outputs:
        if isinstance(output, Tensor) and output.grad_fn is not None:
            first = list(_first(made, [output.grad_fn]))
            behind = _behind(first)
            found += [made[node] for node in first] if not behind.intersection(first) else []
    return found


def _as_tree(output: Any) -> Any:
    return dict(output) if isinstance(output, Mapping) else vars(output) if dataclasses.is_dataclass(output) else output


# Operations that hand a matrix on as it is, by how their names begin.
_VIEWS = ("TBackward", "Transpose", "Permute", "View", "UnsafeView", "ToCopy")


def _consumes_matrix(node: Any) -> bool:
    """Whether an operation takes a matrix of parameters itself, as F.linear with an embedding's weight does."""
    for child, _ in node.next_functions:
        while child is not None and child.name().startswith(_VIEWS):
            child = child.next_functions[0][0]
        variable = getattr(child, "variable", None)
        if variable is not None and variable.ndim >= 2:
            return True
    return False


def _first(made: Mapping[Any, nn.Module], start: list[Any]) -> Iterator[Any]:
    """The operations of layers that are met first on the way back from `start`."""
    seen, stack = set(start), list(start)
    while stack:
        node = stack.pop()
        if node in made:
            yield node
        elif not _consumes_matrix(node):
            new = [child for child, _ in node.next_functions if child is not None and child not in seen]
            seen.update(new)
            stack += new


def _behind(nodes: list[Any]) -> set[Any]:
    """All operations that these depend on."""
    seen: set[Any] = set()
    stack = list(nodes)
    while stack:
        new = {child for child, _ in stack.pop().next_functions if child is not None} - seen
        seen |= new
        stack += new
    return seen


@contextlib.contextmanager
def _requiring(model: nn.Module) -> Iterator[None]:
    """A context in which all parameters require gradients."""
    flags = [(p, p.requires_grad) for p in model.parameters()]
    try:
        for p, _ in flags:
            p.requires_grad_(True)
        yield
    finally:
        for p, flag in flags:
            p.requires_grad_(flag)

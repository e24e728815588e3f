"""A torch optimizer as a method of an experiment, wherever a recipe may stand.

sandbox.compare(["apollo", "torch.optim:AdamW", "torch.optim:Muon(momentum=0.95)"], task)
sandbox.TorchOptimizer("schedulefree:AdamWScheduleFree", lr=0.0025, warmup_steps=50)
sandbox.TorchOptimizer(MyOptimizer, lr=0.1, name="mine", only="matrices", rest="adamw")
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import hashlib
import importlib.metadata
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from sandbox.experiments.runs.recipe_method import RecipeMethod
from sandbox.forms import lookup
from sandbox.recipe import Recipe
from sandbox.recipe.find_roles import Role
from sandbox.recipe.roles import ROLES
from sandbox.utils import imports, suggest

_SPELLING = re.compile(r"([A-Za-z_][\w.]*):([A-Za-z_][\w.]*)\s*(\(.*\))?\s*", re.DOTALL)
MATRICES = "matrices"  # a value of `only`: all tensors with exactly two axes
_HIDDEN = ("hidden", "attention_in", "attention_out", "recurrent")


@dataclasses.dataclass(frozen=True)
class TorchOptimizer:
    """A torch optimizer built by `factory(params, lr=…, **options)`.

    factory: a class or function, or its import path "module:attribute".  lr: the default rate around which others are tried;
        default the factory's own.  name: default the factory's.
    only: a role or several ("hidden", "conv", …; see `sandbox.roles`) gives the factory only the parameters that have it,
        "matrices" all those with exactly two axes; `rest`, a recipe or another TorchOptimizer, trains the others, at its own
        default rate times lr over this method's default: the two rates keep one proportion.  Both keep the options of the
        task's groups (`Task.groups`).  torch.optim.Muon takes matrices alone, and by default gets the hidden ones, with
        rest="adamw": only=("hidden", "attention_in", "attention_out", "recurrent").
    options: further keyword arguments of the factory.
    Raises TypeError for what cannot be called, ValueError for an impossible rate, and for `rest` without `only`.
    """

    factory: Callable[..., Any]
    lr: float
    name: str
    only: str | tuple[str, ...] | None
    rest: Any
    options: Mapping[str, Any]
    path: str

    gradients_per_call = 1
    moving = False
    steady = False

    @property
    def functions(self) -> int:
        """How many fixed batches, the first of the stream, the optimizer asks its closure for by number; 0 for ordinary ones.

        Such an optimizer has a true attribute `by_number`, and its argument "count" says how many.
        """
        return int(self.options.get("count", 0)) if getattr(self.factory, "by_number", False) else 0

    @property
    def second_order(self) -> bool:
        """Whether the closure leaves backward() to the optimizer, which then has a true attribute of this name."""
        return bool(getattr(self.factory, "second_order", False))

    def __init__(
        self,
        factory: str | Callable[..., Any],
        *,
        lr: float | None = None,
        name: str | None = None,
        only: str | Sequence[str] | None = None,
        rest: Any = None,
        **options: Any,
    ) -> None:
        build: Any = imports.attribute(factory) if isinstance(factory, str) else factory
        if not callable(build):
            raise TypeError(f"an optimizer's factory must be a class or a function, got {build!r}")
        path = f"{getattr(build, '__module__', '?')}:{getattr(build, '__qualname__', type(build).__qualname__)}"
        path = factory if isinstance(factory, str) else path
        if only is None and build is getattr(torch.optim, "Muon", None):
            only, rest = _HIDDEN, "adamw" if rest is None else rest
        if only not in (None, MATRICES):
            only = (only,) if isinstance(only, str) else tuple(only or ())
            for role in only or ("",):
                if role not in ROLES:
                    raise ValueError(suggest.unknown("value of only", role, (MATRICES, *ROLES)))
        if (only is None) != (rest is None):
            raise ValueError("only= and rest= belong together: what the factory trains, and who trains the rest")
        rate = _default_rate(build) if lr is None else lr
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < float("inf"):
            raise ValueError(f"{path}: lr must be a number above 0 (the factory has no default of its own), got {rate!r}")
        if isinstance(rest, str):
            rest = parse(rest) or lookup.recipe(rest)
        name = name or getattr(build, "__name__", "outside")
        for key, value in (
            ("factory", build), ("lr", float(rate)), ("name", name), ("only", only), ("rest", rest), ("options", dict(options)),
            ("path", path),
        ):  # fmt: skip
            object.__setattr__(self, key, value)

    @property
    def _rest(self) -> Any:
        return RecipeMethod(self.rest) if isinstance(self.rest, Recipe) else self.rest

    def fingerprint(self) -> str:
        """Returns twelve digits of the path, the arguments and the version of the package."""
        version = _version(self.path.partition(":")[0].partition(".")[0])
        rest = self.rest and self._rest.fingerprint()
        text = repr((self.path, sorted((k, repr(v)) for k, v in self.options.items()), self.only, rest, version))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def parts(self) -> Any:
        """Returns the objects on whose code a run depends."""
        return [self.factory, self.options, self.rest]

    def text(self) -> str:
        """Returns the optimizer with its arguments and rate, as one line."""
        arguments = ", ".join(f"{k}={v!r}" for k, v in self.options.items())
        only = self.only if isinstance(self.only, str) else ", ".join(self.only or ())
        more = "" if self.only is None else f"; {only} only, the rest by {self.rest.name}"
        return f"{self.path}({arguments}), lr {self.lr:g}{more}"

    def words(self) -> None:
        """Returns None: the size of the state is not known before a run, where it is counted from `.state`."""
        return

    def hyperparameters(self) -> dict[str, Any]:
        """Returns the factory's arguments by name, and "lr"."""
        parameters = {} if inspect.isbuiltin(self.factory) else dict(inspect.signature(self.factory).parameters)
        named = {k: p.default for k, p in parameters.items() if k != "params"}
        return {**named, **self.options, "lr": self.lr}

    def replaced(self, values: Mapping[str, Any]) -> TorchOptimizer:
        """Returns the method with other arguments."""
        if not values:
            return self
        changed = {**self.options, **values}
        lr = changed.pop("lr", self.lr)
        return TorchOptimizer(
            self.path if isinstance(self.factory, str) else self.factory,
            lr=lr, name=self.name, only=self.only, rest=self.rest, **changed,
        )  # fmt: skip

    def allows(self, lr: float) -> bool:
        """Returns True: an optimizer that refuses a rate raises itself."""
        return True

    def make(
        self, groups: list[dict[str, Any]], lr: float, options: Mapping[str, Any], roles: Callable[[], Any] = dict
    ) -> list[Any]:
        """Returns the optimizers of a run, which step one after another.

        options: of `sandbox.Optimizer`, where `rest` is a recipe.  roles: gives name -> `Role` of the parameters.
        Raises ValueError for a process group where the optimizer takes gradients itself: they would be of each rank's share
        alone.
        """
        if options.get("process_group") is not None and self.second_order:
            raise ValueError(f"ranks: {self.name} takes its gradients itself, which ranks then do not average; use one rank")
        mine, others = self._divided(groups, roles)
        optimizers = [self._build(mine, lr)] if mine else []
        if others:
            optimizers += self._rest.make(others, self._rest.lr * lr / self.lr, options, roles)
        return optimizers

    def _divided(self, groups: list[dict[str, Any]], roles: Callable[[], Any]) -> tuple[list[dict[str, Any]], ...]:
        """Returns the groups of the factory and those of the rest, whose parameters are (name, tensor) pairs."""
        mine: list[dict[str, Any]] = []
        others: list[dict[str, Any]] = []
        known = roles() if self.only not in (None, MATRICES) else {}
        for group in groups:
            named = [p if isinstance(p, tuple) else ("", p) for p in group["params"]]
            for matching, rows in ((True, mine), (False, others)):
                params = [(n, p) for n, p in named if self._takes(p, known.get(n)) == matching]
                if params:
                    rows.append({**group, "params": params})
        return mine, others

    def _takes(self, p: Any, found: Role | None) -> bool:
        if self.only is None or self.only == MATRICES:
            return self.only is None or p.ndim == 2
        return found is not None and found.role in self.only

    def trained(self, groups: list[dict[str, Any]], roles: Callable[[], Any]) -> Iterator[tuple[str, str, Any]]:
        """Yields (the name of who trains it, what it is, parameter) for all parameters."""
        mine, others = self._divided(groups, roles)
        known = roles() if self.only not in (None, MATRICES) else {}
        for group in mine:
            for name, p in group["params"]:
                yield self.name, known[name].role if name in known else "two axes", p
        if others:
            yield from self._rest.trained(others, roles)

    def _build(self, groups: list[dict[str, Any]], lr: float) -> Any:
        accepted = self.hyperparameters()
        rows: list[dict[str, Any]] = []
        for group in groups:
            if "recipe" in group:
                raise ValueError(f"a parameter group of the task has a recipe of its own, to which {self.name} cannot leave it")
            row = {k: v for k, v in group.items() if k in accepted}
            if "lr_factor" in group:
                row["lr"] = lr * group["lr_factor"]
            rows.append({**row, "params": [p for _, p in group["params"]]})
        alone = rows[0]["params"] if len(rows) == 1 and len(rows[0]) == 1 else rows
        return self.factory(alone, lr=lr, **self.options)


def _default_rate(factory: Callable[..., Any]) -> Any:
    try:
        rate = inspect.signature(factory).parameters["lr"].default
    except (TypeError, ValueError, KeyError):
        return None
    return float(rate) if isinstance(rate, torch.Tensor) else rate


def parse(text: str) -> TorchOptimizer | None:
    """Returns the optimizer that "module:Class" or "module:Class(lr=0.1, momentum=0.9)" names; None for any other text, also
    for the path of something else than a torch optimizer.

    Raises ValueError for arguments that are not literal keyword arguments.
    """
    match = _SPELLING.fullmatch(text)
    if match is None:
        return None
    module, attribute, call = match.groups()
    if call is None:
        try:
            named = imports.attribute(f"{module}:{attribute}")
        except ValueError:
            return None  # perhaps a recipe's path; that says what is wrong
        if not (isinstance(named, type) and issubclass(named, torch.optim.Optimizer)):
            return None
        return TorchOptimizer(f"{module}:{attribute}")
    try:
        node = ast.parse(f"f{call}", mode="eval").body
        if not isinstance(node, ast.Call) or node.args or any(k.arg is None for k in node.keywords):
            raise ValueError
        options: dict[str, Any] = {str(k.arg): ast.literal_eval(k.value) for k in node.keywords}
    except (ValueError, SyntaxError) as error:
        raise ValueError(f"{text!r}: write literal keyword arguments, as in torch.optim:SGD(momentum=0.9)") from error
    return TorchOptimizer(f"{module}:{attribute}", **options)


@functools.cache
def _version(package: str) -> str:
    """Returns the version of the distribution that a package comes from; "none" for a module that was not installed."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)  # of the same name, as most are: the table of all of them is slow to build
    others = importlib.metadata.packages_distributions().get(package)
    return importlib.metadata.version(others[0]) if others else "none"


Outside = TorchOptimizer  # its name in version 0.1

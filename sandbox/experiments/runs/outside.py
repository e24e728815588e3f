"""Optimizers that are no recipes, wherever a recipe may stand.

sandbox.compare(["apollo", "torch.optim:AdamW", "torch.optim:Muon(momentum=0.95)"], task)
sandbox.Outside("schedulefree:AdamWScheduleFree", lr=0.0025, warmup_steps=50)
sandbox.Outside(MyOptimizer, lr=0.1, name="mine", only="matrices", rest="adamw")
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
from collections.abc import Callable, Mapping
from typing import Any

import torch

from sandbox.experiments.runs.ours import Ours
from sandbox.forms import lookup
from sandbox.recipe import Recipe
from sandbox.utils import imports, suggest

_SPELLING = re.compile(r"([A-Za-z_][\w.]*):([A-Za-z_][\w.]*)\s*(\(.*\))?\s*", re.DOTALL)
_ONLY = ("matrices",)


@dataclasses.dataclass(frozen=True)
class Outside:
    """A torch optimizer made by `factory(params, lr=…, **options)`.

    factory: a class or function, or its import path "module:attribute".  lr: the default rate around which others are tried;
        default the factory's own.  name: default the factory's.
    only: "matrices" gives the factory the parameters with exactly two axes alone; `rest`, a recipe or another Outside, trains
        the others, at its own default rate times lr over this method's default: the two rates are tuned in one proportion.
        Both keep what a task says of its groups (`Task.groups`).
        torch.optim.Muon takes nothing else, so there only="matrices" and rest="adamw" are the defaults.
    options: further keyword arguments of the factory.
    Raises TypeError for what cannot be called, ValueError for a rate that cannot be, and for `rest` without `only`.
    """

    factory: Callable[..., Any]
    lr: float
    name: str
    only: str | None
    rest: Any
    options: Mapping[str, Any]
    path: str

    gradients_a_call = 1
    moving = False

    @property
    def functions(self) -> int:
        """How many batches the optimizer keeps to, the first of the stream: its closure is told the number of one.  0 where it
        keeps to none; such an optimizer says so by an attribute `by_number`, and how many by its argument "count".
        """
        return int(self.options.get("count", 0)) if getattr(self.factory, "by_number", False) else 0

    @property
    def second_order(self) -> bool:
        """Whether the optimizer's closure is to leave backward() to it; it says so by an attribute of this name."""
        return bool(getattr(self.factory, "second_order", False))

    def __init__(
        self,
        factory: str | Callable[..., Any],
        *,
        lr: float | None = None,
        name: str | None = None,
        only: str | None = None,
        rest: Any = None,
        **options: Any,
    ) -> None:
        made: Any = imports.attribute(factory) if isinstance(factory, str) else factory
        if not callable(made):
            raise TypeError(f"an optimizer's factory must be a class or a function, got {made!r}")
        path = f"{getattr(made, '__module__', '?')}:{getattr(made, '__qualname__', type(made).__qualname__)}"
        path = factory if isinstance(factory, str) else path
        if only is None and made is getattr(torch.optim, "Muon", None):
            only, rest = "matrices", "adamw" if rest is None else rest
        if only is not None and only not in _ONLY:
            raise ValueError(suggest.unknown("value of only", only, _ONLY))
        if (only is None) != (rest is None):
            raise ValueError("only= and rest= belong together: what the factory trains, and who trains the rest")
        rate = _own_rate(made) if lr is None else lr
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < float("inf"):
            raise ValueError(f"{path}: lr must be a number above 0 (the factory has no default of its own), got {rate!r}")
        if isinstance(rest, str):
            rest = spelled(rest) or lookup.recipe(rest)
        name = name or getattr(made, "__name__", "outside")
        for key, value in (
            ("factory", made), ("lr", float(rate)), ("name", name), ("only", only), ("rest", rest), ("options", dict(options)),
            ("path", path),
        ):  # fmt: skip
            object.__setattr__(self, key, value)

    @property
    def _rest(self) -> Any:
        return Ours(self.rest) if isinstance(self.rest, Recipe) else self.rest

    def fingerprint(self) -> str:
        """Of path, arguments and the version of the package."""
        version = _version(self.path.partition(":")[0].partition(".")[0])
        rest = self.rest and self._rest.fingerprint()
        text = repr((self.path, sorted((k, repr(v)) for k, v in self.options.items()), self.only, rest, version))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def parts(self) -> Any:
        """The objects on whose code a run depends."""
        return [self.factory, self.options, self.rest]

    def text(self) -> str:
        """As it would be written."""
        arguments = ", ".join(f"{k}={v!r}" for k, v in self.options.items())
        more = "" if self.only is None else f"; {self.only} only, the rest by {self.rest.name}"
        return f"{self.path}({arguments}), lr {self.lr:g}{more}"

    def words(self) -> None:
        """Not known before a run: counted from `.state` then."""
        return

    def hyperparameters(self) -> dict[str, Any]:
        """The factory's arguments by name, and "lr"."""
        found = {} if inspect.isbuiltin(self.factory) else dict(inspect.signature(self.factory).parameters)
        named = {k: p.default for k, p in found.items() if k != "params"}
        return {**named, **self.options, "lr": self.lr}

    def replaced(self, values: Mapping[str, Any]) -> Outside:
        """With other arguments."""
        if not values:
            return self
        changed = {**self.options, **values}
        lr = changed.pop("lr", self.lr)
        return Outside(
            self.path if isinstance(self.factory, str) else self.factory,
            lr=lr, name=self.name, only=self.only, rest=self.rest, **changed,
        )  # fmt: skip

    def allows(self, lr: float) -> bool:
        """Every rate; an optimizer that refuses one says so itself."""
        return True

    def make(self, groups: list[dict[str, Any]], lr: float, options: Mapping[str, Any]) -> list[Any]:
        """The optimizers of a run, which step one after another.  options: of `sandbox.Optimizer`, where `rest` is a recipe.

        Raises ValueError for a process group where the optimizer takes gradients itself: they would be of each rank's share
        alone.
        """
        if options.get("process_group") is not None and self.second_order:
            raise ValueError(f"ranks: {self.name} takes its gradients itself, which ranks then do not average; use one rank")
        mine: list[dict[str, Any]] = []
        others: list[dict[str, Any]] = []
        for group in groups:
            named = [p if isinstance(p, tuple) else ("", p) for p in group["params"]]
            for chosen, found in ((True, mine), (False, others)):
                params = [(n, p) for n, p in named if (self.only is None or p.ndim == 2) == chosen]
                if params:
                    found.append({**group, "params": params})
        made = [self._made(mine, lr)] if mine else []
        if others:
            made += self._rest.make(others, self._rest.lr * lr / self.lr, options)
        return made

    def _made(self, groups: list[dict[str, Any]], lr: float) -> Any:
        known = self.hyperparameters()
        rows: list[dict[str, Any]] = []
        for group in groups:
            row = {k: v for k, v in group.items() if k in known}
            if "lr_factor" in group:
                row["lr"] = lr * group["lr_factor"]
            rows.append({**row, "params": [p for _, p in group["params"]]})
        alone = rows[0]["params"] if len(rows) == 1 and len(rows[0]) == 1 else rows
        return self.factory(alone, lr=lr, **self.options)


def _own_rate(factory: Callable[..., Any]) -> Any:
    try:
        found = inspect.signature(factory).parameters["lr"].default
    except (TypeError, ValueError, KeyError):
        return None
    return float(found) if isinstance(found, torch.Tensor) else found


def spelled(text: str) -> Outside | None:
    """The optimizer that "module:Class" or "module:Class(lr=0.1, momentum=0.9)" spells; None where it is no such text, or
    names something else than a torch optimizer.

    Raises ValueError for arguments that are not literal keyword arguments.
    """
    match = _SPELLING.fullmatch(text)
    if match is None:
        return None
    module, attribute, call = match.groups()
    if call is None:
        try:
            found = imports.attribute(f"{module}:{attribute}")
        except ValueError:
            return None  # perhaps a recipe's path; that says what is wrong
        if not (isinstance(found, type) and issubclass(found, torch.optim.Optimizer)):
            return None
        return Outside(f"{module}:{attribute}")
    try:
        node = ast.parse(f"f{call}", mode="eval").body
        if not isinstance(node, ast.Call) or node.args or any(k.arg is None for k in node.keywords):
            raise ValueError
        options: dict[str, Any] = {str(k.arg): ast.literal_eval(k.value) for k in node.keywords}
    except (ValueError, SyntaxError) as error:
        raise ValueError(f"{text!r}: write literal keyword arguments, as in torch.optim:SGD(momentum=0.9)") from error
    return Outside(f"{module}:{attribute}", **options)


@functools.cache
def _version(package: str) -> str:
    """Of the distribution that a package comes from; "none" for a module that was not installed."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)  # called alike, as most are: the table of all of them is slow to make
    others = importlib.metadata.packages_distributions().get(package)
    return importlib.metadata.version(others[0]) if others else "none"

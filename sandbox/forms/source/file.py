"""A recipe as one Python file that imports torch only: a `torch.optim.Optimizer` whose step is the recorded one."""

from __future__ import annotations

import dataclasses
import re
import textwrap
from collections.abc import Sequence
from typing import Any

import torch

import sandbox
from sandbox.blocks import ELEMENT
from sandbox.forms import lookup
from sandbox.forms.source import step
from sandbox.forms.source.expressions import literal
from sandbox.forms.source.layout import WIDTH, checks, chunks, fit, paragraphs, printed, quote
from sandbox.forms.source.recording import Refused
from sandbox.forms.source.role import Role
from sandbox.recipe import Recipe, parts

_CHANNEL = '''
def {0}(x: torch.Tensor) -> torch.Tensor:
    """Over all axes but the first; the entries of a vector stand for themselves."""
    return x.{1}(dim=tuple(range(1, x.ndim)), keepdim=True) if x.ndim > 1 else x


'''.lstrip()
_SECOND_ORDER = '''
@torch.no_grad()
def step(self, closure: Any = None) -> Any:
    """Makes one step.  The closure returns the loss and leaves backward() to the step, which sets p.grad."""
    if closure is None:
        raise RuntimeError("{0} needs step(closure), and a closure that returns the loss")
    params = [p for group in self.param_groups for p in group["params"] if p.requires_grad]
    with torch.enable_grad():
        loss = closure()
        grads = torch.autograd.grad(loss, params, create_graph=True, allow_unused=True)
    # z = ±1 with equal odds;  Hz = ∇(gᵀz)
    z = [2 * torch.randint(0, 2, p.shape, device=p.device).to(p.dtype) - 1 for p in params]
    live = [(g, v) for g, v in zip(grads, z, strict=True) if g is not None and g.requires_grad]
    gs, zs = zip(*live, strict=True)
    Hz = torch.autograd.grad(gs, params, zs, allow_unused=True, materialize_grads=True)
    for p, g in zip(params, grads, strict=True):
        p.grad = None if g is None else g.detach()
    products = dict(zip(params, zip(z, Hz, strict=True), strict=True))
    loss = loss.detach()
'''


def source(recipe: str | Recipe, *, stored: bool = False, fixed: Sequence[str] = ()) -> str:
    """Returns a recipe as the text of one Python file: a torch optimizer that imports torch (2.5 or newer) and nothing else.

    recipe: a Recipe, or what `sandbox.forms.lookup.recipe` takes.
    stored: keep the previous direction d as a state, one number per coordinate, instead of recalling it.
    fixed: hyperparameters, by dotted name, that will not change during a run, "lr" among them; those with which d is recalled
        are then not kept in the state.
    The file's numbers are defaults of its class; `sandbox.optimizer.source_state` converts checkpoints.
    Raises ValueError, naming the block, for a step that one run does not show, and for what needs more than one gradient.
    """
    return File(recipe, stored=stored, fixed=fixed).text()


def roles_of(recipe: Recipe, *, stored: bool, fixed: Sequence[str]) -> list[Role]:
    """The role of all tensors, or those of matrices and of vectors.  Raises Refused for what no file does."""
    analysis = recipe.analysis
    if analysis.second_gradient or analysis.needs_rows or set(analysis.inputs) - {"hessian"}:
        needs = ", ".join(analysis.inputs) or "a second gradient of each batch"
        raise Refused(f"{_blamed(recipe, ('again', *analysis.inputs))} takes more than a gradient: {needs}")
    apart = [name for name in recipe.inner if name != "vectors"]
    if apart:
        raise Refused(f"{apart[0]} has a recipe of its own, and a file holds two steps at most")
    matrices, vectors = recipe.of(torch.empty(2, 2)), recipe.of(torch.empty(2))
    one = [matrices] if matrices is vectors else [matrices, vectors]
    for role in one:
        if role.analysis.reads_out:
            block = type(role.readout).__name__
            raise Refused(f"{block} in slot 'readout' evaluates other weights than it trains, and a file's class has no eval()")
    allowed = {"lr"}.union(*(role.analysis.recalled for role in one))
    for name in fixed:
        if name not in allowed:
            raise ValueError(f"fixed must name some of {', '.join(sorted(allowed))}, got {name!r}")
    one = [_storing(role) if stored else role for role in one]
    if len(one) == 1:
        return [Role(one[0], fixed, method="_update")]
    ratio = float(recipe.rate_of("vectors", 1.0))
    return [
        Role(one[0], fixed, method="_matrix"),
        Role(one[1], fixed, method="_vector", prefix="vector_", ratio=ratio),
    ]


def _storing(recipe: Recipe) -> Recipe:
    """The recipe with the direction among its states."""
    analysis = recipe.analysis
    if not analysis.uses_direction or analysis.stores_direction:
        return recipe
    recipe, kinds = dataclasses.replace(recipe), {**analysis.state_kinds, "direction.d": ELEMENT}
    facts = {"stores_direction": True, "state_kinds": kinds, "recalled": (), "host_names": ("step", "lr")}
    vars(recipe)["analysis"] = dataclasses.replace(analysis, **facts)  # type: ignore[arg-type]
    return recipe


def _blamed(recipe: Recipe, needs: Sequence[str]) -> str:
    """The block that needs one of `needs`."""
    for path, block in recipe.blocks():
        if set(block.needs) & set(needs):
            return f"block {type(block).__name__} in slot {path.partition('.')[0]!r}"
    return "the recipe"


class File:
    """One file: the roles of its tensors, and its text; see `source`."""

    def __init__(self, recipe: str | Recipe, *, stored: bool = False, fixed: Sequence[str] = ()) -> None:
        self.recipe = recipe = lookup.recipe(recipe)
        try:
            self.roles = roles_of(recipe, stored=stored, fixed=fixed)
        except Refused as error:
            raise ValueError(f"recipe {recipe.name!r} cannot be written as a file: {error}") from None
        self.title = class_name(recipe.name)

    def text(self) -> str:
        """The whole file."""
        read = " ".join(line for role in self.roles for line in role.step.lines)
        modules = [f"import {module}" for module in sorted(set().union(*(role.step.imports for role in self.roles)))]
        made = f'"""Written by apollo-sandbox {sandbox.__version__}; needs torch 2.5 or newer and nothing else."""'
        lines = [made, "", *modules, "from typing import Any", "", "import torch", "", ""]
        for function in ("channel_sum", "channel_amax", "channel_mean"):
            lines += _CHANNEL.format(function, function.removeprefix("channel_")).splitlines() if function in read else []
        lines += [f"class {self.title}(torch.optim.Optimizer):", *self._docstring(), ""]
        lines += [*self._init(), "", *self._loop()]
        for role in self.roles:
            lines += ["", *role.lines(self.title)]
        return "\n".join(line.rstrip() for line in lines) + "\n"

    def _about(self) -> list[str]:
        variants = lookup.package("variants")
        base = self.recipe.name.partition("[")[0]
        return variants.about(base).splitlines() if base in variants.names() else []

    def _first(self) -> str:
        about = self._about()
        return about[0] if about else f"The recipe {self.recipe.name}."

    def _docstring(self) -> list[str]:
        first = textwrap.wrap(f'"""{self._first()}', WIDTH - 4)
        rest = [part for text in paragraphs(self._about()[1:]) for part in text]
        lines = [
            *first,
            "",
            *(line for line in printed(self.recipe) if not line.startswith("  role ")),
            *rest,
            *self._apart(),
            '"""',
        ]
        return [f"    {line}" for line in lines]

    def _apart(self) -> list[str]:
        """What a user must say of tensors that are matrices by their shape alone."""
        others = [role for role, who in self.recipe.roles.given().items() if who == "vectors"]
        text = f'Parameters of role {" and ".join(others)} go into a group of their own with "matrices": False.'
        return ["", *textwrap.wrap(text, WIDTH - 4)] if others else []

    def defaults(self) -> dict[str, Any]:
        """The class's arguments and their defaults."""
        values = self.roles[0].recipe.hyperparameters()
        pair = {"betas": tuple(values[path] for path in step.BETAS)} if self.roles[0].betas else {}
        return {"lr": self._lr(), **pair, **{entry: value for entry, _, value, _ in self._numbers()}}

    def is_share(self, name: str) -> bool:
        """Whether a number lies in [0, 1), as β does."""
        return any(entry == name and interval == "[0, 1)" for entry, _, _, interval in self._numbers())

    def _numbers(self) -> list[tuple[str, str, float, str]]:
        """(entry of a group, dotted path, value, interval) of each number but the rate and the pair of β."""
        return [
            (entry, path, role.recipe.hyperparameters()[path], _range(role.recipe, path))
            for role in self.roles
            for path, entry in role.entries().items()
        ]

    def _lr(self) -> float:
        return float(next(value for path, value in self.recipe.hyperparameters().items() if path.partition(".")[0] == "lr"))

    def _init(self) -> list[str]:
        values = self.roles[0].recipe.hyperparameters()
        arguments = {"lr": f"lr: float = {literal(self._lr())}"}
        alike: dict[str, list[str]] = {"[0, inf)": ["lr"]}
        if self.roles[0].betas:
            arguments["betas"] = f"betas: tuple[float, float] = ({', '.join(literal(values[path]) for path in step.BETAS)})"
        for entry, _, value, interval in self._numbers():
            arguments[entry] = f"{entry}: float = {literal(value)}"
            alike.setdefault(interval, []).append(entry)
        lines = fit("    def __init__(", ["self", "params: Any", *arguments.values()], ") -> None:")
        fixed = ["matrices=True"] if self.recipe.roles else []
        for i, some in enumerate(chunks([*(f"{name}={name}" for name in arguments), *fixed], WIDTH - 44)):
            lines.append(f"        defaults{' |=' if i else ': dict[str, Any] ='} dict({', '.join(some)})")
        for interval, names in alike.items():
            lines += checks(interval, names)
        if self.roles[0].betas:
            lines += ["        if not all(0 <= beta < 1 for beta in betas):"]
            lines += ['            raise ValueError(f"betas must lie in [0, 1), got {betas}")']
        return [*lines, "        super().__init__(params, defaults)"]

    def _loop(self) -> list[str]:
        norm, passed = [], "p, group"
        if self.recipe.analysis.needs_norm:
            passed += ", grad_norm"
            norm = [
                '        grads = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]',
                "        norms = [torch.linalg.vector_norm(g.to(torch.promote_types(g.dtype, torch.float32))) for g in grads]",
                "        grad_norm = torch.stack(norms).norm() if norms else 0.0",
            ]
        head = """
            @torch.no_grad()
            def step(self, closure: Any = None) -> Any:
                \"\"\"Makes one step; returns what the closure returned.\"\"\"
                with torch.enable_grad():
                    loss = None if closure is None else closure()
        """
        if "hessian" in self.recipe.analysis.inputs:
            head, passed = _SECOND_ORDER.format(self.title), f"{passed}, *products[p]"
        if self.recipe.scope == "global":
            return [*_indent(head, 4), *norm, *_indent(self._cohorts(passed.replace("p,", "params,")), 8)]
        loop = """
                for group in self.param_groups:
                    for p in group["params"]:
                        if p.grad is not None:
        """.replace("None:", "None and p in products:" if "hessian" in self.recipe.analysis.inputs else "None:")
        calls = [f"                    self.{self.roles[0].method}({passed})"]
        if len(self.roles) > 1:
            limit = self.roles[0].recipe.basis.limit
            small = "" if limit is None else f" and max(p.shape[0], p.numel() // p.shape[0]) <= {limit}"
            chosen = 'group["matrices"] and ' if self.recipe.roles else ""
            calls = [
                f"                    if {chosen}p.ndim > 1{small}:",
                f"                        self._matrix({passed})",
                "                    else:",
                f"                        self._vector({passed})",
            ]
        return [*_indent(head, 4), *norm, *_indent(loop, 8), *calls, "        return loss"]

    def _cohorts(self, passed: str) -> str:
        """The loop over tensors that make a step together: those with as many steps, the last one with the same numbers."""
        kept = quote(["step", *self.roles[0].recalled])
        key = 'float(state.get("step", 0))' if "," not in kept else f"tuple(float(state.get(name, 0)) for name in ({kept}))"
        return f"""
            for group in self.param_groups:
                alike: dict[Any, list[torch.Tensor]] = {{}}
                for p in group["params"]:
                    if p.grad is not None:
                        state = self.state[p]
                        key = {key}
                        alike.setdefault(key, []).append(p)
                for params in alike.values():
                    self._update({passed})
            return loss
        """


def _indent(text: str, by: int) -> list[str]:
    return textwrap.indent(textwrap.dedent(text).strip("\n"), " " * by).rstrip().splitlines()


def class_name(name: str) -> str:
    """A recipe's name as that of a class."""
    words = re.findall(r"\w+", name.partition("[")[0]) or ["Recipe"]
    joined = "".join(word[:1].upper() + word[1:] for word in words)
    return joined if joined[0].isalpha() else f"Recipe{joined}"


def _range(recipe: Recipe, path: str) -> str:
    owner, _, last = path.rpartition(".")
    field = next(f for f in dataclasses.fields(parts.value_at(recipe, owner)) if f.name == last)
    return field.metadata["range"].text if "range" in field.metadata else ""

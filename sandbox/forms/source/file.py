"""A recipe as one Python file that imports torch only: a `torch.optim.Optimizer` whose step is the recorded one."""

from __future__ import annotations

import dataclasses
import re
import textwrap
from collections.abc import Sequence
from typing import Any

import torch

import sandbox
from sandbox.blocks import ELEMENT, SCOPE
from sandbox.forms import lookup
from sandbox.forms.source import step
from sandbox.forms.source.expressions import literal
from sandbox.forms.source.recording import Refused
from sandbox.recipe import Recipe, describe, parts

WIDTH = 120
_CHANNEL = '''
def {0}(x: torch.Tensor) -> torch.Tensor:
    """Over all axes but the first; the entries of a vector stand for themselves."""
    return x.{1}(dim=tuple(range(1, x.ndim)), keepdim=True) if x.ndim > 1 else x


'''.lstrip()


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


def prepared(recipe: Recipe, *, stored: bool) -> Recipe:
    """The recipe, with d among its states where it is to be stored.  Raises Refused for what no file does."""
    analysis = recipe.analysis
    if analysis.second_gradient or analysis.inputs or analysis.needs_rows:
        needs = ", ".join(analysis.inputs) or "a second gradient of each batch"
        raise Refused(f"{_blamed(recipe, ('again', *analysis.inputs))} takes more than a gradient: {needs}")
    if recipe.scope == "global":
        raise Refused("scope 'global' makes one step of all tensors together")
    if recipe.of(torch.empty(2, 2)) is not recipe.of(torch.empty(2)) or analysis.own_layout:
        raise Refused(f"{_blamed(recipe, ())} takes tensors as matrices")
    if stored and analysis.uses_direction and not analysis.stores_direction:
        kinds = {**analysis.state_kinds, "direction.d": ELEMENT}
        recipe = dataclasses.replace(recipe)
        host = ("step", "lr")
        vars(recipe)["analysis"] = dataclasses.replace(
            analysis, stores_direction=True, state_kinds=kinds, recalled=(), host_names=host
        )
    return recipe


def _blamed(recipe: Recipe, needs: Sequence[str]) -> str:
    """The block that needs one of `needs`, or else takes matrices."""
    for path, block in recipe.blocks():
        if set(block.needs) & set(needs) or (not needs and (block.matrix or any(k == "square" for k in block.state.values()))):
            return f"block {type(block).__name__} in slot {path.partition('.')[0]!r}"
    return "the recipe"


class File:
    """One file: its names, its step, and its text; see `source`."""

    def __init__(self, recipe: str | Recipe, *, stored: bool = False, fixed: Sequence[str] = ()) -> None:
        recipe = lookup.recipe(recipe)
        try:
            self._record(recipe, stored, fixed)
        except Refused as error:
            raise ValueError(f"recipe {recipe.name!r} cannot be written as a file: {error}") from None

    def _record(self, recipe: Recipe, stored: bool, fixed: Sequence[str]) -> None:
        self.recipe = prepared(recipe, stored=stored)
        allowed = ("lr", *recipe.analysis.recalled)
        for name in fixed:
            if name not in allowed:
                raise ValueError(f"fixed must name some of {', '.join(allowed)}, got {name!r}")
        self.names = step.names_for(self.recipe, fixed)
        self.step = step.step_of(self.recipe, self.names, fixed)
        for shape in ((5,), (2, 3, 2, 2), ()):  # a block that chooses by shape computes something else there
            other = step.step_of(self.recipe, self.names, fixed, shape)
            for line in (set(other.lines) ^ set(self.step.lines)) & {*other.owners, *self.step.owners}:
                owner = {**self.step.owners, **other.owners}[line]
                raise Refused(f"{owner} chooses by the shape of a tensor, so one run of it does not show all that it does")
        self.read = " ".join([*self.step.lines, *self.step.writes])
        self.numbers = {path: name for path, name in self.names.hyperparameters.items() if re.search(rf"\b{name}\b", self.read)}
        self.recalled = [name for name in self.names.recalled.values() if name in self.step.used]
        self.title = class_name(recipe.name)

    def text(self) -> str:
        """The whole file."""
        modules = [f"import {module}" for module in sorted(self.step.imports)]
        made = f'"""Written by apollo-sandbox {sandbox.__version__}; needs torch 2.5 or newer and nothing else."""'
        lines = [made, "", *modules, "from typing import Any", "", "import torch", "", ""]
        for function in ("channel_sum", "channel_amax", "channel_mean"):
            lines += _CHANNEL.format(function, function.removeprefix("channel_")).splitlines() if function in self.read else []
        lines += [f"class {self.title}(torch.optim.Optimizer):", *self._docstring(), ""]
        lines += [*self._init(), "", *self._loop(), "", *self._update()]
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
        rest = [part for text in _paragraphs(self._about()[1:]) for part in text]
        lines = [*first, "", *_printed(self.recipe), *rest, '"""']
        return [f"    {line}" for line in lines]

    def _values(self) -> dict[str, Any]:
        values = self.recipe.hyperparameters()
        names = {path: name for path, name in self.numbers.items() if not (self.names.betas and name in ("beta1", "beta2"))}
        return {name: values[path] for path, name in names.items()}

    def _lr(self) -> float:
        return float(next(value for path, value in self.recipe.hyperparameters().items() if path.partition(".")[0] == "lr"))

    def _signature(self) -> list[tuple[str, str, str]]:
        """(name, type, default) of each number."""
        values = self.recipe.hyperparameters()
        pair = ", ".join(literal(values[path]) for path in step.BETAS) if self.names.betas else ""
        betas = [("betas", "tuple[float, float]", f"({pair})")] if pair else []
        return [("lr", "float", literal(self._lr())), *betas, *((n, "float", literal(v)) for n, v in self._values().items())]

    def _init(self) -> list[str]:
        arguments = [f"{name}: {kind} = {default}" for name, kind, default in self._signature()]
        names = [name for name, _, _ in self._signature()]
        lines = _fitted("    def __init__(", ["self", "params: Any", *arguments], ") -> None:")
        for i, some in enumerate(_chunks([f"{name}={name}" for name in names], WIDTH - 44)):
            lines.append(f"        defaults{' |=' if i else ': dict[str, Any] ='} dict({', '.join(some)})")
        alike: dict[str, list[str]] = {"[0, inf)": ["lr"]}
        for path, name in self.numbers.items():
            if self.names.betas and path in step.BETAS:
                continue
            alike.setdefault(_range(self.recipe, path), []).append(name)
        for interval, own in alike.items():
            lines += _checks(interval, own)
        if self.names.betas:
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
        text = f"""
            @torch.no_grad()
            def step(self, closure: Any = None) -> Any:
                \"\"\"Makes one step; returns what the closure returned.\"\"\"
                with torch.enable_grad():
                    loss = None if closure is None else closure()
            @norm
                for group in self.param_groups:
                    for p in group["params"]:
                        if p.grad is not None:
                            self._update({passed})
                return loss
        """
        lines = textwrap.indent(textwrap.dedent(text).strip("\n"), "    ").rstrip().splitlines()
        place = lines.index("    @norm")
        return [*lines[:place], *norm, *lines[place + 1 :]]

    def _update(self) -> list[str]:
        extra = ", grad_norm: Any" if self.recipe.analysis.needs_norm else ""
        states = {text: self.recipe.analysis.state_kinds[name] for name, text in self.names.states.items()}
        lines = [
            f"def _update(self, p: torch.Tensor, group: dict[str, Any]{extra}) -> None:",
            '    """Makes the step of one tensor."""',
            "    if p.grad is None or p.grad.is_sparse or p.is_complex():",
            f'        raise TypeError("{self.title} takes dense, real parameters and gradients")',
            *self._read(),
            "    state = self.state[p]",
            "    if not state:",
            '        state["step"] = torch.tensor(0.0)',
            *self._first_states(states),
            *(
                f'        state["{name}"] = torch.tensor({self._first_number(name)}, dtype=torch.float64)'
                for name in self.recalled
            ),
            '    t = state["step"].add_(1).item()' if "t" in self.step.used else '    state["step"] += 1',
        ]
        if read := [name for name in states if name in self.step.used or self._written(name)]:
            lines += _assigned("    ", read, [f'state["{name}"]' for name in read])
        if self.recalled:
            lines += _assigned("    ", self.recalled, [f'state["{name}"].item()' for name in self.recalled])
        lines += ["    theta, g = p.to(wide), p.grad.to(wide)", "", *(f"    {line}" for line in self.step.lines), ""]
        lines += [f"    {line}" for line in self.step.writes]
        return [f"    {line}" for line in lines]

    def _first_number(self, recalled: str) -> str:
        """What stands for a number of the step before the first one; no step depends on it."""
        name = recalled.removesuffix("_old")
        return name if name in ("lr", *self.numbers.values()) else "1.0"

    def _written(self, state: str) -> bool:
        return any(line.startswith(f"{state}.") for line in self.step.writes)

    def _read(self) -> list[str]:
        names = ["lr", *self._values()]
        lines = _assigned("    ", names, [f'group["{name}"]' for name in names])
        lines += ['    beta1, beta2 = group["betas"]'] if self.names.betas else []
        return [*lines, "    wide = torch.promote_types(p.dtype, torch.float32)"]

    def _first_states(self, states: dict[str, str]) -> list[str]:
        """Statements that make the states before the first step; a loop over more than two alike."""
        alike: dict[str, list[str]] = {}
        for name, kind in states.items():
            alike.setdefault(self._initial(name, kind), []).append(name)
        lines = []
        for value, names in alike.items():
            if len(names) > 2:
                lines.append(f"        for name in ({_quoted(names)}):")
                lines.append(f"            state[name] = {value}")
            else:
                lines += [f'        state["{name}"] = {value}' for name in names]
        return lines

    def _initial(self, name: str, kind: str) -> str:
        path = next(path for path, text in self.names.states.items() if text == name)
        slot, _, state = path.rpartition(".")
        value = parts.value_at(self.recipe, slot).initial(state) if slot not in ("direction", "gradient") else 0.0
        if kind == ELEMENT or (kind == SCOPE and self.recipe.scope == "coordinate"):
            start = "torch.zeros_like(p, dtype=wide)" if not value else f"torch.full_like(p, {literal(value)}, dtype=wide)"
        elif kind == SCOPE and self.recipe.scope == "channel":
            shape = "p.shape[:1] + (1,) * (p.ndim - 1)"
            start = f"torch.full({shape}, {literal(float(value))}, dtype=wide, device=p.device)"
        else:
            start = f"torch.full((), {literal(float(value))}, dtype=wide, device=p.device)"
        return start


def class_name(name: str) -> str:
    """A recipe's name as that of a class."""
    words = re.findall(r"\w+", name.partition("[")[0]) or ["Recipe"]
    joined = "".join(word[:1].upper() + word[1:] for word in words)
    return joined if joined[0].isalpha() else f"Recipe{joined}"


def _range(recipe: Recipe, path: str) -> str:
    owner, _, last = path.rpartition(".")
    field = next(f for f in dataclasses.fields(parts.value_at(recipe, owner)) if f.name == last)
    return field.metadata["range"].text if "range" in field.metadata else ""


def _checks(interval: str, names: list[str]) -> list[str]:
    """Range checks of numbers that lie in the same interval: one of its own, or a loop over several."""
    if not _within(interval, "value"):
        return []
    if len(names) == 1:
        return [f"        if not {_within(interval, names[0])}:", f"            raise ValueError({_message(interval, *names)})"]
    value = "defaults[name]"
    return [
        f"        for name in ({_quoted(names)}):",
        f"            if not {_within(interval, value)}:",
        f"                raise ValueError({_message(interval, '{name}', value)})",
    ]


def _message(interval: str, name: str, value: str = "") -> str:
    return f'f"{name} must lie in {interval}, got {{{value or name}}}"'


def _quoted(names: list[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def _within(interval: str, name: str) -> str:
    """The condition that a number lies in an interval; "" where it always does."""
    if not interval:
        return ""
    low, high = (part.strip() for part in interval[1:-1].split(","))
    if high == "inf" and interval[-1] == "]":
        return "" if low == "-inf" else f"{name} {'>=' if interval[0] == '[' else '>'} {low}"
    left = "" if low == "-inf" else f"{low} {'<=' if interval[0] == '[' else '<'} "
    bound = 'float("inf")' if high == "inf" else high
    return f"{left}{name} {'<=' if interval[-1] == ']' else '<'} {bound}"


def _printed(recipe: Recipe) -> list[str]:
    """The printed algorithm; where its columns are too wide, a block's numbers stand below its equation."""
    lines = describe.text(recipe).splitlines()
    if max(map(len, lines)) <= WIDTH - 4:
        return lines
    rows = [re.fullmatch(r"(.{14}.*?)(?: {3,}(.*))?", line) for line in lines]
    both = [(row[1], row[2] or "") for row in rows if row]
    return [part for left, right in both for part in _beside(left, right)]


def _beside(left: str, right: str) -> list[str]:
    one = f"{left}   {right}".rstrip()
    return [one] if len(one) <= WIDTH - 4 else [left, " " * 16 + right]


def _paragraphs(lines: list[str]) -> list[list[str]]:
    """The paragraphs of a docstring, each filled anew and after a blank line; an indented one stays as it is."""
    texts = [text for text in "\n".join(lines).split("\n\n") if text.strip()]
    return [
        ["", *(t.splitlines() if t.startswith(" ") else textwrap.wrap(t, WIDTH - 4))] for t in (x.strip("\n") for x in texts)
    ]


def _fitted(head: str, items: list[str], tail: str) -> list[str]:
    """A call on one line, or with its arguments on the next or on lines of their own, as formatters break it."""
    if len(one := head + ", ".join(items) + tail) <= WIDTH:
        return [one]
    indent = " " * (len(head) - len(head.lstrip()) + 4)
    if len(one := indent + ", ".join(items)) <= WIDTH:
        return [head, one, indent[4:] + tail]
    return [head, *(f"{indent}{item}," for item in items), indent[4:] + tail]


def _assigned(indent: str, names: list[str], values: list[str]) -> list[str]:
    """Several names at once, as many to a line as fit."""
    room = WIDTH - len(indent) - 8
    pairs = _chunks([f"{name}  {value}" for name, value in zip(names, values, strict=True)], room)
    split = [list(zip(*(pair.split("  ") for pair in some), strict=True)) for some in pairs]
    return [f"{indent}{', '.join(left)} = {', '.join(right)}" for left, right in split]


def _chunks(items: list[str], room: int) -> list[list[str]]:
    """The items in order, so many together as have room with two characters between them."""
    chunks: list[list[str]] = [[]]
    for item in items:
        if chunks[-1] and sum(len(other) + 2 for other in chunks[-1]) + len(item) > room:
            chunks.append([])
        chunks[-1].append(item)
    return chunks

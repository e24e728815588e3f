"""The method that makes the step of one tensor: all tensors of a recipe, or those of one of its roles."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import NoReturn

from sandbox.blocks import COLUMNS, ELEMENT, LEFT, RIGHT, ROWS, SCOPE
from sandbox.forms.source import step
from sandbox.forms.source.expressions import literal
from sandbox.forms.source.layout import assign, quote
from sandbox.forms.source.loops import Line
from sandbox.forms.source.recording import Refused
from sandbox.recipe import Recipe, parts

# Shapes on which a step is recorded: a block that chooses by shape computes something else on one of them.
ANY_SHAPE = ((4, 3), (5,), (2, 3, 2, 2), ())
MANY = 9  # more states than these are a history
WIDE, TALL, SQUARE = ((3, 5), (2, 7)), ((5, 3), (7, 2)), ((4, 4),)


class Role:
    """One recipe's step as a method.

    prefix: before the names of its numbers in a group.  ratio: its rate over that of the group.
    numbers: dotted path -> name, of the hyperparameters that the method reads.  recalled: of the numbers that it keeps.
    """

    def __init__(self, recipe: Recipe, fixed: Sequence[str], *, method: str, prefix: str = "", ratio: float = 1.0) -> None:
        self.recipe, self.method, self.prefix, self.ratio = recipe, method, prefix, ratio
        self.names = step.names_for(recipe, fixed)
        if any(kind == "square" for kind in recipe.analysis.state_kinds.values()):
            raise Refused("a state of all pairs of a tensor's entries")
        if len(recipe.analysis.state_kinds) > MANY:
            raise Refused(
                f"{_largest(recipe)} keeps a history in states of their own, and a file would repeat its lines for each"
            )
        shapes = WIDE + SQUARE + TALL if recipe.analysis.matrix else ((5,),) if recipe.scope == "global" else ANY_SHAPE
        steps = [step.step_of(recipe, self.names, fixed, shape) for shape in shapes]
        self.step = steps[0]
        others = [other for other in steps if other.lines != self.step.lines]
        if others and recipe.analysis.matrix and [s.lines for s in others] == [steps[-1].lines] * 2 and steps[-1] in others:
            self.step = _choose(steps[-1], self.step)
        elif others:
            _blame(self.step, others[0])
        text = " ".join([*self.step.lines, *self.step.writes])
        self.numbers = {path: name for path, name in self.names.hyperparameters.items() if re.search(rf"\b{name}\b", text)}
        self.recalled = [name for name in self.names.recalled.values() if name in self.step.used]

    @property
    def betas(self) -> bool:
        """Whether a group has torch.optim's pair of β for it."""
        return self.names.betas and not self.prefix

    def entries(self) -> dict[str, str]:
        """Dotted path -> entry of a group, the pair of β apart."""
        return {path: self.prefix + n for path, n in self.numbers.items() if not (self.betas and path in step.BETAS)}

    def lines(self, title: str) -> list[str]:
        """The method."""
        together = self.recipe.scope == "global"
        states = {text: self.recipe.analysis.state_kinds[name] for name, text in self.names.states.items()}
        taken = "params: list[torch.Tensor]" if together else "p: torch.Tensor"
        extra = ", grad_norm: Any" if self.recipe.analysis.needs_norm else ""
        if "hessian" in self.recipe.analysis.inputs:
            extra += ", z: torch.Tensor, Hz: torch.Tensor"
        what = "several tensors, which share their scalars" if together else f"one {self.kind}"
        begun = [
            "if not state:",
            '    state["step"] = torch.tensor(0.0)',
            *(f"    {line}" for line in self._first_states(states)),
            *(f'    state["{n}"] = torch.tensor({self._first_number(n)}, dtype=torch.float64)' for n in self.recalled),
        ]
        checked = [
            "if p.grad is None or p.grad.is_sparse or p.is_complex():",
            f'    raise TypeError("{title} takes dense, real parameters and gradients")',
        ]
        rest = self._together if together else self._alone
        return [
            f"    def {self.method}(self, {taken}, group: dict[str, Any]{extra}) -> None:",
            f'        """Makes the step of {what}."""',
            *(f"        {line}".rstrip() for line in rest(checked, begun, states)),
        ]

    @property
    def kind(self) -> str:
        """What the method steps: a tensor, a matrix or a vector."""
        return self.method.removeprefix("_").replace("update", "tensor")

    def _alone(self, checked: list[str], begun: list[str], states: dict[str, str]) -> list[str]:
        """The body for one tensor."""
        matrix, counted = self.recipe.analysis.matrix, "t" in self.step.used
        lines = [*checked, *self._read(), "state = self.state[p]", *begun]
        lines.append('t = state["step"].add_(1).item()' if counted else 'state["step"] += 1')
        view = ".view(rows, -1)" if matrix else ""
        if read := self._needed(states):
            lines += assign("", read, [f'state["{n}"]{view if states[n] == ELEMENT else ""}' for n in read])
        if self.recalled:
            lines += assign("", self.recalled, [f'state["{name}"].item()' for name in self.recalled])
        shape = ".reshape(rows, -1)" if matrix else ""
        lines += [f"theta, g = p.to(wide){shape}, p.grad.to(wide){shape}"]
        lines += ["z, Hz = z.to(wide), Hz.to(wide)"] if "Hz" in self.step.used else []
        lines += ["", *self.step.lines, ""]
        back = (lambda line: re.sub(r"^p\.copy_\((.*)\)$", r"p.copy_((\1).view_as(p))", line)) if matrix else str
        return [*lines, *map(back, self.step.writes)]

    def _together(self, checked: list[str], begun: list[str], states: dict[str, str]) -> list[str]:
        """The body for several tensors, laid end to end in one vector."""
        lines = ["for p in params:", *(f"    {line}" for line in checked), *self._read("params[0]")]
        lines += ["states = [self.state[p] for p in params]", "for p, state in zip(params, states, strict=True):"]
        lines += [*(f"    {line}" for line in begun), '    state["step"] += 1']
        lines += ['t = states[0]["step"].item()'] if "t" in self.step.used else []
        vectors = [name for name in self._needed(states) if states[name] == ELEMENT]
        for name in self._needed(states):
            joined = f'torch.cat([state["{name}"].flatten() for state in states])'
            lines.append(f"{name} = {joined}" if name in vectors else f'{name} = states[0]["{name}"]')
        looked = [name for name in self.recalled if re.search(rf"\b{name}\b", " ".join(self.step.lines))]
        lines += assign("", looked, [f'states[0]["{name}"].item()' for name in looked]) if looked else []
        lines += ["theta = torch.cat([p.flatten().to(wide) for p in params])"]
        lines += ["g = torch.cat([p.grad.flatten().to(wide) for p in params if p.grad is not None])", "", *self.step.lines, ""]
        lines += ["# each tensor takes its part", "sizes = [p.numel() for p in params]"]
        for write in self.step.writes:
            target, function, value = re.fullmatch(r"(.*)\.(copy_|fill_)\((.*)\)", write).groups()  # type: ignore[union-attr]
            if target in vectors:
                lines += [f"for state, part in zip(states, torch.split({value}, sizes), strict=True):"]
                lines += [f'    state["{target}"].copy_(part.view_as(state["{target}"]))']
            elif target == "p":
                lines += [f"for p, part in zip(params, torch.split({value}, sizes), strict=True):"]
                lines += ["    p.copy_(part.view_as(p))"]
            else:
                own = target if target.startswith("state[") else f'state["{target}"]'
                lines += ["for state in states:", f"    {own}.{function}({value})"]
        return lines

    def _needed(self, states: dict[str, str]) -> list[str]:
        """The states that the step reads or writes."""
        return [name for name in states if name in self.step.used or self._writes_state(name)]

    def _read(self, p: str = "p") -> list[str]:
        rate = 'group["lr"]' if self.ratio == 1 else f'{literal(self.ratio)} * group["lr"]'
        entries = self.entries()
        names = [name for path, name in self.numbers.items() if path in entries]
        lines = assign("", ["lr", *names], [rate, *(f'group["{self.prefix}{name}"]' for name in names)])
        lines += ['beta1, beta2 = group["betas"]'] if self.betas else []
        lines += ["rows = p.shape[0] if p.ndim else 1"] if self.recipe.analysis.matrix else []
        return [*lines, f"wide = torch.promote_types({p}.dtype, torch.float32)"]

    def _first_number(self, recalled: str) -> str:
        """What stands for a number of the step before the first one; no step depends on it."""
        name = recalled.removesuffix("_old")
        return name if name in ("lr", *self.numbers.values()) else "1.0"

    def _writes_state(self, state: str) -> bool:
        return any(line.startswith(f"{state}.") for line in self.step.writes)

    def _first_states(self, states: dict[str, str]) -> list[str]:
        """Statements that make the states before the first step; a loop over more than two alike."""
        alike: dict[str, list[str]] = {}
        for name, kind in states.items():
            alike.setdefault(self._initial(name, kind), []).append(name)
        lines = []
        for value, names in alike.items():
            if len(names) > 2:
                lines += [f"for name in ({quote(names)}):", f"    state[name] = {value}"]
            else:
                lines += [f'state["{name}"] = {value}' for name in names]
        return lines

    def _initial(self, name: str, kind: str) -> str:
        path = next(path for path, text in self.names.states.items() if text == name)
        slot, _, state = path.rpartition(".")
        value = parts.value_at(self.recipe, slot).initial(state) if slot not in ("direction", "gradient") else 0.0
        if kind == ELEMENT or (kind == SCOPE and self.recipe.scope == "coordinate"):
            return "torch.zeros_like(p, dtype=wide)" if not value else f"torch.full_like(p, {literal(value)}, dtype=wide)"
        columns = "p.numel() // rows"
        if kind in (LEFT, RIGHT):
            identity = f"torch.eye({'rows' if kind == LEFT else columns}, dtype=wide, device=p.device)"
            return identity if value == 1 else f"{literal(float(value))} * {identity}"
        channels = "p.shape[:1] + (1,) * (p.ndim - 1)" if self.recipe.scope == "channel" and kind == SCOPE else "()"
        shape = {ROWS: "(rows, 1)", COLUMNS: f"(1, {columns})"}.get(kind, channels)
        return f"torch.full({shape}, {literal(float(value))}, dtype=wide, device=p.device)"


def _largest(recipe: Recipe) -> str:
    """The block with the most states."""
    path, block = max(recipe.blocks(), key=lambda pair: len(pair[1].state))
    return f"block {type(block).__name__} in slot {path.partition('.')[0]!r}"


def _blame(one: step.Step, other: step.Step) -> NoReturn:
    """Raises Refused, naming the block whose lines differ between two shapes."""
    mine, theirs = ([*s.numbers, *s.tensors] for s in (one, other))
    owner = next((line.owner for line in [*mine, *theirs] if line.owner and (line in mine) != (line in theirs)), "a block")
    raise Refused(f"{owner} chooses by the shape of a tensor, so one run of it does not show all that it does")


def _choose(tall: step.Step, wide: step.Step) -> step.Step:
    """A step that chooses between two by the longer side, where they differ."""
    a, b = tall.tensors, wide.tensors
    start = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    end = next((i for i, (x, y) in enumerate(zip(reversed(a), reversed(b), strict=False)) if x != y), 0)
    while a[start].text.startswith("    "):  # within a loop: the loop is chosen
        start -= 1
    while a[len(a) - end].text.startswith("    "):
        end -= 1
    if tall.numbers != wide.numbers or tall.writes != wide.writes:
        _blame(tall, wide)
    lines = [*a[:start], Line("if theta.shape[0] > theta.shape[1]:", "")]
    lines += [Line(f"    {line.text}", line.owner) for line in a[start : len(a) - end]]
    lines += [Line("else:", ""), *(Line(f"    {line.text}", line.owner) for line in b[start : len(b) - end])]
    return dataclasses.replace(wide, tensors=[*lines, *a[len(a) - end :]], used=tall.used | wide.used)

"""The lines of one tensor's step: the recorded calls of a recipe, as statements with the blocks' names and comments."""

from __future__ import annotations

import dataclasses
import keyword
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sandbox.blocks import Flow, scope
from sandbox.forms.source.expressions import Writer, names_of
from sandbox.forms.source.loops import Line, Statement, fold_loops, fold_repetitions
from sandbox.forms.source.recording import Apart, Channels, Node, Recorder, Refused
from sandbox.recipe import Recipe, kernel, parts, pure

# What the flow of a step calls a value, and what the file calls it.
_FLOW = {"d_old": "d_old", "s": "s", "y": "y", "u": "u", "averaged": "B_bar", "D": "D", "d": "d"}
# Names of results that nobody named.
_RESULTS = {
    "where": "chosen",
    "sum": "total",
    "add": "summed",
    "sub": "difference",
    "mul": "product",
    "div": "quotient",
    "pow": "power",
}
_GREEK = {"θ": "theta", "Δ": "delta", "α": "alpha", "ρ": "rho", "γ": "gamma"}
_RESERVED = {
    "self",
    "p",
    "g",
    "group",
    "state",
    "theta",
    "t",
    "lr",
    "lr_t",
    "lr_old",
    "grad_norm",
    "torch",
    "math",
    "params",
    "step",
}
BETAS = ("moment.beta", "curvature.beta")


@dataclasses.dataclass(frozen=True)
class Names:
    """What the file calls hyperparameters (by dotted path) and states (by `state_kinds`); recalled: numbers kept in the state.

    Two β of moment and curvature are `betas`, as in torch.optim.  off: hyperparameters that are 0, as they are by default: the
    file does not have them.
    """

    hyperparameters: dict[str, str]
    states: dict[str, str]
    recalled: dict[str, str]
    off: tuple[str, ...]

    @property
    def betas(self) -> bool:
        """Whether the file has torch.optim's pair."""
        return all(path in self.hyperparameters for path in BETAS)


def names_for(recipe: Recipe, fixed: Sequence[str]) -> Names:
    """The names of one recipe's numbers and states in its file."""
    taken, values = set(_RESERVED), recipe.hyperparameters()
    off = tuple(path for path, value in values.items() if value == 0 and _default(recipe, path) == 0)
    numbers = [path for path in values if path.partition(".")[0] != "lr" and path not in off]
    pair = dict(zip(BETAS, ("beta1", "beta2"), strict=True)) if set(BETAS) <= set(numbers) else {}
    taken |= {"beta", *pair.values()} if pair else set()
    hyper = {path: pair.get(path, "") for path in numbers}
    hyper |= names_of([path for path in numbers if path not in pair], taken)
    states: dict[str, str] = {}
    for name in recipe.analysis.state_kinds:
        slot, _, last = name.rpartition(".")
        wanted = "g_old" if last == "g" else "d_old" if slot == "direction" else "B_bar" if slot == "averaging" else last
        states[name] = wanted if wanted not in taken else name.replace(".", "_")
        taken.add(states[name])
    recalled = {name: f"{hyper.get(name, name.replace('.', '_'))}_old" for name in ("lr", *recipe.analysis.recalled)}
    return Names(hyper, states, {name: text for name, text in recalled.items() if name not in fixed}, off)


def _default(recipe: Recipe, path: str) -> Any:
    owner, _, last = path.rpartition(".")
    fields = dataclasses.fields(parts.value_at(recipe, owner)) if owner else ()
    return next((field.default for field in fields if field.name == last), None)


@dataclasses.dataclass
class Step:
    """What computes one tensor's step, numbers first, and the lines that write it.

    used: the names of leaves that they read.  imports: modules beside torch.
    """

    numbers: list[Line]
    tensors: list[Line]
    writes: list[str]
    used: set[str]
    imports: set[str]

    @property
    def lines(self) -> list[str]:
        """All lines before those that write."""
        return [line.text for line in (*self.numbers, *([Line("", "")] if self.numbers else []), *self.tensors)]


def step_of(recipe: Recipe, names: Names, fixed: Sequence[str], shape: tuple[int, ...] = (4, 3)) -> Step:
    """Runs the recipe's step once on a tensor of this shape, and writes down what it did.

    Raises Refused for a block that one run does not show.
    """
    theta = torch.linspace(-1.0, 1.3, max(torch.Size(shape).numel(), 1), dtype=torch.float32).reshape(shape)
    recording = _Recording(recipe, names, fixed, theta)
    writer = Writer({names.hyperparameters.get(path, path) for path in names.off}, theta)
    return _Statements(recording, writer).step(names)


class _Recording:
    """A recipe's step with hyperparameters, t and rates as leaves.  given: what blocks call a value; outputs: states and θ."""

    def __init__(self, recipe: Recipe, names: Names, fixed: Sequence[str], theta: Tensor) -> None:
        for path, block in recipe.blocks():
            if len({float(block.due(float(t))) for t in range(1, 500)}) > 1:
                raise Refused(f"block {type(block).__name__} in slot {path.partition('.')[0]!r} works at some steps only")
        self.recorder = recorder = Recorder(tuple(theta.shape))
        values, analysis = recipe.hyperparameters(), recipe.analysis
        with recorder:
            named = {path: names.hyperparameters.get(path, path if path in names.off else "lr") for path in values}
            leaves = {path: recorder.leaf(_number(v), named[path], host=True) for path, v in values.items()}
            t, lr = recorder.leaf(_number(3.0), "t", host=True), leaves.get("lr")
            for path, leaf in leaves.items():
                if path != "lr":
                    recipe = parts.replaced(recipe, path, leaf, check=False)
            vars(recipe)["analysis"] = analysis
            if lr is None:
                lr = recipe.lr(t)
                self._name(lr, "lr_t")
            last = {"lr": lr if "lr" in fixed else recorder.leaf(_number(0.02), "lr_old", host=True)}
            for name in analysis.recalled:
                old = names.recalled.get(name)
                current = parts.value_at(recipe, name)
                last[name] = current if old is None else recorder.leaf(_number(0.5), old, host=True)
            recorder.leaf(theta, "theta", host=False)
            g = recorder.leaf(torch.linspace(0.3, 1.7, theta.numel(), dtype=theta.dtype).reshape(theta.shape), "g", host=False)
            state = {}
            for place, (name, kind) in enumerate(analysis.state_kinds.items()):
                filled = torch.full(pure.state_shape(recipe, kind, theta), 0.5 + place, dtype=theta.dtype)
                state[name] = recorder.leaf(filled, names.states[name], host=False)
            norm = recorder.leaf(_number(2.0), "grad_norm", host=False) if analysis.needs_norm else None
            inputs = None
            if "hessian" in analysis.inputs:
                z, Hz = (recorder.leaf(torch.full_like(theta, v), n, host=False) for v, n in ((1.0, "z"), (0.7, "Hz")))
                inputs = {"hessian": recipe.curvature.hessian(z, Hz)}
            seen: list[Flow] = []
            prepared = kernel.evaluate(recipe, t, lr, last)
            vars(prepared.recipe)["analysis"] = vars(prepared.recipe_old)["analysis"] = analysis
            within = Channels(recorder) if recipe.scope == "channel" else scope.of_tensor(recipe.scope)
            tensor = Apart() if recipe.scope == "global" else scope.OneTensor()
            new, after = kernel.advance(prepared, state, theta, g, tensor, within, norm, inputs, seen.append)
            applied = {name: recorder.node(value) for name, value in prepared.applied.items() if name in names.recalled}
        self.together, self.kept = recipe.scope == "global", list(names.recalled.values())
        self.outputs = {name: recorder.node(value) for name, value in new.items()}
        self.theta, self.applied = recorder.node(after), applied
        self.given: dict[Node, str] = {}
        for attribute, called in _FLOW.items():
            if isinstance(value := vars(seen[0]).get(attribute), Tensor):
                self.given.setdefault(recorder.node(value), called)
        for own in prepared.coefficients.values():
            for called, value in own.items():
                if isinstance(value, Tensor):
                    self.given.setdefault(recorder.node(value), called)

    def _name(self, value: Any, name: str) -> None:
        self.recorder.node(value).name = name


def _number(value: float) -> Tensor:
    return torch.full((), float(value), dtype=torch.float64)


class _Statements:
    """Chooses which calls get a statement and a name of their own; the others stand inside an expression."""

    def __init__(self, recording: _Recording, writer: Writer) -> None:
        self.recording, self.writer = recording, writer
        self.finals = {node: name for name, node in reversed(recording.outputs.items())}
        roots = [*recording.outputs.values(), recording.theta, *recording.applied.values()]
        self.users: dict[Node, list[Node]] = {}
        live, todo = set[Node](), [self._plain(node) for node in roots]
        while todo:
            node = todo.pop()
            if node in live or writer.constant(node) is not None:
                continue
            live.add(node)
            for source in self._sources(node):
                self.users.setdefault(source, []).append(node)
                todo.append(source)
        self.order = [node for node in recording.recorder.nodes if node in live]
        self.used = {str(node.name) for node in live if node.op == "leaf"}
        if recording.together:  # tensors whose last step was another one do not share a scalar
            self.used |= set(recording.kept)
        self.taken = _RESERVED | self.used | set(writer.zero)

    def _plain(self, node: Node) -> Node:
        """The node that stands for this one where an operand is 0 or 1."""
        while (same := self.writer.simplified(node)) is not None:
            node = same
        return node

    def _sources(self, node: Node) -> list[Node]:
        return [self._plain(source) for source in node.inputs() if self.writer.constant(source) is None]

    def step(self, names: Names) -> Step:
        """The statements in order, numbers of the step first."""
        self.taken |= set(names.states.values())
        numbers: list[Statement] = []
        tensors: list[Statement] = []
        told, slot, computed = set[str](), "", dict[str, str]()
        for node in self.order:
            if self._inside(node) or node is self.recording.theta:
                continue
            body, _ = self.writer.expression(node)
            if node not in self.finals and body in computed:
                node.name = computed[body]
                continue
            lines = numbers if node.host else tensors
            begins = not node.host and node.site is not None and node.site.slot != slot
            slot = node.site.slot if begins and node.site else slot
            if several := [other for other in self.order if other.op == "part" and other.args[0] is node]:
                node.name = self._name_parts(node, several)
            else:
                node.name = computed[body] = self._fresh(self._preferred_name(node, names))
            comment = [line for line in (node.site.comment if node.site else ()) if line not in told]
            told |= set(comment)
            owner = node.site.owner if node.site else "the step"
            lines.append(Statement(node.name, body, comment, owner, begins))
        loops = fold_repetitions(tensors, self.writes(names))
        return Step(fold_loops(numbers), fold_loops(loops), self.writes(names), self.used, self.writer.imports)

    def _name_parts(self, node: Node, several: list[Node]) -> str:
        """Names for the parts of what returns several tensors; those that nothing needs are called _."""
        wanted = (node.site.target if node.site else "").split(", ")
        names = ["_"] * len(node.value)
        for part in several:
            place = part.args[1]
            stated = wanted[place] if len(wanted) == len(names) else f"{node.op.rpartition('_')[2]}{place}"
            part.name = names[place] = self._fresh(stated)
        return ", ".join(names)

    def _inside(self, node: Node) -> bool:
        """Whether a node is written inside the expression of the one that uses it."""
        if node.name or node.op == "count" or self.writer.simplified(node) is not None:
            return True
        users = self.users.get(node, [])
        if node.host and isinstance(node.value, Tensor) and node.value.dtype == torch.bool:
            return len(users) == 1 or all(n.name for n in node.inputs() if self.writer.constant(n) is None)
        if node in self.finals or node is self.recording.theta or len(users) != 1 or node in self.recording.given:
            return False
        if node.op == "part" or node.site is None or users[0].site is None:
            return False
        return node.site.file == kernel.__file__ or node.site.place == users[0].site.place

    def _preferred_name(self, node: Node, names: Names) -> str:
        if node in self.finals:
            name = names.states[self.finals[node]]
            return name.removesuffix("_old") if name.endswith("_old") else f"{name}_new"
        site = node.site
        old = "_old" if site and site.slot == "recall" else ""
        stated = re.match(r"# (\w)(?:_t)? (?:=|←) ", site.comment[-1]) if site and site.comment else None
        target = site.target if site and "," not in site.target else ""
        wanted = self.recording.given.get(node) or (target.strip("_").lower() if target.startswith("_") else target)
        wanted = wanted or (_GREEK.get(stated[1], stated[1]) + old if stated else "")
        if node not in self.recording.given and (not wanted.isascii() or wanted in self.recording.given.values()):
            wanted = ""
        wanted = wanted or ("g" if site and site.slot.startswith("gradient") else "")
        return re.sub(r"\W", "_", wanted or _RESULTS.get(node.op.strip("_"), node.op.strip("_")))

    def _fresh(self, wanted: str) -> str:
        base, k = wanted + "_" * keyword.iskeyword(wanted), 2
        name = base
        while name in self.taken:
            name, k = f"{base}{k}", k + 1
        self.taken.add(name)
        return name

    def writes(self, names: Names) -> list[str]:
        """Statements that write the new state; one that is another state's old value first."""
        after = {name: self._plain(node) for name, node in self.recording.outputs.items()}
        lines = []
        for name, node in after.items():
            target = names.states[name]
            if node.name == target:
                continue
            if node.host:
                lines.append(f"{target}.fill_({self.writer.text(node)})")
            elif node.op == "leaf" and node.name in names.states.values():
                lines.insert(0, f"{target}.copy_({node.name})")
            else:
                lines.append(f"{target}.copy_({self.writer.text(node)})")
        lines.append(f"p.copy_({self.writer.text(self.recording.theta)})")
        for name, node in self.recording.applied.items():
            if names.recalled[name] not in self.used:
                continue
            lines.append(f'state["{names.recalled[name]}"].fill_({self.writer.text(self._plain(node))})')
        return lines

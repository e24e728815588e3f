"""The source of a script around the graph: written out for a recipe's states, it lays tensors out and counts steps."""

from __future__ import annotations

import torch

from sandbox.blocks import COLUMNS, ELEMENT, LEFT, RIGHT, ROWS, SCOPE, SQUARE, TENSOR
from sandbox.recipe import Recipe, pure, rounding
from sandbox.recipe.pure import state_dtype


def source(recipe: Recipe, dtype: torch.dtype) -> str:
    """Returns the program around the graph, in TorchScript."""
    kinds, wide = recipe.analysis.state_kinds, str(state_dtype(dtype))
    initial = {f"{path}.{name}": block.initial(name) for path, block in recipe.blocks() for name in block.state}
    count = len(recipe.analysis.host_names) - 1  # at the end of `numbers`, after t and η
    first = pure.first_numbers(recipe)
    makes = "".join(
        f"        s[{name!r}] = torch.full([], {float(first[name])!r}, dtype=torch.float64, device=p.device)\n"
        for name in recipe.analysis.host_names
    )
    takes = "".join(f"    at[{i - count}] = s[{name!r}]\n" for i, name in enumerate(recipe.analysis.host_names[1:]))
    keeps = "".join(f"    s[{name!r}].copy_(numbers[{i - count}])\n" for i, name in enumerate(recipe.analysis.host_names[1:]))
    # every tensor is made from p: one that depends on nothing would be folded into a constant, and all states share it
    shape = {ELEMENT: "p.size()", SCOPE: _scope_shape(recipe.scope), ROWS: "[m, 1]", COLUMNS: "[1, n]"}
    size = {LEFT: "m", RIGHT: "n", SQUARE: "p.numel()"}
    for name, kind in kinds.items():
        maker = f"torch.eye({size[kind]}" if kind in size else f"torch.ones({shape.get(kind, '[]')}"
        value = float(initial.get(name, 0.0))
        of = rounding.dtype_of(recipe, name, state_dtype(dtype))
        makes += f"        s[{name!r}] = {value!r} * {maker}, dtype={of}, device=p.device)\n"
    few = "p.dim() < 2" + ("" if recipe.basis.limit is None else f" or max(m, n) > {recipe.basis.limit}")
    refuses = (
        f'        if {few}:\n            raise ValueError("this script takes matrices alone")\n'
        if recipe.analysis.only_matrices
        else ""
    )
    norm = ", norm: Tensor" if recipe.analysis.needs_norm else ""
    given = "".join(f", {name}: List[Tensor]" for name in recipe.analysis.inputs)
    pass_norm, pass_given = ", norm" if norm else "", "".join(f", live_{name}" for name in recipe.analysis.inputs)
    make_given = "".join(f"    live_{name}: List[Tensor] = []\n" for name in recipe.analysis.inputs)
    take_given = "".join(f"            live_{name}.append({name}[i])\n" for name in recipe.analysis.inputs)
    norm_of = (
        f"    norms = [g.to({wide}).square().sum() for g in live_grads]\n    norm = torch.stack(norms).sum().sqrt()\n"
        if norm
        else ""
    )
    body = _joint(recipe, kinds, wide) if recipe.scope == "global" else _each(recipe, kinds)
    return f"""
def init(self, params: List[Tensor]) -> List[Dict[str, Tensor]]:
    out: List[Dict[str, Tensor]] = []
    for p in params:
        if p.dtype != {dtype}:
            raise ValueError("this script was made for {dtype}")
        s: Dict[str, Tensor] = {{}}
        m = p.size(0) if p.dim() > 0 else 1
        n = p.numel() // m if m > 0 else 0
{refuses}{makes}        out.append(s)
    return out

def numbers_at(self, s: Dict[str, Tensor], lr: float, numbers: Tensor) -> Tensor:
    at = numbers.clone()
    at[{-count - 2}] = s["step"] + 1
    at[{-count - 1}].fill_(lr)
{takes}    return at

def keep(self, s: Dict[str, Tensor], numbers: Tensor) -> None:
    s["step"].add_(1)
{keeps}
def update(
    self, params: List[Tensor], grads: List[Tensor], state: List[Dict[str, Tensor]], lr: float, hyper: Tensor{norm}{given}
) -> None:
{body}

def step(self, params: List[Tensor], grads: List[Optional[Tensor]], state: List[Dict[str, Tensor]], lr: float{given}) -> None:
    live_params: List[Tensor] = []
    live_grads: List[Tensor] = []
    live_state: List[Dict[str, Tensor]] = []
{make_given}    for i in range(len(params)):
        g = grads[i]
        if g is not None and params[i].numel() > 0:
            live_params.append(params[i].detach())
            live_grads.append(g)
            live_state.append(state[i])
{take_given}    if len(live_params) == 0:
        return
{norm_of}{_cohorts(recipe, pass_norm, pass_given)}"""


def _cohorts(recipe: Recipe, norm: str, given: str) -> str:
    """Chooses which tensors step together: all where each is a scope, else those of one step count and one last rate."""
    if recipe.scope != "global":
        return f"    self.update(live_params, live_grads, live_state, lr, self.numbers{norm}{given})\n"
    parts = ["params", "grads", "state", *recipe.analysis.inputs]
    kinds = {"state": "List[Dict[str, Tensor]]"}
    start = "".join(f"            some_{p}: {kinds.get(p, 'List[Tensor]')} = []\n" for p in parts)
    take = "".join(f"                    some_{p}.append(live_{p}[j])\n" for p in parts)
    some = "".join(f", some_{name}" for name in recipe.analysis.inputs)
    alike = " and ".join(f"float(other[{name!r}]) == float(first[{name!r}])" for name in recipe.analysis.host_names)
    return f"""    done: List[bool] = [False for p in live_params]
    for i in range(len(live_params)):
        if not done[i]:
            first = live_state[i]
{start}            for j in range(i, len(live_params)):
                other = live_state[j]
                if not done[j] and {alike}:
                    done[j] = True
{take}            self.update(some_params, some_grads, some_state, lr, self.numbers{norm}{some})
"""


def _scope_shape(name: str) -> str:
    if name == "coordinate":
        return "p.size()"
    return "[p.size(0)] + [1] * (p.dim() - 1) if p.dim() > 1 else p.size()" if name == "channel" else "[]"


def _each(recipe: Recipe, kinds: dict[str, str]) -> str:
    """Writes the loop over tensors that are leaves of their own; one that is not contiguous is copied back."""

    def call(kind: str, indent: str) -> str:
        rows = "{0}.reshape({0}.size(0) if {0}.dim() > 0 else 1, -1)"
        view = "{}.reshape(-1)" if kind == "whole" else rows
        whole_scope = kind == "whole" and recipe.scope in ("channel", "coordinate")
        lines = [f"theta = {view.format('p')}"]
        arguments = ["numbers", "theta", view.format("g")]
        arguments += ["norm"] if recipe.analysis.needs_norm else []
        arguments += [view.format(f"{name}[i]") for name in recipe.analysis.inputs]
        for j, (name, shape) in enumerate(kinds.items()):
            laid = shape == ELEMENT or (shape == SCOPE and (whole_scope or recipe.scope in ("channel", "coordinate")))
            few = ".view(1)" if shape in (SCOPE, TENSOR) else ""
            lines.append(f"s{j} = " + (view.format(f's["{name}"]') if laid else f's["{name}"]{few}'))
            arguments.append(f"s{j}")
        lines.append(f"self.{kind}({', '.join(arguments)})")
        lines.append("if not p.is_contiguous():")
        lines.append("    p.copy_(theta.reshape(p.size()))")
        return "".join(f"{indent}{line}\n" for line in lines)

    head = "    for i in range(len(params)):\n        p = params[i]\n        g = grads[i]\n        s = state[i]\n"
    head += "        numbers = self.numbers_at(s, lr, hyper)\n"
    keep = "        self.keep(s, numbers)\n"
    if recipe.scope != "channel" and not recipe.analysis.matrix:
        return head + call("whole", "        ") + keep
    tall = "p.dim() > 0 and p.size(0) * p.size(0) > p.numel()"
    condition, one, other = (tall, "tall", "wide") if recipe.analysis.matrix else ("p.dim() > 1", "channels", "whole")
    several = f"        if {condition}:\n" + call(one, "            ")
    return head + several + "        else:\n" + call(other, "            ") + keep


def _joint(recipe: Recipe, kinds: dict[str, str], wide: str) -> str:
    """Joins all tensors, each the owner of as many rows as it has entries; an empty owner keeps the sizes above one."""
    lines = [
        "numbers = self.numbers_at(state[0], lr, hyper)",
        "lengths = torch.tensor([p.numel() for p in params], dtype=torch.int64, device=params[0].device)",
        "owner = torch.repeat_interleave(torch.arange(len(params), device=params[0].device), lengths)",
        "valid = torch.ones([owner.size(0)], dtype=torch.int32, device=owner.device)",
        "theta = torch.cat([p.reshape(-1, 1) for p in params])",
        "g = torch.cat([v.reshape(-1, 1) for v in grads])",
    ]
    arguments = ["numbers", "owner", "lengths", "valid", "owner", "lengths", "valid", "theta", "g"]
    arguments += ["norm"] if recipe.analysis.needs_norm else []
    lines += [f"all_{name} = torch.cat([v.reshape(-1, 1) for v in {name}])" for name in recipe.analysis.inputs]
    arguments += [f"all_{name}" for name in recipe.analysis.inputs]
    back = []
    for j, (name, shape) in enumerate(kinds.items()):
        if shape == ELEMENT:
            lines.append(f's{j} = torch.cat([s["{name}"].reshape(-1, 1) for s in state])')
            back.append(f'    state[i]["{name}"].copy_(s{j}[start:end].reshape(state[i]["{name}"].size()))')
        else:
            lines.append(f's{j} = torch.stack([s["{name}"] for s in state])')
            back.append(f'    state[i]["{name}"].copy_(s{j}[i])')
        arguments.append(f"s{j}")
    lines += [
        f"self.arena({', '.join(arguments)})",
        "start = 0",
        "for i in range(len(params)):",
        "    end = start + params[i].numel()",
        "    params[i].copy_(theta[start:end].reshape(params[i].size()))",
        *back,
        "    self.keep(state[i], numbers)",
        "    start = end",
    ]
    return "".join(f"    {line}\n" for line in lines)
